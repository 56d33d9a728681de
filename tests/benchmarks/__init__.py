"""Benchmarks, each a program: `python -m tests.benchmarks.peers`, for example; `README.md` lists the others.

Benchmarks assert nothing, and pytest does not collect them. `README.md` lists their requirements.
"""
