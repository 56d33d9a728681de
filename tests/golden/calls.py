"""Calls of single functions on hard inputs, with results of torch.nn.functional and, for GELU, of mpmath.

Inputs are exact in float32, so the float64 result is the truth for both dtypes. Only `make.py` uses this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from torch.nn import functional

INF, NAN = np.inf, np.nan


class Call(NamedTuple):
    """A call function(**arrays, **options), with npformer's names for the arrays."""

    function: str
    arrays: dict[str, np.ndarray]
    options: Mapping[str, Any] = MappingProxyType({})


def answer(call: Call, dtype: Any) -> np.ndarray:
    """The result of torch.nn.functional, with torch's argument names and layout."""
    given = {
        name: torch.from_numpy(a.astype(dtype) if a.dtype.kind == "f" else a.copy()) for name, a in call.arrays.items()
    }
    options = dict(call.options)
    function = getattr(functional, call.function)
    if call.function == "linear":
        given = {"input": given.pop("x"), "weight": given.pop("weight").T, **given}
    elif call.function == "layer_norm":
        given["input"] = given.pop("x")
        options["normalized_shape"] = given["input"].shape[-1:]
    elif call.function == "embedding":
        given["input"] = given.pop("ids")
    elif call.function == "scaled_dot_product_attention":
        given = {{"q": "query", "k": "key", "v": "value", "mask": "attn_mask"}[name]: a for name, a in given.items()}
    elif call.function == "cross_entropy":
        classes, shape = given["logits"].shape[-1], given["targets"].shape
        given = {"input": given["logits"].reshape(-1, classes), "target": given["targets"].reshape(-1)}
        loss = function(**given, **options)
        return (loss.reshape(shape) if options.get("reduction") == "none" else loss).numpy()
    else:
        given["input"] = given.pop("x")
        if "axis" in options:
            options["dim"] = options.pop("axis")
    return function(**given, **options).contiguous().numpy()


def calls() -> dict[str, Call]:
    """Returns every call by name."""
    random = np.random.default_rng(0)
    makers: list[Callable[[np.random.Generator], Iterator[tuple[str, Call]]]] = [
        _linears, _embeddings, _layer_norms, _softmaxes, _element_wise, _cross_entropies, _attentions,
    ]  # fmt: skip
    return dict(pair for maker in makers for pair in maker(random))


def _normal(random: np.random.Generator, *shape: int, scale: float = 1, offset: float = 0) -> np.ndarray:
    return (offset + scale * random.standard_normal(shape)).astype(np.float32)


def _linears(random: np.random.Generator) -> Iterator[tuple[str, Call]]:
    def call(*lead: int, inner: int, outer: int, bias: bool = True, **kwargs: float) -> Call:
        arrays = {"x": _normal(random, *lead, inner, **kwargs), "weight": _normal(random, inner, outer)}
        return Call("linear", arrays | ({"bias": _normal(random, outer)} if bias else {}))

    yield "linear plain", call(2, 3, inner=7, outer=5)
    yield "linear without bias", call(4, inner=16, outer=32, bias=False)
    yield "linear of a vector", call(inner=24, outer=16)
    yield "linear cancelling", call(5, inner=48, outer=5, offset=1e4)
    yield "linear with a long inner axis", call(9, inner=900, outer=6)
    yield "linear of large numbers", call(3, inner=5, outer=17, scale=1e30)
    yield "linear to one output", call(3, inner=64, outer=1)


def _embeddings(random: np.random.Generator) -> Iterator[tuple[str, Call]]:
    yield "embedding", Call("embedding", {"ids": random.integers(0, 9, (2, 3, 4)), "weight": _normal(random, 9, 5)})


