"""Mistakes that people make in ports, each under a short name, with the plant that makes it in a page.

`KNOWN` has the mistakes in the diagnosis's list, each with the name that the diagnosis must give. `HELD_BACK` has
similar mistakes that are not in this list, each with the names that the diagnosis may give; many may not be
named at all. The diagnosis must not be certain of a wrong cause.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getsource
from typing import Any

import numpy as np

from npformer.plain.formulas import encoder_layer
from npformer.plain.gpt2 import gpt2_layer
from npformer.plain.transformer import sinusoidal_positions
from tests.support.edited_pages import Arrays, Plant, edited, exported, inputs, weights

HEADS = 4
GELU = "x * (1 + erf(x / math.sqrt(2))) / 2"
GELU_TANH = "x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2"
NORM = "(x - mean) / np.sqrt(variance + eps)"
SCORES, ROOT = "q @ k.mT / math.sqrt(q.shape[-1])", "math.sqrt(q.shape[-1])"
MASKED = "softmax(np.where(mask, scores, np.finfo(scores.dtype).min)) * mask"
CAUSAL = "np.tri(n_queries, max(n_queries, n_keys), max(n_keys - n_queries, 0), dtype=bool)"
SPLIT = "reshape(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).swapaxes(-2, -3)"
JOIN = "np.moveaxis(x, -3, 0)"
OUTPUT = "return linear(combined, **output)"
LOGITS = 'linear(pooled, **head["output"])'


def gelu(new: str) -> Plant:
    return edited((GELU, new))


def norm(new: str) -> Plant:
    return edited((NORM, new))


def scores(new: str) -> Plant:
    return edited((SCORES, new))


def softmax(new: str) -> Plant:
    return edited((MASKED, new))


def mask(new: str) -> Plant:
    """Replaces the mask of the softmax."""
    return edited(("return softmax(", f"mask = {new}\n    return softmax("))


def residual(new: str) -> Plant:
    """Replaces what the second sum of a layer adds to the block's output."""
    return edited(("ffn_residual = y", f"ffn_residual = {new}"))


def output(new: str) -> Plant:
    """Replaces the output of attention."""
    return edited((OUTPUT, f"output = {new}\n    return output"))


def logits(new: str) -> Plant:
    return edited((LOGITS, new))


def pooled(new: str) -> Plant:
    """Replaces the activation of the pooler, whatever its function is."""
    return edited((f"logits = {LOGITS}", f"pooled = {new}\n    logits = {LOGITS}"))


def positions(change: Callable[[dict[str, Any]], Any]) -> Plant:
    return inputs(lambda given: {"positions": change(given)})


def layer(of: str, *functions: Callable[..., Any]) -> Plant:
    """Has the layers of another page in a page with the layers `of`: the first function, which uses the others."""
    return edited((f"x = {of}(", f"x = {functions[0].__name__}("), added="\n\n".join(map(getsource, functions)))


def swapped(one: str, other: str) -> Plant:
    """Exchanges the weights of two parts of every layer, such as query and key."""

    def exchange(flat: Arrays) -> Arrays:
        pairs = ((f".{one}.", f".{other}."), (f".{other}.", f".{one}."))
        return {name.replace(own, twin): w for own, twin in pairs for name, w in flat.items() if own in name}

    return weights(exchange)


def of_layer(own: int, other: int) -> Plant:
    at, begins = f"layers.{own}.", f"layers.{other}."
    return weights(lambda flat: {n.replace(begins, at): w for n, w in flat.items() if n.startswith(begins)})


def times(part: str, c: float) -> Plant:
    return weights(lambda flat: {name: w * np.float32(c) for name, w in flat.items() if part in name})


def changed(end: str, change: Callable[[np.ndarray], np.ndarray]) -> Plant:
    """Changes the weights whose names have this ending."""
    return weights(lambda flat: {name: change(w) for name, w in flat.items() if name.endswith(end)})


def left_padded(given: dict[str, Any]) -> dict[str, Any]:
    names = ("ids", "token_type_ids", "seen")
    lengths, width = given["lengths"], given["ids"].shape[1]
    moved = {
        name: np.array([np.roll(row, width - n, axis=-1) for row, n in zip(given[name], lengths, strict=True)])
        for name in names
    }
    return moved | {"mask": moved["seen"]}


