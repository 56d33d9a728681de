"""Mistakes in the parts of Llama-like models and T5, planted in the model's own code: each is named.

With only the hidden states exported, they are named too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import npformer.blocks.gated as gated
import npformer.mechanisms.relative_bias as relative_bias
import npformer.mechanisms.rotary as rotary
from npformer import golden, trace
from npformer.checkpoint import flatten, unflatten
from npformer.common.halves import half
from npformer.config import Config, Decoder
from npformer.families import FAMILIES
from npformer.functions import linear, rms_norm
from npformer.mechanisms import HeadNorm, RelativeBias, Rotary
from npformer.mechanisms.rotary_scaling import powers
from npformer.model import Model, Seq2Seq
from npformer.norms import root_mean_square
from npformer.runtime.packing import Text
from npformer.taps import tap
from tests.support import tiny
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

HIDDEN = ("embeddings.sum", ".ffn_residual", "norm", "logits")
Weights = Mapping[str, np.ndarray]
#: A module or class, the name to replace in it, and the replacement; or a change to the weights.
Plant = tuple[Any, str, Any] | Callable[[Weights], Weights]

turn, angles = rotary.rotate, rotary.rotary_angles


def unbiased(x: np.ndarray, weight: np.ndarray, eps: float, out: Any = None) -> np.ndarray:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / (x.shape[-1] - 1) + eps) * weight


def exchanged(weights: Weights) -> Weights:
    other = {"query_norm": "key_norm", "key_norm": "query_norm"}
    return {
        name: weights[name.replace(part, other[part])] if (part := name.split(".")[-2]) in other else array
        for name, array in weights.items()
    }


def in_pairs(weights: Weights) -> Weights:
    def permuted(w: np.ndarray) -> np.ndarray:
        return w.reshape(len(w), -1, 2, 6).swapaxes(-1, -2).reshape(w.shape)

    parts = (".query.weight", ".key.weight")
    return {name: permuted(array) if name.endswith(parts) else array for name, array in weights.items()}


def of_self(weights: Weights) -> Weights:
    own = {name: name.replace("cross_attention.", "attention.") for name in weights}
    return {name: weights[own[name]] for name in weights}


def half_of_head(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    heads, n = x.reshape(len(x), -1, 2 * cos.shape[-1]).copy(), cos.shape[-1] // 2
    first = np.ascontiguousarray(heads[..., : 2 * n]).reshape(len(x), -1)
    heads[..., : 2 * n] = turn(first, cos[:, :n], sin[:, :n]).reshape(len(x), -1, 2 * n)
    return heads.reshape(x.shape)


def again_after_4(positions: np.ndarray, *rest: Any) -> Any:
    return angles(np.where(positions < 4, positions, positions - 4), *rest)


def angles_in_half(positions: np.ndarray, *rest: Any) -> Any:
    """Cosines and sines of angles that float16 holds, as with positions and frequencies in float16."""
    frequencies = np.float16(1) / powers(rest[1], rest[0]).astype(np.float32)
    angle = positions.astype(np.float16)[:, None] * frequencies.astype(np.float16)
    return tuple(f(angle.astype(np.float64)).astype(rest[2]) for f in (np.cos, np.sin))


def of_product(x: np.ndarray, activation: Any, gate: Any, up: Any, output: Any) -> np.ndarray:
    return tap("output", linear(activation(linear(x, **gate) * linear(x, **up)), **output))


def nearest(away: np.ndarray, count: int, most: int) -> np.ndarray:
    exact = count // 2
    steps = np.log(np.maximum(away, 1) / exact) / np.log(most / exact) * (count - exact)
    return np.where(away < exact, away, np.minimum(exact + np.rint(steps).astype(int), count - 1))


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-1, keepdims=True)


def size(x: np.ndarray, eps: float) -> np.ndarray:
    return np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)


NORMS, TURNS = (root_mean_square, "rms_norm"), (rotary, "rotate")
LLAMA: dict[str, tuple[str, str, Plant]] = {
    "norms unbiased": ("unbiased mean square in RMSNorm", "", (*NORMS, unbiased)),
    "1 + w everywhere": (
        "weight of RMSNorm misused", "1 + weight instead of weight",
        (*NORMS, lambda x, weight, eps, out=None: rms_norm(x, 1 + weight, eps)),
    ),
    "norms in bfloat16": (
        "RMSNorm rounded before the weight is applied", "to bfloat16",
        (*NORMS, lambda x, weight, eps, out=None: half("bfloat16", rms_norm(x, eps=eps)) * weight),
    ),
    "mean subtracted": (
        "mean subtracted in RMSNorm", "as in layer norm",
        (*NORMS, lambda x, weight, eps, out=None: centred(x) / size(centred(x), eps) * weight),
    ),
    "mean subtracted above": (
        "mean subtracted in RMSNorm", "before the root mean square",
        (*NORMS, lambda x, weight, eps, out=None: centred(x) / size(x, eps) * weight),
    ),
    "mean subtracted below": (
        "mean subtracted in RMSNorm", "only in the deviation",
        (*NORMS, lambda x, weight, eps, out=None: x / size(centred(x), eps) * weight),
    ),
    "norms of heads exchanged": ("norms of queries and keys exchanged", "", exchanged),
    "half of each head": ("rotation left out or wrong", "first half of each head", (*TURNS, half_of_head)),
    "cosine and sine": (
        "rotation left out or wrong", "cosines and sines exchanged", (*TURNS, lambda x, cos, sin: turn(x, sin, cos)),
    ),
    "tables in bfloat16": (
        "rotation rounded", "cosines and sines in bfloat16",
        (*TURNS, lambda x, cos, sin: turn(x, half("bfloat16", cos), half("bfloat16", sin))),
    ),
    "angles in float16": (
        "rotation rounded", "positions, frequencies and angles in float16", (rotary, "rotary_angles", angles_in_half),
    ),
    "rotated twice": (
        "rotation left out or wrong", "twice", (*TURNS, lambda x, cos, sin: turn(turn(x, cos, sin), cos, sin)),
    ),
    "theta^(-i / K)": (
        "rotation left out or wrong", "without the 2",
        (rotary, "rotary_angles", lambda at, k, theta, *rest: angles(at, k, theta**0.5, *rest)),
    ),
    "positions again": ("rotation at wrong positions", "from 0 again at token 4", (rotary, "rotary_angles", again_after_4)),
    "columns in pairs": ("rotation of pairs instead of halves", "", in_pairs),
    "the product activated": ("activation of gate times up", "", (gated, "gated_feed_forward", of_product)),
}  # fmt: skip
T5: dict[str, tuple[str, str, Plant]] = {
    "buckets to the nearest": (
        "relative bias with wrong bucket boundaries", "rounded to the nearest", (relative_bias, "_away", nearest)
    ),
    "buckets of one distance": (
        "relative bias with wrong bucket boundaries", "all buckets",
        (relative_bias, "_away", lambda away, count, most: np.minimum(away, count - 1)),
    ),
    "weights of self-attention": ("cross-attention with self-attention's weights", "all", of_self),
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


def diagnosed(
    make: Callable[..., Model | Seq2Seq], n_layers: int, plant: Plant, full: bool, monkeypatch: pytest.MonkeyPatch
) -> str:
    model, recorded = reference(make, n_layers)
    port, texts = model, recorded.inputs
    with monkeypatch.context() as patch:
        if callable(plant):
            port = type(model)(model.config, unflatten(dict(plant(flatten(dict(model.weights))))))
        else:
            patch.setattr(*plant)
        stages = trace(port, texts)
    arrays = {
        f"{i}/{name}": array
        for name in stages
        if full or name.endswith(HIDDEN)
        for i, array in enumerate(stages.texts(name))
    }
    return str(golden.diagnose(recorded, arrays, model)).partition("then")[0]


#: Mistakes that the quick tests diagnose from hidden states, which takes longer.
QUICK = ("norms of heads exchanged",)


def forms(keys: Mapping[str, Any], quick: tuple[str, ...]) -> list[Any]:
    """Each mistake with all stages, and with hidden states only, which is slow except for the mistakes in `quick`."""
    hidden = [pytest.param(key, False, marks=() if key in quick else pytest.mark.slow) for key in keys]
    return [*((key, True) for key in keys), *hidden]


@pytest.mark.parametrize(("key", "full"), forms(LLAMA, QUICK))
def test_a_mistake_in_a_part_of_llamas_kin_is_named(key: str, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name, way, plant = LLAMA[key]
    found = diagnosed(llama, 2, plant, full, monkeypatch)
    assert re.search(f"cause: {re.escape(name)}.*{re.escape(way)}", found), found


@pytest.mark.parametrize(("key", "full"), forms(T5, ()))
def test_a_mistake_in_a_part_of_t5_is_named(key: str, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name, way, plant = T5[key]
    found = diagnosed(t5, 1, plant, full, monkeypatch)
    assert re.search(f"cause: {re.escape(name)}.*{re.escape(way)}", found), found


def test_names_of_hidden_and_gate_exchanged_are_no_second_mistake_in_the_formula() -> None:
    """The port's activation reads the right product, although an earlier mistake changes every later number."""
    model, recorded = reference(llama, 2)
    stages = trace(Model(model.config, unflatten(dict(exchanged(flatten(dict(model.weights)))))), recorded.inputs)
    other = {"gate": "up", "up": "gate"}
    arrays = {
        f"{i}/{re.sub('ffn.(gate|up)$', lambda found: f'ffn.{other[found[1]]}', name)}": array
        for name in stages
        for i, array in enumerate(stages.texts(name))
    }
    found = golden.diagnose(recorded, arrays, model)
    assert [each.mistake for each in (found, *found.then)] == [
        "norms of queries and keys exchanged",
        "stages under wrong names",
    ]


