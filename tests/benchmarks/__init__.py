"""Measurements, each a program: `python -m tests.benchmarks.peers`, and the same with the other names below.

They are not tests: nothing here is asserted, and pytest collects none of it. `profile`, `streaming` and most of
`start` need npformer alone; `peers`, `translation`, `training` and `torch_run` the extras `oracle` and `bench`;
`views` the extra `browser` and chromium.
"""
