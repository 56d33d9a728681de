"""Mistakes in the parts of Llama-like models and T5, planted in their pages: each is named.

Mistakes are also named from hidden states alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from npformer import golden, trace
from npformer.checkpoint import flatten, unflatten
from npformer.config import Config, Decoder
from npformer.engine.mechanisms import HeadNorm, RelativeBias, Rotary
from npformer.engine.runtime.packing import Text
from npformer.families import FAMILIES
from npformer.model import Model, Seq2Seq
from npformer.plain.rotary import rotary_frequencies
from tests.support import tiny
from tests.support.edited_pages import Plant, edited, inputs, run, swapped, taken, weights
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

HIDDEN = ("embeddings.sum", ".ffn_residual", "norm", "logits")
Weights = Mapping[str, np.ndarray]


def in_pairs(flat: Weights) -> Weights:
    def permuted(w: np.ndarray) -> np.ndarray:
        return w.reshape(len(w), -1, 2, 6).swapaxes(-1, -2).reshape(w.shape)

    parts = (".query.weight", ".key.weight")
    return {name: permuted(array) for name, array in flat.items() if name.endswith(parts)}


MEAN_SQUARE = "(x**2).mean(axis=-1, keepdims=True)"
NORM = f"x / np.sqrt({MEAN_SQUARE} + eps)"
CENTRED = "(x - x.mean(axis=-1, keepdims=True))"
ANGLES = "positions[..., None] * frequencies.astype(np.float64)"
TABLES = "magnitude * np.cos(angles), magnitude * np.sin(angles)"
HALF_OF_HEAD = """n = cos.shape[-1] // 2
    rest, x, cos, sin = x[..., 2 * n :], x[..., : 2 * n], cos[:, :n], sin[:, :n]
    first, second ="""
LLAMA: dict[str, tuple[str, str, Plant]] = {
    "norms unbiased": (
        "unbiased mean square in RMSNorm", "",
        edited((MEAN_SQUARE, "(x**2).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)")),
    ),
    "1 + w everywhere": (
        "weight of RMSNorm misused", "1 + weight instead of weight",
        edited((f"{NORM} * weight", f"{NORM} * (1 + weight)")),
    ),
    "norms in bfloat16": (
        "RMSNorm rounded before the weight is applied", "to bfloat16", edited((NORM, f'half("bfloat16", {NORM})'))
    ),
    "mean subtracted": (
        "mean subtracted in RMSNorm", "as in layer norm", edited((f"return {NORM}", f"x = {CENTRED}\n    return {NORM}"))
    ),
    "mean subtracted above": (
        "mean subtracted in RMSNorm", "before the root mean square", edited((NORM, CENTRED + NORM[1:]))
    ),
    "mean subtracted below": (
        "mean subtracted in RMSNorm", "only in the deviation",
        edited((MEAN_SQUARE, "x.var(axis=-1, keepdims=True)")),
    ),
    "norms of heads exchanged": ("norms of queries and keys exchanged", "", swapped("query_norm", "key_norm")),
    "half of each head": (
        "rotation left out or wrong", "first half of each head",
        edited(("first, second =", HALF_OF_HEAD), ("first * sin], axis=-1)", "first * sin, rest], axis=-1)")),
    ),
    "cosine and sine": (
        "rotation left out or wrong", "cosines and sines exchanged",
        edited(("def rotate(x, cos, sin):", "def rotate(x, sin, cos):")),
    ),
    "tables in bfloat16": (
        "rotation rounded", "cosines and sines in bfloat16",
        edited((TABLES, "tuple(half('bfloat16', f(angles).astype(np.float32)) for f in (np.cos, np.sin))")),
    ),
    "angles in float16": (
        "rotation rounded", "positions, frequencies and angles in float16",
        edited((ANGLES, "positions.astype(np.float16)[..., None] * frequencies.astype(np.float16)"),
               (TABLES, "np.cos(angles.astype(float)), np.sin(angles.astype(float))")),
    ),
    "rotated twice": (
        "rotation left out or wrong", "twice",
        edited(("rotate(query_normed, *angles)", "rotate(rotate(query_normed, *angles), *angles)"),
               ("rotate(key_normed, *angles)", "rotate(rotate(key_normed, *angles), *angles)")),
    ),
    "theta^(-i / K)": (
        "rotation left out or wrong", "without the 2",
        inputs(lambda given: {"frequencies": rotary_frequencies(12, 50.0**0.5)}),
    ),
    "positions again": (
        "rotation at wrong positions", "from 0 again at token 4",
        edited((ANGLES, ANGLES.replace("positions", "np.where(positions < 4, positions, positions - 4)"))),
    ),
    "columns in pairs": ("rotation of pairs instead of halves", "", weights(in_pairs)),
    "the product activated": (
        "activation of gate times up", "",
        edited(("activation(linear(x, **gate))", "activation(linear(x, **gate) * linear(x, **up))"),
               ("gated = activated * linear(x, **up)", "gated = activated")),
    ),
}  # fmt: skip
T5: dict[str, tuple[str, str, Plant]] = {
    "buckets to the nearest": (
        "relative bias with wrong bucket boundaries", "rounded to the nearest",
        edited(("np.floor(steps + 1e-6)", "np.rint(steps)")),
    ),
    "buckets of one distance": (
        "relative bias with wrong bucket boundaries", "all buckets",
        edited(("np.where(distances < exact, distances, np.minimum(far, n_buckets - 1))", "np.minimum(distances, n_buckets - 1)")),
    ),
    "weights of self-attention": ("cross-attention with self-attention's weights", "all", taken(("cross_attention.", "attention."))),
}  # fmt: skip


def llama(**fields: Any) -> Model:
    sizes = {
        "vocab_size": 40,
        "d_model": 16,
        "n_heads": 2,
        "head_width": 12,
        "n_kv_heads": 1,
        "n_layers": 2,
        "d_ffn": 20,
    }
    return tiny.model("qwen3", "causal-lm", **{**sizes, "mechanisms": (HeadNorm(), Rotary(50.0)), **fields})


def t5(n_layers: int) -> Seq2Seq:
    sizes = {"vocab_size": 40, "d_model": 12, "n_heads": 2, "n_layers": n_layers, "d_ffn": 20, "pad_id": 0}
    decoder = Decoder(n_layers=n_layers, start_id=0, end_ids=(1,))
    settings: Config = FAMILIES["t5"].config(
        "translation", **sizes, decoder=decoder, mechanisms=(RelativeBias(8, max_distance=20),)
    )
    return Seq2Seq(settings, tiny.weights(settings))


@cache
def reference(make: Callable[..., Model | Seq2Seq], n_layers: int) -> tuple[Model | Seq2Seq, golden.Golden]:
    model, random = make(n_layers=n_layers), np.random.default_rng(3)
    texts: list[Any] = [Text(random.integers(2, 40, length)) for length in (13, 9)]
    if isinstance(model, Seq2Seq):
        texts = list(zip(texts, texts[::-1], strict=True))
    return model, golden.record(model, texts)


def diagnosed(make: Callable[..., Model | Seq2Seq], n_layers: int, plant: Plant, full: bool) -> str:
    model, recorded = reference(make, n_layers)
    stages = run(model, recorded, plant, padded=False)
    arrays = {name: array for name, array in stages.items() if full or name.endswith(HIDDEN)}
    return str(golden.diagnose(recorded, arrays, model)).partition("then")[0]


#: Mistakes that the quick tests diagnose from hidden states, which takes longer.
QUICK = ("norms of heads exchanged",)


def forms(keys: Mapping[str, Any], quick: tuple[str, ...]) -> list[Any]:
    """Parameters of tests: each mistake with all stages, and with hidden states only, as a slow test if not `quick`."""
    hidden = [pytest.param(key, False, marks=() if key in quick else pytest.mark.slow) for key in keys]
    return [*((key, True) for key in keys), *hidden]


@pytest.mark.parametrize(("key", "full"), forms(LLAMA, QUICK))
def test_a_mistake_in_a_part_of_llamas_kin_is_named(key: str, full: bool) -> None:
    name, way, plant = LLAMA[key]
    found = diagnosed(llama, 2, plant, full)
    assert re.search(f"cause: {re.escape(name)}.*{re.escape(way)}", found), found


@pytest.mark.parametrize(("key", "full"), forms(T5, ()))
def test_a_mistake_in_a_part_of_t5_is_named(key: str, full: bool) -> None:
    name, way, plant = T5[key]
    found = diagnosed(t5, 1, plant, full)
    assert re.search(f"cause: {re.escape(name)}.*{re.escape(way)}", found), found


def test_names_of_hidden_and_gate_exchanged_are_no_second_mistake_in_the_formula() -> None:
    """The port's activation reads the right product, although an earlier mistake changes every later number."""
    model, recorded = reference(llama, 2)
    stages = run(model, recorded, LLAMA["norms of heads exchanged"][2], padded=False)
    other = {"gate": "up", "up": "gate"}
    arrays = {
        re.sub("ffn.(gate|up)$", lambda found: f"ffn.{other[found[1]]}", name): array for name, array in stages.items()
    }
    found = golden.diagnose(recorded, arrays, model)
    assert [each.mistake for each in (found, *found.then)] == [
        "norms of queries and keys exchanged",
        "stages under wrong names",
    ]


