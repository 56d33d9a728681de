"""A port's mistakes in a decoder of each family are named, from all stages and from hidden states."""

from __future__ import annotations

from typing import Any

import pytest

from npformer.config import Local
from npformer.engine.mechanisms import PartialRotary, Rotary, RowNorm, Window
from npformer.engine.mechanisms.rotary_scaling import LongRope
from tests.support import tiny
from tests.support.edited_pages import diagnosis
from tests.support.planted_decoders import PLANTED
from tests.support.rotary_frequencies import THETA

#: Family -> fields of a tiny model in which every planted mistake changes the numbers.
FIELDS: dict[str, dict[str, Any]] = {
    "bloom": {"n_heads": 6, "d_model": 48},
    "gpt_neox": {"mechanisms": (PartialRotary(30.0, columns=4),)},
    "olmo2": {"mechanisms": (RowNorm(), Rotary(30.0)), "n_kv_heads": 2},
    "opt": {"norm_first": False, "final_norm": False},
    "phi3": {"mechanisms": (PartialRotary(30.0, columns=4), Window(4))},
    "smollm3": {"n_layers": 3, "local": Local((1,), ()), "mechanisms": (Rotary(30.0),)},
}
#: Mistakes that need other fields: two norms can be exchanged only if their widths are equal, and a scaled rotation
#: needs a text that is longer than the original length of 7 (the texts have 9 and 6 tokens).
LONG = {"mechanisms": (PartialRotary(THETA, scaling=LongRope((1.0, 1.5), (3.0, 12.5), 7, 4.0), columns=4),)}
OTHERS = {
    ("olmo2", "norms after blocks exchanged"): {"n_kv_heads": 0},
    ("olmo2", "norms of queries and keys exchanged"): {"n_kv_heads": 0},
    ("phi3", "short factors"): LONG,
    ("phi3", "no attention factor"): LONG,
}
#: Family -> mistakes that the quick tests diagnose from all stages.
QUICK = {
    "bloom": ("slopes of 2^(-8 h / H)", "wrong sign"),
    "gpt_neox": ("split in thirds", "one after another", "whole heads"),
    "olmo2": ("norms before blocks", "norms of heads", "norms after blocks exchanged"),
    "opt": ("no offset", "no project_in"),
    "phi3": ("up and gate", "short factors", "no attention factor"),
    "smollm3": ("1 without rotation",),
}
#: Mistakes that are also diagnosed from hidden states.
HIDDEN = [("bloom", "no ALiBi"), ("opt", "norms before")]
HIDDEN += [("gpt_neox", "split in thirds"), ("gpt_neox", "one after another")]
HIDDEN += [(family, planted) for family in ("olmo2", "smollm3") for planted in PLANTED[family]]


def cases() -> list[Any]:
    found = []
    for family in FIELDS:
        for planted in PLANTED[family]:
            slow = () if planted in QUICK[family] else pytest.mark.slow
            found.append(pytest.param(family, planted, True, marks=slow))
    return found + [pytest.param(*case, False, marks=pytest.mark.slow) for case in HIDDEN]


@pytest.mark.parametrize(("family", "planted", "full"), cases())
def test_a_mistake_of_a_port_is_named(family: str, planted: str, full: bool) -> None:
    model = tiny.model(family, "causal-lm", **FIELDS[family] | OTHERS.get((family, planted), {}))
    name, plant = PLANTED[family][planted]
    found = diagnosis(model, plant, full)
    assert name in found, found
    assert found.count("cause:") == 1, found
