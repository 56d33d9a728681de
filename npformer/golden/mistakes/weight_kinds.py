"""Mistakes in weights, made from the correct weights: swapped, in the wrong order, or rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np

from npformer.common.halves import HALVES, half
from npformer.engine.functions import softmax
from npformer.golden.at import At
from npformer.golden.graph import QKV, parted
from npformer.golden.mistake import Mistake, Rule, Rules, Ways
from npformer.golden.mistakes.kinds import changing, in_all_layers, is_single, named, rows
from npformer.golden.mistakes.maps import lines_said, map_of_numbers, maps_of, numbers_said, said_of_map
from npformer.golden.mistakes.precision import SCHEMES, Round
from npformer.golden.port import FORMS, TABLES, Port

MOST = 60  # maximum number of weights that are tried instead of one weight


# --- weights ---------------------------------------------------------------------------------------------------------


def other_weights(port: Port) -> Ways:
    """A weight, a bias or both are taken from elsewhere in the model, or exchanged between two places."""
    of_shape: dict[tuple[int, ...], list[str]] = {}
    for name, array in port.weights.items():
        of_shape.setdefault(array.shape, []).append(name)
    single = is_single(port)
    own = [name for group in port.groups for part in ("weight", "bias") if (name := f"{group}.{part}") in port.weights]
    for name in own:
        alike = sorted((other for other in of_shape[port.weights[name].shape] if other != name), key=_distance(name))
        for other in alike if single else (each for each in alike[:MOST] if _related(name, each)):
            yield f"{name} is {other}", port.weighing({name: port.weights[other]})
            if single and _related(name, other) and parted(name)[1] == parted(other)[1]:
                exchanged = {name: port.weights[other], other: port.weights[name]}
                yield f"{name} and {other} are exchanged", port.weighing(exchanged)
        for other in of_shape.get(port.weights[name].shape[::-1], ()) if name.endswith(".weight") else ():
            in_layers = parted(name)[1] >= 0 or parted(other)[1] >= 0
            if port.weights[name].ndim == 2 and other != name and (single or not in_layers):
                yield f"{name} is {other}, transposed", port.weighing({name: port.weights[other].T})
    for group in port.groups:
        weight = f"{group}.weight"
        alike = of_shape[port.weights[weight].shape] if weight in port.weights else []
        for name in alike if single else (each for each in alike if _related(weight, each)):
            other = name.rpartition(".")[0]
            if name.endswith(".weight") and other != group and f"{other}.bias" in port.weights:
                yield f"{group} is {other}", port.regrouping({group: other})
    if not single:
        for one, two in combinations(own, 2):
            if port.weights[one].shape == port.weights[two].shape and one[-4:] == two[-4:] and _related(one, two):
                exchanged = {one: port.weights[two], two: port.weights[one]}
                yield f"{one} and {two} are exchanged", port.weighing(exchanged)
        yield from _exchanged_in_a_layer(port)
        yield from _projections_mixed(port)
        yield from _of_another_layer(port)


def _exchanged_in_a_layer(port: Port) -> Ways:
    """Two groups of weights of different kinds are exchanged, such as the query's and the output's weights."""
    for one, two in combinations(port.groups, 2):
        shapes = [port.weights.get(f"{group}.weight", np.zeros(0)).shape for group in (one, two)]
        if parted(one)[1] == parted(two)[1] >= 0 and shapes[0] == shapes[1]:
            yield f"{one} and {two} are exchanged", port.exchanging((one, two))
            for part in ("weight", "bias") if f"{one}.bias" in port.weights else ():
                own, other = f"{one}.{part}", f"{two}.{part}"
                alike = {port.weights[name].shape for name in (own, other) if name in port.weights}
                if other in port.weights and len(alike) == 1 and not _related(own, other):
                    exchanged = {own: port.weights[other], other: port.weights[own]}
                    yield f"{own} and {other} are exchanged", port.weighing(exchanged)


def other_tables(port: Port) -> Ways:
    """A table of relative positions has its rows or columns in the wrong order, or a wrong factor."""
    for group in port.groups:
        name = f"{group}.weight"
        table = port.weights.get(name, np.zeros(0))
        if parted(group)[2] not in TABLES or table.ndim != 2:
            continue
        for axis, kind in enumerate(("rows", "columns")):
            for said, order in maps_of(table.shape[axis]).items():
                yield f"{kind} of {name} {said}", port.weighing({name: np.take(table, order, axis)})
        wrong = table.T.reshape(table.shape)
        yield f"{name}: numbers of {table.shape[::-1]} read as {table.shape}", port.weighing({name: wrong})
        sizes = {size: port.sizes(0)[size] for size in "KDH" if port.sizes(0)[size] > 1}
        times = {form.format(size): of(n) for size, n in sizes.items() for form, of in FORMS.items()}
        for said, c in {"2": 2.0, "1 / 2": 0.5, "-1": -1.0, **times}.items():
            yield f"{name}, {said} times the correct values", port.weighing({name: np.float32(c) * table})
        yield f"{name}: all zeros", port.weighing({name: 0 * table})


def other_biases(port: Port) -> Ways:
    """The error of the scores, (H, T, T), depends only on head and distance, like an error in a table of biases."""
    if not is_single(port) or not any(parted(group)[2] == "relative_bias" for group in port.groups):
        return
    longest = int(np.argmax([array.shape[-1] for array in port.theirs]))
    off = port.theirs[longest] - port.rightly[longest]
    count = off.shape[-1]
    by_distance = {k: np.diagonal(off, k, -2, -1).mean(-1)[:, None, None] for k in range(1 - count, count)}
    seen = [k for k in by_distance if np.abs(by_distance[k]).max() > port.budgets[port.stage]]

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        distance = np.arange(y.shape[-1]) - np.arange(y.shape[-2])[:, None]
        added = np.zeros_like(y)
        for k in seen:
            np.copyto(added, by_distance[k], where=distance == k)
        return y + added

    if count > 2:
        yield f"the biases of distances {numbers_said(seen)} have other values", {port.stage: rule}


def _of_another_layer(port: Port) -> Ways:
    """Several linear layers of a block come from another layer, such as the first layer's keys and values in all."""
    blocks: dict[str, list[str]] = {}
    for group in port.groups:
        block, _, name = group.rpartition(".")
        if parted(group)[2] != name:  # not the norm of a layer
            blocks.setdefault(block, []).append(name)
    for block, names in blocks.items():
        stack, layer, rest = parted(block)
        some = [each for each in (QKV[1:], QKV[:2], QKV) if set(each) <= set(names)]
        for moved in dict.fromkeys((*some, tuple(names))) if layer >= 0 and len(names) > 1 else ():
            for i in range(port.depth):
                if i != layer:
                    pairs = {f"{block}.{name}": f"{stack}layers.{i}.{rest}.{name}" for name in moved}
                    yield f"{' and '.join(moved)} of {block} are those of layers.{i}", port.regrouping(pairs)