def test_hidden_states_without_the_last_layer_are_named() -> None:
    """Without the last layer, the port's last hidden state is the norm, under the name of a layer's output."""
    model = llama(n_layers=2)
    texts = [Text(np.arange(3, 12)), Text(np.arange(20, 26))]
    weights = {name: array for name, array in flatten(dict(model.weights)).items() if not name.startswith("layers.1.")}
    shorter = Model(replace(model.config, n_layers=1), unflatten(weights))
    stages = trace(shorter, texts)
    named = {"norm": "layers.0.ffn_residual"}
    arrays = {
        f"{i}/{named.get(name, name)}": array
        for name in stages
        if name in ("embeddings.sum", "norm", "logits")
        for i, array in enumerate(stages.texts(name))
    }
    found = str(golden.diagnose(golden.record(model, texts), arrays, model))
    assert "wrong number of layers (the last layer is missing, and the layer before it ends" in found, found


def test_logits_of_rows_that_are_not_normalized_are_named_without_these_rows() -> None:
    model, texts = llama(n_layers=2), [Text(np.arange(3, 12)), Text(np.arange(20, 26))]
    recorded, stages = golden.record(model, texts), trace(model, texts)
    head = flatten(dict(model.weights))["head.output.weight"]
    arrays = {f"{i}/norm": array for i, array in enumerate(stages.texts("norm"))}
    arrays |= {f"{i}/layers.0.ffn_residual": array for i, array in enumerate(stages.texts("layers.0.ffn_residual"))}
    arrays |= {f"{i}/logits": array @ head for i, array in enumerate(stages.texts("layers.1.ffn_residual"))}
    assert golden.diagnose(recorded, arrays, model).mistake == "head without the last norm"


