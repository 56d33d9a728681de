"""Converts between the nested dict of a model's weights and the flat tensors of a file.

The parts of a model declare its arrays, `families/` maps arrays to names in files, and `read.py` reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NoReturn

import numpy as np

from npformer.checkpoint.parameters import Parameter, computed, parameters
from npformer.checkpoint.storage import (
    Array,
    check_storage,
    converted_all,
    dtype_name,
    first_nonfinite,
    is_floating,
    parts,
    place,
)
from npformer.checkpoint.tied import PROJECTION, is_table, ties, with_tables
from npformer.common.errors import NpformerError, warn
from npformer.config import Config
from npformer.engine.descriptions.earlier_names import renamed
from npformer.engine.embeddings import sinusoidal_positions
from npformer.engine.runtime.narrow import NARROW, NarrowWeight, narrowed, widened
from npformer.families import Source, TensorPart, family_of

Tree = dict[str, Any]  # nested dicts of arrays; "layers" is a list

PARAMETER_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float64))
HALVES = ("float16", "bfloat16")
_MOST_LISTED = 12

SCALE = "_scale"  # suffix that turns the name of an int8 tensor into the name of its scale
SMALL = 2**12  # weights with fewer numbers are always stored in float32


# --- from a file -----------------------------------------------------------------------------------------------------


def to_tree(
    flat: Mapping[str, Array],
    config: Config,
    dtype: Any = np.float32,
    allow_nonfinite: bool = False,
    keep: str = "float32",
) -> Tree:
    """Converts the tensors of a checkpoint to a nested dict of read-only arrays, with linear weights (in, out).

    Tensors of other heads of the family are ignored. Other unused tensors cause a warning. If dtype is None, the dtype
    of each array is unchanged. If a dtype is given, all arrays are copies, because most arrays must be transposed.
    keep: as in `load`.
    """
    family, expected, known = family_of(config), parameters(config), _known(config)
    tensors: dict[str, Array] = {}
    unknown = []
    for stored_name, array in flat.items():
        name = family.current(stored_name, known)
        if name in tensors:
            raise NpformerError(f"{stored_name!r:.200}: stored twice, under an old and a current name")
        if name not in known and f"{name.partition('.')[0]}.*" not in known:
            unknown.append(stored_name)
        tensors[name] = array
    if len(unknown) == len(flat) and (prefix := _wrapper(unknown, lambda name: family.current(name, known) in known)):
        raise NpformerError(
            f"all names of tensors begin with {prefix!r:.200}, as after torch.compile, DataParallel or PEFT; save the "
            "state_dict of the model inside this wrapper"
        )
    found, titles = {}, {}
    for ours, source in sources(config).items():
        name, source = source.found_in(tensors)
        titles[ours] = source._replace(names=(name,)).title
        if name in tensors:
            found[ours] = _taken(tensors[name], source, expected[ours])
    return _build(found, config, dtype, unknown, titles, dtype is not None, allow_nonfinite, keep)


def own_to_tree(
    flat: Mapping[str, Array],
    config: Config,
    dtype: Any = np.float32,
    allow_nonfinite: bool = False,
    keep: str = "float32",
) -> Tree:
    """Builds the nested dict from the tensors of a converted checkpoint. Copies a tensor only if its dtype changes."""
    own = parameters(config)
    flat = _with_scales(renamed(flat))
    unknown = [name for name in flat if name not in own]
    if unknown:  # the tensors may belong to another head
        known = {name for head in family_of(config).all_heads for name in parameters(config, head)}
        unknown = [name for name in unknown if name not in known]
    return _build(flat, config, dtype, unknown, allow_nonfinite=allow_nonfinite, keep=keep)


def _with_scales(flat: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the arrays of a converted checkpoint. An int8 tensor and its scale become a `NarrowWeight`."""
    found: dict[str, Any] = dict(flat)
    for name in [name for name in flat if name + SCALE in flat]:
        values, scale = flat[name], found.pop(name + SCALE)
        expected = [(1, values.shape[-1]), (len(values), 1)] if values.ndim == 2 else []
        if values.dtype != np.int8 or scale.dtype != np.float32 or scale.shape not in expected:
            raise NpformerError(
                f"{name}{SCALE}: expected float32 {' or '.join(map(str, expected))} for an int8 matrix, "
                f"got {dtype_name(scale.dtype)} {scale.shape} for {dtype_name(values.dtype)} {values.shape}"
            )
        found[name] = NarrowWeight(values, scale)
    return found