def quantized(axis: int | None) -> Plant:
    def rounded(w: np.ndarray) -> np.ndarray:
        step = np.abs(w).max(axis=axis, keepdims=True) / 127
        return np.rint(w / step) * step

    return weights(
        lambda flat: {n: rounded(w) for n, w in flat.items() if w.ndim == 2 and not n.startswith("embeddings")}
    )


def fused_by_head(flat: Arrays) -> Arrays:
    changes = {}
    for name in [each for each in flat if ".attention.query." in each]:
        names = [name.replace("query", each) for each in ("query", "key", "value")]
        whole = np.concatenate([flat[each] for each in names], axis=-1)
        cut = whole.reshape(*whole.shape[:-1], HEADS, 3, -1)
        changes |= {each: cut[..., j, :].reshape(flat[each].shape) for j, each in enumerate(names)}
    return changes


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


LAST = "x[np.arange(len(x)), lengths - 1]"
DROPOUT = """
random = np.random.default_rng(0)


def drop(x):
    return x * (random.random(x.shape) >= 0.1) / np.float32(0.9)
"""
FFN_FIRST = """
def encoder_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):
    y = layer_norm(x + feed_forward(x, activation, **ffn), **ffn_norm, eps=eps)
    attention_residual = y + multi_head_attention(y, y, mask, n_heads, **attention)
    ffn_norm = layer_norm(attention_residual, **attention_norm, eps=eps)
    return ffn_norm
"""