def test_logits_of_the_token_table_are_named_without_the_last_norm() -> None:
    model, texts = llama(n_layers=1), [Text(np.arange(3, 12))]
    weights = flatten(dict(model.weights))
    tied = unflatten({**weights, "head.output.weight": weights["embeddings.token.weight"].T})
    stages = trace(Model(model.config, tied), texts)
    shown = {name: stages[name] for name in ("layers.0.ffn_residual", "logits")}
    found = str(golden.diagnose(golden.record(model, texts), shown, model))
    assert "head.output.weight is embeddings.token.weight, transposed" in found, found


def test_padding_before_a_text_that_is_seen_is_named() -> None:
    """The port exports only the rows of the text's own tokens, not those of the padding."""
    model, texts = llama(n_layers=1, pad_id=0), [np.arange(3, 16), np.arange(20, 26)]
    recorded = golden.record(model, [Text(ids) for ids in texts])
    before = [13 - len(ids) for ids in texts]
    stages = trace(model, [Text(np.pad(ids, (n, 0))) for ids, n in zip(texts, before, strict=True)])
    arrays = {}
    for name in stages:
        for i, (array, n) in enumerate(zip(stages.texts(name), before, strict=True)):
            rows = array[:, n:] if array.ndim == 3 else array[n:]
            arrays[f"{i}/{name}"] = rows[..., n:] if name.endswith(("scores", "attention.weights")) else rows
    found = str(golden.diagnose(recorded, arrays, model))
    assert "mask ignored (of padding before the texts" in found, found


