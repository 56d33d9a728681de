"""Compares another program's weights with the model's: values, layout and names.

torch and most formats store a linear weight as (out, in), and npformer as (in, out). Both layouts are recognized. Each
finding prints as a line of text. `diagnose.py` finds the stages that diverge because of wrong weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby, permutations
from typing import NamedTuple

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.tied import PROJECTION, ties
from npformer.common.halves import HALVES, half
from npformer.golden.graph import head_width, parted
from npformer.golden.mistakes import of_model
from npformer.golden.mistakes.embeddings import FORMULA, SINUSOIDS, other_formulas, other_orders, sinusoids_of
from npformer.golden.mistakes.maps import lines_said, map_of_numbers, said_of_map, zeros_said
from npformer.golden.mistakes.parts.attention import SWAPS
from npformer.golden.mistakes.precision import MISSCALED, SCALES, SCHEMES, rounded
from npformer.golden.port import Port
from npformer.model import Model, Seq2Seq

LAYOUTS = {True: "(out, in)", False: "(in, out)"}
TRANSPOSED, LAYER = "transposed weight", "weights of another layer"
OTHER, CHECKPOINT = "wrong weights", "different checkpoint"
ONE = "1 + weight of RMSNorm misused"
APART = "differs by up to "
IN_LAYER = re.compile(r"((?:encoder\.|decoder\.)?layers\.\d+)\.(.+)")
SPLIT, LEARNED = "fused weight split wrongly", "sinusoidal positions instead of learned"
#: Layers whose weights a file may store as one.
FUSED = (("query", "key", "value"), ("key", "value"), ("gate", "up"), ("up", "gate"))
MOVED = 4  # maximum number of rows by which a table of positions may be shifted
RELATED = 0.5  # the smallest cosine of a rounded weight and the correct one
FORMATS = 4  # the search for formats ends after this many weights without one
MANY = 0.5  # the smallest share of unexplained weights that suggests a different checkpoint


class Finding(NamedTuple):
    """An error in one weight, or the same error in several."""

    where: str
    what: str
    cause: str  # the name of the mistake

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@np.errstate(over="ignore", invalid="ignore")  # the other program's values may be infinite
def check_weights(model: Model | Seq2Seq, theirs: Mapping[str, np.ndarray], dtype: str = "float32") -> list[Finding]:
    """Lists the errors in another program's weights: values, shapes, names or layout.

    Parameters
    ----------
    model : Model
    theirs : mapping from npformer's flat names ("layers.0.attention.query.weight") to arrays
    dtype : the precision that the weights may be rounded to, as in `compare`

    Returns
    -------
    list of Finding
        One for each wrong weight, or for several that are wrong in the same way. Each prints as a line of text.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> print(*check_weights(model, {"embeddings.norm.bias": np.zeros(384, np.float32)}))
    embeddings.norm.bias: all zeros
    """
    ours, known = layout.flat_arrays(model.weights), parameters(model.config)
    findings, stored_out_in = list[Finding](), {}
    for name, array in theirs.items():
        linear = known[name].transposed
        if array.shape == ours[name].shape and np.array_equal(array, ours[name]):
            if linear:
                stored_out_in[name] = False
        elif linear and array.shape == ours[name].T.shape and np.array_equal(array, ours[name].T):
            stored_out_in[name] = True
        else:
            width = head_width(model.config, parted(name)[0]) if "attention." in name else 0
            table = _of_table(name, array, ours[name], model) if name.endswith("embeddings.position.weight") else None
            findings.append(table or _difference(name, array, ours, linear, width))
    findings = [each for each in findings if not _is_meant(each, dtype)]
    findings = _of_several(_of_formats(findings, theirs, ours), model, theirs)
    findings = _of_splits(findings, theirs, ours, model)
    places = layout.sources(model.config)
    for conv in (False, True):  # GPT-2 stores the layers' weights (in, out), the head's (out, in)
        alike = {name: out_in for name, out_in in stored_out_in.items() if places[name].in_out is conv}
        usual = sum(alike.values()) * 2 >= len(alike)
        for name, out_in in alike.items():
            if out_in is not usual:
                what = f"stored as {LAYOUTS[out_in]}, but the others as {LAYOUTS[usual]}: it is transposed"
                findings.append(Finding(name, what, TRANSPOSED))
    return _together(findings, len(theirs))


def _of_formats(
    findings: list[Finding], theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]
) -> list[Finding]:
    """Names the formats of weights that were converted back wrongly; gives up after FORMATS weights without one."""
    unlike = [each.where for each in findings if each.cause == OTHER and theirs[each.where].ndim == 2]
    if not unlike:
        return findings
    from npformer.golden.page_edits.roundings import format_of  # imported here, because few comparisons need pages

    found, in_vain = dict[str, Finding](), 0
    for name in unlike:
        if in_vain == FORMATS:
            break
        either = [each for each in (theirs[name], theirs[name].T) if each.shape == ours[name].shape]
        how = next(filter(None, (format_of(each, ours[name]) for each in either if np.isfinite(each).all())), "")
        if how:
            found[name] = Finding(name, f"the values of {how}", "quantized weights")
        in_vain += not how
    return [found.get(each.where, each) for each in findings]


def _of_splits(
    findings: list[Finding], theirs: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray], model: Model | Seq2Seq
) -> list[Finding]:
    """Names the columns of a fused weight that are stored in one order and read in another one."""
    unlike = [each.where for each in findings if each.cause == OTHER]
    if not unlike:
        return findings
    from npformer.golden.page_edits.elsewhere import orders, split_wrongly

    config, found = model.config, dict[str, Finding]()
    for name in unlike:
        *places, own, array = name.split(".")
        above = ".".join(places)
        for names in FUSED:
            parts = [{array: ours.get(f"{above}.{each}.{array}", np.zeros(0))} for each in names]
            if own not in names or not all(part[array].size for part in parts):
                continue
            widths = [part[array].shape[-1] for part in parts]
            counts = (config.n_heads, config.n_kv_heads) if "attention" in above else ()
            for stored, read in permutations(orders(widths, counts), 2):
                made = split_wrongly(names.index(own), *parts, stored=stored, read=read)[array]
                if any(np.array_equal(each, made) for each in (theirs[name], theirs[name].T)):
                    how = f"{', '.join(names)} are stored {_said(stored)}, but read as if stored {_said(read)}"
                    found[name] = Finding(name, how, SPLIT)
    return [found.get(each.where, each) for each in findings]


def _said(order: tuple[str, int]) -> str:
    kind, n = order
    return {"parts": "one after another", "heads": f"in {n} groups of heads", "numbers": "in alternating columns"}[kind]


def _of_several(findings: list[Finding], model: Model | Seq2Seq, theirs: Mapping[str, np.ndarray]) -> list[Finding]:
    """Names the mistakes that mix several weights, such as a wrong split of a fused weight."""
    unlike = {each.where: each for each in findings if each.cause == OTHER}
    if not unlike:
        return findings
    weights, given = layout.flat_arrays(model.weights), as_ours(model, theirs)
    port = Port(model.config, weights, [], "", [], frozenset(), (), ())
    for mistake in (each for each in of_model(model.config) if each.of_weights):
        for way, wrong in mistake.ways(port):
            for name in unlike.keys() & given.keys():
                if wrong.weights[name] is not weights[name] and _is_near(given[name], wrong.weights[name]):
                    unlike[name] = Finding(name, way or mistake.name, mistake.name)
    return [unlike.get(each.where, each) for each in findings]


def _is_meant(finding: Finding, dtype: str) -> bool:
    return finding.what == f"rounded to {dtype}" or (dtype == "int8" and finding.what.startswith("quantized to int8"))


def as_ours(model: Model | Seq2Seq, theirs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts another program's weights to (in, out). All square weights get the layout that fits most of them."""
    ours, known = layout.flat_arrays(model.weights), parameters(model.config)
    wide = [array.shape == ours[name].T.shape for name, array in theirs.items() if len(set(ours[name].shape)) == 2]
    apart = [
        (float(np.abs(array - ours[name].T).sum()), float(np.abs(array - ours[name]).sum()))
        for name, array in theirs.items()
        if known[name].transposed and array.shape == ours[name].T.shape == ours[name].shape
    ]
    votes = [out_in < in_out for out_in, in_out in apart if out_in != in_out] or wide or [True]
    out_in = sum(votes) * 2 >= len(votes)
    converted = {}
    for name, array in theirs.items():
        linear = known[name].transposed
        if linear and array.shape == ours[name].T.shape and (out_in or array.shape != ours[name].shape):
            converted[name] = array.T
        elif array.shape == ours[name].shape:
            converted[name] = array
    tied = ties(model.config)
    for name, table in tied.items():
        turned = ours[name].T if name == PROJECTION else ours[name]
        if name not in converted and table in converted and np.array_equal(turned, ours[table]):
            converted[name] = converted[table].T if name == PROJECTION else converted[table]
    return {name: np.ascontiguousarray(array, np.float32) for name, array in converted.items()}


