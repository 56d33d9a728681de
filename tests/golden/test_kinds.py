"""Unlisted mistakes of known kinds, planted in a page, are found from all stages and from a few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import golden, load, trace
from npformer.checkpoint import tree as layout
from npformer.engine.mechanisms.rotary import Rotary
from npformer.engine.mechanisms.rotary_scaling import Llama3
from npformer.golden.mistakes import general
from npformer.interpret.edits import edit
from npformer.model import Model
from tests.golden.test_mistakes import diagnosed, reference, stages
from tests.support.edited_pages import Plant, edited, inputs, weights
from tests.support.planted import GELU, MASKED, SCORES
from tests.support.planted_kinds import KINDS

pytestmark = pytest.mark.numbers

QUICK = (
    "columns of a weight", "a column of q and k", "first row skipped", "positions again from 4", "a head copied",
    "bias moved", "norm of each head", "scales of columns in rows", "residual of 0.85",
)  # fmt: skip
#: Mistakes that few stages cannot show, because the sums are missing, or because no number is exact in 16 bits.
UNSEEN = (
    "residual of 0.85", "units missing", "softmax in float16", "sum and output", "positions not added", "a key hidden",
    "columns of a weight", "gelu cut below",
)  # fmt: skip
#: Mistakes with the same diagnosis as another mistake, which is tried with few stages here or in `FIRST`.
OF_ONE_NAME = (
    "1 / int(sqrt(K))", "last columns missing", "a later bias", "biases exchanged", "first text's mask",
    "positions again from 4", "scores in float16", "a residual in bfloat16", "rows in (K, H)", "a head copied",
)  # fmt: skip
#: Mistake -> its name in a diagnosis from few stages, which do not show all of it.
FROM_FEW = {"bias moved": "weight in the wrong order"}


def unnamed(keys: Iterable[str], few: bool) -> dict[str, str]:
    """Returns the diagnoses, by planted mistake, that lack the expected name and words."""
    found = {}
    for key in keys:
        name, way, plant = KINDS[key]
        name = FROM_FEW.get(key, name) if few else name
        diagnosis = diagnosed("bert", stages("bert", plant), few)
        fits = [fit for fit in diagnosis.fits if fit.certain]
        if not any(fit.mistake.name == name and (few or way in fit.way) for fit in fits):
            found[key] = str(diagnosis)
    return found


@pytest.mark.parametrize("key", QUICK)
def test_a_kind_is_named(key: str) -> None:
    assert unnamed([key], False) == {}


@pytest.mark.slow
def test_the_other_kinds_are_named() -> None:
    assert unnamed([key for key in KINDS if key not in QUICK], False) == {}


@pytest.mark.slow
def test_kinds_are_named_from_few_stages() -> None:
    assert unnamed([key for key in KINDS if key not in (*UNSEEN, *OF_ONE_NAME)], True) == {}


@pytest.mark.parametrize(
    ("key", "way"),
    [
        ("a linear layer of another layer", "layers.0.ffn.output is layers.1.ffn.output"),
        (
            "attention of another layer",
            "query and key and value and output of layers.0.attention are those of layers.1",
        ),
        ("norms of one layer", "those of attention and the FFN, in one layer"),
    ],
)
def test_weights_in_the_wrong_place_are_named_from_few_stages(key: str, way: str) -> None:
    assert f"({way})" in str(diagnosed("bert", stages("bert", KINDS[key][2]), True))


def test_a_diagnosis_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of large models are distributed among threads, and give the same diagnosis in the same order."""
    arrays = stages("bert", KINDS["scores clipped"][2])
    expected = str(diagnosed("bert", arrays, True))
    monkeypatch.setattr(import_module("npformer.golden.ways"), "LARGE", 0)
    monkeypatch.setattr(reference("bert")[0], "threads", 3)  # -j 3
    assert str(diagnosed("bert", arrays, True)) == expected


def test_a_constant_says_which_sizes_give_it() -> None:
    _, _, plant = KINDS["1 / sqrt(T)"]
    text = str(diagnosed("bert", stages("bert", plant)))
    assert "cause: scores scaled differently (by 1 / sqrt(T with padding))" in text, text


def lowered(by: int) -> Plant:
    """Subtracts a number from masked scores."""
    return edited((MASKED, f"softmax(scores - np.float32({by}) * ~mask)"))


def test_a_causal_mask_that_is_too_weak_is_named_with_its_number() -> None:
    diagnosis = diagnosed("gpt2", stages("gpt2", lowered(7)))
    assert diagnosis.mistake == "masked scores not low enough", str(diagnosis)


