"""Makes public functions of `npformer` from the formulas of pages. The functions take array-likes and explain errors.

A formula computes with arrays, and its docstring states their shapes. If the first argument is a float32 or float64
array, the public form calls the formula directly. Otherwise, or if NumPy raises an error, the arguments are converted
first: lists and whole numbers to float64, and float16 to float32 and back. If NumPy then raises an error again, the
message shows the shapes of the arguments, the calls that led to the formula that failed, and the given and documented
shapes of that formula.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import extract_tb, walk_tb
from types import FrameType
from typing import Any

import numpy as np

from npformer.common.arraylike import as_numbers, in_float32
from npformer.common.checks import shown
from npformer.common.errors import NpformerError

#: Errors that NumPy and Python raise for unsuitable arguments of a formula.
REFUSALS = (
    *(TypeError, ValueError, IndexError, KeyError, AttributeError),
    *(OverflowError, RecursionError, ZeroDivisionError),
)
PAGES = str(Path(__file__).parents[1] / "plain")
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
MASKS = frozenset({np.dtype(bool)})
#: Names of parameters: KEPT are arrays of whole numbers, COUNTS are whole numbers, and NUMBERS are not converted.
KEPT = ("ids", "positions")
COUNTS = {"n_heads": 1, "n_queries": 0, "n_keys": 0, "length": 0, "width": 0, "d_head": 0}  # lowest value by name
NUMBERS = ("eps", "axis", "magnitude", "theta", "heads", "past", "angles")
#: Formulas that only rearrange numbers, of any dtype.
REARRANGE = ("split_heads", "combine_heads", "embedding")
#: The advice in the error, for each argument that the formulas of pages lack.
INSTEAD = {
    "layers": 'these are the weights of a model; write **model.weights["layers"][0] for one layer',
    "lengths": "x is one text (L, D), or a padded batch (B, L, D) with mask=npformer.padding_mask(lengths)",
    "source_lengths": "source is one text (S, D), or a batch (B, S, D)",
    "row_indices": "take the rows of the result: z[..., 0, :]",
    "norm_first": "npformer.plain.gpt2.gpt2_layer has its norms before the blocks",
    "norm": "write npformer.layer_norm(x, **norm)",
    "out": "assign the result: room[...] = ...",
    "dim": "write axis=",
    "is_causal": "write mask=npformer.causal_mask(n_queries, n_keys)",
    "attn_mask": "write mask=, with True for keys that may be seen",
    "scale": "the scores are divided by sqrt(K); for another scale s, pass q * s * sqrt(K)",
    "gate": "npformer.gated_feed_forward computes a network with gate and up",
    "up": "npformer.gated_feed_forward computes a network with gate and up",
}


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """The public form of a formula, with the same source, signature and docstring as the formula.

    A debugger that steps into the public form shows the formula's first line, because the code of the public form has
    that line number. The debugger's next step enters the formula.
    """
    code, parameters = inspect.unwrap(function).__code__, [*inspect.signature(function).parameters]
    masked = "mask" in parameters
    tree = ast.parse(_FORM_WITH_MASK if masked else _FORM)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr | ast.ExceptHandler | ast.arg | ast.keyword):
            node.lineno = node.end_lineno = code.co_firstlineno
    names = {
        "formula": function,
        "converted": functools.partial(converted, function),
        "place": parameters.index("mask") if masked else 0,
        "default": inspect.signature(function).parameters["mask"].default if masked else None,
        "FLOATS": FLOATS,
        "MASKS": MASKS,
        "REFUSALS": REFUSALS,
    }
    exec(compile(tree, code.co_filename, "exec"), names)
    form: Callable[..., Any] = functools.update_wrapper(names["form"], function)  # type: ignore[arg-type]
    form.__module__ = "npformer"  # for pickle
    return form


_FORM = """
def form(*args, **kwargs):
    if args and getattr(args[0], "dtype", None) in FLOATS:
        try:
            return formula(*args, **kwargs)
        except REFUSALS:
            pass
    return converted(args, kwargs)
"""
_FORM_WITH_MASK = _FORM.replace(
    "in FLOATS:",
    "in FLOATS and ((mask := args[place] if len(args) > place else kwargs.get('mask', default)) is True "
    "or getattr(mask, 'dtype', None) in MASKS):",
)


def converted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The result of a formula for array-likes. Raises NpformerError for arguments that are not suitable."""
    name, signature = function.__name__, inspect.signature(function)
    for argument in INSTEAD:
        if argument in kwargs and argument not in signature.parameters:
            raise NpformerError(f"{name}: no argument {argument!r}: {INSTEAD[argument]}")
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise NpformerError(f"{name}: {error}; its arguments are {signature}") from None
    values = {}
    for argument, value in given.items():
        if value is None and signature.parameters[argument].default is not inspect.Parameter.empty:
            continue  # this linear layer has no bias
        values[argument] = _value(name, argument, value)
    try:
        return in_float32(function)(**values)
    except REFUSALS as error:
        if _is_of_a_caller(error):
            raise
        raise NpformerError(_explained(function, values, error)) from None


def _value(function: str, name: str, value: Any) -> Any:
    """The value of an argument, converted according to the name of the argument."""
    where = f"{function}: {name}"
    if name in COUNTS:
        return _count(where, value, COUNTS[name])
    if name == "activation":
        return _function(where, value)
    if name in NUMBERS:
        return value
    if name == "layers":
        if not isinstance(value, list | tuple):
            raise NpformerError(f"{where}: expected a list of layers, each a dict of weights, got {shown(value)}")
        for i, layer in enumerate(value):
            if not isinstance(layer, Mapping):
                raise NpformerError(f"{where}.{i}: expected a dict of weights, got {shown(layer)}")
        return [_tree(f"{where}.{i}", layer) for i, layer in enumerate(value)]
    if name == "mask":
        return _mask(where, value)
    tree = _tree(where, value, keeps=name in KEPT or function in REARRANGE)
    return _ids(where, tree) if name == "ids" else tree


