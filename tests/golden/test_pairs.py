"""Two mistakes between two exported stages are both named, although neither alone gives the port's values."""

from __future__ import annotations

import numpy as np
import pytest

from npformer import golden
from npformer.interpret.edits import edit
from npformer.interpret.traces import trace
from tests.golden.test_diagnose import MADE, arrays_of, reference
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

FEW = ("embeddings.norm", "ffn_norm", "logits")
#: Families and pairs of mistakes of `MADE`, made in the same layer.
PAIRS = [
    ("bert", "tanh gelu", "unscaled"),
    ("distilbert", "d_model", "combine"),
    ("electra", "wide", "unscaled"),
    ("bert", "tanh gelu", "q for k"),
    ("distilbert", "silu", "unscaled"),
    ("electra", "norm's bias", "d_model"),
]


@pytest.mark.parametrize(("family", "one", "other"), slow_after(1, PAIRS))
def test_two_mistakes_of_one_layer_are_named_from_hidden_states(family: str, one: str, other: str) -> None:
    model, recorded = reference(family)
    with MADE[one][0](model, recorded.texts) as made, MADE[other][0](*made) as (wrong, texts):
        arrays = {name: array for name, array in arrays_of(wrong, texts).items() if name.endswith(FEW)}
    diagnosis = golden.diagnose(recorded, arrays, model)
    found = [(each.stage, each.causes) for each in (diagnosis, *diagnosis.then)]
    assert sorted(found[:2]) == sorted(("layers.0.ffn_norm", [MADE[name][1]]) for name in (one, other)), str(diagnosis)
    assert len(found) == 2


def test_an_unknown_change_is_not_two_mistakes() -> None:
    model, recorded = reference("bert")
    with edit({"layers.0.attention.scores": lambda array: np.sin(array) + 0.3 * array}):
        found = trace(model, recorded.texts)
    arrays = {f"{i}/{name}": array for name in found if name.endswith(FEW) for i, array in enumerate(found.texts(name))}
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert (diagnosis.stage, diagnosis.causes, diagnosis.then) == ("layers.0.ffn_norm", [], [])
