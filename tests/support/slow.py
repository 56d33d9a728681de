"""For tests with many long cases: the quick tests run a few of them, and the slow tests run the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(quick: int, cases: Iterable[Any]) -> list[Any]:
    """Returns the cases of a parametrized test; all but the first `quick` cases are marked slow."""
    return [
        pytest.param(*case if isinstance(case, tuple) else (case,), marks=() if i < quick else pytest.mark.slow)
        for i, case in enumerate(cases)
    ]