def _projections_mixed(port: Port) -> Ways:
    """Query, key and value have one another's weights, with or without the biases."""
    for block in (group.removesuffix("query") for group in port.groups if group.endswith(".query")):
        for parts in (("weight", "bias"), ("weight",)) if f"{block}query.bias" in port.weights else (("weight",),):
            for order in product(QKV, repeat=3):
                names = {
                    f"{block}{own}.{part}": f"{block}{other}.{part}"
                    for own, other in zip(QKV, order, strict=True)
                    for part in parts
                }
                changes = {own: port.weights[other] for own, other in names.items() if own != other}
                if len(changes) > 1 and all(port.weights[own].shape == new.shape for own, new in changes.items()):
                    said = f"{' and '.join(parts)} of {', '.join(QKV)} are those of {', '.join(order)}"
                    yield said, port.weighing(changes)


def one_rounded(port: Port) -> Ways:
    """One weight of a linear layer is rounded, but not its bias. Tables of embeddings take too long to round."""
    for group in port.groups:
        name = f"{group}.weight"
        if port.weights.get(name, np.zeros(0)).ndim == 2 and not parted(name)[2].startswith("embeddings."):
            for kind in HALVES:
                yield f"{name} in {kind}", port.rounding(partial(half, kind), [name])
            for way, rounding in SCHEMES.items():
                yield f"{name} in {way}", port.rounding(rounding, [name])


def one_stage_rounded(port: Port) -> Ways:
    """Only one part is rounded to 16 bits: an inner stage, the product of queries and keys, or the whole softmax."""
    if any(name.endswith("attention.weights") for name in port.span) and not is_single(port):
        yield "float16, the softmax", {"*.attention.weights": _softmax_in_half}
        yield "float16, the softmax with sums in float32", {"*.attention.weights": _softmax_of_half}
    for kind in HALVES:
        rounding = partial(half, kind)
        if any(name.endswith("attention.scores") for name in port.span):

            def scores(y: np.ndarray, at: At, rounding: Round = rounding) -> np.ndarray:
                q, k = rounding(at.heads("query")), rounding(at.heads("key"))
                return at.scored(rounding(rounding(q @ k.swapaxes(-1, -2)) * at.scale), y)

            whole = port.ruling({"*.attention.scores": scores})
            yield f"{kind}, the product of queries and keys", replace(whole, dtype=kind)
        for name in port.span - {port.stage}:
            rounded = changing(port, name, lambda y, at, rounding=rounding: rounding(y))
            yield f"{kind}, only {name}", replace(rounded, dtype=kind)


def _softmax_of_half(y: np.ndarray, at: At) -> np.ndarray:
    return half("float16", softmax(half("float16", at.scores.clip(-6e4))))


def _softmax_in_half(y: np.ndarray, at: At) -> np.ndarray:
    x = at.scores.clip(-6e4).astype(np.float16, order="C")  # the memory layout decides in which order NumPy adds
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(y.dtype)


# --- another order ---------------------------------------------------------------------------------------------------


