"""Mistakes of kernels that work in tiles, planted in a `PlainPort` as in `planted.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.common.halves import half
from tests.support.plain_port import PlainPort
from tests.support.planted import Plant, put

QKV = ("query", "key", "value")
EVERY = ("",)


def product(of: Callable[[np.ndarray, np.ndarray], np.ndarray], ends: tuple[str, ...] = EVERY) -> Plant:
    """Replaces x W by a function of x and W in the linear layers whose names have these endings."""

    def linear(port: PlainPort, x: np.ndarray, name: str) -> np.ndarray:
        w, b = port.w[f"{name}.weight"], port.w[f"{name}.bias"]
        return (of(x, w) if name.endswith(ends) else x @ w) + b

    return put("linear", linear)


def columns(n: int, times: int, ends: tuple[str, ...] = EVERY) -> Plant:
    return product(lambda x, w: x @ w * np.where(np.arange(w.shape[1]) < w.shape[1] - n, 1, times), ends)


def rows(n: int, times: int) -> Plant:
    """The last rows of a batch, which belong to its first text here."""
    return product(
        lambda x, w: x @ w * np.where(np.arange(x.shape[1]) < x.shape[1] - n, 1, times)[:, None], ("hidden",)
    )


def late_bias(port: PlainPort, x: np.ndarray, name: str) -> np.ndarray:
    b = port.w[f"{name}.bias"]
    return x @ port.w[f"{name}.weight"] + b * (np.arange(len(b)) < len(b) // 12 * 12)


def in_16_bits(kind: str) -> Plant:
    def of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        y = np.zeros((*x.shape[:-1], w.shape[1]), np.float32)
        for i in range(0, len(w), 8):
            y = half(kind, y + x[..., i : i + 8] @ w[i : i + 8]).astype(np.float32)
        return y

    return product(of)


def attended(attend: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Plant:
    """Computes the context from the masked scores and the values, and exports neither scores nor weights."""

    def attention(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
        q, k, v = (port.split(port.note(f"{at}.{name}", port.linear(x, f"{at}.{name}"))) for name in QKV)
        for name, heads in zip(QKV, (q, k, v), strict=True):
            port.note(f"{at}.{name}_heads", heads)
        context = attend(port.masked(port.scores(q, k)), v).astype(np.float32)
        return port.note(f"{at}.output", port.project(port.note(f"{at}.combined", port.merge(context)), at))

    return put("attention", attention)


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def online(of_context: bool, of_sum: bool, tile: int = 4) -> Plant:
    """An online softmax that rescales the context or the sum of earlier tiles only if told to."""

    def attend(s: np.ndarray, v: np.ndarray) -> np.ndarray:
        most, total, context = np.full_like(s[..., :1], -1e30), 0.0, 0.0
        for i in range(0, s.shape[-1], tile):
            new = np.maximum(most, s[..., i : i + tile].max(-1, keepdims=True))
            p, factor = np.exp(s[..., i : i + tile] - new), np.exp(most - new)
            context = context * (factor if of_context else 1) + p @ v[..., i : i + tile, :]
            total, most = total * (factor if of_sum else 1) + p.sum(-1, keepdims=True), new
        return context / total

    return attended(attend)


def with_lanes(port: PlainPort, s: np.ndarray) -> np.ndarray:
    e = np.exp(port.masked(s))
    return e / (e.sum(-1, keepdims=True) + 16 - s.shape[-1])


def norm_of_lanes(port: PlainPort, x: np.ndarray) -> np.ndarray:
    mean, width = x.mean(-1, keepdims=True), x.shape[-1]
    lanes = 64 - width
    variance = (((x - mean) ** 2).sum(-1, keepdims=True) + lanes * mean**2) / width
    return (x - mean) / np.sqrt(variance + port.eps)


def norm_without_end(port: PlainPort, x: np.ndarray) -> np.ndarray:
    some, width = x[..., :-4], x.shape[-1]
    mean = some.sum(-1, keepdims=True) / width
    return (x - mean) / np.sqrt(((some - mean) ** 2).sum(-1, keepdims=True) / width + port.eps)


def seen(rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Plant:
    """Replaces the causal mask by a function of the places of queries and keys."""

    def masked(port: PlainPort, s: np.ndarray) -> np.ndarray:
        queries, keys = np.indices(s.shape[-2:])
        return np.where(rule(queries, keys), PlainPort.masked(port, s), np.float32(-1e9))

    return put("masked", masked)


PRODUCT, KEYS, ONLINE = (
    "the end of a product wrong", "keys of a tile left out or repeated", "online softmax rescaled wrongly"
)  # fmt: skip
#: Name -> (mistake, part of its description with all stages, plant).
TILES: dict[str, tuple[str, str, Plant]] = {
    "last inputs": (PRODUCT, "every product of the layers: without the last 2 inputs", product(lambda x, w: x[..., :-2] @ w[:-2])),
    "last input of q, k and v": (PRODUCT, "query, key and value: without the last 1 inputs", product(lambda x, w: x[..., :-1] @ w[:-1], QKV)),
    "inputs twice": (PRODUCT, "the last 8 inputs added twice", product(lambda x, w: x @ w + x[..., -8:] @ w[-8:])),
    "last columns": (PRODUCT, "the last 2 columns are the bias alone", columns(2, 0)),
    "columns of W_2 twice": (PRODUCT, "columns 24 to 31 added twice", columns(8, 2, ("ffn.output",))),
    "inputs of W_2 twice": ("heads or columns missing", "columns 56 to 63 of layers.0.ffn.activation counted twice", product(lambda x, w: x @ w + x[..., -8:] @ w[-8:], ("ffn.output",))),
    "no bias on the last tile": (PRODUCT, "the last (number mod 12) columns without the bias", put("linear", late_bias)),
    "last rows": ("some rows computed differently", "the rows from 7: the bias alone", rows(2, 0)),
    "rows twice": ("some rows computed differently", "the rows from 7: the product twice", rows(2, 2)),
    "sums in float16": ("half precision", "float16, the product, before the bias is added", in_16_bits("float16")),
    "sums in bfloat16": ("half precision", "bfloat16, the product, before the bias is added", in_16_bits("bfloat16")),
    "last keys": (KEYS, "after the last whole tile of 4 of 9 are left out in the product", attended(lambda s, v: softmax(s)[..., :8] @ v[..., :8, :])),
    "keys twice": (KEYS, "the second tile of 4 keys is added twice", attended(lambda s, v: softmax(s) @ v + softmax(s)[..., 4:8] @ v[..., 4:8, :])),
    "nothing rescaled": (ONLINE, "tiles of 4 keys; rescaled: neither the context nor the sum", online(False, False)),
    "sum rescaled": (ONLINE, "only the sum, not the context", online(False, True)),
    "context rescaled": (ONLINE, "only the context, not the sum", online(True, False)),
    "lanes in the softmax": ("padding lanes in the softmax", "padding lanes of 0 from 9 keys to a multiple of 8", put("weigh", with_lanes)),
    "lanes in the norm": ("norm over the wrong columns", "32 padding lanes counted in the sum of squares", put("normalize", norm_of_lanes)),
    "end of the norm": ("norm over the wrong columns", "the last 4 columns not in the sums, but in the number", put("normalize", norm_without_end)),
}  # fmt: skip
CAUSAL = "causal mask wrong after the first tile"
#: Mistakes in a causal mask.
OF_GPT2: dict[str, tuple[str, str, Plant]] = {
    "the next seen": (CAUSAL, "from key 4 on, a token sees the next token too", seen(lambda i, j: j <= i + (j >= 4))),
    "places in the tile": (CAUSAL, "places are counted within tiles of 4", seen(lambda i, j: (j % 4 <= i % 4) & (j <= i))),
    "last slot overwritten": (CAUSAL, "a cache of 6 keys overwrites its last key", seen(lambda i, j: (j <= i) & ((j < 5) | (j == i)))),
    "wrap too early": (CAUSAL, "a cache of 6 keys wraps one key too early", seen(lambda i, j: (j <= i) & ((i < 6) | (i - j < 5)))),
}  # fmt: skip