def test_rows_of_the_next_token_are_named() -> None:
    model, recorded = reference("bert")
    t = trace(model, recorded.texts)
    arrays = {f"{i}/{name}": array for name in t for i, array in enumerate(t.texts(name))}
    arrays |= {name: np.roll(array, -1, axis=0) for name, array in arrays.items() if name.endswith("1.ffn.output")}
    [fit, *_] = golden.diagnose(recorded, arrays, model).fits
    assert (fit.mistake.name, fit.way) == ("in the wrong order", "each row is the next row")


class Exchanged(Llama3):
    """Blends scaled and unscaled frequencies with their weights swapped."""

    def scaled(self, frequencies: np.ndarray, theta: float, length: int) -> np.ndarray:
        rotations = self.original * frequencies / (2 * np.pi)
        kept = np.clip((rotations - self.low) / (self.high - self.low), 0, 1)
        kept = np.where((kept > 0) & (kept < 1), 1 - kept, kept)
        return (frequencies * (kept + (1 - kept) / self.factor)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rotation scaled differently", {"scaling": None}),
        ("rotation scaled differently", {"scaling": Exchanged(3.0, 1.0, 1.5, 8)}),
        ("rotation with wrong frequencies", {"theta": 77.0, "scaling": None}),
    ],
)
def test_a_rotation_of_other_frequencies_is_named(name: str, changes: dict[str, Any]) -> None:
    model = load(Path(__file__).parent / "data" / "llama-llama3")
    recorded = golden.record(model, [[3, 5, 7, 2, 9, 4]])
    mechanisms = tuple(
        replace(each, **changes) if isinstance(each, Rotary) else each for each in model.config.mechanisms
    )
    port = Model(replace(model.config, mechanisms=mechanisms), model.weights)
    diagnosis = golden.diagnose(recorded, trace(port, recorded.texts), model)
    assert diagnosis.mistake == name, str(diagnosis)


@pytest.mark.slow
def test_a_stage_with_infinite_parents_is_diagnosed() -> None:
    """With infinities, the search for missing heads meets a singular matrix, which has no inverse."""
    arrays = stages("bert", KINDS["units missing"][2])
    arrays["layers.0.ffn.activation"] = arrays["layers.0.ffn.activation"] + np.inf
    assert diagnosed("bert", arrays).stage


def test_a_cause_that_would_change_a_right_stage_is_not_named() -> None:
    """Queries computed from rows that are not normalized look like post-norm. Correct keys and values refute that."""
    model, _ = reference("gpt2")
    arrays, query = stages("gpt2"), layout.flat_arrays(model.weights)
    name = "layers.0.attention.query"
    arrays[name] = arrays["embeddings.sum"] @ query[f"{name}.weight"] + query[f"{name}.bias"]
    diagnosis = diagnosed("gpt2", arrays)
    assert diagnosis.mistake == "values of another stage", str(diagnosis)


LAYER = "def encoder_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):"
OF_GPT2 = LAYER.replace("encoder", "gpt2")
PARALLEL = edited(("layer_norm(attention_residual, **ffn_norm", "layer_norm(x, **ffn_norm"))
#: The stages as hooks on torch modules record them: the input of the FFN's norm is the layer's input.
READ_BY_BOTH = f"""
{OF_GPT2}
    attention_residual = x
    normed = layer_norm(x, **attention_norm, eps=eps)
    attended = multi_head_attention(normed, normed, mask, n_heads, **attention)
    ffn_residual = x + attended + feed_forward(layer_norm(x, **ffn_norm, eps=eps), activation, **ffn)
    return ffn_residual
"""
FFN_FIRST = f"""
{OF_GPT2}
    ffn_residual = x + feed_forward(layer_norm(x, **ffn_norm, eps=eps), activation, **ffn)
    normed = layer_norm(ffn_residual, **attention_norm, eps=eps)
    attention_residual = ffn_residual + multi_head_attention(normed, normed, mask, n_heads, **attention)
    return attention_residual
"""
FFN_FIRST_IN_BERT = f"""
{LAYER}
    ffn_residual = x + feed_forward(x, activation, **ffn)
    z = layer_norm(ffn_residual, **ffn_norm, eps=eps)
    attention_residual = z + multi_head_attention(z, z, mask, n_heads, **attention)
    return layer_norm(attention_residual, **attention_norm, eps=eps)
"""
FFN_NORM = "layer_norm(ffn_residual, **ffn_norm, eps=eps)"
ADDED_AFTER_THE_NORM = edited(("ffn_residual = y + ", "ffn_residual = "), (FFN_NORM, f"{FFN_NORM} + y"))
NORM_IN_THE_SUM = edited(
    (
        "y + feed_forward(y, activation, **ffn)",
        "y + layer_norm(feed_forward(y, activation, **ffn), **ffn_norm, eps=eps)",
    ),
    (FFN_NORM, "ffn_residual"),
)


