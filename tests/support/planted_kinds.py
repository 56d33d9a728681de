"""Kinds of mistakes that the diagnosis derives from a model's own parts, planted in a `PlainPort` as in `planted.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npformer.common.halves import half
from tests.support.plain_port import PlainPort
from tests.support.planted import Plant, attr, layer_with, only_head, put, softmax, swapped, weights


def unsummed(port: PlainPort) -> np.ndarray:
    """Leaves the positions out of the sum of embeddings, but exports them."""
    x = port.note("embeddings.token", port.token())
    port.note("embeddings.position", port.position())
    x = x + port.note("embeddings.segment", port.segment())
    return port.note("embeddings.norm", port.norm(port.note("embeddings.sum", x), "embeddings.norm"))


def cut_units(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    h = port.note(f"{at}.activation", port.gelu(port.note(f"{at}.hidden", port.linear(x, f"{at}.hidden"))))
    return port.note(f"{at}.output", port.linear(h * (np.arange(h.shape[-1]) < 50), f"{at}.output").astype(np.float32))


def norm_of_block(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    for block, output in (("attention", port.attention), ("ffn", port.ffn)):
        y = output(x, f"{at}.{block}")
        port.note(f"{at}.{block}_residual", x + y)
        x = port.note(f"{at}.{block}_norm", x + port.norm(y, f"{at}.{block}_norm"))
    return x


def in_float16(port: PlainPort, scores: np.ndarray) -> np.ndarray:
    return softmax(port.masked(scores).clip(-6e4, 6e4).astype(np.float16)).astype(np.float32)


def late_mask(port: PlainPort, scores: np.ndarray) -> np.ndarray:
    mask = np.concatenate([port.mask[:, :1], port.mask[:, :-1]], axis=1)
    return np.where(mask[:, None, None] == 1, scores, np.float32(-1e9))


def with_first_mask(port: PlainPort, scores: np.ndarray) -> np.ndarray:
    mask = port.mask.min(axis=0, keepdims=True)  # the mask of the shortest text
    return np.where(mask[:, None, None] == 1, scores, np.float32(-1e9))


def copied_head(port: PlainPort) -> dict[str, np.ndarray]:
    names = [f"layers.1.attention.key.{part}" for part in ("weight", "bias")]
    heads = {name: port.w[name].reshape(*port.w[name].shape[:-1], port.heads, -1).copy() for name in names}
    for array in heads.values():
        array[..., 2, :] = array[..., 1, :]
    return {name: array.reshape(port.w[name].shape) for name, array in heads.items()}


def rows_by_column(port: PlainPort) -> dict[str, np.ndarray]:
    names = [name for name in port.w if name.endswith("attention.output.weight")]
    return {
        name: port.w[name].reshape(port.heads, -1, len(port.w[name])).swapaxes(0, 1).reshape(port.w[name].shape)
        for name in names
    }


def larger_query_bias(port: PlainPort) -> dict[str, np.ndarray]:
    return {name: w / np.float32(port.scale) for name, w in port.w.items() if name.endswith("query.bias")}


def norm_of_each_head(port: PlainPort, x: np.ndarray) -> np.ndarray:
    heads = x.reshape(*x.shape[:-1], port.heads, -1)
    return PlainPort.normalize(port, heads).reshape(x.shape)


def bias_last(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    h = port.note(f"{at}.hidden", x @ port.w[f"{at}.hidden.weight"])
    a = port.note(f"{at}.activation", port.gelu(h) + port.w[f"{at}.hidden.bias"])
    return port.note(f"{at}.output", port.linear(a, f"{at}.output"))


def positions_last(port: PlainPort) -> np.ndarray:
    x = port.note("embeddings.token", port.token()) + port.note("embeddings.segment", port.segment())
    x = port.norm(port.note("embeddings.sum", x), "embeddings.norm")
    return port.note("embeddings.norm", x + port.note("embeddings.position", port.position()))


def scores_in_float16(port: PlainPort, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    q, k = (half("float16", x) for x in (q, k))
    return half("float16", half("float16", q @ k.swapaxes(-1, -2)) * np.float32(port.scale))


def rounded_residual(port: PlainPort, x: np.ndarray, a: np.ndarray, at: str) -> np.ndarray:
    return half("bfloat16", x + a) if at.endswith("1") else x + a


def last_columns(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    y = PlainPort.ffn(port, x, at) * (np.arange(x.shape[-1]) < 28 if at.startswith("layers.1") else np.float32(1))
    return port.note(f"{at}.output", y.astype(np.float32))


def first_weight(port: PlainPort, x: np.ndarray, name: str) -> np.ndarray:
    return port.normalize(x * port.w[f"{name}.weight"]) + port.w[f"{name}.bias"]


def exchanged_texts(port: PlainPort) -> None:
    for name in ("ids", "mask", "types"):
        setattr(port, name, getattr(port, name)[[1, 0, 2]])


def exported(renamed: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Plant:
    """Exports correct values under wrong names: renamed(stages) returns the stages that are replaced."""
    return put("run", lambda port: port.out | renamed(type(port).run(port)))


def sum_and_output(out: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    pair = ("layers.1.ffn.output", "layers.1.ffn_residual")
    return dict(zip(pair, (out[name] for name in pair[::-1]), strict=True))


def off_by_one(out: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"layers.0.ffn_norm": out["embeddings.norm"], "layers.1.ffn_norm": out["layers.0.ffn_norm"]}


def pre_norm(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    """Puts the norms before the blocks; the layer's output keeps its name."""
    y = x + port.attention(port.norm(x, f"{at}.attention_norm"), f"{at}.attention")
    z = y + port.ffn(port.norm(y, f"{at}.ffn_norm"), f"{at}.ffn")
    return port.note(f"{at}.ffn_norm", z)


