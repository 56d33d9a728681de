"""Mistakes in weights, sums and blocks that only one edit of a family's page explains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from npformer import golden
from tests.golden.test_page_edits import recorded
from tests.support.edited_pages import Arrays, Plant, changed, edited, run, taken, weights

pytestmark = [pytest.mark.numbers, pytest.mark.edits]


def permuted(weight: np.ndarray) -> np.ndarray:
    """The columns of keys in pairs within 4 heads, as for queries, and then back in halves within their own 2 heads."""
    pairs = np.concatenate(
        [np.stack(np.split(each, 2, -1), -1).reshape(each.shape) for each in np.split(weight, 4, -1)], -1
    )
    return np.concatenate([np.concatenate([each[:, ::2], each[:, 1::2]], -1) for each in np.split(pairs, 2, -1)], -1)


def alternating(flat: Arrays) -> Arrays:
    found = {}
    for gate in [name for name in flat if "ffn.gate" in name]:
        up = gate.replace("gate", "up")
        both = np.concatenate([flat[gate], flat[up]], axis=-1)
        found |= {gate: both[..., ::2], up: both[..., 1::2]}
    return found


def misscaled(weight: np.ndarray) -> np.ndarray:
    step = np.abs(weight).max(0) / 127
    return np.round(weight / step) * (step[:, None] if len(set(weight.shape)) == 1 else step)


IN_FLOAT16 = """
def linear(x, weight, bias=0.0):
    total = np.zeros((*x.shape[:-1], weight.shape[1]), np.float16)
    for i in range(len(weight)):
        total = total + (x[..., i : i + 1] * weight[i]).astype(np.float16)
    return total.astype(np.float32) + bias
"""
IN_BLOCKS = """
def linear(x, weight, bias=0.0):
    total = np.zeros((*x.shape[:-1], weight.shape[1]), np.float32)
    for i in range(0, len(weight), 16):
        total = half('bfloat16', total + x[..., i : i + 16] @ weight[i : i + 16])
    return total + bias
