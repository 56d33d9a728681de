"""Mistakes as in `planted.py`, with the name that the diagnosis must give, and words from its description."""

from __future__ import annotations

import numpy as np

from npformer.common.halves import half
from tests.support.edited_pages import Plant, at_stage, changed, edited, exported, inputs, swapped, taken
from tests.support.planted import ALLOWED, CAUSAL, FED, FFN_NORM, GELU, JOIN, LINEAR, LOGITS, MASKED, NORM, ROOT, SCORES

ATTENDED = "multi_head_attention(x, x, mask, n_heads, **attention)"
FIRST_NORM = "layer_norm(attention_residual, **attention_norm, eps=eps)"
OUTPUT, SUM = "layers.1.ffn.output", "layers.1.ffn_residual"
PLACE, NAMES, MISSING = "weights from elsewhere in the model", "stages under wrong names", "heads or columns missing"
MASK, ORDER, ROUNDED, MOMENTS = "mask misused", "weight in the wrong order", "half precision", "mean, variance = "
PRODUCT, ONLINE = "the end of a product wrong", "online softmax rescaled wrongly"
KEYS, TILED = "keys of a tile left out or repeated", "causal mask wrong after the first tile"
ROWS, NORMED = "some rows computed differently", "norm over the wrong columns"
SUMMED = "reduce(lambda y, i: half('{}', y + x[..., i : i + 8] @ weight[i : i + 8]), range(0, len(weight), 8), 0)"
RULE = "(lambda i, j: {})(*np.indices((n_queries, max(n_queries, n_keys)))) & seen"  # for query i and key j


def product(new: str, where: str = "'layers.' in at()") -> Plant:
    """Returns an edit that replaces x W in the linear layers for which `where` is true: by default, below the head."""
    return edited((LINEAR, f"({new} if {where} else x @ weight) + bias"))


def context(new: str) -> Plant:
    """Returns an edit that computes the context as `new`, an expression of the masked scores `s` and their maxima `most`.

    It may also use `so_far`, for each key the maximum up to the end of its tile of 4 keys.
    """
    s = "s = np.where(mask, s, np.float32(-1e9)); most, length = s.max(-1, keepdims=True), s.shape[-1]"
    so_far = "so_far = np.maximum.accumulate(s, axis=-1)[..., np.minimum(np.arange(length) | 3, length - 1)]"
    old = "weights = masked_softmax(scores, mask)\n    return weights @ v"
    return edited(("scores = q @ k.mT", "s = q @ k.mT"), (old, f"{s}; {so_far}; return {new}"))


