"""A client cannot fill the log: lines of each kind are limited in number, and counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from npformer.serve import quiet


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    made = logging.getLogger("npformer.test-quiet")
    yield made
    made.filters.clear()


def test_lines_of_one_kind_are_limited_and_counted(
    log: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(quiet, "time", SimpleNamespace(monotonic=lambda: now))
    quiet.spare(log.name, log.name)
    for i in range(100):
        log.warning("malformed request %d", i)
    log.warning("another line")
    assert [each.getMessage() for each in caplog.records] == [
        *(f"malformed request {i}" for i in range(5)), "another line",
    ]  # fmt: skip
    caplog.clear()
    now += quiet.PERIOD
    for i in range(7):
        log.warning("malformed request %d", i)
    assert [each.getMessage() for each in caplog.records] == [
        "malformed request 0 (95 more lines like this were left out)",
        *(f"malformed request {i}" for i in range(1, 5)),
    ]


def test_an_access_log_is_complete_and_few_kinds_are_remembered(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", log.name)
    quiet.spare(log.name)
    for _ in range(50):
        log.info("GET /health")
    assert len(caplog.records) == 50
    for i in range(1000):
        log.error(f"kind {i}")
    [sparing] = log.filters
    assert isinstance(sparing, quiet.Sparing)
    assert len(sparing.periods) == quiet.KINDS