def check_scales(flat: Mapping[str, Array]) -> None:
    """Raises NpformerError if an int8 tensor times its scale is not finite in float32."""
    for name, scale in flat.items():
        if name.endswith(SCALE) and scale.dtype == np.float32:
            wrong = np.argwhere(~(np.abs(scale) <= np.finfo(np.float32).max / 128))
            if len(wrong):
                _refuse_number(name, tuple(wrong[0].tolist()), scale)


def sources(config: Config, head: str | None = None) -> dict[str, Source]:
    """Maps npformer's flat name of each array of a model with this head to its source in a file."""
    head = head or config.head
    arrays = {ours: (each.group, each.name) for ours, each in parameters(config, head).items()}
    return family_of(config).sources(config, arrays, head)


_recent_sources = lru_cache(maxsize=4)(sources)  # for `module_path`, which is called for each group


@lru_cache(maxsize=8)  # cached, because folders are often loaded again, and each head requires a pass over all layers
def _known(config: Config) -> frozenset[str]:
    """All possible tensor names in a checkpoint of this family and depth, with any head."""
    family = family_of(config)
    heads = dict.fromkeys([config.head, *family.all_heads])
    names = {name for head in heads for each in sources(config, head).values() for name in each.names + each.apart}
    return frozenset(names | family.stored_elsewhere(config))


def _wrapper(names: Sequence[str], is_known: Callable[[str], bool]) -> str:
    """The prefix of all names, such as "model.", if names without it are known; "" if there is no such prefix."""
    for name in names:
        parts = name.split(".")
        for depth in range(1, min(len(parts), 4)):
            prefix = ".".join(parts[:depth]) + "."
            if is_known(name.removeprefix(prefix)) and all(each.startswith(prefix) for each in names):
                return prefix
    return ""


def _taken(array: Array, source: Source, parameter: Parameter) -> Array:
    """A view of the part of a tensor that a source describes, without leading axes of size 1."""
    outputs = -1 if source.in_out else 0  # the output axis
    if source.part and array.ndim and source.part.fits(array.shape[outputs]):
        array = source.part.of(array, outputs)
    elif (source.leading or source.buffer) and array.ndim == len(parameter.shape) + 1 and len(array) == 1:
        array = array[0]
    return source.to_linear(array) if parameter.transposed else array


def _build(
    found: Mapping[str, Array],
    config: Config,
    dtype: np.dtype[Any] | None,
    unknown: Collection[str],
    titles: Mapping[str, str] | None = None,
    copy: bool = False,
    allow_nonfinite: bool = False,
    keep: str = "float32",
) -> Tree:
    """Builds the nested dict from arrays with npformer's names. Ties arrays and computes sinusoids.

    A single error lists all missing names and wrong shapes. `unknown` names cause a warning, as in Transformers, or an
    error in a strict family. Only the family of torch's own modules is strict. titles: for each of npformer's names,
    the name in the file.
    """
    expected = parameters(config)
    check_storage({name: found[name] for name in expected if name in found})
    pairs = {name: table for name, table in ties(config).items() if name in expected and table in expected}
    found = with_tables(found, pairs)
    absent = _absent(config, expected, found)
    tied = {name: table for name, table in pairs.items() if is_table(found, name, table)}
    needed = {name: each for name, each in expected.items() if name not in absent and name not in tied}
    named = {name: f"{name} ({titles[name]})" if titles else name for name in needed}
    missing = [named[name] for name in needed if name not in found]
    wrong = [
        f"{named[name]}{', transposed' if titles and parameter.transposed else ''}: {problem}"
        for name, parameter in needed.items()
        if name in found and (problem := _problem(found[name], parameter.shape))
    ]
    if missing or wrong or (unknown and family_of(config).strict):
        lines = _listed("missing", missing) + _listed("unknown", list(unknown)) + _listed("wrong", wrong)
        message = "\n  ".join(["the checkpoint does not match its config.json:", *lines])
        raise NpformerError(f"{message:.1500}")
    if unknown:
        title = "the checkpoint has tensors that the model does not use; they are ignored:"
        warn("\n  ".join([title, *_listed("unknown", list(unknown))]))
    flat = _loaded(found, needed, named, dtype, copy, allow_nonfinite, keep)
    flat |= {name: _sinusoids(config, dtype) for name in absent if computed(name, config)}
    for name, table in tied.items():
        flat[name] = flat[table].T if name == PROJECTION else flat[table]
    return unflatten({name: flat[name] for name in expected if name in flat})


