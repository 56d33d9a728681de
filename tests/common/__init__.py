"""Tests of npformer/common; `test_files.py` has helpers for other tests."""
