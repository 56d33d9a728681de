"""Mistakes that people make in ports, each under a short name with a function that plants it in a `PlainPort`.

`KNOWN` has the mistakes in the diagnosis's list, each with the name that the diagnosis must give. `HELD_BACK` has
similar mistakes that are not in this list, each with the names that the diagnosis may give; many may not be
named at all. The diagnosis must not be certain of a wrong cause.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType

import numpy as np

from tests.support.plain_port import PlainGpt2, PlainPort

Plant = Callable[[PlainPort], None]


def put(name: str, function: Callable) -> Plant:
    """Replaces a method by a function of the port and of the method's arguments."""

    def plant(port: PlainPort) -> None:
        setattr(port, name, MethodType(function, port))

    return plant


def instead(name: str, function: Callable) -> Plant:
    """Replaces a method by a function of the method's arguments."""
    return put(name, lambda port, *args: function(*args))


def weights(change: Callable[[PlainPort], dict[str, np.ndarray]]) -> Plant:
    return lambda port: port.w.update(change(port))


def attr(name: str, value: Callable[[PlainPort], object]) -> Plant:
    return lambda port: setattr(port, name, value(port))


def tanh_gelu(x: np.ndarray, c: float = 0.044715, root: float = (2 / np.pi) ** 0.5) -> np.ndarray:
    return np.float32(0.5) * x * (1 + np.tanh(np.float32(root) * (x + np.float32(c) * x**3)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(-1, keepdims=True)


def swapped(port: PlainPort, one: str, other: str) -> dict[str, np.ndarray]:
    """Returns new entries for the weights in which two parts of every layer, such as query and key, are exchanged."""
    changes = {}
    for name, array in port.w.items():
        for own, twin in ((one, other), (other, one)):
            if f".{own}." in name:
                changes[name.replace(f".{own}.", f".{twin}.")] = array
    return changes


def of_layer(port: PlainPort, own: int, other: int) -> dict[str, np.ndarray]:
    begins = f"layers.{other}."
    return {name.replace(begins, f"layers.{own}."): w for name, w in port.w.items() if name.startswith(begins)}


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_with(
    attention: Callable[[PlainPort, np.ndarray, np.ndarray, str], np.ndarray] | None = None,
    ffn: Callable[[PlainPort, np.ndarray, np.ndarray, np.ndarray, str], np.ndarray] | None = None,
) -> Plant:
    """Replaces a layer's two residual sums by attention(port, x, output, layer) and ffn(port, x, y, output, layer)."""

    def layer(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
        a = port.attention(x, f"{at}.attention")
        y = port.note(f"{at}.attention_residual", attention(port, x, a, at) if attention else x + a)
        y = port.note(f"{at}.attention_norm", port.norm(y, f"{at}.attention_norm"))
        f = port.ffn(y, f"{at}.ffn")
        z = port.note(f"{at}.ffn_residual", ffn(port, x, y, f, at) if ffn else y + f)
        return port.note(f"{at}.ffn_norm", port.norm(z, f"{at}.ffn_norm"))

    return put("layer", layer)


def ffn_first(port: PlainPort, x: np.ndarray, at: str) -> np.ndarray:
    y = port.norm(x + port.ffn(x, f"{at}.ffn"), f"{at}.ffn_norm")
    z = port.note(f"{at}.attention_residual", y + port.attention(y, f"{at}.attention"))
    return port.note(f"{at}.ffn_norm", port.norm(z, f"{at}.attention_norm"))


def without_norm(norm: str) -> Plant:
    """Leaves out the norms whose names have this ending."""
    right = PlainPort.norm
    return put("norm", lambda port, x, name: x if name.endswith(norm) else right(port, x, name))


def left_padded(port: PlainPort) -> None:
    for name in ("ids", "mask", "types"):
        rows = getattr(port, name)
        lengths = (rows if name == "mask" else port.ids * 0 + (port.mask if name != "mask" else rows)).sum(1)
        setattr(port, f"_{name}", [np.roll(row, len(row) - length) for row, length in zip(rows, lengths, strict=True)])
    port.ids, port.types, port.mask = (np.array(getattr(port, f"_{name}")) for name in ("ids", "types", "mask"))


def dropout(rate: float) -> Callable[[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    return lambda x: (x * (random.random(x.shape) >= rate) / np.float32(1 - rate)).astype(np.float32)


def dropped_weights(port: PlainPort) -> None:
    drop = dropout(0.1)
    port.weigh = lambda s: drop(PlainPort.weigh(port, s))


def quantized(axis: int | None) -> Plant:
    def plant(port: PlainPort) -> None:
        for name, w in port.w.items():
            if w.ndim == 2 and not name.startswith("embeddings"):
                step = np.abs(w).max(axis=axis, keepdims=True) / 127
                port.w[name] = (np.rint(w / step) * step).astype(np.float32)

    return plant


def fused_by_head(port: PlainPort) -> dict[str, np.ndarray]:
    changes = {}
    for i in range(port.c.n_layers):
        for part in ("weight", "bias"):
            names = [f"layers.{i}.attention.{name}.{part}" for name in ("query", "key", "value")]
            whole = np.concatenate([port.w[name] for name in names], axis=-1)
            cut = whole.reshape(*whole.shape[:-1], port.heads, 3, -1)
            changes |= {name: cut[..., j, :].reshape(port.w[name].shape) for j, name in enumerate(names)}
    return changes


def sinusoids(port: PlainPort) -> np.ndarray:
    width = port.w["embeddings.position.weight"].shape[1]
    angle = port.positions[..., None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(*port.positions.shape, width).astype(np.float32)


tril = lambda s: np.where(np.tri(s.shape[-1], dtype=bool), s, -1e9)  # noqa: E731

KNOWN: dict[str, tuple[str, Plant]] = {
    "tanh gelu": ("tanh GELU for erf", instead("gelu", tanh_gelu)),
    "quick gelu": ("quick GELU", instead("gelu", lambda x: x * sigmoid(np.float32(1.702) * x))),
    "gelu 0.0447": ("wrong constant in the activation", instead("gelu", lambda x: tanh_gelu(x, 0.0447))),
    "sigmoid 1.6": ("wrong constant in the activation", instead("gelu", lambda x: x * sigmoid(np.float32(1.6) * x))),
    "relu": ("wrong activation", instead("gelu", lambda x: np.maximum(x, 0))),
    "silu": ("wrong activation", instead("gelu", lambda x: x * sigmoid(x))),
    "no activation": ("activation left out", instead("gelu", lambda x: x)),
    "eps": ("another layer norm eps", attr("eps", lambda port: 1e-5)),
    "eps outside": (
        "eps outside the root", instead("normalize", lambda x: centred(x) / (x.std(-1, keepdims=True) + 1e-5))
    ),
    "unbiased": (
        "unbiased variance", instead("normalize", lambda x: centred(x) / x.std(-1, keepdims=True, ddof=1))
    ),
    "variance": (
        "wrong deviation in the norm", instead("normalize", lambda x: centred(x) / x.var(-1, keepdims=True))
    ),
    "root of std": (
        "wrong deviation in the norm", instead("normalize", lambda x: centred(x) / np.sqrt(x.std(-1, keepdims=True)))
    ),
    "rms norm": (
        "mean not subtracted", instead("normalize", lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True)))
    ),
    "no affine": ("norm without weight or bias", put("norm", lambda port, x, name: port.normalize(x))),
    "gamma and beta": (
        "weight and bias of the norm mixed up",
        put("norm", lambda port, x, name: port.normalize(x) * port.w[f"{name}.bias"] + port.w[f"{name}.weight"]),
    ),
    "norms exchanged": ("norms exchanged", weights(lambda port: swapped(port, "attention_norm", "ffn_norm"))),
    "no embedding norm": ("norm left out", without_norm("embeddings.norm")),
    "no ffn norm": ("norm left out", without_norm("ffn_norm")),
    "types all 1": ("wrong token types", attr("types", lambda port: port.types * 0 + 1)),
    "types all 0": ("token types ignored", attr("types", lambda port: port.types * 0)),
    "sinusoids": ("sinusoidal positions instead of learned", put("position", sinusoids)),
    "no positions": ("positions left out", put("position", lambda port: port.token() * 0)),
    "from 1": ("positions off by one", attr("positions", lambda port: port.positions + 1)),
    "from 2": ("positions off by one", attr("positions", lambda port: port.positions + 2)),
    "no offset": ("positions off by one", attr("positions", lambda port: port.positions * 0 + np.arange(port.ids.shape[1]))),
    "padding counted": ("wrong positions", attr("positions", lambda port: port.mask.cumsum(1) * port.mask + port.c.pad_id)),
    "restarting": (
        "wrong positions",
        attr("positions", lambda port: np.where(port.types == 1, port.positions - 2, port.positions)),
    ),
    "reversed": ("positions from the wrong rule", attr("positions", lambda port: (port.mask.cumsum(1)[:, ::-1] - 1).clip(0))),
    "sqrt(D)": ("embeddings scaled differently", put("token", lambda port: PlainPort.token(port) * np.float32(32**0.5))),
    "q and k": ("query and key swapped", weights(lambda port: swapped(port, "query", "key"))),
    "q and v": ("query and value swapped", weights(lambda port: swapped(port, "query", "value"))),
    "k and v": ("key and value swapped", weights(lambda port: swapped(port, "key", "value"))),
    "fused": ("fused query, key and value split wrongly", weights(fused_by_head)),
    "interleaved": (
        "heads interleaved",
        put("split", lambda port, x: x.reshape(len(x), x.shape[1], -1, port.heads).transpose(0, 3, 1, 2)),
    ),
    "reversed heads": ("heads in the wrong order", put("merge", lambda port, x: PlainPort.merge(port, x[:, ::-1]))),
    "no transpose": (
        "heads reshaped without the transpose",
        put("split", lambda port, x: x.reshape(len(x), port.heads, x.shape[1], -1)),
    ),
    "half the heads": ("wrong number of heads", lambda port: port.__dict__.update(heads=2, scale=16**-0.5)),
    "twice the heads": ("wrong number of heads", lambda port: port.__dict__.update(heads=8, scale=4**-0.5)),
    "unscaled": ("unscaled scores", attr("scale", lambda port: 1.0)),
    "doubly scaled": ("doubly scaled scores", attr("scale", lambda port: port.scale**2)),
    "d_model": ("scores divided by sqrt(d_model)", attr("scale", lambda port: port.c.d_model**-0.5)),
    "base 2": ("wrong softmax", put("weigh", lambda port, s: softmax(port.masked(s) * np.float32(np.log(2))))),
    "queries": ("softmax over the wrong axis", put("weigh", lambda port, s: softmax(port.masked(s), -2))),
    "softmax twice": ("wrong softmax", put("weigh", lambda port, s: softmax(softmax(port.masked(s))))),
    "mask ignored": ("mask ignored", instead("masked", lambda s: s)),
    "mask inverted": (
        "mask inverted",
        put("masked", lambda port, s: s + np.where(port.mask[:, None, None] == 1, np.finfo(np.float32).min, np.float32(0))),
    ),
    "mask after": (
        "mask misused", put("weigh", lambda port, s: softmax(s) * port.mask[:, None, None].astype(np.float32))
    ),
    "mask 1e-9": (
        "mask misused", put("masked", lambda port, s: np.where(port.mask[:, None, None] == 1, s, np.float32(1e-9)))
    ),
    "causal": ("causal mask", put("masked", lambda port, s: PlainPort.masked(port, tril(s).astype(np.float32)))),
    "no W_O": ("W_O left out", instead("project", lambda x, at: x)),
    "no residual 1": ("residual left out", layer_with(attention=lambda port, x, a, at: a)),
    "no residual 2": ("residual left out", layer_with(ffn=lambda port, x, y, f, at: f)),
    "residual of x": ("residual from the wrong place", layer_with(ffn=lambda port, x, y, f, at: x + f)),
    "residual before norm": (
        "residual from the wrong place",
        layer_with(ffn=lambda port, x, y, f, at: port.out[f"{at}.attention_residual"] + f),
    ),
    "pre-norm": ("pre-norm instead of post-norm", put("layer", PlainGpt2.layer)),
    "ffn first": ("FFN before attention", put("layer", ffn_first)),
    "layer 0 in 1": ("weights of another layer", weights(lambda port: of_layer(port, 1, 0))),
    "layer 1 in 0": ("weights of another layer", weights(lambda port: of_layer(port, 0, 1))),
    "last missing": ("wrong number of layers", attr("layers", lambda port: port.layers[:-1])),
    "last twice": ("wrong number of layers", attr("layers", lambda port: [*port.layers, port.layers[-1]])),
    "last token": ("wrong pooling", put("first", lambda port, x: x[np.arange(len(x)), port.mask.sum(1) - 1])),
    "mean": (
        "wrong pooling",
        put("first", lambda port, x: (x * port.mask[..., None]).sum(1) / port.mask.sum(1)[:, None].astype(np.float32)),
    ),
    "pooler linear": ("wrong pooler activation", instead("pool", lambda x: x)),
    "labels": ("labels in the wrong order", put("classify", lambda port, x: PlainPort.classify(port, x)[..., ::-1])),
    "sigmoid": ("wrong probabilities", instead("probabilities", sigmoid)),
    "left padding": ("left padding", left_padded),
    "transposed": (
        "transposed weight",
        weights(lambda port: {"layers.1.attention.key.weight": port.w["layers.1.attention.key.weight"].T}),
    ),
    "no bias": (
        "missing bias", weights(lambda port: {"layers.1.ffn.output.bias": port.w["layers.1.ffn.output.bias"] * 0})
    ),
    "int8": ("quantized weights", quantized(None)),
    "int8 by column": ("quantized weights", quantized(0)),
    "dropout": (
        "dropout left on",
        dropped_weights,
    ),
}  # fmt: skip


def conv_transposed(port: PlainPort) -> dict[str, np.ndarray]:
    return {name: w.T for name, w in port.w.items() if name.endswith(".attention.output.weight")}


#: Mistakes that show only in a causal, pre-norm model, or show differently there.
IN_GPT2: dict[str, tuple[str, Plant]] = {
    "no causal mask": ("causal mask left out", instead("seen", lambda n: np.ones((n, n), bool))),
    "strictly causal": ("causal mask off by one", instead("seen", lambda n: np.tri(n, k=-1, dtype=bool))),
    "the next seen": ("causal mask off by one", instead("seen", lambda n: np.tri(n, k=1, dtype=bool))),
    "later ones seen": ("causal mask misused", instead("seen", lambda n: np.tri(n, dtype=bool).T)),
    "conv as linear": ("transposed weight", weights(conv_transposed)),
    "key first": ("query and key swapped", weights(lambda port: swapped(port, "query", "key"))),
    "c_attn by head": ("fused query, key and value split wrongly", weights(fused_by_head)),
    "exact gelu": ("erf GELU for tanh", put("gelu", PlainPort.gelu)),
    "no final norm": ("norm left out", put("norm", lambda port, x, name: x if name == "norm" else PlainPort.norm(port, x, name))),
    "post-norm": ("post-norm instead of pre-norm", put("layer", PlainPort.layer)),
    "first token": ("wrong pooling", instead("last", lambda x: x[:, 0])),
    "last of the batch": ("wrong pooling", instead("last", lambda x: x[:, -1])),
    "from 1": ("positions off by one", attr("positions", lambda port: port.positions + 1)),
    "left padding": ("left padding", left_padded),
}  # fmt: skip

#: Mistakes in ModernBERT's local windows and rotations, and in the mask and softmax of its padded batches.
IN_MODERNBERT: dict[str, tuple[str, Plant]] = {
    "mask ignored": ("mask ignored", instead("masked", lambda s: s)),
    "mask after": ("mask misused", KNOWN["mask after"][1]),
    "queries": ("softmax over the wrong axis", KNOWN["queries"][1]),
    "no window": ("wrong local window", attr("reach", lambda port: 99)),
    "half the window": ("wrong mask", attr("reach", lambda port: 1)),
    "bases exchanged": ("rotation with the wrong base", attr("bases", lambda port: port.bases[::-1])),
    "other local layers": ("the wrong layers are local", attr("local", lambda port: (0, 2))),
}  # fmt: skip


def only_head(port: PlainPort, x: np.ndarray) -> np.ndarray:
    return PlainPort.merge(port, x * np.array([1, 0, 1, 1], np.float32)[:, None, None])


def alibi(port: PlainPort, s: np.ndarray) -> np.ndarray:
    place = np.arange(s.shape[-1])
    slopes = 2.0 ** -np.arange(1, s.shape[1] + 1)[:, None, None]
    return PlainPort.masked(port, (s - slopes * np.abs(place - place[:, None])).astype(np.float32))


def noisy(port: PlainPort) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {
        name: (w + 0.05 * random.standard_normal(w.shape)).astype(np.float32)
        for name, w in port.w.items()
        if name.startswith("layers.1.")
    }


def times(port: PlainPort, part: str, c: float) -> dict[str, np.ndarray]:
    return {name: w * np.float32(c) for name, w in port.w.items() if part in name}


def cosine(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True)) for x in (q, k))
    return 10 * q @ k.swapaxes(-1, -2)


SCALE, ORDER = "scaled by a constant", "in the wrong order"
WEIGHT_ORDER = "weight in the wrong order"

#: Mistakes that are not in the diagnosis's list, each with the names that describe it correctly.
HELD_BACK: dict[str, tuple[tuple[str, ...], Plant]] = {
    "sigmoid 1.3": ((), instead("gelu", lambda x: x * sigmoid(np.float32(1.3) * x))),
    "elu 0.5": ((), instead("gelu", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)).astype(np.float32))),
    "gelu of 1.1 x": ((), put("gelu", lambda port, x: PlainPort.gelu(port, np.float32(1.1) * x))),
    "clipped gelu": (("clipped",), put("gelu", lambda port, x: PlainPort.gelu(port, x).clip(-1, 1))),
    "gelu of |x|": ((), put("gelu", lambda port, x: PlainPort.gelu(port, np.abs(x)))),
    "eps 3e-5": ((), attr("eps", lambda port: 3e-5)),
    "eps 0.1": ((), attr("eps", lambda port: 0.1)),
    "median": ((), instead("normalize", lambda x: (x - np.median(x, -1, keepdims=True)) / x.std(-1, keepdims=True))),
    "ddof 2": ((SCALE,), instead("normalize", lambda x: centred(x) / x.std(-1, keepdims=True, ddof=2))),
    "half of the row": ((), instead("normalize", lambda x: centred(x) / x[..., :16].std(-1, keepdims=True))),
    "norm clipped": (("clipped",), put("norm", lambda port, x, name: PlainPort.norm(port, x, name).clip(-1.5, 1.5))),
    "weights of norms squared": ((), weights(lambda p: {n: w * w for n, w in p.w.items() if n.endswith("norm.weight")})),
    "positions from 3": (("positions from the wrong rule",), attr("positions", lambda port: port.positions + 3)),
    "positions doubled": (("positions from the wrong rule",), attr("positions", lambda port: (2 * port.positions).clip(0, 23))),
    "half the positions": ((SCALE, "embeddings added twice"), weights(lambda port: times(port, "position", 0.5))),
    "a tenth more tokens": ((SCALE,), weights(lambda port: times(port, "embeddings.token", 1.1))),
    "last token unknown": (("wrong token ids",), lambda port: port.ids.__setitem__((slice(None), 2), 1)),
    "temperature 0.7": ((SCALE,), attr("scale", lambda port: port.scale / 0.7)),
    "clipped scores": ((), put("masked", lambda port, s: PlainPort.masked(port, s.clip(-0.5, 0.5)))),
    "alibi": ((), put("masked", alibi)),
    "cosine attention": ((), instead("scores", cosine)),
    "scores plus the distance": ((), put("masked", lambda p, s: PlainPort.masked(p, s + np.arange(s.shape[-1])))),
    "a head left out": (("heads or columns missing",), put("merge", only_head)),
    "two heads exchanged": ((ORDER,), put("merge", lambda p, x: PlainPort.merge(p, x[:, [1, 0, 2, 3]]))),
    "W_O twice": (
        ("values of another stage",),
        put("project", lambda p, x, at: p.linear(p.linear(x, f"{at}.output"), f"{at}.output")),
    ),
    "tanh after W_O": (("an extra function",), put("project", lambda p, x, at: np.tanh(p.linear(x, f"{at}.output")))),
    "residual of 0.9": (("residual scaled",), layer_with(attention=lambda p, x, a, at: np.float32(0.9) * x + a)),
    "highway": ((), layer_with(ffn=lambda p, x, y, f, at: sigmoid(y) * y + f)),
    "ffn output times 1.2": (("sum with wrong factors",), layer_with(ffn=lambda p, x, y, f, at: y + np.float32(1.2) * f)),
    "residual of both": ((), layer_with(ffn=lambda p, x, y, f, at: x + y + f)),
    "noise in layer 1": ((), weights(noisy)),
    "rows of W_1 reversed": ((WEIGHT_ORDER,), weights(lambda p: {n: w[::-1] for n, w in p.w.items() if "hidden.weight" in n})),
    "columns of W_V reversed": ((ORDER, WEIGHT_ORDER), weights(lambda p: {n: w[:, ::-1] for n, w in p.w.items() if "value.weight" in n})),
    "biases halved": (("bias with wrong values",), weights(lambda port: times(port, ".ffn.hidden.bias", 0.5))),
    "int6": ((), weights(lambda p: {n: (np.rint(w * 40) / 40) for n, w in p.w.items() if "ffn" in n and w.ndim == 2})),
    "mean and first": ((), put("first", lambda port, x: (x[:, 0] + x.mean(1)) / 2)),
    "pooler cubed": ((), instead("pool", lambda x: x**3)),
    "logits over 2": ((SCALE,), put("classify", lambda port, x: PlainPort.classify(port, x) / 2)),
    "probabilities of 1.5 x": ((), instead("probabilities", lambda x: softmax(np.float32(1.5) * x))),
}  # fmt: skip