@pytest.mark.parametrize(
    ("family", "plant", "name"),
    [
        ("gpt2", PARALLEL, "the FFN reads the wrong stage"),
        ("gpt2", edited(added=FFN_FIRST), "FFN before attention"),
        ("bert", edited(added=FFN_FIRST_IN_BERT), "FFN before attention"),
        ("bert", NORM_IN_THE_SUM, "norm before the residual sum"),
        pytest.param("gpt2", edited(added=READ_BY_BOTH), "the FFN reads the wrong stage", marks=pytest.mark.slow),
        pytest.param("bert", ADDED_AFTER_THE_NORM, "norm before the residual sum", marks=pytest.mark.slow),
    ],
)
def test_it_is_not_called_by_the_name_of_a_mistake_that_looks_alike(family: str, plant: Plant, name: str) -> None:
    diagnosis = diagnosed(family, stages(family, plant))
    assert diagnosis.mistake == name, str(diagnosis)


#: The softmax of each text's own scores in float16.
IN_FLOAT16 = "np.where(mask, softmax(np.where(mask, scores, -np.inf).astype(np.float16)), 0).astype(np.float32)"
DROPPED = """
def drop(y):
    return y * (np.random.default_rng(1).random(y.shape) > 0.1) / np.float32(0.9)
"""


def counted_padding(given: dict[str, Any]) -> dict[str, Any]:
    places = given["text_positions"] + given["pad_id"] + 1
    return {"positions": np.where(given["seen"][:, 0, 0], given["positions"], places)}


WEIGHTS = ("0.attention.query_heads", "0.attention.key_heads", "0.attention.value_heads", "0.attention.weights")
#: Short name of a mistake -> family, endings of the exported stages' names, the first name expected, the plant.
FIRST: dict[str, tuple[str, tuple[str, ...], str, Plant]] = {
    "activation of gate * up": (
        "modernbert", ("0.ffn.gate", "0.ffn.up", "0.ffn.activation", "0.ffn.gated"),
        "activation of gate times up",
        edited(("activation(linear(x, **gate))", "activation(linear(x, **gate) * linear(x, **up))"),
               ("gated = activated * linear(x, **up)", "gated = activated")),
    ),
    "logits / sqrt(D)": (
        "modernbert", ("head.norm", "logits"), "scaled by a constant",
        edited(("logits = linear(transform(pooled, head_activation, eps, head)", "logits = linear(transform(pooled, head_activation, eps, head) / np.float32(x.shape[-1] ** 0.5)")),
    ),
    "softmax in float16": ("bert", (*WEIGHTS[:3], "0.attention.context"), "one stage rounded", edited((MASKED, IN_FLOAT16))),
    "activations clipped": (
        "bert", ("0.attention_norm", "0.ffn_norm"), "clipped", edited((GELU, f"np.minimum({GELU}, 1)"))
    ),
    "rows in (K, H)": (
        "bert", ("0.attention.context", "0.attention_norm", "embeddings.norm"), "weight in the wrong order", KINDS["rows in (K, H)"][2]
    ),
    "a residual in bfloat16": (
        "bert", ("0.ffn_norm", "1.attention.output", "1.attention_norm"), "one stage rounded",
        KINDS["a residual in bfloat16"][2],
    ),
    "padding in RoBERTa": ("roberta", ("0.attention.scores", "0.attention.weights"), "mask ignored", inputs(counted_padding) & edited((MASKED, "softmax(scores)"))),
    "dropout in GPT-2": (
        "gpt2", ("0.attention_residual", "0.ffn.output", "0.ffn_residual"), "dropout left on", edited(("+ feed_forward(normed, activation, **ffn)", "+ drop(feed_forward(normed, activation, **ffn))"), added=DROPPED)
    ),
    "keys alone rotated": ("modernbert", ("0.attention.query", "0.attention.key", *WEIGHTS), "rotation left out or wrong", edited(("(rotate(split_heads(each, n_heads), *angles) for each in (q, k))", "(split_heads(q, n_heads), rotate(split_heads(k, n_heads), *angles))"))),
    "mask of -5 in a batch": ("gpt2", WEIGHTS, "masked scores not low enough", lowered(5)),
}  # fmt: skip


