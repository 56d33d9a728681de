"""Kinds of mistakes that the diagnosis derives from a model's own parts, planted in BERT's page as in `planted.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.common.halves import half
from tests.support.edited_pages import Arrays, Plant, at_stage, edited, exported, inputs, weights
from tests.support.planted import (
    GELU,
    HEADS,
    LOGITS,
    MASKED,
    NORM,
    ONE_HEAD_LESS,
    ROOT,
    changed,
    gelu,
    logits,
    mask,
    norm,
    positions,
    scores,
    swapped,
)

LAYER = "def encoder_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):"
NORM_OF_BLOCK = f"""
{LAYER}
    attended = self_attention(x, mask, n_heads, **attention)
    attention_residual = x + attended
    attention_norm = x + layer_norm(attended, **attention_norm, eps=eps)
    computed = feed_forward(attention_norm, activation, **ffn)
    ffn_residual = attention_norm + computed
    ffn_norm = attention_norm + layer_norm(computed, **ffn_norm, eps=eps)
    return ffn_norm
"""
OUTPUTS_OF_PRE_NORM = f'''
{LAYER}
    """The sum has the name of the norm that follows it in BERT."""
    y = x + self_attention(layer_norm(x, **attention_norm, eps=eps), mask, n_heads, **attention)
    ffn_norm = y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), activation, **ffn)
    return ffn_norm
'''
POSITIONS_LAST = """
def embed(ids, positions, token_type_ids, eps, token, position, segment, norm):
    total = embedding(ids, **token) + embedding(token_type_ids, **segment)
    norm = layer_norm(total, **norm, eps=eps) + embedding(positions, **position)
    return norm
"""
BIAS_LAST = """
def feed_forward(x, activation, hidden, output):
    bias = hidden["bias"]
    hidden = x @ hidden["weight"]
    activated = activation(hidden) + bias
    return linear(activated, **output)
