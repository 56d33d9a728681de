"""Every check of `tests/support/check_family.py`, for every family."""

from __future__ import annotations

from pathlib import Path

import pytest

from npformer.families import FAMILIES
from tests.support.check_family import CHECKS

#: All families except mT5, which is T5 with gates, and Gemma 1, because Gemma 2 has all of its parts.
DISTINCT = [name for name in FAMILIES if name not in ("mt5", "gemma")]

#: Slow check -> families for which the quick tests also run it, chosen to differ in every part that it tests.
LONG = {
    "a_port_of_unusual_sizes_is_diagnosed": ("deberta-v2", "gpt2", "gemma2", "t5"),
    "the_commands_take_it": ("bert", "gpt2", "t5"),
    "a_text_has_the_same_bits_in_any_company": ("modernbert", "deberta-v2", "gpt2", "gemma2", "t5"),
    "a_golden_file_fits_its_model_and_no_other": ("bert", "gpt2", "t5"),
}

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, marks=[pytest.mark.slow] * (name not in LONG.get(check, DISTINCT)))
        for name in DISTINCT
        for check in CHECKS
    ],
)
def test_a_family(name: str, check: str, tmp_path: Path) -> None:
    CHECKS[check](name, tmp_path)
