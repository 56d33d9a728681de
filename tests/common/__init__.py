"""Tests of npformer/common; `test_files.py` has what other tests use of it."""