def _loaded(
    found: Mapping[str, Array],
    needed: Mapping[str, Parameter],
    named: Mapping[str, str],
    dtype: np.dtype[Any] | None,
    copy: bool,
    allow_nonfinite: bool,
    keep: str,
) -> dict[str, Array]:
    """Converts arrays to the form in which the model stores them. An array with two names is loaded once."""
    names = {place(found[name]): name for name in reversed(list(needed))}
    loaded: dict[tuple[Any, ...], Any] = {}
    for where, name in names.items():
        array, stored = found[name], _narrow_dtype(found[name], needed[name], keep)
        if isinstance(array, NarrowWeight) and (dtype is None or stored == array.stored):
            loaded[where] = array
        elif stored:
            if not allow_nonfinite:
                _check_finite(named[name], array)
            try:
                loaded[where] = narrowed(np.asarray(array), stored, -1 if needed[name].kind == "linear" else 0, copy)
            except NpformerError as error:
                raise NpformerError(f"{named[name]}: {error}") from None
    whole = {where: np.asarray(found[name]) for where, name in names.items() if where not in loaded}
    with np.errstate(over="ignore", invalid="ignore"):  # the code below reports infinite and NaN values by name
        converted = dict(zip(whole, converted_all(list(whole.values()), dtype, copy), strict=True))
    for where, array in () if allow_nonfinite else converted.items():
        _check_finite(named[names[where]], array)
    loaded |= converted
    return {name: loaded[place(found[name])] for name in needed}


def _narrow_dtype(array: Array, parameter: Parameter, keep: str) -> str | None:
    """The dtype of `NARROW` in which an array is stored, or None."""
    if not may_be_narrow(parameter, array.shape):
        return None
    if keep != "stored":
        return keep if keep in NARROW else None
    if isinstance(array, NarrowWeight):
        return array.stored
    return next((name for name, dtype in NARROW.items() if dtype == array.dtype), None)


def may_be_narrow(parameter: Parameter, shape: Sequence[int]) -> bool:
    """Whether `keep` applies to an array: only to large matrices, and not to the weights of norms."""
    return parameter.name == "weight" and parameter.kind != "norm" and len(shape) == 2 and prod(shape) >= SMALL


def _check_finite(title: str, array: Array) -> None:
    """Checks that all numbers are finite. The error states the index in npformer's layout."""
    index = first_nonfinite(parts(array)[-1])
    if index is not None:
        _refuse_number(title, index, widened(parts(array)[-1]))


def _refuse_number(title: str, index: tuple[int, ...], array: Array) -> NoReturn:
    raise NpformerError(
        f"{title}: the number at {list(index)} is {array[index]}; the checkpoint is damaged, "
        "or its training diverged. load(..., allow_nonfinite=True) loads it anyway, for npformer.trace"
    )


def _absent(config: Config, expected: Mapping[str, Parameter], found: Collection[str]) -> set[str]:
    """The optional arrays that are missing, including all arrays of missing optional groups."""
    optional = family_of(config).optional(config)
    present = {each.group for name, each in expected.items() if name in found}
    return {
        name
        for name, each in expected.items()
        if (name in optional and name not in found) or (each.group in optional and each.group not in present)
    }


def _sinusoids(config: Config, dtype: Any) -> Array:
    """The position table, computed in float32 for every dtype, as in checkpoints."""
    halves = config.positions.table == "sinusoidal-halves"
    table = sinusoidal_positions(config.n_positions, config.table_width, halves=halves).astype(
        dtype or np.float32, copy=False
    )
    table.flags.writeable = False
    return table


# --- to a file -------------------------------------------------------------------------------------------------------