def test_hidden_states_without_the_last_layer_are_named() -> None:
    """The list of hidden states ends with the norm, under the name of a layer's output."""
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


def test_layers_exchanged_are_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange explains both layers. A shift of all layers by one is refuted by a correct layer."""
    orders = {"layers.1.": "layers.2.", "layers.2.": "layers.1."}

    def plant(weights: Weights) -> Weights:
        return {name: weights[orders.get(name[:9], name[:9]) + name[9:]] for name in weights}

    found = diagnosed(llama, 3, plant, True, monkeypatch)
    assert "weights of another layer (layers.1 and layers.2 are exchanged)" in found, found
    assert "next stage that diverges" not in found, found


def test_a_key_that_later_queries_of_a_longer_text_do_not_see_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Returns a plant that reorders the weights of the layers."""

    def plant(weights: Weights) -> Weights:
        moved = (name.split(".") for name in weights)
        of = {".".join(each): [*each[:1], str(order[int(each[1])]), *each[2:]] for each in moved if each[0] == "layers"}
        return {name: weights[".".join(of.get(name, [name]))] for name in weights}

    return plant


def test_layers_in_the_order_of_their_names_are_one_finding() -> None:
    model, texts = llama(n_layers=11), [Text(np.arange(3, 8))]
    recorded = golden.record(model, texts, ["*.attention_norm", "*.ffn_residual"])
    sort = in_order(sorted(range(11), key=str))
    port = Model(model.config, unflatten(dict(sort(flatten(dict(model.weights))))))
    found = str(golden.diagnose(recorded, dict(trace(port, texts)), model))
    assert "weights of another layer (sorted as strings, 10 before 2)" in found, found
    assert "next stage that diverges" not in found, found


def test_each_layer_of_an_unusual_order_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer has the first layer's weights, although an earlier cause has replaced these in the model."""
    found = diagnosed(llama, 3, in_order((1, 2, 0)), True, monkeypatch)
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