#: Mistakes that the diagnosis derives from the stages, weights and sizes of a model.
KINDS: dict[str, tuple[str, str, Plant]] = {
    "positions not added": ("sum with wrong factors", "without embeddings.position", edited(("embedding(positions,", "0 * embedding(positions,"))),
    "residual of 0.85": ("sum with wrong factors", "0.85 times", edited(("attention_residual = x", "attention_residual = 0.85 * x"))),
    "1 / sqrt(T)": ("scores scaled differently", "1 / sqrt(T with padding)", edited((ROOT, "math.sqrt(q.shape[-2])"))),
    "a head missing": (MISSING, "head 1 is 0", edited((JOIN, f"{JOIN} * np.array([1, 0, 1, 1], x.dtype)[:, None, None, None]"))),
    "units missing": (MISSING, "columns 50 to 63 of layers.0.ffn.activation", edited(("linear(activated,", "linear(activated * (np.arange(64) < 50),"))),
    "gelu cut below": ("clipped", "to at least -0.05", edited((GELU, f"np.maximum({GELU}, -0.05)"))),
    "scores clipped": ("clipped", "scores from -1 to 1", edited((ALLOWED, "np.where(mask, scores.clip(-1, 1),"))),
    "another bias": (PLACE, "query.bias is layers.0.attention.key.bias", taken(("layers.0.attention.query.bias", "layers.0.attention.key.bias"))),
    "a later bias": (PLACE, "is layers.1.attention.query.bias", taken(("layers.0.attention.query.bias", "layers.1.attention.query.bias"))),
    "softmax in float16": (ROUNDED, "float16, the whole stage", edited((MASKED, "softmax(np.where(mask, scores, -6e4).astype(np.float16)).astype(np.float32)"))),
    "mask a place late": (MASK, "one place late", edited((ALLOWED, "np.where(mask := np.concatenate([mask[..., :1], mask[..., :-1]], axis=-1), scores,"))),
    "norm of the block": ("norm before the residual sum", "input is added to the norm",
        edited((ATTENDED, f"(attended := {ATTENDED})"), (FIRST_NORM, "x + layer_norm(attended, **attention_norm, eps=eps); attention_norm = y"),
               (FED, "y + (computed := feed_forward(y, activation, **ffn))"), (FFN_NORM, "ffn_norm = y + layer_norm(computed, **ffn_norm, eps=eps); return ffn_norm"))),
    "weight first": ("weight and bias of the norm mixed up", "before it is normalized", edited((MOMENTS, f"x = x * weight; {MOMENTS}"), (f"{NORM} * weight", NORM))),
    "texts exchanged": ("texts in the wrong order", "1, 0, 2", inputs(**{name: f"{name}[[1, 0, 2]]" for name in ("ids", "token_type_ids", "mask", "seen", "lengths")})),
    "a key hidden": ("wrong mask", "no query sees the keys [1]", edited((ALLOWED, "np.where(mask := mask & (np.arange(scores.shape[-1]) != 1), scores,"))),
    "queries as keys": ("products of the wrong heads", "of query and query", edited((SCORES, f"q @ q.mT / {ROOT}"))),
    "log probabilities": ("an extra function", "log softmax", edited((LOGITS, f"np.log(softmax({LOGITS}))"))),
    "a weight in float16": ("one weight rounded", "layers.0.ffn.output.weight in float16", changed("layers.0.ffn.output.weight", lambda w: half("float16", w))),
    "scales of columns in rows": ("scales of the wrong axis", "columns applied to rows, in attention.output.weight",
        changed("layers.0.attention.output.weight", lambda w: np.rint(w / (scales := abs(w).max(axis=0) / 127)) * scales[:, None])),
    "columns of a weight": (MISSING, "columns 50 to 63 of the weight", changed("layers.0.ffn.hidden.weight", lambda w: w * (np.arange(64) < 50))),
    "heads of a weight moved": (ORDER, "rows of layers.0.attention.output.weight", changed("layers.0.attention.output.weight", lambda w: np.roll(w, 8, axis=0))),
    "norms without weight": ("norm without weight or bias", "no weight", changed(".attention_norm.weight", np.ones_like)),
    "outputs of pre-norm": ("pre-norm instead of post-norm", "",  # the sum has the name of the norm that follows it in BERT
        edited((f"attention_residual = x + {ATTENDED}", "normed = layer_norm(x, **attention_norm, eps=eps)"), (FIRST_NORM, f"x + {ATTENDED.replace('x, x', 'normed, normed')}"),
               (f"ffn_residual = {FED}\n    {FFN_NORM}", "ffn_norm = y + feed_forward(layer_norm(y, **ffn_norm, eps=eps), activation, **ffn); return ffn_norm"))),
    "sum and output": (NAMES, "layers.1.ffn.output is layers.1.ffn_residual", exported(lambda stages: {OUTPUT: stages[SUM], SUM: stages[OUTPUT]})),
    "a column of q and k": ("columns missing from the scores", "of q and k", edited((SCORES, f"q[..., :-1] @ k[..., :-1].mT / {ROOT}"))),
    "first row skipped": (ROWS, "the first row",
        edited((f"y = {FIRST_NORM}", f"y = {FIRST_NORM}\n    attention_norm = y = np.concatenate([attention_residual[:, :1], y[:, 1:]], axis=1)"))),
    "positions cut off": ("positions from the wrong rule", "min(p, 4)", inputs(positions="np.minimum(positions, 4)")),
    "positions again from 4": ("positions from the wrong rule", "p - 4 from 4 on", inputs(positions="positions - 4 * (positions >= 4)")),
    "a linear layer of another layer": (PLACE, "ffn.output is layers.1.ffn.output", taken(("layers.0.ffn.output.", "layers.1.ffn.output."))),
    "attention of another layer": (PLACE, "is layers.1.attention.query", taken(("layers.0.attention.", "layers.1.attention."))),
    "norms of one layer": ("norms exchanged", "in one layer", swapped("layers.0.attention_norm.", "layers.0.ffn_norm.")),
    "biases exchanged": (PLACE, "query.bias and layers.0.attention.key.bias are exchanged", swapped("layers.0.attention.query.bias", "layers.0.attention.key.bias")),
    "1 / int(sqrt(K))": ("scores scaled differently", "1 / int(sqrt(K))", edited((ROOT, f"int({ROOT})"))),
    "first text's mask": (MASK, "text 2's mask for all texts", edited((ALLOWED, "np.where(mask := mask.min(axis=0, keepdims=True), scores,"))),
    "a head copied": (MISSING, "columns of head 2 are those of head 1", changed("layers.1.attention.key", lambda w: w[..., np.r_[:16, 8:16, 24:32]])),
    "rows in (K, H)": (ORDER, "in the order (K, H)", changed("attention.output.weight", lambda w: w.reshape(4, 8, -1).swapaxes(0, 1).reshape(w.shape))),
    "query scaled before its bias": ("wrong bias", "sqrt(K) times, query.bias", changed("query.bias", lambda w: w * 8**0.5)),
    "bias moved": ("bias with wrong values", "moved by 1", changed("ffn.hidden.bias", lambda w: np.roll(w, 1))),
    "norm of each head": ("norm over groups of columns", "one per head",
        edited((MOMENTS, f"x = x.reshape(*x.shape[:-1], 4, -1); {MOMENTS}"), (NORM, f"({NORM}).reshape(*x.shape[:-2], -1)"))),
    "bias after the activation": ("bias after the activation", "",
        edited(("activated = activation(linear(x, **hidden))", 'bias = hidden["bias"]; hidden = x @ hidden["weight"]; activated = activation(hidden) + bias'))),
    "positions after the norm": ("embeddings added after the norm", "position",
        edited((" + embedding(positions, **position)", ""),
               ("return layer_norm(total, **norm, eps=eps)", "norm = layer_norm(total, **norm, eps=eps) + embedding(positions, **position); return norm"))),
    "scores in float16": (ROUNDED, "float16, the whole stage", edited((SCORES, f'half("float16", half("float16", half("float16", q) @ half("float16", k).mT) / np.float32({ROOT}))'))),
    "a residual in bfloat16": (ROUNDED, "bfloat16, the whole stage", at_stage("layers.1.attention_residual", lambda x: half("bfloat16", x))),
    "last columns missing": (MISSING, "columns 28 to 31 are 0", at_stage(OUTPUT, lambda x: x * (np.arange(32) < 28))),
    "off by one": (NAMES, "off by 1: layers.0.ffn_norm is embeddings.norm",
        exported(lambda stages: {"layers.0.ffn_norm": stages["embeddings.norm"], "layers.1.ffn_norm": stages["layers.0.ffn_norm"]})),
}  # fmt: skip
#: Mistakes of kernels that work in tiles, with words from the description that a diagnosis from all stages gives.
TILES: dict[str, tuple[str, str, Plant]] = {
    "last inputs": (PRODUCT, "every product of the layers: without the last 2 inputs", product("x[..., :-2] @ weight[:-2]")),
    "last input of q, k and v": (PRODUCT, "query, key and value: without the last 1 inputs", product("x[..., :-1] @ weight[:-1]", "at().endswith(('query', 'key', 'value'))")),
    "inputs twice": (PRODUCT, "the last 8 inputs added twice", product("x @ weight + x[..., -8:] @ weight[-8:]")),
    "last columns": (PRODUCT, "the last 2 columns are the bias alone", product("x @ weight * (np.arange(weight.shape[1]) < weight.shape[1] - 2)")),
    "columns of W_2 twice": (PRODUCT, "columns 24 to 31 added twice", product("x @ weight * np.repeat(np.float32([1, 2]), [24, 8])", "at().endswith('ffn.output')")),
    "inputs of W_2 twice": (MISSING, "columns 56 to 63 of layers.0.ffn.activation counted twice", edited(("linear(activated,", "linear(activated * np.repeat(np.float32([1, 2]), [56, 8]),"))),
    "no bias on the last tile": (PRODUCT, "the last (number mod 12) columns without the bias", edited((LINEAR, "x @ weight + bias * (np.arange(len(bias)) < len(bias) // 12 * 12)"))),
    "last rows": (ROWS, "the rows from 7: the bias alone", product("x @ weight * np.repeat([1, 0], [7, 2])[:, None]", "at().endswith('ffn.hidden')")),
    "rows twice": (ROWS, "the rows from 7: the product twice", product("x @ weight * np.repeat([1, 2], [7, 2])[:, None]", "at().endswith('ffn.hidden')")),
    "sums in float16": (ROUNDED, "float16, the product, before the bias is added", product(SUMMED.format("float16"))),
    "sums in bfloat16": (ROUNDED, "bfloat16, the product, before the bias is added", product(SUMMED.format("bfloat16"))),
    "last keys": (KEYS, "after the last whole tile of 4 of 9 are left out in the product", context("softmax(s)[..., :8] @ v[..., :8, :]")),
    "keys twice": (KEYS, "the second tile of 4 keys is added twice", context("softmax(s) @ v + softmax(s)[..., 4:8] @ v[..., 4:8, :]")),
    "nothing rescaled": (ONLINE, "tiles of 4 keys; rescaled: neither the context nor the sum", context("np.exp(s - so_far) @ v / np.exp(s - so_far).sum(-1, keepdims=True)")),
    "sum rescaled": (ONLINE, "only the sum, not the context", context("np.exp(s - so_far) @ v / np.exp(s - most).sum(-1, keepdims=True)")),
    "context rescaled": (ONLINE, "only the context, not the sum", context("np.exp(s - most) @ v / np.exp(s - so_far).sum(-1, keepdims=True)")),
    "lanes in the softmax": ("padding lanes in the softmax", "padding lanes of 0 from 9 keys to a multiple of 8", edited(
        ("x - x.max(axis=axis, keepdims=True)", "x"), ("e.sum(axis=axis, keepdims=True)", "(e.sum(axis=axis, keepdims=True) + 16 - x.shape[-1])"))),
    "lanes in the norm": (NORMED, "32 padding lanes counted in the sum of squares", edited((NORM, NORM.replace("eps", "(64 - x.shape[-1]) * mean**2 / x.shape[-1] + eps")))),
    "end of the norm": (NORMED, "the last 4 columns not in the sums, but in the number", edited(
        ("x.mean(axis=-1, keepdims=True)", "x[..., :-4].sum(axis=-1, keepdims=True) / x.shape[-1]"),
        (NORM, NORM.replace("variance", "((x[..., :-4] - mean) ** 2).sum(axis=-1, keepdims=True) / x.shape[-1]")))),
}  # fmt: skip
OF_GPT2: dict[str, tuple[str, str, Plant]] = {  # in a causal mask
    "the next seen": (TILED, "from key 4 on, a token sees the next token too", edited((CAUSAL, RULE.format("j <= i + (j >= 4)")))),
    "places in the tile": (TILED, "places are counted within tiles of 4", edited((CAUSAL, RULE.format("(j % 4 <= i % 4) & (j <= i)")))),
    "last slot overwritten": (TILED, "a cache of 6 keys overwrites its last key", edited((CAUSAL, RULE.format("(j <= i) & ((j < 5) | (j == i))")))),
    "wrap too early": (TILED, "a cache of 6 keys wraps one key too early", edited((CAUSAL, RULE.format("(j <= i) & ((i < 6) | (i - j < 5))")))),
}  # fmt: skip