def _layer_norms(random: np.random.Generator) -> Iterator[tuple[str, Call]]:
    def call(x: np.ndarray, eps: float = 1e-12) -> Call:
        width = x.shape[-1]
        weight, bias = _normal(random, width, scale=0.3, offset=1), _normal(random, width, scale=0.3)
        return Call("layer_norm", {"x": x, "weight": weight, "bias": bias}, {"eps": eps})

    yield "layer_norm plain", call(_normal(random, 2, 3, 24))
    yield "layer_norm without parameters", Call("layer_norm", {"x": _normal(random, 5, 13)}, {"eps": 1e-5})
    yield "layer_norm far from zero", call(_normal(random, 16, 64, offset=1e3))
    yield "layer_norm of constants", call(np.full((2, 8), 3, np.float32), eps=1e-5)
    yield "layer_norm of small numbers", call(_normal(random, 3, 32, scale=1e-8))
    yield "layer_norm of large numbers", call(_normal(random, 3, 32, scale=1e15))
    yield (
        "layer_norm with an outlier",
        call(np.where(np.arange(384) == 7, 500, _normal(random, 4, 384)).astype(np.float32)),
    )
    yield "layer_norm of width one", call(_normal(random, 4, 1), eps=1e-5)
    odd = _normal(random, 4, 6)
    odd[0, 1], odd[1, 2], odd[2, 3] = NAN, INF, -INF
    yield "layer_norm of odd numbers", call(odd)


def _softmaxes(random: np.random.Generator) -> Iterator[tuple[str, Call]]:
    masked = _normal(random, 4, 9)
    masked[0, 2:], masked[1, 3], masked[2] = -INF, -INF, -INF
    odd = _normal(random, 3, 5)
    odd[0, 1], odd[1, 2], odd[2, :3] = NAN, INF, (INF, -INF, INF)
    inputs = {
        "plain": (_normal(random, 2, 3, 11, scale=3), -1),
        "along the first axis": (_normal(random, 5, 4), 0),
        "along a middle axis": (_normal(random, 2, 5, 3), 1),
        "of large numbers": (_normal(random, 3, 7, scale=1e4), -1),
        "of equal numbers": (np.full((1, 1000), 7.7, np.float32), -1),
        "with -inf": (masked, -1),
        "of odd numbers": (odd, -1),
        "of one number": (_normal(random, 3, 1), -1),
    }
    for function in ("softmax", "log_softmax"):
        for name, (x, axis) in inputs.items():
            yield f"{function} {name}", Call(function, {"x": x}, {"axis": axis})


def _element_wise(random: np.random.Generator) -> Iterator[tuple[str, Call]]:
    x = np.concatenate(
        [
            np.linspace(-12, 12, 241),
            random.standard_normal(200) * 3,
            [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e-20, -1e-20, 88.5, -88.5, 104, -104, 3e4, -3e4],
        ]
    ).astype(np.float32)
    odd = np.array([INF, -INF, NAN, 3e38, -3e38, 1e19, -1e19], np.float32)
    for name, function, options in [
        ("gelu", "gelu", {}),
        ("gelu tanh", "gelu", {"approximate": "tanh"}),
        ("relu", "relu", {}),
        ("silu", "silu", {}),
    ]:
        yield name, Call(function, {"x": x}, options)
        yield f"{name} of odd numbers", Call(function, {"x": odd}, options)


def _cross_entropies(random: np.random.Generator) -> Iterator[tuple[str, Call]]:
    logits, targets = _normal(random, 2, 6, 5, scale=4), random.integers(0, 5, (2, 6))
    ignored = np.where(np.arange(6) % 3 == 1, -100, targets)
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            options = {"reduction": reduction, "label_smoothing": smoothing}
            yield (
                f"cross_entropy {reduction} {smoothing}",
                Call("cross_entropy", {"logits": logits, "targets": targets}, options),
            )
            call = Call("cross_entropy", {"logits": logits, "targets": ignored}, options)
            yield f"cross_entropy {reduction} {smoothing} ignoring", call
    yield (
        "cross_entropy ignoring another",
        Call("cross_entropy", {"logits": logits, "targets": targets}, {"ignore_index": 2}),
    )
    none = {"logits": logits, "targets": np.full_like(targets, -100)}
    yield "cross_entropy ignoring all", Call("cross_entropy", none)
    yield "cross_entropy ignoring all, summed", Call("cross_entropy", none, {"reduction": "sum"})
    yield "cross_entropy of one row", Call("cross_entropy", {"logits": logits[0, :1], "targets": targets[0, :1]})
    large = {"logits": (logits * 1e4).astype(np.float32), "targets": targets}
    yield "cross_entropy of large numbers", Call("cross_entropy", large, {"reduction": "none"})


