"""Allows minutes for a run of the learner's whole model: a slow or busy machine may exceed the usual 20 seconds."""

import pytest

from npformer.learn import running


@pytest.fixture(autouse=True)
def long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RUN_LIMIT", 600.0)
