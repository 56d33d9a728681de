"""Mistakes of kernels that work in tiles are named in BERT, GPT-2 and Llama, from all stages or from hidden states."""

from __future__ import annotations

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import flatten, unflatten
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from tests.golden.test_mistakes import diagnosed, stages
from tests.support import tiny
from tests.support.edited_pages import Plant, edited, run
from tests.support.planted import MASKED
from tests.support.planted_kinds import OF_GPT2, TILED, TILES, product
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

QUICK = (
    "last inputs", "last input of q, k and v", "columns of W_2 twice", "inputs of W_2 twice", "no bias on the last tile",
    "last rows", "sums in float16", "last keys", "nothing rescaled", "lanes in the softmax", "end of the norm",
)  # fmt: skip
#: Mistakes that hidden states show too.
FROM_FEW = ("last inputs", "last columns", "keys twice", "sum rescaled", "lanes in the norm", *OF_GPT2)


def said(family: str, known: tuple[str, str, Plant], few: bool = False) -> str:
    """Returns the diagnosis of a mistake, or "" if it has the mistake's name and description."""
    name, way, plant = known
    diagnosis = diagnosed(family, stages(family, plant), few)
    certain = [fit for fit in diagnosis.fits if fit.certain]
    return "" if any(fit.mistake.name == name and way in fit.way for fit in certain) else str(diagnosis)


@pytest.mark.parametrize("key", [pytest.param(key, marks=() if key in QUICK else pytest.mark.slow) for key in TILES])
def test_a_mistake_in_a_tile_is_named(key: str) -> None:
    assert said("bert", TILES[key]) == ""


@pytest.mark.parametrize("key", slow_after(3, FROM_FEW[::-1]))
def test_a_mistake_in_a_tile_is_named_from_hidden_states(key: str) -> None:
    assert said("gpt2", (TILES | OF_GPT2)[key], few=True) == ""


def test_the_columns_of_one_product_are_named_by_their_number_alone() -> None:
    """A tile size is named only if it explains the ends of several widths. For one width, a number is named."""
    plant = product("x @ weight * (np.arange(len(bias)) < len(bias) - 4)", "at().endswith('ffn.hidden')")
    diagnosis = diagnosed("gpt2", stages("gpt2", plant), few=True)
    assert "ffn.hidden: the last 4 columns are the bias alone" in str(diagnosis)
    assert "mod" not in str(diagnosis)


def test_a_mask_of_a_tile_is_named_from_weights_too() -> None:
    assert said("gpt2", OF_GPT2["the next seen"]) == ""
    assert TILED not in diagnosed("gpt2", stages("gpt2")).causes


@pytest.mark.parametrize("ends", [("",), (".ffn_residual", "logits")], ids=["every stage", "hidden states"])
def test_the_end_of_a_product_is_named_in_llama(ends: tuple[str, ...]) -> None:
    model, texts = tiny.model("llama", "causal-lm"), [np.arange(5, 14), np.arange(20, 26)]
    recorded = golden.record(model, [Text(ids) for ids in texts])
    assert golden.compare(recorded, run(model, recorded, padded=False)).ok
    stages = run(model, recorded, product("x[..., :-2] @ weight[:-2]"), padded=False)
    diagnosis = golden.diagnose(recorded, {name: each for name, each in stages.items() if name.endswith(ends)}, model)
    assert diagnosis.causes[0] == "the end of a product wrong"
    assert "every product of the layers: without the last 2 inputs" in str(diagnosis)
    assert not diagnosis.then


def test_the_last_rows_of_every_product_are_named_from_hidden_states() -> None:
    """A layer then adds nothing to these rows, as if the layer were missing."""
    model, ids = tiny.model("llama", "causal-lm"), np.arange(5, 14)
    recorded = golden.record(model, [Text(ids)])
    stages = run(model, recorded, product("np.concatenate([(x @ weight)[:-2], 0 * x[-2:] @ weight])"), padded=False)
    given = {name: array for name, array in stages.items() if name.endswith((".ffn_residual", "logits"))}
    diagnosis = golden.diagnose(recorded, given, model)
    assert diagnosis.causes == ["some rows computed differently"]
    assert "the rows from 7 of every product of the layers: the bias alone" in str(diagnosis)
    assert not diagnosis.then


# --- numbers that are not finite -------------------------------------------------------------------------------------


def with_large_scores(family: str) -> Model:
    model = tiny.model(family)
    flat = flatten(dict(model.weights))
    large = {
        name: array * np.float32(6) for name, array in flat.items() if name.endswith((".query.weight", ".key.weight"))
    }
    return Model(model.config, unflatten(flat | large))


@pytest.mark.parametrize(("family", "dtype"), [("bert", np.float32), ("gpt2", np.float16)])
@pytest.mark.parametrize("few", [False, True], ids=["every stage", "hidden states"])
def test_a_softmax_without_its_maximum_is_named(family: str, dtype: type, few: bool) -> None:
    model = with_large_scores(family)
    texts = [Text(np.arange(5, 14)), Text(np.arange(20, 23))]
    recorded = golden.record(model, texts)
    name = np.dtype(dtype).name
    plain = edited(
        ("x - x.max(axis=axis, keepdims=True)", f"x.astype(np.{name})"), (MASKED, f"({MASKED}).astype(np.float32)")
    )
    arrays = run(model, recorded, plain)
    given = {name: array for name, array in arrays.items() if not few or name.endswith(("norm", "ffn_residual"))}
    diagnosis = golden.diagnose(recorded, given, model)
    assert diagnosis.causes == ["softmax without subtracting the maximum"], str(diagnosis)
    assert name in str(diagnosis)


def test_other_rows_that_are_not_finite_are_located_without_a_cause() -> None:
    strict = edited((MASKED, "softmax(np.where(mask & np.tri(scores.shape[-1], k=-1, dtype=bool), scores, -np.inf))"))
    diagnosis = diagnosed("gpt2", stages("gpt2", strict))
    assert (diagnosis.stage, diagnosis.causes) == ("layers.0.attention.weights", [])
    assert "only these are not finite: the first row" in str(diagnosis)