def _of_table(name: str, theirs: np.ndarray, own: np.ndarray, model: Model | Seq2Seq) -> Finding | None:
    """Returns the finding for positions with a wrong sinusoidal formula, or shifted by some rows; else None."""
    learned = sinusoids_of(model.config) if model.config.positions.table == "learned" else {}
    wrong = {SINUSOIDS: other_orders(model.config), FORMULA: other_formulas(model.config), LEARNED: learned}
    for cause, tables in wrong.items():
        for way, table in tables.items():
            if theirs.shape == table.shape and np.abs(theirs - table).max() < 1e-4:
                return Finding(name, way or cause, cause)
    for n in range(1, MOVED + 1) if theirs.shape == own.shape and len(own) > 2 * MOVED else ():
        for sign, a, b in (("+", theirs[:-n], own[n:]), ("-", theirs[n:], own[:-n])):
            if np.abs(a - b).max() < 1e-4:
                return Finding(name, f"row i has the values of row i {sign} {n}", "positions off by one")
    return None


def _difference(name: str, theirs: np.ndarray, ours: Mapping[str, np.ndarray], linear: bool, width: int = 0) -> Finding:
    own = ours[name]
    expected = f"{own.shape} or {own.T.shape}" if linear else f"{own.shape}"
    if theirs.shape not in ({own.shape, own.T.shape} if linear else {own.shape}):
        return Finding(name, f"expected {expected}, got {theirs.shape}", "weight of the wrong shape")
    if linear and np.array_equal(theirs.ravel(), own.T.ravel()):
        return Finding(name, "values in (out, in) order, but the shape is (in, out)", TRANSPOSED)
    if linear and np.array_equal(theirs.ravel(), own.ravel()):
        return Finding(name, "values in (in, out) order, but the shape is (out, in)", TRANSPOSED)
    if linear and any(np.array_equal(theirs.T.ravel(), each.ravel()) for each in (own, own.T)):
        return Finding(name, "values stored in one layout and read in the other", TRANSPOSED)
    either = [each for each in ([own, own.T] if linear else [own]) if each.shape == theirs.shape]
    if not theirs.any():
        return Finding(name, "all zeros", "missing bias" if name.endswith("bias") else "weight left out")
    for kind in HALVES:
        if any(np.array_equal(theirs, half(kind, each)) for each in either):
            return Finding(name, f"rounded to {kind}", "half precision")
    if other := _found_elsewhere(theirs, ours):
        return Finding(name, f"has {other}'s", _exchange(name, other))
    if theirs.ndim == 1 and not np.ptp(theirs):
        return Finding(name, f"all {theirs[0]:g}", "weight left out")
    related = [each for each in either if _is_related(theirs, each)]
    if theirs.ndim == 2 and related:
        for scheme, rounding in SCHEMES.items():
            if any(_is_near(theirs, rounding(each.astype(np.float64))) for each in related):
                return Finding(name, f"quantized to {scheme}", "quantized weights")
        for way, rounding in MISSCALED.items():
            if any(
                _is_near(each, rounding(own.astype(np.float64)))
                for each in (theirs, theirs.T)
                if each.shape == own.shape
            ):
                return Finding(name, f"int8 with {way}", SCALES)
    if how := next(filter(None, (rounded(theirs, each) for each in related)), ""):
        return Finding(name, how, "quantized weights")
    if c := next(filter(None, (_factor(theirs, each) for each in either)), 0.0):
        return Finding(name, f"{c:.6g} times the correct values", "scaled by a constant")
    if name.endswith("norm.weight") and (sign := _one_added(theirs, own)):
        return Finding(name, f"the correct values {sign} 1", ONE)
    if theirs.ndim == 1 and (order := map_of_numbers(theirs, own)) is not None:
        return Finding(name, f"numbers {said_of_map(order, width)}", _moved_or_copied(order))
    if theirs.ndim == 2 and (found := _moved(name, theirs, own, linear, width)):
        return found
    if any(_is_permuted(theirs, each) for each in either):
        return Finding(name, "correct values in the wrong order", "in the wrong order")
    apart = min(float(np.abs(theirs - each).max()) for each in either)
    return Finding(name, f"{APART}{apart:.3g}", OTHER)