def reordered(port: Port) -> Ways:
    """Rows or columns of a weight, or numbers of a bias, are in the wrong order, or some are copies of others."""
    found = is_single(port)  # `general.py` finds moved columns of a single stage without trying maps
    for stage in port.span:
        weight, bias = (port.weights.get(f"{stage}.{part}") for part in ("weight", "bias"))
        if weight is None or weight.ndim != 2 or parted(stage)[2].startswith("embeddings."):
            continue
        of_heads = f"{stage.rpartition('.')[0]}.query.weight" in port.weights  # else the stage has no heads
        by_head = [stage.endswith(".output"), not stage.endswith(".output")] if of_heads else [False, False]
        for axis, kind in enumerate(("rows", "columns")):
            for said, order in maps_of(weight.shape[axis], port.d_head if by_head[axis] else 0).items():
                for parts, rule in _moved(axis, order, bias is not None).items():
                    if found and axis == 1 and (parts != "weight" or bias is None):
                        continue
                    of = f"{kind} of {stage}.weight" if parts == "weight" else f"{stage}.{parts}"
                    yield f"{of} {said}", {in_all_layers(stage): rule}


def _moved(axis: int, order: np.ndarray, has_bias: bool) -> dict[str, Rule]:
    """Maps "weight", "bias" or both to a rule that moves them: y = x W[order] + b, or columns of x W and b."""

    def weight(y: np.ndarray, at: At) -> np.ndarray:
        b = at.weight(at.name, "bias")
        product = at.source @ at.own()[order] if axis == 0 else (y if b is None else y - b)[..., order]
        return product if b is None else product + b

    def bias(y: np.ndarray, at: At) -> np.ndarray:
        return y + at.own("bias")[order] - at.own("bias")

    if axis == 0 or not has_bias:
        return {"weight": weight}
    return {"weight": weight, "bias": bias, "weight and bias": lambda y, at: y[..., order]}


def other_bias(port: Port) -> Ways:
    """The bias has a wrong factor, order or values: all rows are off by the same row."""
    own, (theirs, right) = port.weights.get(f"{port.stage}.bias"), map(rows, (port.theirs, port.rightly))
    if len(theirs) < 3 or theirs.shape != right.shape or not is_single(port):
        return
    added = np.median(theirs - right, axis=0)
    alike = [b for b in port.weights.values() if b.ndim == 1 and b.shape == added.shape]
    if not np.abs(theirs - right - added).max() <= port.budgets[port.stage]:
        return
    said, stage = "the same row is added to every row", in_all_layers(port.stage)
    rule: Rules = {port.stage: lambda y, at: y + added}
    if own is not None:
        other = own + added
        if any(np.allclose(other, b, atol=1e-5) for b in (*alike, -own, 0 * own)):
            return  # other mistakes cover such a bias
        c = float(own @ other) / max(float(own @ own), 1e-300)
        order = map_of_numbers(other, own)
        said = f"{port.stage}.bias has different values, off by up to {np.abs(added).max():.3g}"
        if np.allclose(other, c * own, atol=1e-4 * np.abs(other).max()):
            said = f"{port.stage}.bias, {named(port, [c] * len(port.theirs))} times the correct bias"
            rule = {stage: lambda y, at: y + (c - 1) * at.own("bias")}
        elif len(absent := np.flatnonzero(np.abs(other) <= port.budgets[port.stage])) and np.allclose(
            np.delete(added, absent), 0, atol=port.budgets[port.stage]
        ):
            said = f"{port.stage}.bias is missing in {lines_said('column', absent)}"
        elif order is not None:
            said = f"{port.stage}.bias {said_of_map(order)}"
            rule = {stage: lambda y, at: y + at.own("bias")[order] - at.own("bias")}
    yield said, rule


def _related(one: str, other: str) -> bool:
    """Returns whether two weights have the same name in different layers, or are of the same kind in one layer."""
    a, b = parted(one), parted(other)
    alike = a[2].rpartition(".")[2] == b[2].rpartition(".")[2]
    return a[0] == b[0] and (a[2] == b[2] or (alike and a[1] == b[1]))


def _distance(name: str) -> Callable[[str], tuple[bool, int]]:
    stack, layer, rest = parted(name)
    return lambda other: (parted(other)[2] != rest, abs(parted(other)[1] - layer) + (parted(other)[0] != stack))


MISTAKES = (
    Mistake(
        "weights from elsewhere in the model",
        "each weight and bias has its own values from the checkpoint",
        other_weights,
    ),
    Mistake(
        "wrong table of relative positions",
        "the table has the checkpoint's values, a row for each bucket or distance",
        other_tables,
    ),
    Mistake("bias with wrong values", "the checkpoint's bias is added once", other_bias),
    Mistake("weight in the wrong order", "rows and columns must be in the order of the checkpoint", reordered),
    Mistake("one stage rounded", "all stages must have the same precision", one_stage_rounded),
    Mistake("one weight rounded", "all weights must have the precision of the checkpoint", one_rounded),
)
#: Tried after all others, because it finds that numbers differ, not why.
LAST = (
    Mistake(
        "relative bias with other values",
        "the bias of a distance and a head is the checkpoint's, from the distance's bucket",
        other_biases,
    ),
)