#: Entries of FIRST with mistakes that other quick tests diagnose from other stages.
REPEATED = ("logits / sqrt(D)", "a residual in bfloat16", "mask of -5 in a batch")


@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * (key in REPEATED)) for key in FIRST])
def test_it_is_named_first(key: str) -> None:
    family, ends, name, plant = FIRST[key]
    arrays = {stage: array for stage, array in stages(family, plant).items() if stage.endswith(ends)}
    diagnosis = diagnosed(family, arrays)
    assert diagnosis.mistake == name, str(diagnosis)


def test_other_ids_are_found_from_the_embeddings_norm() -> None:
    model, recorded = reference("bert")
    texts = [replace(text, ids=np.where(text.ids > 20, 3, text.ids)) for text in recorded.texts]
    t = trace(model, texts, ["embeddings.norm"])
    arrays = {f"{i}/embeddings.norm": array for i, array in enumerate(t.texts("embeddings.norm"))}
    assert golden.diagnose(recorded, arrays, model).mistake == "wrong token ids"


def test_a_cap_that_is_left_out_is_not_a_wrong_name() -> None:
    """Without the cap, logits have the numbers of `head.output`, but the cause is not "stages under wrong names"."""
    model = load(Path(__file__).parent / "data" / "gemma2-causal-lm")
    recorded = golden.record(model, [[3, 5, 7, 2]])
    t = trace(model, recorded.texts)
    arrays = {f"0/{name}": t.texts("head.output" if name == "logits" else name)[0] for name in t}
    assert golden.diagnose(recorded, arrays, model).mistake == "soft cap of logits left out"


@pytest.mark.parametrize("name", ["unscaled scores", "query and key swapped"])
def test_a_mistake_in_products_is_named_before_the_soft_cap(name: str) -> None:
    model = load(Path(__file__).parent / "data" / "gemma2-causal-lm")
    recorded = golden.record(model, [list(range(3, 12)), list(range(12, 6, -1))])
    scale = float(model.config.score_scale or model.config.d_head**-0.5)
    mistake = (lambda x: x / scale) if name == "unscaled scores" else (lambda x: x.swapaxes(-1, -2))
    with edit({"*.uncapped_scores": mistake}):
        stages = trace(model, recorded.texts)
    arrays = {f"{i}/{each}": array for each in stages for i, array in enumerate(stages.texts(each))}
    assert golden.diagnose(recorded, arrays, model).causes == [name]


def cause_of(plant: Plant, ends: tuple[str, ...] = ("",)) -> tuple[str, str]:
    arrays = {name: array for name, array in stages("bert", plant).items() if name.endswith(ends)}
    fit = diagnosed("bert", arrays).fits[0]
    return fit.mistake.name if fit.certain else "", fit.way


def test_weights_of_one_projection_in_the_others_are_named_once() -> None:
    """The query's weight is also used for the value, or for key and value. The biases are correct."""
    at = "layers.0.attention."

    def of_query(*others: str) -> Plant:
        return weights(lambda flat: {f"{at}{name}.weight": flat[f"{at}query.weight"] for name in others})

    context = (f"{at}context", "embeddings.norm")
    name, way = cause_of(of_query("key", "value"), context)
    assert (name, way) == (
        "weights from elsewhere in the model",
        "weight of query, key, value are those of query, query, query",
    )
    name, way = cause_of(of_query("value"), context)
    assert (name, way) == ("weights from elsewhere in the model", f"{at}value.weight is {at}query.weight")


@pytest.mark.parametrize(
    ("end", "way"),
    [("attention.scores", "1.5 tanh(x / 1.5)"), ("attention.weights", "1.5 tanh(x / 1.5), of the scores")],
)
def test_a_cap_on_scores_is_named_once(end: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(general.FUNCTIONS, "1.5 tanh(x / 1.5)", lambda y: 1.5 * np.tanh(y / 1.5))
    cap = edited((SCORES, f"1.5 * np.tanh({SCORES} / 1.5)"))
    heads = ("query_heads", "key_heads", f"layers.0.{end}")
    assert cause_of(cap, heads) == ("an extra function", way)


def test_a_rounded_weight_of_a_norm_gets_no_wrong_cause() -> None:
    """A norm's weight is a vector, and the int8 schemes apply only to matrices."""
    name = "embeddings.norm.weight"
    plant = weights(lambda flat: {name: flat[name].astype(np.float16)})
    diagnosis = diagnosed("bert", stages("bert", plant))
    assert (diagnosis.stage, diagnosis.causes) == ("embeddings.norm", [])