def _moved(name: str, theirs: np.ndarray, own: np.ndarray, linear: bool, width: int) -> Finding | None:
    """Returns the finding if rows or columns are moved or copied, or if at most half of them are wrong; else None."""
    for given in (theirs.T, theirs) if linear else (theirs,):
        if given.shape != own.shape:
            continue
        for axis, kind in enumerate(("row", "column")):
            a, b = (np.moveaxis(each, axis, 0) for each in (given, own))
            places = {line.tobytes(): i for i, line in enumerate(b)}
            order = np.array([places.get(line.tobytes(), -1) for line in a])
            order = np.where((a == b).all(1), np.arange(len(b)), order)
            other = np.flatnonzero(order < 0)
            of_heads = width if (axis == 0) == name.endswith("output.weight") else 0
            if not len(other):
                return Finding(name, f"{kind}s {said_of_map(order, of_heads)}", _moved_or_copied(order))
            if 2 * len(other) <= len(a):
                if not a[other].any():
                    return Finding(name, zeros_said(kind, other), "heads or columns missing")
                apart = float(np.abs(a - b)[other].max())
                return Finding(name, f"{APART}{apart:.3g} in {lines_said(kind, other)}", OTHER)
    return None


def _moved_or_copied(order: np.ndarray) -> str:
    """Returns the cause that an order of rows, columns or numbers indicates: some are copied, or all are permuted."""
    return "heads or columns missing" if len(set(order.tolist())) < len(order) else "in the wrong order"


