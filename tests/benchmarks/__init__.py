"""Measurements, each a program: `python -m tests.benchmarks.peers`, and the same with the other names in `README.md`.

They are not tests: nothing here is asserted, and pytest collects none of it. `README.md` says what each one needs.
"""
