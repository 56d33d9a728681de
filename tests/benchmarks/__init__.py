"""Benchmarks, each a program: `python -m tests.benchmarks.peers`, and likewise for the other names in `README.md`.

They assert nothing, and pytest does not collect them. `README.md` lists the requirements of each.
"""