KNOWN: dict[str, tuple[str, Plant]] = {
    "tanh gelu": ("tanh GELU for erf", gelu(GELU_TANH)),
    "quick gelu": ("quick GELU", gelu("x / (1 + np.exp(-1.702 * x))")),
    "gelu 0.0447": ("wrong constant in the activation", gelu(GELU_TANH.replace("0.044715", "0.0447"))),
    "sigmoid 1.6": ("wrong constant in the activation", gelu("x / (1 + np.exp(-1.6 * x))")),
    "relu": ("wrong activation", gelu("np.maximum(x, 0)")),
    "silu": ("wrong activation", gelu("x / (1 + np.exp(-x))")),
    "no activation": ("activation left out", gelu("x")),
    "eps": ("another layer norm eps", norm(NORM.replace("eps", "1e-5"))),
    "eps outside": ("eps outside the root", norm("(x - mean) / (np.sqrt(variance) + 1e-5)")),
    "unbiased": ("unbiased variance", edited(("x.var(", "x.var(ddof=1, "))),
    "variance": ("wrong deviation in the norm", norm("(x - mean) / variance")),
    "root of std": ("wrong deviation in the norm", norm("(x - mean) / variance**0.25")),
    "rms norm": ("mean not subtracted", norm("x / np.sqrt((x * x).mean(axis=-1, keepdims=True))")),
    "no affine": ("norm without weight or bias", edited((f"{NORM} * weight + bias", NORM))),
    "gamma and beta": (
        "weight and bias of the norm mixed up", edited((f"{NORM} * weight + bias", f"{NORM} * bias + weight"))
    ),
    "norms exchanged": ("norms exchanged", swapped("attention_norm", "ffn_norm")),
    "no embedding norm": (
        "norm left out", edited(("return layer_norm(total, **norm, eps=eps)", "norm = total\n    return norm"))
    ),
    "no ffn norm": (
        "norm left out",
        edited(("return layer_norm(ffn_residual, **ffn_norm, eps=eps)", "ffn_norm = ffn_residual\n    return ffn_norm")),
    ),
    "types all 1": ("wrong token types", inputs(lambda given: {"token_type_ids": given["token_type_ids"] * 0 + 1})),
    "types all 0": ("token types ignored", inputs(lambda given: {"token_type_ids": given["token_type_ids"] * 0})),
    "sinusoids": (
        "sinusoidal positions instead of learned",
        changed("position.weight", lambda w: sinusoidal_positions(*w.shape)),
    ),
    "no positions": ("positions left out", changed("position.weight", np.zeros_like)),
    "from 1": ("positions off by one", positions(lambda given: given["positions"] + 1)),
    "from 2": ("positions off by one", positions(lambda given: given["positions"] + 2)),
    "no offset": ("positions off by one", positions(lambda given: given["text_positions"])),
    "padding counted": ("wrong positions", positions(lambda given: given["text_positions"] + given["pad_id"] + 1)),
    "restarting": (
        "wrong positions", positions(lambda given: given["positions"] - 2 * (given["token_type_ids"] == 1))
    ),
    "reversed": (
        "positions from the wrong rule",
        positions(lambda given: (given["seen"][:, 0, 0].cumsum(1)[:, ::-1] - 1).clip(0)),
    ),
    "sqrt(D)": ("embeddings scaled differently", times("embeddings.token", 32**0.5)),
    "q and k": ("query and key swapped", swapped("query", "key")),
    "q and v": ("query and value swapped", swapped("query", "value")),
    "k and v": ("key and value swapped", swapped("key", "value")),
    "fused": ("fused query, key and value split wrongly", weights(fused_by_head)),
    "interleaved": ("heads interleaved", edited((f"x.{SPLIT}", "np.moveaxis(x.reshape(*x.shape[:-1], -1, n_heads), -1, -3)"))),
    "reversed heads": ("heads in the wrong order", edited((JOIN, f"{JOIN}[::-1]"))),
    "no transpose": (
        "heads reshaped without the transpose", edited((SPLIT, "reshape(*x.shape[:-2], n_heads, x.shape[-2], -1)"))
    ),
    "half the heads": ("wrong number of heads", inputs(lambda given: {"n_heads": given["n_heads"] // 2})),
    "twice the heads": ("wrong number of heads", inputs(lambda given: {"n_heads": given["n_heads"] * 2})),
    "unscaled": ("unscaled scores", scores("q @ k.mT")),
    "doubly scaled": ("doubly scaled scores", scores("q @ k.mT / q.shape[-1]")),
    "d_model": ("scores divided by sqrt(d_model)", scores(f"q @ k.mT / math.sqrt({HEADS} * q.shape[-1])")),
    "base 2": ("wrong softmax", edited(("np.exp(x - x.max", "np.exp2(x - x.max"))),
    "queries": ("softmax over the wrong axis", softmax("softmax(np.where(mask, scores, np.float32(-1e9)), -2)")),
    "softmax twice": ("wrong softmax", softmax("softmax(softmax(np.where(mask, scores, np.float32(-1e9))))")),
    "mask ignored": ("mask ignored", softmax("softmax(scores)")),
    "mask inverted": ("mask inverted", softmax("softmax(scores + np.finfo(scores.dtype).min * mask)")),
    "mask after": ("mask misused", softmax("softmax(scores) * mask")),
    "mask 1e-9": ("mask misused", softmax("softmax(np.where(mask, scores, np.float32(1e-9)))")),
    "causal": ("causal mask", mask("mask & np.tri(scores.shape[-1], dtype=bool)")),
    "no W_O": ("W_O left out", output("combined")),
    "no residual 1": (
        "residual left out", edited(("attention_residual = x + ", "attention_residual = "))
    ),
    "no residual 2": ("residual left out", residual("0")),
    "residual of x": ("residual from the wrong place", residual("x")),
    "residual before norm": ("residual from the wrong place", residual("attention_residual")),
    "pre-norm": ("pre-norm instead of post-norm", layer("encoder_layer", gpt2_layer)),
    "ffn first": ("FFN before attention", edited(added=FFN_FIRST)),
    "layer 0 in 1": ("weights of another layer", of_layer(1, 0)),
    "layer 1 in 0": ("weights of another layer", of_layer(0, 1)),
    "last missing": ("wrong number of layers", edited(("for layer in layers:", "for layer in layers[:-1]:"))),
    "last twice": ("wrong number of layers", edited(("for layer in layers:", "for layer in [*layers, layers[-1]]:"))),
    "last token": ("wrong pooling", edited(("x[..., 0, :]", LAST))),
    "mean": ("wrong pooling", edited(("x[..., 0, :]", "x.mean(axis=-2, where=seen[:, 0, 0, :, None])"))),
    "pooler linear": ("wrong pooler activation", pooled("linear(x[..., 0, :], **pooler)")),
    "labels": ("labels in the wrong order", logits(f"{LOGITS}[..., ::-1]")),
    "sigmoid": ("wrong probabilities", exported(lambda stages: {"probabilities": sigmoid(stages["logits"])})),
    "left padding": ("left padding", inputs(left_padded)),
    "transposed": ("transposed weight", changed("layers.1.attention.key.weight", np.transpose)),
    "no bias": ("missing bias", changed("layers.1.ffn.output.bias", np.zeros_like)),
    "int8": ("quantized weights", quantized(None)),
    "int8 by column": ("quantized weights", quantized(0)),
    "dropout": ("dropout left on", edited(("weights = masked_softmax(scores, mask)", "weights = drop(masked_softmax(scores, mask))"), added=DROPOUT)),
}  # fmt: skip


def causal(new: str) -> Plant:
    """Replaces the causal mask. Padding stays hidden."""
    return edited((CAUSAL, f"{new} & seen"))


#: Mistakes that show only in a causal, pre-norm model, or show differently there.
IN_GPT2: dict[str, tuple[str, Plant]] = {
    "no causal mask": ("causal mask left out", causal("True")),
    "strictly causal": ("causal mask off by one", causal("np.tri(n_queries, k=-1, dtype=bool)")),
    "the next seen": ("causal mask off by one", causal("np.tri(n_queries, k=1, dtype=bool)")),
    "later ones seen": ("causal mask misused", causal(f"{CAUSAL}.T")),
    "conv as linear": ("transposed weight", changed(".attention.output.weight", np.transpose)),
    "key first": KNOWN["q and k"],
    "c_attn by head": KNOWN["fused"],
    "exact gelu": (
        "erf GELU for tanh",
        edited((GELU_TANH, "(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2).astype(x.dtype)")),
    ),
    "no final norm": (
        "norm left out", edited(("return layer_norm(x, **norm, eps=eps)", "norm = x\n    return norm"))
    ),
    "post-norm": ("post-norm instead of pre-norm", layer("gpt2_layer", encoder_layer)),
    "first token": ("wrong pooling", edited(("logits = linear(row,", "logits = linear(x[:, 0],"))),
    "last of the batch": ("wrong pooling", edited(("logits = linear(row,", "logits = linear(x[:, -1],"))),
    "from 1": KNOWN["from 1"],
    "left padding": KNOWN["left padding"],
}  # fmt: skip

ROTATIONS, REACH = "layers, rotations, reaches):", "np.abs(positions[:, None] - key_positions) <= reach"
#: Mistakes in ModernBERT's local windows and rotations, and in the mask and softmax of its padded batches.
IN_MODERNBERT: dict[str, tuple[str, Plant]] = {
    "mask ignored": ("mask ignored", edited(("mask & near", "near"))),
    "mask after": (
        "mask misused",
        edited(("mask & near", "near")) & softmax("softmax(np.where(mask, scores, np.float32(-1e9))) * seen"),
    ),
    "queries": KNOWN["queries"],
    "no window": ("wrong local window", edited((REACH, REACH.replace("reach", "99")))),
    "half the window": ("wrong mask", edited((REACH, REACH.replace("reach", "reach / 2")))),
    "bases exchanged": (
        "rotation with the wrong base",
        edited((ROTATIONS, "layers, [rotations[i] for i in (1, 0, 0, 1)], reaches):")),
    ),
    "other local layers": (
        "the wrong layers are local",
        edited((ROTATIONS, "layers, [rotations[i] for i in (1, 0, 1, 0)], [reaches[i] for i in (1, 0, 1, 0)]):")),
    ),
}  # fmt: skip


def noisy(flat: Arrays) -> Arrays:
    random = np.random.default_rng(5)
    return {n: w + 0.05 * random.standard_normal(w.shape) for n, w in flat.items() if n.startswith("layers.1.")}


ALIBI = """
def alibi(scores):
    places = np.arange(scores.shape[-1])
    slopes = 2.0 ** -np.arange(1, scores.shape[-3] + 1)[:, None, None]
    return (slopes * np.abs(places - places[:, None])).astype(np.float32)
"""
UNIT = """
def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True))
"""
SCALE, ORDER = "scaled by a constant", "in the wrong order"
WEIGHT_ORDER = "weight in the wrong order"
ONE_HEAD_LESS = edited((JOIN, f"{JOIN} * np.array([1, 0, 1, 1], x.dtype)[:, None, None, None]"))

#: Mistakes that are not in the diagnosis's list, each with the names that describe it correctly.
HELD_BACK: dict[str, tuple[tuple[str, ...], Plant]] = {
    "sigmoid 1.3": ((), gelu("x / (1 + np.exp(-1.3 * x))")),
    "elu 0.5": ((), gelu("np.where(x > 0, x, 0.5 * np.expm1(x))")),
    "gelu of 1.1 x": ((), gelu("1.1 * x * (1 + erf(1.1 * x / math.sqrt(2))) / 2")),
    "clipped gelu": (("clipped",), gelu(f"({GELU}).clip(-1, 1)")),
    "gelu of |x|": ((), gelu("abs(x) * (1 + erf(abs(x) / math.sqrt(2))) / 2")),
    "eps 3e-5": ((), norm(NORM.replace("eps", "3e-5"))),
    "eps 0.1": ((), norm(NORM.replace("eps", "0.1"))),
    "median": ((), edited(("x.mean(axis=-1", "np.median(x, axis=-1"))),
    "ddof 2": ((SCALE,), edited(("x.var(", "x.var(ddof=2, "))),
    "half of the row": ((), edited(("x.var(", "x[..., :16].var("))),
    "norm clipped": (("clipped",), edited((f"{NORM} * weight + bias", f"({NORM} * weight + bias).clip(-1.5, 1.5)"))),
    "weights of norms squared": ((), changed("norm.weight", np.square)),
    "positions from 3": (("positions from the wrong rule",), positions(lambda given: given["positions"] + 3)),
    "positions doubled": (("positions from the wrong rule",), positions(lambda given: 2 * given["positions"])),
    "half the positions": ((SCALE, "embeddings added twice"), times("position", 0.5)),
    "a tenth more tokens": ((SCALE,), times("embeddings.token", 1.1)),
    "last token unknown": (
        ("wrong token ids",), inputs(lambda given: {"ids": np.where(given["text_positions"] == 2, 1, given["ids"])})
    ),
    "temperature 0.7": ((SCALE,), scores(f"{SCORES} / 0.7")),
    "clipped scores": ((), edited(("np.where(mask, scores,", "np.where(mask, scores.clip(-0.5, 0.5),"))),
    "alibi": ((), edited(("np.where(mask, scores,", "np.where(mask, scores - alibi(scores),"), added=ALIBI)),
    "cosine attention": ((), edited((SCORES, "10 * unit(q) @ unit(k).mT"), added=UNIT)),
    "scores plus the distance": (
        (), edited(("np.where(mask, scores,", "np.where(mask, scores + np.arange(scores.shape[-1]),"))
    ),
    "two heads exchanged": ((ORDER,), edited((JOIN, f"{JOIN}[[1, 0, 2, 3]]"))),
    "W_O twice": (("values of another stage",), output("linear(linear(combined, **output), **output)")),
    "tanh after W_O": (("an extra function",), output("np.tanh(linear(combined, **output))")),
    "residual of 0.9": (
        ("residual scaled",), edited(("attention_residual = x", "attention_residual = np.float32(0.9) * x"))
    ),
    "highway": ((), residual("y / (1 + np.exp(-y))")),
    "ffn output times 1.2": (("sum with wrong factors",), edited(("y + feed_forward(", "y + 1.2 * feed_forward("))),
    "residual of both": ((), residual("x + y")),
    "noise in layer 1": ((), weights(noisy)),
    "rows of W_1 reversed": ((WEIGHT_ORDER,), changed("hidden.weight", np.flipud)),
    "columns of W_V reversed": ((ORDER, WEIGHT_ORDER), changed("value.weight", np.fliplr)),
    "biases halved": (("bias with wrong values",), times(".ffn.hidden.bias", 0.5)),
    "int6": (
        (), weights(lambda flat: {n: np.rint(w * 40) / 40 for n, w in flat.items() if "ffn" in n and w.ndim == 2})
    ),
    "mean and first": ((), edited(("x[..., 0, :]", "(x[..., 0, :] + x.mean(axis=-2)) / 2"))),
    "pooler cubed": ((), pooled("linear(x[..., 0, :], **pooler) ** 3")),
    "logits over 2": ((SCALE,), logits(f"{LOGITS} / 2")),
    "probabilities of 1.5 x": (
        (),
        exported(lambda stages: {"probabilities": (e := np.exp(1.5 * stages["logits"])) / e.sum(-1, keepdims=True)}),
    ),
}  # fmt: skip
