"""Kinds of unlisted mistakes, planted in a port in plain NumPy: they are found with all stages, and with a few."""

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
from npformer.golden.mistakes import general
from npformer.interpret.edits import edit
from npformer.mechanisms.rotary import Rotary
from npformer.mechanisms.rotary_scaling import Llama3
from npformer.model import Model
from tests.golden.test_mistakes import diagnosed, reference, stages
from tests.support.plain_port import PlainModernBert, PlainPort
from tests.support.planted import Plant, put, weights
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
#: Mistake -> the name that it gets with few stages, which show only part of it.
FROM_FEW = {"bias moved": "weight in the wrong order"}


def unnamed(keys: Iterable[str], few: bool) -> dict[str, str]:
    """Returns those diagnoses, by planted mistake, that do not contain the expected name and words."""
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


def weakly_masked(port: PlainPort, scores: np.ndarray) -> np.ndarray:
    seen = (port.mask[:, None, None] == 1) & np.tri(scores.shape[-1], dtype=bool)
    return scores - np.float32(5) * ~seen


def test_a_causal_mask_that_is_too_weak_is_named_with_its_number() -> None:
    def lowered(port: PlainPort, scores: np.ndarray) -> np.ndarray:
        return PlainPort.masked(port, scores) - np.float32(7) * ~np.tri(scores.shape[-1], dtype=bool)

    diagnosis = diagnosed("gpt2", stages("gpt2", put("masked", lowered)))
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


