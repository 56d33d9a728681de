"""Golden values that torch makes, what makes them, and the tests of `npformer.golden`."""
