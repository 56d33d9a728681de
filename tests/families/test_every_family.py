"""Every check of `tests/support/check_family.py`, for every family of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from npformer.families import FAMILIES
from tests.support.check_family import CHECKS

#: mT5 is T5 with gates, under another name; the parts of Gemma's first version are in Gemma 2.
DISTINCT = [name for name in FAMILIES if name not in ("mt5", "gemma")]

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", DISTINCT)
def test_a_family(name: str, check: str, tmp_path: Path) -> None:
    CHECKS[check](name, tmp_path)