"""
EACH_HEAD = f"({NORM}).reshape(*x.shape[:-2], -1)"


def exchanged_texts(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: given[name][[1, 0, 2]] for name in ("ids", "token_type_ids", "mask", "seen", "lengths")}


def sum_and_output(stages: Arrays) -> Arrays:
    pair = ("layers.1.ffn.output", "layers.1.ffn_residual")
    return dict(zip(pair, (stages[name] for name in pair[::-1]), strict=True))


def off_by_one(stages: Arrays) -> Arrays:
    return {"layers.0.ffn_norm": stages["embeddings.norm"], "layers.1.ffn_norm": stages["layers.0.ffn_norm"]}


def copied_head(w: np.ndarray) -> np.ndarray:
    heads = w.reshape(*w.shape[:-1], HEADS, -1).copy()
    heads[..., 2, :] = heads[..., 1, :]
    return heads.reshape(w.shape)


def wrong_scales(w: np.ndarray) -> np.ndarray:
    scales = np.abs(w).max(axis=0) / 127
    return np.rint(w / scales) * scales[:, None]


def bias_of_query(other: str) -> Plant:
    return weights(lambda flat: {"layers.0.attention.query.bias": flat[f"{other}.bias"]})


def exchanged_biases(flat: Arrays) -> Arrays:
    query, key = (f"layers.0.attention.{name}.bias" for name in ("query", "key"))
    return {query: flat[key], key: flat[query]}


def from_layer_1(begin: str) -> Plant:
    """The weights of layer 0 that begin so are those of layer 1."""
    own = f"layers.0.{begin}"
    return weights(lambda flat: {name: flat[name.replace("s.0", "s.1")] for name in flat if name.startswith(own)})


def norms_of_layer_0(flat: Arrays) -> Arrays:
    [exchange] = swapped("attention_norm", "ffn_norm").weights
    return {name: array for name, array in exchange(flat).items() if name.startswith("layers.0.")}


def columns(end: str, count: int) -> Plant:
    """Only the first columns of a stage."""
    return at_stage(end, lambda x: x * (np.arange(x.shape[-1]) < count))


def first(count: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda w: w * (np.arange(w.shape[1]) < count)


MISSING, PLACE, NAMES = "heads or columns missing", "weights from elsewhere in the model", "stages under wrong names"
SUM = "attention_residual = x"
#: Mistakes that the diagnosis derives from a model's stages, weights and sizes: the name that it must give, words from
#: its description, and the plant.
KINDS: dict[str, tuple[str, str, Plant]] = {
    "positions not added": (
        "sum with wrong factors", "without embeddings.position",
        edited(("embedding(positions, **position)", "0 * embedding(positions, **position)")),
    ),
    "residual of 0.85": ("sum with wrong factors", "0.85 times", edited((SUM, "attention_residual = 0.85 * x"))),
    "1 / sqrt(T)": ("scores scaled differently", "1 / sqrt(T with padding)", edited((ROOT, "math.sqrt(q.shape[-2])"))),
    "a head missing": (MISSING, "head 1 is 0", ONE_HEAD_LESS),
    "units missing": (
        MISSING, "columns 50 to 63 of layers.0.ffn.activation",
        edited(("linear(activated, **output)", "linear(activated * (np.arange(activated.shape[-1]) < 50), **output)")),
    ),
    "gelu cut below": ("clipped", "to at least -0.05", gelu(f"np.maximum({GELU}, -0.05)")),
    "scores clipped": (
        "clipped", "scores from -1 to 1", edited(("np.where(mask, scores,", "np.where(mask, scores.clip(-1, 1),"))
    ),
    "another bias": (PLACE, "query.bias is layers.0.attention.key.bias", bias_of_query("layers.0.attention.key")),
    "a later bias": (PLACE, "is layers.1.attention.query.bias", bias_of_query("layers.1.attention.query")),
    "softmax in float16": (
        "half precision", "float16, the whole stage",
        edited((MASKED, "softmax(np.where(mask, scores, -6e4).astype(np.float16)).astype(np.float32)")),
    ),
    "mask a place late": (
        "mask misused", "one place late", mask("np.concatenate([mask[..., :1], mask[..., :-1]], axis=-1)")
    ),
    "norm of the block": ("norm before the residual sum", "X is added", edited(added=NORM_OF_BLOCK)),
    "weight first": (
        "weight and bias of the norm mixed up", "before it is normalized",
        edited(("mean, variance = ", "x = x * weight\n    mean, variance = "), (f"{NORM} * weight", NORM)),
    ),
    "texts exchanged": ("texts in the wrong order", "1, 0, 2", inputs(exchanged_texts)),
    "a key hidden": ("wrong mask", "no query sees the keys [1]", mask("mask & (np.arange(scores.shape[-1]) != 1)")),
    "queries as keys": ("products of the wrong heads", "of query and query", scores(f"q @ q.mT / {ROOT}")),
    "log probabilities": ("an extra function", "log softmax", logits(f"np.log(softmax({LOGITS}))")),
    "a weight in float16": (
        "one weight rounded", "layers.0.ffn.output.weight in float16",
        changed("layers.0.ffn.output.weight", lambda w: w.astype(np.float16)),
    ),
    "scales of columns in rows": (
        "scales of the wrong axis", "columns applied to rows, in attention.output.weight",
        changed("layers.0.attention.output.weight", wrong_scales),
    ),
    "columns of a weight": (
        MISSING, "columns 50 to 63 of the weight", changed("layers.0.ffn.hidden.weight", first(50))
    ),
    "heads of a weight moved": (
        "weight in the wrong order", "rows of layers.0.attention.output.weight",
        changed("layers.0.attention.output.weight", lambda w: np.roll(w, len(w) // HEADS, axis=0)),
    ),
    "norms without weight": (
        "norm without weight or bias", "no weight", changed(".attention_norm.weight", np.ones_like)
    ),
    "outputs of pre-norm": ("pre-norm instead of post-norm", "", edited(added=OUTPUTS_OF_PRE_NORM)),
    "sum and output": (NAMES, "layers.1.ffn.output is layers.1.ffn_residual", exported(sum_and_output)),
    "a column of q and k": (
        "columns missing from the scores", "of q and k", scores(f"q[..., :-1] @ k[..., :-1].mT / {ROOT}")
    ),
    "first row skipped": (
        "some rows computed differently", "the first row",
        edited((
            "y = layer_norm(attention_residual, **attention_norm, eps=eps)",
            "y = layer_norm(attention_residual, **attention_norm, eps=eps)\n"
            "    attention_norm = y = np.concatenate([attention_residual[:, :1], y[:, 1:]], axis=1)",
        )),
    ),
    "positions cut off": (
        "positions from the wrong rule", "min(p, 4)", positions(lambda given: np.minimum(given["positions"], 4))
    ),
    "positions again from 4": (
        "positions from the wrong rule", "p - 4 from 4 on",
        positions(lambda given: given["positions"] - 4 * (given["positions"] >= 4)),
    ),
    "a linear layer of another layer": (PLACE, "ffn.output is layers.1.ffn.output", from_layer_1("ffn.output.")),
    "attention of another layer": (PLACE, "is layers.1.attention.query", from_layer_1("attention.")),
    "norms of one layer": ("norms exchanged", "in one layer", weights(norms_of_layer_0)),
    "biases exchanged": (PLACE, "query.bias and layers.0.attention.key.bias are exchanged", weights(exchanged_biases)),
    "1 / int(sqrt(K))": ("scores scaled differently", "1 / int(sqrt(K))", edited((ROOT, f"int({ROOT})"))),
    "first text's mask": (
        "mask misused", "text 2's mask for all texts", mask("mask.min(axis=0, keepdims=True)")
    ),
    "a head copied": (
        MISSING, "columns of head 2 are those of head 1",
        changed("layers.1.attention.key.weight", copied_head) & changed("layers.1.attention.key.bias", copied_head),
    ),
    "rows in (K, H)": (
        "weight in the wrong order", "in the order (K, H)",
        changed("attention.output.weight", lambda w: w.reshape(HEADS, -1, len(w)).swapaxes(0, 1).reshape(w.shape)),
    ),
    "query scaled before its bias": (
        "wrong bias", "sqrt(K) times, query.bias", changed("query.bias", lambda w: w * 8**0.5)
    ),
    "bias moved": ("bias with wrong values", "moved by 1", changed("ffn.hidden.bias", lambda w: np.roll(w, 1))),
    "norm of each head": (
        "norm over groups of columns", "one per head",
        edited(("mean, variance = ", f"x = x.reshape(*x.shape[:-1], {HEADS}, -1)\n    mean, variance = "))
        & norm(EACH_HEAD),
    ),
    "bias after the activation": ("bias after the activation", "", edited(added=BIAS_LAST)),
    "positions after the norm": ("embeddings added after the norm", "position", edited(added=POSITIONS_LAST)),
    "scores in float16": (
        "half precision", "float16, the whole stage",
        scores(f'half("float16", half("float16", half("float16", q) @ half("float16", k).mT) / np.float32({ROOT}))'),
    ),
    "a residual in bfloat16": (
        "half precision", "bfloat16, the whole stage",
        at_stage("layers.1.attention_residual", lambda x: half("bfloat16", x)),
    ),
    "last columns missing": (MISSING, "columns 28 to 31 are 0", columns("layers.1.ffn.output", 28)),
    "off by one": (NAMES, "off by 1: layers.0.ffn_norm is embeddings.norm", exported(off_by_one)),
}  # fmt: skip