def without_second(port: PlainPort, scores: np.ndarray) -> np.ndarray:
    return PlainPort.masked(port, np.where(np.arange(scores.shape[-1]) == 1, np.float32(-1e9), scores))


def unread_units(port: PlainPort) -> dict[str, np.ndarray]:
    name = "layers.0.ffn.hidden.weight"
    return {name: port.w[name] * (np.arange(port.w[name].shape[1]) < 50).astype(np.float32)}


def half_weight(port: PlainPort) -> dict[str, np.ndarray]:
    name = "layers.0.ffn.output.weight"
    return {name: port.w[name].astype(np.float16).astype(np.float32)}


def wrong_scales(port: PlainPort) -> dict[str, np.ndarray]:
    name = "layers.0.attention.output.weight"
    scales = np.abs(port.w[name]).max(axis=0) / 127
    return {name: np.rint(port.w[name] / scales) * scales[:, None]}


def moved_heads(port: PlainPort) -> dict[str, np.ndarray]:
    name = "layers.0.attention.output.weight"
    return {name: np.roll(port.w[name], len(port.w[name]) // port.heads, axis=0)}


def plain_norms(port: PlainPort) -> dict[str, np.ndarray]:
    return {name: np.ones_like(w) for name, w in port.w.items() if name.endswith(".attention_norm.weight")}


def query_bias(other: str) -> Plant:
    return weights(lambda port: {"layers.0.attention.query.bias": port.w[f"{other}.bias"]})


def last_column_unread(port: PlainPort, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return PlainPort.scores(port, q[..., :-1], k[..., :-1])


def first_row_skipped(port: PlainPort, x: np.ndarray, name: str) -> np.ndarray:
    y = PlainPort.norm(port, x, name)
    if name == "layers.0.attention_norm":
        y[:, 0] = x[:, 0]
    return y


def exchanged_biases(port: PlainPort) -> dict[str, np.ndarray]:
    query, key = (f"layers.0.attention.{name}.bias" for name in ("query", "key"))
    return {query: port.w[key], key: port.w[query]}


def output_of_another_layer(port: PlainPort) -> dict[str, np.ndarray]:
    own = "layers.0.ffn.output"
    return {f"{own}.{part}": port.w[f"{own.replace('0', '1')}.{part}"] for part in ("weight", "bias")}


def attention_of_another_layer(port: PlainPort) -> dict[str, np.ndarray]:
    own, other = "layers.0.attention.", "layers.1.attention."
    return {name: port.w[name.replace(own, other)] for name in port.w if name.startswith(own)}


def norms_of_one_layer(port: PlainPort) -> dict[str, np.ndarray]:
    changes = swapped(port, "attention_norm", "ffn_norm")
    return {name: array for name, array in changes.items() if name.startswith("layers.0.")}


MISSING, PLACE, NAMES = "heads or columns missing", "weights from elsewhere in the model", "stages under wrong names"
#: Mistakes that the diagnosis derives from a model's stages, weights and sizes: the name that it must give, words from
#: its description, and a function that plants the mistake.
KINDS: dict[str, tuple[str, str, Plant]] = {
    "positions not added": ("sum with wrong factors", "without embeddings.position", put("embed", unsummed)),
    "residual of 0.85": (
        "sum with wrong factors", "0.85 times", layer_with(attention=lambda p, x, a, at: np.float32(0.85) * x + a)
    ),
    "1 / sqrt(T)": ("scores scaled differently", "1 / sqrt(T with padding)", attr("scale", lambda p: p.ids.shape[1] ** -0.5)),
    "a head missing": (MISSING, "head 1 is 0", put("merge", only_head)),
    "units missing": (MISSING, "columns 50 to 63 of layers.0.ffn.activation", put("ffn", cut_units)),
    "gelu cut below": (
        "clipped",
        "to at least -0.05",
        put("gelu", lambda p, x: np.maximum(PlainPort.gelu(p, x), -0.05)),
    ),
    "scores clipped": ("clipped", "scores from -1 to 1", put("masked", lambda p, s: PlainPort.masked(p, s.clip(-1, 1)))),
    "another bias": (PLACE, "query.bias is layers.0.attention.key.bias", query_bias("layers.0.attention.key")),
    "a later bias": (PLACE, "is layers.1.attention.query.bias", query_bias("layers.1.attention.query")),
    "softmax in float16": ("half precision", "float16, the whole stage", put("weigh", in_float16)),
    "mask a place late": ("mask misused", "one place late", put("masked", late_mask)),
    "norm of the block": ("norm before the residual sum", "X is added", put("layer", norm_of_block)),
    "weight first": ("weight and bias of the norm mixed up", "before it is normalized", put("norm", first_weight)),
    "texts exchanged": ("texts in the wrong order", "1, 0, 2", exchanged_texts),
    "a key hidden": ("wrong mask", "no query sees the keys [1]", put("masked", without_second)),
    "queries as keys": ("products of the wrong heads", "of query and query", put("scores", lambda p, q, k: PlainPort.scores(p, q, q))),
    "log probabilities": ("an extra function", "log softmax", put("classify", lambda p, x: np.log(softmax(PlainPort.classify(p, x))))),
    "a weight in float16": ("one weight rounded", "layers.0.ffn.output.weight in float16", weights(half_weight)),
    "scales of columns in rows": (
        "scales of the wrong axis", "columns applied to rows, in attention.output.weight", weights(wrong_scales)
    ),
    "columns of a weight": (MISSING, "columns 50 to 63 of the weight", weights(unread_units)),
    "heads of a weight moved": ("weight in the wrong order", "rows of layers.0.attention.output.weight", weights(moved_heads)),
    "norms without weight": ("norm without weight or bias", "no weight", weights(plain_norms)),
    "outputs of pre-norm": ("pre-norm instead of post-norm", "", put("layer", pre_norm)),
    "sum and output": (NAMES, "layers.1.ffn.output is layers.1.ffn_residual", exported(sum_and_output)),
    "a column of q and k": (
        "columns missing from the scores", "of q and k", put("scores", last_column_unread)
    ),
    "first row skipped": (
        "some rows computed differently", "the first row", put("norm", first_row_skipped)
    ),
    "positions cut off": (
        "positions from the wrong rule", "min(p, 4)", attr("positions", lambda p: np.minimum(p.positions, 4))
    ),
    "positions again from 4": (
        "positions from the wrong rule", "p - 4 from 4 on",
        attr("positions", lambda p: p.positions - 4 * (p.positions >= 4)),
    ),
    "a linear layer of another layer": (PLACE, "ffn.output is layers.1.ffn.output", weights(output_of_another_layer)),
    "attention of another layer": (PLACE, "is layers.1.attention.query", weights(attention_of_another_layer)),
    "norms of one layer": ("norms exchanged", "in one layer", weights(norms_of_one_layer)),
    "biases exchanged": (PLACE, "query.bias and layers.0.attention.key.bias are exchanged", weights(exchanged_biases)),
    "1 / int(sqrt(K))": (
        "scores scaled differently", "1 / int(sqrt(K))", attr("scale", lambda p: 1 / int((p.c.d_model // p.heads) ** 0.5))
    ),
    "first text's mask": ("mask misused", "text 2's mask for all texts", put("masked", with_first_mask)),
    "a head copied": (MISSING, "columns of head 2 are those of head 1", weights(copied_head)),
    "rows in (K, H)": ("weight in the wrong order", "in the order (K, H)", weights(rows_by_column)),
    "query scaled before its bias": ("wrong bias", "sqrt(K) times, query.bias", weights(larger_query_bias)),
    "bias moved": (
        "bias with wrong values", "moved by 1",
        weights(lambda p: {n: np.roll(w, 1) for n, w in p.w.items() if n.endswith("ffn.hidden.bias")}),
    ),
    "norm of each head": ("norm over groups of columns", "one per head", put("normalize", norm_of_each_head)),
    "bias after the activation": ("bias after the activation", "", put("ffn", bias_last)),
    "positions after the norm": ("embeddings added after the norm", "position", put("embed", positions_last)),
    "scores in float16": ("half precision", "float16, the whole stage", put("scores", scores_in_float16)),
    "a residual in bfloat16": (
        "half precision", "bfloat16, the whole stage", layer_with(attention=rounded_residual)
    ),
    "last columns missing": (MISSING, "columns 28 to 31 are 0", put("ffn", last_columns)),
    "off by one": (NAMES, "off by 1: layers.0.ffn_norm is embeddings.norm", exported(off_by_one)),
}  # fmt: skip
