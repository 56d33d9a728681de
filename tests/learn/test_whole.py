"""The GPT with which a learner's file writes texts: found in the checkout of the package, or missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from npformer import loading
from npformer.learn import whole
from npformer.learn.contents import PAGES, right

ROOT = Path(__file__).parents[2]
PAGE = SimpleNamespace(**{name: right(name) for name in PAGES})


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes npformer look like an installed package, without the models of a checkout."""
    monkeypatch.setattr(loading, "bundled", dict)


@pytest.mark.skipif(not (ROOT / "weights" / whole.WRITER).exists(), reason="a source distribution has no GPT")
def test_the_checkout_that_was_installed_has_the_gpt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "installed_from", lambda: ROOT)
    assert whole.write(PAGE).text.startswith("Your file writes with gpt2-austen: It is a truth")


def test_without_a_checkout_the_learner_gets_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(whole, "installed_from", Path)
    run = whole.write(PAGE)
    assert run.ok is None
    assert "`git clone https://github.com/npformer/npformer`, and run the check in that folder" in run.text