"""
SCALED = "scaled_dot_product_attention(query_heads, "
#: Family, head, plant, whether all stages are exported, and a part of the only edit that fits.
OF_FAMILIES: dict[str, tuple[str, str, Plant, bool, str]] = {
    "a split into alternating columns": (
        "llama", "causal-lm", weights(alternating), True, "linear(x, **split_wrongly(0, gate, up, stored=('parts', 1), read=('numbers', 1)))"
    ),
    "keys permuted by the heads of queries": (
        "llama", "causal-lm", changed("attention.key.weight", permuted), False,
        "pairs_as_halves(halves_as_pairs(linear(x, **key), 4), 2)",
    ),
    "one norm for queries and keys": (
        "olmo2", "causal-lm", weights(lambda flat: {
            name: flat[name.replace("key_norm", "query_norm")][: len(w)] for name, w in flat.items() if "key_norm" in name
        }), True, "**first_of(query_norm, key_norm)",
    ),
    "the encoder's positions in the decoder": (
        "bart", "sequence-classification", taken(("decoder.embeddings.position", "encoder.embeddings.position")), False,
        "**encoder_weights['embeddings']['position']",
    ),
    "a bias that is not scaled": (
        "distilbert", "sequence-classification",
        edited((SCALED, f"{SCALED[:-2]} + (8**0.5 - 1) * split_heads(query['bias'][None], n_heads), ")), True,
        "(math.sqrt(query_heads.shape[-1]) - 1) * heads_like(query['bias'][None], query_heads)",
    ),
    "sums in float16": (
        "gpt2", "causal-lm", edited(added=IN_FLOAT16), False, "product_in_16_bits(x, weight, operands=False)"
    ),
    "sums of 16 products in bfloat16": (
        "gpt2", "causal-lm", edited(added=IN_BLOCKS), False,
        "product_in_16_bits(x, weight, fused=True, block=16, operands=False, kind='bfloat16')",
    ),
    "scales of the other axis": (
        "llama", "causal-lm", weights(lambda flat: {
            name: misscaled(w) for name, w in flat.items() if "layers." in name and w.ndim == 2
        }), False, "int8_misscaled(weight)",
    ),
    "a softmax in bfloat16": (
        "mistral", "causal-lm",
        edited(("return softmax(np.where(mask, scores,", "return in_half(np.where(mask, scores,"),
               added="def in_half(x):\n    return half('bfloat16', softmax(half('bfloat16', x)))"), False,
        "bfloat16(softmax(bfloat16(",
    ),
}  # fmt: skip


def as_integers(axis: int | None, off: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    def made(weight: np.ndarray) -> np.ndarray:
        step = np.abs(weight).max(axis, keepdims=True) / 127
        return (np.round(weight / step) + off) * step

    return made


def without_order(weight: np.ndarray) -> np.ndarray:
    """Rows of 4 groups, r % 4, with the scales of the groups r // 8."""
    of = np.arange(len(weight))
    steps = np.stack([np.abs(weight[of % 4 == group]).max(0) / 127 for group in range(4)])
    return np.round(weight / steps[of % 4]) * steps[of // 8]


def by_groups(flat: Arrays) -> Arrays:
    """Queries, keys and values that follow one another, split as if each of two groups had its own."""
    found = {}
    for query in [name for name in flat if ".attention.query." in name]:
        names = [query.replace("query", each) for each in ("query", "key", "value")]
        fused = np.concatenate([flat[name] for name in names], axis=-1)
        halves = np.split(fused, 2, axis=-1)
        width, narrow = flat[names[0]].shape[-1] // 2, flat[names[1]].shape[-1] // 2
        borders = [width, width + narrow]
        parts = zip(*(np.split(half, borders, axis=-1) for half in halves), strict=True)
        found |= dict(zip(names, (np.concatenate(each, axis=-1) for each in parts), strict=True))
    return found


WEIGHTS = "weights = masked_softmax(scores, mask)"
HIDDEN = "linear(x, **hidden)"
#: Family, head, plant, and a part of the first edit.
QUICK: dict[str, tuple[str, str, Plant, str]] = {
    "attention weights in steps of 1 / 255": (
        "roberta", "masked-lm", edited((WEIGHTS, f"{WEIGHTS.replace('= ', '= np.round(255 * ')}) / 255")), "steps=255)"
    ),
    "an activation in 8 bits": (
        "distilbert", "masked-lm",
        edited((f"activation({HIDDEN})", f"coarse(activation({HIDDEN}))"),
               added="def coarse(x):\n    return np.round(x / np.abs(x).max() * 127) * np.abs(x).max() / 127"),
        "int8(activation(",
    ),
    "an input clipped at 1": (
        "gpt2", "causal-lm", edited((HIDDEN, HIDDEN.replace("x", "np.round(127 * np.clip(x, -1, 1)) / 127", 1))),
        "in_range(x, steps=127)",
    ),
    "a zero point off by one": (
        "qwen2", "causal-lm", changed("attention.query.weight", as_integers(0, 1)), "int8_columns(weight, off=1)"
    ),
    "scales of another group of rows": (
        "qwen2", "causal-lm", changed("ffn.gate.weight", without_order), "strided=True)"
    ),
    "queries, keys and values split by groups": (
        "llama", "causal-lm", weights(by_groups), "stored=('parts', 1), read=('heads', 2)"
    ),
    "the table of distances normed again": (
        "deberta-v2", "masked-lm",
        edited(("x = deberta_layer(x, table, rows", "x = deberta_layer(x, layer_norm(table, **distances_norm, eps=eps), rows")),
        "layer_norm(",
    ),
    "the first layer's input normed again": (
        "modernbert", "masked-lm",
        edited(("x + rotary_attention(x, mask", "x + rotary_attention(layer_norm(x, **NORM, eps=eps), mask"),
               ("    x = embed(ids, eps, **embeddings)", "    NORM.update(embeddings['norm'])\n    x = embed(ids, eps, **embeddings)"),
               added="NORM = {}"),
        "layer_norm(x, **norms['embeddings.norm'], eps=eps)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("family", "head", "plant", "after"), QUICK.values(), ids=QUICK)
def test_a_mistake_of_a_stage_is_named(family: str, head: str, plant: Plant, after: str) -> None:
    model, reference = recorded(family, head)
    found = golden.diagnose(reference, run(model, reference, plant, padded=False), model)
    assert found.edits is not None
    assert after in str(found.edits), found


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head", "plant", "full", "after"), OF_FAMILIES.values(), ids=OF_FAMILIES)
def test_a_mistake_of_a_family_is_the_only_edit(family: str, head: str, plant: Plant, full: bool, after: str) -> None:
    model, reference = recorded(family, head)
    ends = ("",) if full else ("ffn_residual", "ffn_norm", "embeddings.norm", "/embeddings.sum", "/norm", "/logits")
    arrays = run(model, reference, plant, padded=False)
    found = golden.diagnose(reference, {name: each for name, each in arrays.items() if name.endswith(ends)}, model)
    assert found.edits is not None
    assert len(found.edits.causes) == 1, found
    assert after in str(found.edits)


def test_weights_of_another_layer_for_two_groups_are_shown() -> None:
    """Layer 1 projects the distance table with layer 0's query and key weights, but its rows with its own weights."""
    model, reference = recorded("deberta-v2")
    layers = "{name: layers[0]['attention'][name] for name in ('query', 'key')}"
    plant = edited(
        ('relative_projections.get("distance_query", query)', "FIRST.get('query', query)"),
        ('relative_projections.get("distance_key", key)', "FIRST.get('key', key)"),
        ("    for layer in layers:\n        x = deberta_layer(", f"    FIRST.update({layers})\n    for layer in layers:\n        x = deberta_layer("),
        added="FIRST = {}",
    )  # fmt: skip
    found = golden.diagnose(reference, run(model, reference, plant, padded=False), model)
    assert found.edits is not None
    both = [each for cause in found.edits.causes for each in (cause, *cause.second)]
    assert {"query", "key"} <= {
        name for name in ("query", "key") for each in both if f"layers[0]['attention']['{name}']" in each.after
    }


def test_weights_of_another_layer_are_shown() -> None:
    model, reference = recorded("distilbert")
    arrays = run(model, reference, taken(("layers.1.ffn.hidden.", "layers.0.ffn.hidden.")), padded=False)
    found = str(golden.diagnose(reference, arrays, model))
    assert "+ activated = activation(linear(x, **layers[0]['ffn']['hidden']))" in found


def test_exchanged_blocks_are_one_mistake() -> None:
    """Cross-attention comes before self-attention, each with its own norm."""
    model, reference = recorded("bart")
    own, cross = "(x, x, mask, n_heads, **attention)", "(y, source, True, n_heads, **cross_attention)"
    plant = edited(
        (f"y + multi_head_attention{cross}", f"y + multi_head_attention{own.replace('x, x', 'y, y')}"),
        ("attention_residual, **cross_attention_norm", "attention_residual, **attention_norm"),
        (
            f"attention_residual = x + multi_head_attention{own}\n    y = layer_norm(attention_residual, **attention_norm, eps=eps)\n    cross",
            f"attention_residual = x + multi_head_attention{cross.replace('(y', '(x')}\n    y = layer_norm(attention_residual, **cross_attention_norm, eps=eps)\n    cross",
        ),
    )
    arrays = run(model, reference, plant, padded=False)
    shown = {
        name: each for name, each in arrays.items() if name.endswith(("embeddings.norm", "attention.query", "ffn_norm"))
    }
    found = golden.diagnose(reference, shown, model)
    assert found.edits is not None
    assert "attention_residual = x + multi_head_attention(x, source, True, n_heads, **cross_attention)" in str(
        found.edits
    )
    assert "several edits of the page that give your values" in str(found.edits)