def parallel(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    a = port.attention(port.note(f"{at}.attention_norm", port.norm(x, f"{at}.attention_norm")), f"{at}.attention")
    f = port.ffn(port.note(f"{at}.ffn_norm", port.norm(x, f"{at}.ffn_norm")), f"{at}.ffn")
    return port.note(f"{at}.ffn_residual", x + a + f)


def added_after_the_norm(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    y = port.note(f"{at}.attention_residual", x + port.attention(x, f"{at}.attention"))
    y = port.note(f"{at}.attention_norm", port.norm(y, f"{at}.attention_norm"))
    f = port.note(f"{at}.ffn_residual", port.ffn(y, f"{at}.ffn"))
    return port.note(f"{at}.ffn_norm", port.norm(f, f"{at}.ffn_norm")) + y


def read_by_both(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    """`parallel`, as hooks on torch modules record it: the input of the FFN's norm is the layer's input."""
    port.note(f"{at}.attention_residual", x)
    return parallel(port, x, at)


def ffn_first(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    h = port.note(f"{at}.ffn_norm", port.norm(x, f"{at}.ffn_norm"))
    x = port.note(f"{at}.ffn_residual", x + port.ffn(h, f"{at}.ffn"))
    h = port.note(f"{at}.attention_norm", port.norm(x, f"{at}.attention_norm"))
    return port.note(f"{at}.attention_residual", x + port.attention(h, f"{at}.attention"))


def ffn_first_in_bert(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    z = port.note(f"{at}.ffn_residual", x + port.ffn(x, f"{at}.ffn"))
    z = port.note(f"{at}.ffn_norm", port.norm(z, f"{at}.ffn_norm"))
    y = port.note(f"{at}.attention_residual", z + port.attention(z, f"{at}.attention"))
    return port.note(f"{at}.attention_norm", port.norm(y, f"{at}.attention_norm"))


def norm_in_the_sum(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    y = port.note(f"{at}.attention_residual", x + port.attention(x, f"{at}.attention"))
    y = port.note(f"{at}.attention_norm", port.norm(y, f"{at}.attention_norm"))
    f = port.note(f"{at}.ffn_norm", port.norm(port.ffn(y, f"{at}.ffn"), f"{at}.ffn_norm"))
    return port.note(f"{at}.ffn_residual", y + f)


@pytest.mark.parametrize(
    ("family", "plant", "name"),
    [
        ("gpt2", put("layer", parallel), "the FFN reads the wrong stage"),
        ("gpt2", put("layer", ffn_first), "FFN before attention"),
        ("bert", put("layer", ffn_first_in_bert), "FFN before attention"),
        ("bert", put("layer", norm_in_the_sum), "norm before the residual sum"),
        pytest.param("gpt2", put("layer", read_by_both), "the FFN reads the wrong stage", marks=pytest.mark.slow),
        pytest.param(
            "bert", put("layer", added_after_the_norm), "norm before the residual sum", marks=pytest.mark.slow
        ),
    ],
)
def test_it_is_not_called_by_the_name_of_a_mistake_that_looks_alike(family: str, plant: Plant, name: str) -> None:
    diagnosis = diagnosed(family, stages(family, plant))
    assert diagnosis.mistake == name, str(diagnosis)


def act_of_product(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    gate, up = (port.note(f"{at}.{name}", port.linear(x, f"{at}.{name}")) for name in ("gate", "up"))
    gated = port.note(f"{at}.gated", port.note(f"{at}.activation", port.gelu(gate * up)))
    return port.note(f"{at}.output", port.linear(gated, f"{at}.output"))


def with_dropout(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    y = PlainPort.ffn(port, x, at)
    return y * (np.random.default_rng(1).random(y.shape) > 0.1) / np.float32(0.9)


def keys_alone(port: PlainModernBert, x: np.ndarray, base: float) -> np.ndarray:
    port.turned = not getattr(port, "turned", True)  # queries are rotated first
    return PlainModernBert.rotated(port, x, base) if port.turned else x


def attended_padding(port: PlainPort) -> None:
    counted = np.arange(port.ids.shape[1]) + port.c.pad_id + 1
    port.positions = np.where(port.mask == 1, port.positions, counted)
    put("masked", lambda port, scores: scores)(port)


def in_float16(port: PlainPort, scores: np.ndarray) -> np.ndarray:
    """The softmax of each text's own scores in float16."""
    made = np.zeros_like(scores)
    for i, n in enumerate(port.mask.sum(1)):
        x = scores[i, ..., :n].astype(np.float16)
        e = np.exp(x - x.max(-1, keepdims=True))
        made[i, ..., :n] = e / e.sum(-1, keepdims=True)
    return made


WEIGHTS = ("0.attention.query_heads", "0.attention.key_heads", "0.attention.value_heads", "0.attention.weights")
#: Short name of a mistake -> family, endings of the exported stages' names, the first name expected, the plant.
FIRST: dict[str, tuple[str, tuple[str, ...], str, Plant]] = {
    "activation of gate * up": (
        "modernbert", ("0.ffn.gate", "0.ffn.up", "0.ffn.activation", "0.ffn.gated"),
        "activation of gate times up", put("ffn", act_of_product),
    ),
    "logits / sqrt(D)": (
        "modernbert", ("head.norm", "logits"), "scaled by a constant",
        put("classify", lambda p, x: PlainPort.classify(p, x / np.float32(x.shape[-1] ** 0.5))),
    ),
    "softmax in float16": ("bert", (*WEIGHTS[:3], "0.attention.context"), "one stage rounded", put("weigh", in_float16)),
    "activations clipped": (
        "bert", ("0.attention_norm", "0.ffn_norm"), "clipped", put("gelu", lambda p, x: np.minimum(PlainPort.gelu(p, x), 1))
    ),
    "rows in (K, H)": (
        "bert", ("0.attention.context", "0.attention_norm", "embeddings.norm"), "weight in the wrong order", KINDS["rows in (K, H)"][2]
    ),
    "a residual in bfloat16": (
        "bert", ("0.ffn_norm", "1.attention.output", "1.attention_norm"), "one stage rounded",
        KINDS["a residual in bfloat16"][2],
    ),
    "padding in RoBERTa": ("roberta", ("0.attention.scores", "0.attention.weights"), "mask ignored", attended_padding),
    "dropout in GPT-2": (
        "gpt2", ("0.attention_residual", "0.ffn.output", "0.ffn_residual"), "dropout left on", put("ffn", with_dropout)
    ),
    "keys alone rotated": ("modernbert", ("0.attention.query", "0.attention.key", *WEIGHTS), "rotation left out or wrong", put("rotated", keys_alone)),
    "mask of -5 in a batch": ("gpt2", WEIGHTS, "masked scores not low enough", put("masked", weakly_masked)),
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
    """The weight of the query is also that of the value, or of key and value; their biases are correct."""
    at = "layers.0.attention."

    def of_query(*others: str) -> Plant:
        return weights(lambda port: {f"{at}{name}.weight": port.w[f"{at}query.weight"] for name in others})

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
    cap = put("scores", lambda port, q, k: np.float32(1.5) * np.tanh(PlainPort.scores(port, q, k) / np.float32(1.5)))
    heads = ("query_heads", "key_heads", f"layers.0.{end}")
    assert cause_of(cap, heads) == ("an extra function", way)


def test_a_rounded_weight_of_a_norm_gets_no_wrong_cause() -> None:
    """The schemes of int8 are for matrices."""
    name = "embeddings.norm.weight"
    plant = weights(lambda port: {name: port.w[name].astype(np.float16).astype(np.float32)})
    diagnosis = diagnosed("bert", stages("bert", plant))
    assert (diagnosis.stage, diagnosis.causes) == ("embeddings.norm", [])
