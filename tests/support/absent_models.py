"""Skips tests in a source distribution if they need a model that only the checkout has.

A test is skipped only if it fails after it has requested such a model. So a test that passes without the model still
counts, for example a test of the error. If the environment variable NPFORMER_ABSENT names a file, the skipped tests are
written to the file, one per line, and `.ci/run suite` runs exactly these tests in the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from npformer import loading

ROOT = Path(__file__).parent.parent.parent
MODELS = ("en-de-multi30k", "gpt2-austen")
ABSENT = [name for name in MODELS if not (ROOT / "weights" / name).exists()]
FILE = "NPFORMER_ABSENT"

_wanted: list[str] = []  # absent models that the running test has requested


def watch() -> None:
    """Records each absent model that a test requests. In a checkout, no model is absent."""
    explain = loading._not_installed

    def noted(name: str) -> str:
        if name in ABSENT:
            _wanted.append(name)
        return explain(name)

    if ABSENT:
        loading._not_installed = noted


def begin() -> None:
    _wanted.clear()


def skipped(item: pytest.Item, outcome: Any) -> None:
    """Turns the failure of a test that requested an absent model into a skip."""
    if not _wanted or outcome.excinfo is None or issubclass(outcome.excinfo[0], pytest.skip.Exception):
        return
    if named := os.environ.get(FILE):
        with open(named, "a", encoding="utf-8") as file:
            file.write(f"{item.nodeid}\n")
    reason = f"NOT run: it needs {_wanted[0]}, which a source distribution leaves out"
    outcome.force_exception(pytest.skip.Exception(reason, _use_item_location=True))