def _attentions(random: np.random.Generator) -> Iterator[tuple[str, Call]]:
    def call(
        *lead: int, queries: int = 5, keys: int = 5, width: int = 8, out: int = 8, mask: Any = None, **options: Any
    ) -> Call:
        scale = options.pop("sharp", 1.5)
        arrays = {
            "q": _normal(random, *lead, queries, width, scale=scale),
            "k": _normal(random, *lead, keys, width, scale=scale),
        }
        arrays["v"] = _normal(random, *lead, keys, out)
        return Call("scaled_dot_product_attention", arrays | ({} if mask is None else {"mask": mask}), options)

    some = random.random((5, 7)) < 0.6
    some[:, 0] = True
    dark = some.copy()
    dark[[1, 4]] = False
    padding = (np.arange(7) < np.array([7, 2, 4])[:, None])[:, None, None]
    additive = _normal(random, 2, 1, 5, 7)
    hidden = np.where(some, additive, -INF).astype(np.float32)
    yield "attention plain", call(2, 3)
    yield "attention without a batch", call()
    yield "attention of other lengths and widths", call(2, 3, queries=4, keys=7, out=3)
    yield "attention of one query", call(2, queries=1, keys=9)
    yield "attention of one key", call(2, queries=3, keys=1)
    yield "attention with a scale", call(2, scale=0.3)
    yield "attention of sharp scores", call(2, sharp=40)
    yield "attention with a mask", call(2, 3, keys=7, mask=some)
    yield "attention with a padding mask", call(3, 2, keys=7, mask=padding)
    yield "attention with rows of nothing", call(2, 3, keys=7, mask=dark)
    yield "attention with an added mask", call(2, 3, keys=7, mask=additive)
    yield "attention with an added mask of -inf", call(2, 3, keys=7, mask=hidden)
    yield (
        "attention with an added mask of nothing but -inf",
        call(2, 3, keys=7, mask=np.where(dark, 0, -INF).astype(np.float32)),
    )
    yield "attention causal", call(2, 3, is_causal=True)
    yield "attention causal with more keys", call(2, keys=8, is_causal=True)
    yield "attention causal with fewer keys", call(2, keys=3, is_causal=True)


def exact_gelu() -> dict[str, np.ndarray]:
    """Values x of every float64 exponent and both signs, most near zero; both forms of GELU(x), correctly rounded."""
    random = np.random.default_rng(0)
    exponents = np.arange(-1074, 1024)
    x = np.ldexp(1 + random.random(len(exponents)), exponents)
    x = np.concatenate([x, -x[::-1], random.uniform(-10, 10, 1000), random.uniform(-40, 0, 500)])
    rows = []
    for each in map(mpmath.mpf, x.tolist()):
        # Half of a subnormal number is often a rounding tie, in which case the last bit depends on 1 + x.
        fine = 2400 if abs(each) < 2.0**-1020 else 200
        with mpmath.workprec(fine):
            exact = each * mpmath.erfc(-each / mpmath.sqrt(2)) / 2 if abs(each) < 60 else max(each, mpmath.mpf(0))
        with mpmath.workprec(fine + 3 * int(min(abs(each) ** 3, 800))):  # 1 + tanh(-y) is about 2^(-2.9 y)
            inner = mpmath.sqrt(2 / mpmath.pi) * (each + mpmath.mpf("0.044715") * each**3)
            tanh = each * (1 + mpmath.tanh(inner)) / 2 if abs(inner) < 800 else max(each, mpmath.mpf(0))
        rows.append((float(exact), float(tanh)))
    gelu, gelu_tanh = np.array(rows).T
    return {"x": x, "gelu": np.ascontiguousarray(gelu), "gelu_tanh": np.ascontiguousarray(gelu_tanh)}