def stored(tree: Tree, config: Config) -> dict[str, Array]:
    """The flat arrays of a file in npformer's format: all except tied arrays and tables of sinusoids."""
    flat = flatten(tree)
    tied = {name for name, table in ties(config).items() if is_table(flat, name, table)}
    return {name: array for name, array in flat.items() if name not in tied and not computed(name, config)}


def to_file(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the tensors of a converted checkpoint: from a `NarrowWeight`, its values and, for int8, its scale."""
    return {
        name + end: part for name, array in arrays.items() for end, part in zip(("", SCALE), parts(array), strict=False)
    }


def to_torch(tree: Tree, config: Config) -> dict[str, Array]:
    """Converts a nested dict to the tensors of a checkpoint. Inverse of `to_tree`. Linear weights are views."""
    expected, places = parameters(config), sources(config)
    flat: dict[str, Array] = {}
    parts: dict[tuple[str, int], dict[TensorPart, Array]] = {}  # parts of a tensor along an axis
    for ours, array in stored(tree, config).items():
        source = places[ours]
        array = np.asarray(array)
        array = source.from_linear(array) if expected[ours].transposed else array
        if source.part is not None:
            parts.setdefault((source.names[0], -1 if source.in_out else 0), {})[source.part] = array
        else:
            flat |= dict.fromkeys(source.written or source.names[:1], array[None] if source.leading else array)
    return flat | {
        name: next(iter(each)).joined([each[part] for part in sorted(each)], at) for (name, at), each in parts.items()
    }


def module_path(config: Config, group: str) -> str | None:
    """The name of the module that contains a group of weights in the checkpoint; None if the model has no such group.

    >>> module_path(npformer.load("distilbert-sst2").config, "layers.0.attention.query")
    'distilbert.transformer.layer.0.attention.q_lin'
    """
    source = _recent_sources(config).get(f"{group}.weight")
    return next((name.removesuffix(".weight") for name in source.alone), None) if source else None


# --- nested and flat -------------------------------------------------------------------------------------------------


def flatten(tree: Tree) -> dict[str, Array]:
    """Flattens nested dicts and lists of arrays to a dict with paths of keys, joined with dots."""
    flat: dict[str, Array] = {}
    for key, value in tree.items():
        if isinstance(value, list):
            value = {str(i): each for i, each in enumerate(value)}
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": array for name, array in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def flat_arrays(tree: Mapping[str, Any]) -> dict[str, Array]:
    """`flatten`, with `NarrowWeight`s converted to float32 arrays."""
    return {name: np.asarray(array) for name, array in flatten(dict(tree)).items()}


def unflatten(flat: Mapping[str, Array]) -> Tree:
    """Inverse of `flatten`. A node with keys 0, 1, ... becomes a list."""
    tree: Tree = {}
    for name, array in flat.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = array
    return {key: _with_lists(value) for key, value in tree.items()}


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    children = {key: _with_lists(value) for key, value in node.items()}
    if all(key.isdigit() for key in children):
        return [children[str(i)] for i in range(len(children))]
    return children


def parameter_dtype(dtype: Any, keep: str = "float32") -> np.dtype[Any]:
    """Returns float32 or float64, given any name of the dtype in NumPy or torch. "auto" is float32.

    float16 and bfloat16 also mean float32, with a warning that recommends `keep` unless it is given; see `load`.
    """
    name = getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    for supported in PARAMETER_DTYPES:
        if dtype is not None and (dtype == supported or name == supported.name):
            return supported
    if name in HALVES and keep == "float32":
        warn(
            f"dtype: {name} weights are widened to float32, in which everything is computed; omit dtype. "
            f"keep={name!r} keeps the weights in half the memory"
        )
    if name == "auto" or name in HALVES:
        return PARAMETER_DTYPES[0]
    raise NpformerError(
        f"dtype: expected float32 or float64, got {dtype!r:.80}; for smaller weights in memory, use keep="
    )


def _problem(array: Array, shape: tuple[int, ...]) -> str:
    if array.shape != shape:
        return f"expected {shape}, got {array.shape}"
    if not is_floating(array.dtype):
        return f"expected floating point, got {dtype_name(array.dtype)}"
    return ""


def _listed(title: str, names: list[str]) -> list[str]:
    lines = [f"{title}: {name:.300}" for name in names[:_MOST_LISTED]]
    return [*lines, f"{title}: and {len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else lines
