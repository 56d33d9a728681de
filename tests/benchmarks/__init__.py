"""Measurements, each a program: `python -m tests.benchmarks.peers`, `.profile`, `.streaming` and `.start`.

They are not tests: nothing here is asserted, and pytest collects none of it. `peers` and a part of `start` need the
extras `oracle` and `bench`, the others NumPy and npformer alone.
"""
