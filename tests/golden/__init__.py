"""Golden values from torch, the scripts that make the values, and the tests of `npformer.golden`."""
