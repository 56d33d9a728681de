"""Our layout of the weights: which groups a model has, what each holds, and the tree they form.

It does not depend on where the weights came from. How each family of checkpoints names these groups is in
`families.py`; the files are read in `read.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint.storage import Array, dtype_name, is_floating, load
from npformer.config import Config
from npformer.errors import NpformerError, warn

Tree = dict[str, Any]  # nested dicts of arrays; "layers" is a list

PARAMETER_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float64))
_MOST_LISTED = 12


class Group(NamedTuple):
    """The parameters of one group, their shapes in letters: V, P, S rows of the tables, D, F widths, C outputs."""

    weight: str
    bias: str = ""  # "": it has none
    transposed: bool = False  # a linear weight: torch stores (out, in), we store (in, out)


def linear(inputs: str, outputs: str) -> Group:
    return Group(inputs + outputs, outputs, transposed=True)


def embedding(rows: str) -> Group:
    return Group(rows + "D")


NORM = Group("D", "D")

#: Every group that a model can have, in the order of the forward pass; `*` is a layer's number.
GROUPS = {
    "embeddings.token": embedding("V"),
    "embeddings.position": embedding("P"),
    "embeddings.segment": embedding("S"),
    "embeddings.norm": NORM,
    "layers.*.attention.query": linear("D", "D"),
    "layers.*.attention.key": linear("D", "D"),
    "layers.*.attention.value": linear("D", "D"),
    "layers.*.attention.output": linear("D", "D"),
    "layers.*.attention_norm": NORM,
    "layers.*.ffn.hidden": linear("D", "F"),
    "layers.*.ffn.output": linear("F", "D"),
    "layers.*.ffn_norm": NORM,
    "pooler": linear("D", "D"),
    "head.hidden": linear("D", "D"),
    "head.norm": NORM,
    "head.output": linear("D", "C"),
}

TOKENS, PROJECTION = "embeddings.token.weight", "head.output.weight"


class Parameter(NamedTuple):
    """One array of a model."""

    group: str  # with a layer's number
    name: str  # "weight" or "bias"
    shape: tuple[int, ...]
    transposed: bool  # in torch's layout


def numbers(group: str, config: Config) -> list[str]:
    """What `*` stands for in a group, in turn; one empty string for a group outside of the layers."""
    return [str(n) for n in range(config.n_layers)] if "*" in group else [""]


def parameters(groups: Iterable[str], config: Config) -> dict[str, Parameter]:
    """Our flat name of every array of these groups -> what it is."""
    sizes = {
        "V": config.vocab_size,
        "P": config.max_length,
        "S": config.n_segments,
        "D": config.d_model,
        "F": config.d_ffn,
        "C": config.n_outputs,
    }
    result = {}
    for group in groups:
        kind = GROUPS[group]
        for n in numbers(group, config):
            for name, letters in (("weight", kind.weight), ("bias", kind.bias)):
                if letters:
                    place, shape = group.replace("*", n), tuple(sizes[letter] for letter in letters)
                    transposed = kind.transposed and name == "weight"
                    result[f"{place}.{name}"] = Parameter(place, name, shape, transposed)
    return result


def is_tied(config: Config) -> bool:
    """Whether the head projects on the vocabulary with the token table, which is then stored once."""
    return config.head == "masked-lm" and config.tied


def build(
    found: Mapping[str, Array],
    config: Config,
    expected: Mapping[str, Parameter],
    dtype: np.dtype[Any] | None,
    unknown: Collection[str] = (),
    sources: Mapping[str, str] | None = None,
) -> Tree:
    """The tree of the arrays found (ours by name and layout), in `dtype` (None: each in its own), read-only.

    A name that is `expected` and not there, and a wrong shape, are errors, all listed in one. `unknown` names, which
    the model does not need, are a warning, as in Transformers. Beside a config.json that was written by hand, for
    torch's own modules, they are an error, as in torch's `load_state_dict`.
    `sources` says what a name is called in the file.
    """
    tied = is_tied(config) and _same_transposed(found.get(PROJECTION), found.get(TOKENS))
    needed = {name: parameter for name, parameter in expected.items() if not (tied and name == PROJECTION)}
    titles = {name: f"{name} ({sources[name]})" if sources else name for name in needed}
    missing = [titles[name] for name in needed if name not in found]
    wrong = [
        f"{titles[name]}{', transposed' if sources and parameter.transposed else ''}: {problem}"
        for name, parameter in needed.items()
        if name in found and (problem := _problem(found[name], parameter.shape))
    ]
    if missing or wrong or (unknown and config.model_type == "transformer"):
        lines = _listed("missing", missing) + _listed("unknown", list(unknown)) + _listed("wrong", wrong)
        raise NpformerError("\n  ".join(["the checkpoint does not fit its config.json:", *lines]))
    if unknown:
        title = "the checkpoint has tensors that the model does not need; they are left out:"
        warn("\n  ".join([title, *_listed("unknown", list(unknown))]))
    flat = {name: load(found[name], dtype) for name in needed}
    if tied:
        flat[PROJECTION] = flat[TOKENS].T
    return unflatten(flat)


def stored(tree: Tree, config: Config) -> dict[str, Array]:
    """The flat arrays that a file holds: all of the tree's but a tied projection."""
    flat = flatten(tree)
    if is_tied(config) and _same_transposed(flat[PROJECTION], flat[TOKENS]):
        del flat[PROJECTION]
    return flat


def _same_transposed(projection: Array | None, tokens: Array | None) -> bool:
    """Whether a projection is the token table: absent, the same memory, or the same numbers.

    Where a checkpoint says that they are tied but holds two different ones, Transformers 5 uses both; so do we.
    """
    if projection is None or tokens is None:
        return projection is None
    if projection.T.__array_interface__ == tokens.__array_interface__:
        return True
    return tokens.dtype == projection.dtype and np.array_equal(tokens, projection.T)


def flatten(tree: Tree) -> dict[str, Array]:
    """Nested dicts and lists of arrays -> flat, the path's parts joined by dots."""
    flat: dict[str, Array] = {}
    for key, value in tree.items():
        if isinstance(value, list):
            value = {str(i): each for i, each in enumerate(value)}
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": array for name, array in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def unflatten(flat: Mapping[str, Array]) -> Tree:
    """The inverse of `flatten`: a node whose keys are the numbers 0, 1, ... is a list."""
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


def parameter_dtype(dtype: Any) -> np.dtype[Any]:
    """float32 or float64, however it is named; anything else is an error."""
    for supported in PARAMETER_DTYPES:
        if dtype is not None and dtype == supported:
            return supported
    raise NpformerError(f"dtype: expected float32 or float64, got {dtype!r:.80}")


def _problem(array: Array, shape: tuple[int, ...]) -> str:
    if array.shape != shape:
        return f"expected {shape}, got {array.shape}"
    if not is_floating(array.dtype):
        return f"expected floating point, got {dtype_name(array.dtype)}"
    return ""


def _listed(title: str, names: list[str]) -> list[str]:
    lines = [f"{title}: {name:.300}" for name in names[:_MOST_LISTED]]
    return [*lines, f"{title}: and {len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else lines