def _count(where: str, value: Any, lowest: int) -> int:
    try:
        count = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        count = -1
    if count < lowest:
        raise NpformerError(f"{where}: expected a whole number of at least {lowest}, got {shown(value)}")
    return count


def _function(where: str, value: Any) -> Any:
    if not callable(value):
        raise NpformerError(f"{where}: expected a function, such as npformer.gelu, got {shown(value)}")
    return value


def _tree(where: str, value: Any, keeps: bool = False) -> Any:
    """Converts an array, or every array in a nested dict of weights. Omits a missing bias."""
    if isinstance(value, Mapping):
        return {key: _tree(f"{where}.{key}", each) for key, each in value.items() if each is not None}
    if value is None:
        raise NpformerError(f"{where}: expected an array, or a dict of weights, got None")
    return value if type(value) is np.ndarray and value.dtype.kind == "f" else as_numbers(where, value, keeps)


def _mask(where: str, value: Any) -> Any:
    if value is True or value is None:
        return True
    mask = as_numbers(where, value, keeps=True)
    if mask.dtype.kind == "f":
        # A query may attend to a key with 1 in a mask of 0 and 1, or with 0 in a mask of -inf and 0.
        seen = 1 if mask.size and mask.max() == 1 else 0
        raise NpformerError(
            f"{where}: expected booleans, True for keys that may be seen, got {mask.dtype}; write mask == {seen}"
        )
    if mask.dtype.kind != "b" and mask.size and not (mask.min() >= 0 and mask.max() <= 1):
        raise NpformerError(f"{where}: expected booleans, True for keys that may be seen, got {shown(value)}")
    return mask.astype(bool)


def _ids(where: str, ids: np.ndarray) -> np.ndarray:
    """Returns the ids. Raises an error for a negative id, which NumPy would count from the end of the table."""
    if ids.dtype.kind == "i" and ids.size and ids.min() < 0:
        raise NpformerError(f"{where}: expected ids of at least 0, got {ids.min()}")
    return ids


def _is_of_a_caller(error: Exception) -> bool:
    """Whether the error comes from a function of the caller. If so, the original traceback is more helpful."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").partition(".")[0] not in ("npformer", "numpy")


def _explained(function: Callable[..., Any], values: Mapping[str, Any], error: Exception) -> str:
    """Describes the arguments, the formula that failed with its arguments, NumPy's error, and the documented shapes."""
    said = re.sub(r"matmul: .*\(size (\d+) is different from (\d+)\)", r"the sizes \2 and \1 do not match", str(error))
    line = next((f"; {each}" for name, each in INSTEAD.items() if f"argument '{name}'" in said), "")
    failed, place, given = function, "", values
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if _is_formula(frame)]
    if len(frames) > 1:
        last = frames[-1]
        failed = last.f_globals[last.f_code.co_name]
        given = {name: last.f_locals[name] for name in inspect.signature(failed).parameters}
        place = f"in {', '.join(_calls(error))}: "
    lines = (inspect.getdoc(failed) or "").partition(">>>")[0].splitlines()
    declared = " ".join([each for each in lines if "(" in each] or lines[:1])
    return f"{function.__name__}: {place}got {_given(given)}: {said}{line or _line(given)}; expected {declared}"


def _line(given: Mapping[str, Any]) -> str:
    """A hint for a padding mask (B, L) or for shared heads of keys, given the arguments that failed, or ""."""
    scores, mask, q, k = (np.shape(given.get(name, 0.0)) for name in ("scores", "mask", "q", "k"))
    if len(scores) == 4 and mask == (scores[0], scores[-1]):
        return "; write mask[:, None, None, :] for a mask (B, L) of padding"
    if len(q) > 2 and len(k) > 2 and q[-1] != k[-1]:
        return "; if heads share keys and values, as in Llama, npformer.grouped_query_attention computes them"
    return ""


def _is_formula(frame: FrameType) -> bool:
    """Whether a frame belongs to a function of a page, and not to a comprehension or lambda in such a function."""
    return frame.f_globals.get("__name__", "").startswith("npformer.plain.") and frame.f_code.co_name.isidentifier()


def _calls(error: Exception) -> list[str]:
    """The source lines of the calls in pages that led to an error, from first to last."""
    calls = []
    for place in extract_tb(error.__traceback__):
        if place.filename.startswith(PAGES) and place.lineno == place.end_lineno:
            line = linecache.getline(place.filename, place.lineno or 0).encode()
            calls.append(line[place.colno : place.end_colno].decode())
    return [call for call in calls[:-1] if "(" in call]


def _given(values: Mapping[str, Any]) -> str:
    """The arguments as text, with the shapes of arrays, and without functions or masks that hide no key."""
    shown_values = {name: value for name, value in values.items() if not callable(value) and value is not True}
    return ", ".join(f"{name} {_shape(value)}" for name, value in shown_values.items())


def _shape(value: Any) -> str:
    """The shape of an array, the shapes in a dict of arrays, or only the names in a dict of dicts."""
    if isinstance(value, np.ndarray):
        return str(value.shape)
    if isinstance(value, tuple | list) and any(isinstance(each, np.ndarray | Mapping) for each in value):
        return f"[{', '.join(map(_shape, value))}]"
    if not isinstance(value, Mapping):
        return shown(value)
    nested = any(isinstance(each, Mapping) for each in value.values())
    return "{" + ", ".join(name if nested else f"{name} {_shape(each)}" for name, each in value.items()) + "}"