def _found_elsewhere(theirs: np.ndarray, ours: Mapping[str, np.ndarray]) -> str:
    for name, array in ours.items():
        for each in (array, array.T) if array.ndim == 2 else (array,):
            if each.shape == theirs.shape and each.flat[0] == theirs.flat[0] and np.array_equal(each, theirs):
                return name
    return ""


def _exchange(name: str, other: str) -> str:
    """Names the mistake that replaces one weight with another."""
    layers = [IN_LAYER.match(each) for each in (name, other)]
    if layers[0] and layers[1] and layers[0][2] == layers[1][2]:
        return LAYER
    pair = {each.rpartition(".")[0].rpartition(".")[2] for each in (name, other)}
    swaps = {frozenset(swap.removesuffix(" swapped").split(" and ")): swap for swap in SWAPS.values()}
    norms = all(each.endswith("norm") for each in pair)
    return swaps.get(frozenset(pair), "norms exchanged" if norms else "weights from elsewhere in the model")


def _is_related(theirs: np.ndarray, own: np.ndarray) -> bool:
    """Returns whether a weight may be the correct one, rounded: the cosine of their angle is at least RELATED."""
    norms = np.linalg.norm(theirs) * np.linalg.norm(own)
    return bool(np.vdot(theirs, own) >= RELATED * norms)


def _is_near(theirs: np.ndarray, rounded: np.ndarray) -> bool:
    return bool(np.abs(theirs - rounded).max() <= 1e-5 * np.abs(rounded).max())


def _factor(theirs: np.ndarray, own: np.ndarray) -> float:
    """Returns c if the weight is c times the correct one, else 0."""
    largest = np.unravel_index(int(np.abs(own).argmax()), own.shape)
    c = float(theirs[largest] / own[largest]) if own[largest] else 0.0
    return c if c not in (0.0, 1.0) and _is_near(theirs, c * own) else 0.0


def _one_added(theirs: np.ndarray, own: np.ndarray) -> str:
    """Returns the sign of 1 if the weight is the correct one plus or minus 1, else ""."""
    return next((sign for sign, one in (("+", 1), ("-", -1)) if np.abs(theirs - (own + one)).max() < 1e-5), "")


def _is_permuted(theirs: np.ndarray, own: np.ndarray) -> bool:
    return theirs.shape == own.shape and np.array_equal(np.sort(theirs, axis=None), np.sort(own, axis=None))


def _together(findings: list[Finding], count: int) -> list[Finding]:
    """Joins findings with the same cause: a different checkpoint, a wrong layer, or one mistake in many weights."""
    unlike = [each for each in findings if each.cause == OTHER]
    together = []
    if len(unlike) > 3:
        findings = [each for each in findings if each.cause != OTHER]
        most = max(float(each.what.removeprefix(APART).split()[0]) for each in unlike)
        if len(unlike) >= MANY * count:
            said = f"{len(unlike)} of {count} weights have different values; they differ by up to {most:.3g}"
            together.append(Finding("different checkpoint", said, CHECKPOINT))
        else:
            together.append(Finding(f"{unlike[0].where} and {len(unlike) - 1} others", f"{APART}{most:.3g}", OTHER))
    for (said, cause), alike in groupby(sorted(findings, key=_alike), key=_alike):
        group = list(alike)
        if len(group) <= 3:
            together += group
        elif cause == LAYER:
            together.append(Finding(said, f"{len(group)} weights", cause))
        else:
            names = f"{group[0].where} and {len(group) - 1} others"
            together.append(Finding(names, said if said in group[0].what else group[0].what, cause))
    return together


def _alike(finding: Finding) -> tuple[str, str]:
    """Returns a key that is equal for findings of the same error."""
    if finding.cause == LAYER:
        found = [IN_LAYER.match(each) for each in (finding.where, finding.what.removeprefix("has "))]
        own, other = (each[1] for each in found if each is not None)
        return f"{own} has {other}'s", finding.cause
    shared = (
        finding.what if finding.cause in ("half precision", "quantized weights", OTHER, TRANSPOSED) else finding.cause
    )
    return shared, finding.cause
