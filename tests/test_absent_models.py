"""A source distribution skips only tests that need a model of the checkout, and counts and names these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer import loading
from tests.support import absent_models


class Outcome:
    def __init__(self, error: BaseException | None) -> None:
        self.excinfo = error and (type(error), error, error.__traceback__)
        self.forced: BaseException | None = None

    def force_exception(self, error: BaseException) -> None:
        self.forced = error


@pytest.fixture
def _without_the_translator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "bundled", dict)
    monkeypatch.setattr(loading, "_not_installed", loading._not_installed)  # restored at the end
    monkeypatch.setattr(absent_models, "ABSENT", ["en-de-multi30k"])
    monkeypatch.setattr(absent_models, "_wanted", [])
    monkeypatch.setenv(absent_models.FILE, str(tmp_path / "absent"))
    absent_models.watch()


def outcome_of(name: str, error: BaseException | None, item: Any) -> BaseException | None:
    absent_models.begin()
    with pytest.raises(npformer.NpformerError):
        npformer.load(name, offline=True)
    outcome = Outcome(error)
    absent_models.skipped(item, outcome)
    return outcome.forced


@pytest.mark.usefixtures("_without_the_translator")
def test_a_test_that_fails_without_its_model_is_skipped_and_written_down(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    skip = outcome_of("en-de-multi30k", AssertionError(), request.node)
    assert isinstance(skip, pytest.skip.Exception)
    assert str(skip) == "NOT run: it needs en-de-multi30k, which a source distribution leaves out"
    assert (tmp_path / "absent").read_text() == f"{request.node.nodeid}\n"


@pytest.mark.usefixtures("_without_the_translator")
@pytest.mark.parametrize(
    ("name", "error"), [("en-de-multi30k", None), ("no-such-model", AssertionError()), ("gpt2-austen", KeyError())]
)
def test_a_test_that_passes_or_fails_for_another_reason_is_not(
    name: str, error: BaseException | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert outcome_of(name, error, request.node) is None
    assert not (tmp_path / "absent").exists()