def test_layers_exchanged_are_one_finding() -> None:
    """The exchange explains both layers. A shift of all layers by one is refuted by a correct layer."""
    orders = {"layers.1.": "layers.2.", "layers.2.": "layers.1."}

    def exchanged(flat: Weights) -> Weights:
        return {name: flat[orders.get(name[:9], name[:9]) + name[9:]] for name in flat}

    found = diagnosed(llama, 3, weights(exchanged), True)
    assert "weights of another layer (layers.1 and layers.2 are exchanged)" in found, found
    assert "next stage that diverges" not in found, found


def test_a_key_that_later_queries_of_a_longer_text_do_not_see_is_shown() -> None:
    """Only the second text is long enough to show the hidden key."""
    model, texts = llama(n_layers=1), [Text(np.arange(3, 9)), Text(np.arange(3, 16))]
    recorded, stages = golden.record(model, texts), trace(model, texts)
    arrays = {f"{i}/{name}": array for name in stages for i, array in enumerate(stages.texts(name))}
    weights = arrays["1/layers.0.attention.weights"].copy()
    weights[:, 10:, 0] = 0
    arrays["1/layers.0.attention.weights"] = weights / weights.sum(-1, keepdims=True)
    found = str(golden.diagnose(recorded, arrays, model))
    assert "wrong mask (query 12 sees the keys [1, " in found, found


def in_order(order: Sequence[int]) -> Callable[[Weights], Weights]:
    """Returns a function that reorders the weights of the layers."""

    def reordered(flat: Weights) -> Weights:
        moved = (name.split(".") for name in flat)
        of = {".".join(each): [*each[:1], str(order[int(each[1])]), *each[2:]] for each in moved if each[0] == "layers"}
        return {name: flat[".".join(of.get(name, [name]))] for name in flat}

    return reordered


def test_layers_in_the_order_of_their_names_are_one_finding() -> None:
    model, texts = llama(n_layers=11), [Text(np.arange(3, 8))]
    recorded = golden.record(model, texts, ["*.attention_norm", "*.ffn_residual"])
    sort = in_order(sorted(range(11), key=str))
    port = Model(model.config, unflatten(dict(sort(flatten(dict(model.weights))))))
    found = str(golden.diagnose(recorded, dict(trace(port, texts)), model))
    assert "weights of another layer (sorted as strings, 10 before 2)" in found, found
    assert "next stage that diverges" not in found, found


def test_each_layer_of_an_unusual_order_is_named() -> None:
    """The last layer has the first layer's weights, although an earlier cause has replaced these in the model."""
    found = diagnosed(llama, 3, weights(in_order((1, 2, 0))), True)
    assert "layers.2 has layers.0's" in found, found


def test_a_cause_that_leaves_far_more_than_another_is_not_named() -> None:
    """The tanh formula with 0.0447 instead of 0.044715 fits the budget, but the right formula leaves only rounding."""
    model, texts = llama(), [Text(np.arange(3, 12))]
    recorded, port = golden.record(model, texts), Model(replace(model.config, activation="gelu_tanh"), model.weights)
    found = golden.diagnose(recorded, dict(trace(port, texts)), model)
    assert found.causes == ["wrong activation"], found


@pytest.mark.parametrize("from_0", slow_after(1, [True, False]))
def test_texts_of_a_packed_batch_that_attend_to_one_another_are_named(from_0: bool) -> None:
    """The port counts positions from 0 in each text, or over the whole batch."""
    model, texts = llama(n_layers=1, max_length=16), [np.arange(3, 16), np.arange(20, 26)]
    places = np.concatenate([np.arange(len(ids)) for ids in texts]) if from_0 else np.arange(19)
    port = Model(replace(model.config, max_length=19), model.weights)
    rows = {}
    for name, array in trace(port, Text(np.concatenate(texts), positions=places)).items():
        for i, own in enumerate((slice(0, 13), slice(13, 19))):
            if name.endswith((".scores", ".weights")):
                rows[f"{i}/{name}"] = array[:, own, own]
            elif name.endswith(("combined", "residual", "norm") if from_0 else HIDDEN):
                rows[f"{i}/{name}"] = array[own]
    found = golden.diagnose(golden.record(model, [Text(ids) for ids in texts]), rows, model)
    assert found.causes == ["texts attend to one another"], found
    assert not found.then, found
