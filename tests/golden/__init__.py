"""Golden values from torch, the scripts that make them, and the tests of `npformer.golden`."""
