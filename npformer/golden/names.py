"""Reads another program's arrays: matches each to a stage or weight and splits stages by text.

A stage may have npformer's name, the path of the Hugging Face module that outputs it, the name of a TransformerLens
hook, or a name from the user's map. The array may be packed or padded, with or without a batch axis. `compare.py` uses
this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.tree import module_path
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.descriptions import earlier_names
from npformer.engine.runtime.packing import Text
from npformer.families import family_of, parts_of
from npformer.golden import fused, graph
from npformer.golden.format import Golden
from npformer.interpret import stages as table
from npformer.interpret.text_parts import OF_SOURCE

OF_VOCABULARY = ("causal-lm", "masked-lm", "translation")  # heads with a logit for each token of the vocabulary
WIDE = ("head.output", "logits", "probabilities")  # stages as wide as the vocabulary in models with such a head
_OF_TEXT = re.compile(r"(\d{1,9})/(.+)")


@dataclass
class Theirs:
    """Another program's arrays under npformer's names."""

    stages: dict[str, list[np.ndarray]] = field(default_factory=dict)  # one array for each text, without padding
    weights: dict[str, np.ndarray] = field(default_factory=dict)  # by flat name, unchanged
    problems: dict[str, str] = field(default_factory=dict)  # stages that cannot be compared -> the reason
    partial: dict[str, list[int]] = field(default_factory=dict)  # stages of some texts only -> these texts
    other_tokens: set[str] = field(default_factory=set)  # stages with problems because the numbers of tokens differ
    unused: list[str] = field(default_factory=list)  # names that match no stage of the golden file
    notes: list[str] = field(default_factory=list)  # sentences about how the arrays were read
    widths: list[int] = field(default_factory=list)  # tokens of each text, with the padding of the widest array
    source_widths: list[int] = field(default_factory=list)  # the same for a translation model's sources
    numbers: set[int] = field(default_factory=set)  # texts with arrays named i/STAGE; -1 for arrays of all texts


def read(
    golden: Golden, arrays: Mapping[str, Any], names: Mapping[str, str] | None = None, at_end: bool = False
) -> Theirs:
    """Finds the golden file's stages among another program's arrays. `names` maps other names to npformer's.

    at_end: the padding is before the texts. Raises NpformerError if no name is recognized, two names of the
    map mean one stage, or the token ids differ from the golden file's.
    """
    weights, ids = weight_names(golden.config), _ids(golden)
    sources = layout.sources(golden.config)
    arrays, names = fused.cut(golden.config, by_text(arrays), names or {})
    known = stage_names(golden, arrays)
    for theirs, meant in names.items():
        if meant not in golden.stages and meant not in weights.values():
            raise NpformerError(f"name map: {theirs!r}: {table.unknown(str(meant), list(golden.stages))}")
        known[theirs] = meant
    found, mapped = dict[str, dict[int, Any]](), dict[tuple[str, int], str]()
    result = Theirs(widths=[0] * len(golden.texts), source_widths=[0] * len(golden.sources))
    for name, value in arrays.items():
        number, plain = numbered(name)
        ours = known.get(name) or known.get(plain)
        if ours and not names.keys().isdisjoint((name, plain)) and mapped.setdefault((ours, number), name) != name:
            raise NpformerError(f"name map: {mapped[ours, number]!r} and {name!r} are both mapped to {ours}")
        if name in weights or ours in weights.values():
            ours = weights.get(name, str(ours))
            array = as_array(name, value)
            # Marian stores the bias of the logits as (1, V)
            result.weights[ours] = array[0] if sources[ours].leading and array.ndim == 2 and len(array) == 1 else array
        elif plain in ids:
            _check_ids(ids[plain], number, as_array(name, value))
        elif ours == "columns":
            for column, each in enumerate(table.COLUMNS[golden.config.head]):
                found.setdefault(each, {})[number] = as_array(name, value)[..., column]
        elif ours:
            found.setdefault(ours, {})[number] = as_array(name, value)
        else:
            result.unused.append(name)
    if not found and not result.weights:
        raise NpformerError(_nothing(golden, list(arrays)))
    earlier = [name for name in result.unused if name.replace("ffn.hidden", "ffn.gate") in arrays.keys() - {name}]
    earlier_names.refuse(earlier, golden.config.gated)
    for name in golden.stages:
        if name in found:
            result.numbers |= found[name].keys()
            _place(golden, name, found[name], result, at_end)
    return result


def by_text(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Renames array i of a list to `i/name`; traces of several texts have such lists."""
    single: dict[str, Any] = {}
    for name, value in arrays.items():
        is_list = isinstance(value, list) and value and all(isinstance(each, np.ndarray) for each in value)
        single |= {f"{i}/{name}": each for i, each in enumerate(value)} if is_list else {name: value}
    return single


def numbered(name: str) -> tuple[int, str]:
    """Returns the number of the text and the rest of a name i/STAGE; -1 and the name if it has no number."""
    of_text = _OF_TEXT.fullmatch(name)
    return (int(of_text[1]), of_text[2]) if of_text else (-1, name)


def stage_names(golden: Golden, arrays: Iterable[str] = ()) -> dict[str, str]:
    """Returns a dict from every known name of a stage to that stage's name in the golden file.

    arrays: the names of the program's arrays, which decide how ambiguous names are read. "pooler" is a stage and, in
    BERT, a module that outputs the stage "pooled". It is read as the module if other arrays have names of modules.
    """
    config = golden.config
    modules = _module_names(golden)
    names = dict(modules)
    for stack, count in graph.stacks(config).items():
        outputs = _outputs(config, stack, count)
        names |= {name: stage for name, stage in outputs.items() if stage in golden.stages}
    for stage in golden.stages:
        row = table.find(stage)
        names |= {row.hook: stage, stage: stage} if row and row.hook else {stage: stage}
    inner = {plain for each in arrays if "." in (plain := each.rpartition("/")[2])}
    return names | (modules if inner & (modules.keys() - golden.stages.keys()) else {})


def _module_names(golden: Golden) -> dict[str, str]:
    """Maps the paths of Hugging Face's modules, with and without the encoder's prefix, to the stages they output."""
    config = golden.config
    names = {path: stage for path, stage in table.modules(config).items() if stage in golden.stages}
    if set(table.COLUMNS.get(config.head, ())) & set(golden.stages):
        names[str(module_path(config, "head.output"))] = "columns"
    return names | {path.removeprefix(family_of(config).prefix): stage for path, stage in names.items()}


def _outputs(config: Config, stack: str, count: int) -> dict[str, str]:
    """Maps the output fields of a stack in transformers to the stages that they contain."""
    layers = [f"{stack}layers.{i}" for i in range(count)]
    parts = parts_of(config)
    embeddings, body = parts.decoder if parts.decoder and stack == "decoder." else (parts.embeddings, parts.stack)
    read = body.read(embeddings.output)[:-1]
    states = [stack + each for each in (*read, body.output(embeddings.output))]
    of_stack = stack.replace(".", "_")
    outputs = {f"{of_stack}hidden_states.{i}": stage for i, stage in enumerate(states)}
    outputs |= {f"{of_stack}attentions.{i}": f"{layer}.attention.weights" for i, layer in enumerate(layers)}
    if stack == "decoder.":
        outputs |= {f"cross_attentions.{i}": f"{layer}.cross_attention.weights" for i, layer in enumerate(layers)}
        outputs["last_hidden_state"] = states[-1]
    return outputs | {f"{of_stack}last_hidden_state": states[-1], "pooler_output": "pooled"}


def weight_names(config: Config) -> dict[str, str]:
    """Maps the known names of weights, with and without the encoder's prefix, to npformer's flat names."""
    prefix, names = family_of(config).prefix, dict[str, str]()
    for ours, source in layout.sources(config).items():
        names[ours] = ours
        for theirs in source.alone:
            for name in (theirs, theirs.removeprefix(prefix)):
                names.setdefault(name, ours)  # if layers share weights, the first layer's name
    return names


def as_array(name: str, value: Any) -> np.ndarray:
    """Converts an array or a torch tensor to a NumPy array of floating-point numbers or integers."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.dtype.is_floating_point else value
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise NpformerError(f"{name}: expected an array of numbers, got {array.dtype}")
    return array


def _place(golden: Golden, name: str, given: dict[int, np.ndarray], result: Theirs, at_end: bool) -> None:
    """Adds a stage to `result`, given as one array for all texts (key -1) or one per text."""
    shapes = [array.shape for array in golden.truth[name]]
    axes = token_axes(name, shapes[0], golden.config.head)
    given = _without_unused_tokens(golden, name, given, result)
    given = _without_repeated_heads(golden, name, given, result)
    if given and given.keys() < set(range(len(shapes))) and name not in golden.answers:
        result.partial[name] = sorted(given)
        given = given | {i: array for i, array in enumerate(golden.truth[name]) if i not in given}
    if -1 not in given and set(given) != set(range(len(shapes))):
        result.problems[name] = f"expected one array for each text, 0 to {len(shapes) - 1}, got {sorted(given)}"
        return
    if -1 in given:
        parts = per_text(name, given[-1], shapes, axes, at_end)
        batch = _batch(name, given[-1], shapes, axes)
        padded = [] if batch is None else [each.shape for each in batch]
    else:
        each = [per_text(name, given[i], [shape], axes, at_end) for i, shape in enumerate(shapes)]
        parts = None if None in [part and 1 for part in each] else [part[0] for part in each if part]
        alone = [_batch(name, given[i], [shape], axes) for i, shape in enumerate(shapes)]
        padded = [batch.shape[1:] for batch in alone if batch is not None]
    if axes == (0,) and len(padded) == len(shapes) and not _is_shared(name):
        widths = result.source_widths if _is_of_source(golden, name) else result.widths
        widths[:] = [max(width, shape[0]) for width, shape in zip(widths, padded, strict=True)]
    if parts is None:
        got = given[-1].shape if -1 in given else [given[i].shape for i in range(len(shapes))]
        if read := _tokens_read(golden, name, given, axes):
            result.other_tokens.add(name)
        result.problems[name] = f"expected {_expected(shapes)}, got {got}{read}"
    else:
        result.stages[name] = parts


def _without_unused_tokens(
    golden: Golden, name: str, given: dict[int, np.ndarray], result: Theirs
) -> dict[int, np.ndarray]:
    """Returns logits without the columns after the vocabulary, which a port may have padded to a round number."""
    size, widths = golden.truth[name][0].shape[-1:], {array.shape[-1:] for array in given.values()}
    if golden.config.head not in OF_VOCABULARY or name not in WIDE or len(widths) > 1:
        return given
    if not (width := widths.pop()) > size > ():
        return given
    result.notes.append(f"{name}: {width[0]} columns, of which the first {size[0]} are compared; the rest is padding")
    return {text: array[..., : size[0]] for text, array in given.items()}


def _without_repeated_heads(
    golden: Golden, name: str, given: dict[int, np.ndarray], result: Theirs
) -> dict[int, np.ndarray]:
    """Returns keys or values with one head for each group, if the port has repeated them for every query head."""
    shape, n_heads = golden.truth[name][0].shape, graph.heads_of(golden.config, graph.parted(name)[0])
    if not name.endswith(("key_heads", "value_heads")) or len(shape) != 3 or shape[0] == n_heads:
        return given
    for axis in (-3, -2):
        for order in ("repeated", "tiled"):
            found = {text: _one_of_each(array, axis, shape[0], n_heads, order) for text, array in given.items()}
            if all(each is not None for each in found.values()):
                result.notes.append(
                    f"{name}: one head of each group is compared; yours are {order} for {n_heads} heads"
                )
                return {text: array for text, array in found.items() if array is not None}
    return given


def _one_of_each(array: np.ndarray, axis: int, n_groups: int, n_heads: int, order: str) -> np.ndarray | None:
    """Returns one head of each group along an axis; None if the heads of a group differ."""
    if array.ndim < 3 or array.shape[axis] != n_heads or array.shape[-3] == n_groups:
        return None
    times = n_heads // n_groups
    heads = np.moveaxis(array, axis, 0)
    groups = heads.reshape(n_groups, times, *heads.shape[1:])
    if order == "tiled":
        groups = heads.reshape(times, n_groups, *heads.shape[1:]).swapaxes(0, 1)
    if not np.array_equal(groups, np.broadcast_to(groups[:, :1], groups.shape)):
        return None
    return np.moveaxis(groups[:, 0], 0, axis)


def per_text(
    name: str, array: np.ndarray, shapes: list[tuple[int, ...]], axes: tuple[int, ...], at_end: bool = False
) -> list[np.ndarray] | None:
    """Splits a stage in any known layout into one array per text; None for any other shape. axes: from `token_axes`.

    Texts are packed one after another, (T, ...), or padded, (B, L, ...) or (B L, ...), with padding on the right, or on
    the left if `at_end`. Heads may be (B, L, H, K) instead of (B, H, L, K) or (B, L, D). Positions may be one array for
    all texts, (L, D) or (1, L, D).
    """
    if (batch := _batch(name, array, shapes, axes)) is not None:
        return [_corner(each, shape, at_end) for each, shape in zip(batch, shapes, strict=True)]
    array = _with_joined_heads(array, shapes, axes)
    if axes[:1] == (0,) and array.shape == (sum(s[0] for s in shapes), *shapes[0][1:]):
        return np.split(array, np.cumsum([shape[0] for shape in shapes])[:-1])
    return None


def _batch(name: str, array: np.ndarray, shapes: list[tuple[int, ...]], axes: tuple[int, ...]) -> np.ndarray | None:
    """Returns a padded stage with a leading batch axis; None if the array is not padded texts."""
    positions = _is_shared(name)
    array = _with_joined_heads(array, shapes, axes)
    if positions and array.ndim == 2 and len(array) == max(shape[0] for shape in shapes):
        array = array[None]
    for read_as in _layouts(array, shapes, axes):
        if len(read_as) == 1 and positions:
            read_as = np.broadcast_to(read_as, (len(shapes), *read_as.shape[1:]))
        fits = read_as.ndim == len(shapes[0]) + 1 and len(read_as) == len(shapes)
        if fits and all(
            size >= part if axis in axes else size == part
            for shape in shapes
            for axis, (size, part) in enumerate(zip(read_as.shape[1:], shape, strict=True))
        ):
            return read_as
    return None


def _is_of_source(golden: Golden, name: str) -> bool:
    """Returns whether a stage has the rows of a translation model's source."""
    return bool(golden.sources) and (name.startswith("encoder.") or name.endswith(OF_SOURCE))


def _is_shared(name: str) -> bool:
    """Returns whether all texts may share a single array of the stage."""
    return name.endswith("embeddings.position")


def _with_joined_heads(array: np.ndarray, shapes: list[tuple[int, ...]], axes: tuple[int, ...]) -> np.ndarray:
    """Returns rows (..., H, K) as (..., D)."""
    width = shapes[0][-1] if shapes[0] else 0
    if axes == (0,) and array.ndim > 2 and array.shape[-1] != width == array.shape[-2] * array.shape[-1]:
        return array.reshape(*array.shape[:-2], width)
    return array


def _corner(array: np.ndarray, shape: tuple[int, ...], at_end: bool) -> np.ndarray:
    """Returns the array without the padding at the end of its axes, or with `at_end` at their beginning."""
    sizes = zip(array.shape, shape, strict=True)
    return array[tuple(slice(whole - size, whole) if at_end else slice(size) for whole, size in sizes)]


def _layouts(array: np.ndarray, shapes: list[tuple[int, ...]], axes: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yields the array with a batch axis first, for each possible reading of its shape."""
    rank = len(shapes[0])
    if array.ndim == rank and len(shapes) == 1:
        yield array[None]
        if axes == (1,):
            yield array[None].swapaxes(1, 2)
    if array.ndim == rank + 1:
        yield array
        if axes == (1,):  # heads after tokens
            yield array.swapaxes(1, 2)
    if array.ndim == rank and axes == (0,) and len(array) % len(shapes) == 0:
        longest = max(shape[0] for shape in shapes)
        if len(array) == longest * len(shapes):
            yield array.reshape(len(shapes), longest, *array.shape[1:])


def token_axes(name: str, shape: tuple[int, ...], head: str) -> tuple[int, ...]:
    """Returns the axes that index tokens in one text's array, for a model with this head."""
    stage = table.find(name)
    symbols = stage.shape if stage else ""
    if " or " in symbols:
        return (0,) if len(shape) == 2 or head == "replaced-token" else ()
    of_axes = [symbol.strip() for symbol in symbols.strip("()").split(",") if symbol.strip()]
    one_row = len(shape) < len(of_axes)  # the head reads a single row of each text
    return () if one_row else tuple(i for i, symbol in enumerate(of_axes) if symbol == "T")


def _tokens_read(golden: Golden, name: str, given: dict[int, np.ndarray], axes: tuple[int, ...]) -> str:
    """Says which text has fewer tokens in a stage than in the file; "" if other axes differ."""
    tokens, what = (golden.source_tokens, "source") if _is_of_source(golden, name) else (golden.tokens, "text")
    shapes = [array.shape for array in golden.truth[name]]
    longest = max(range(len(shapes)), key=lambda i: shapes[i])
    for number, array in given.items():
        i = longest if number == -1 else number
        expected, batch = shapes[i], len(shapes) if number == -1 else 1
        in_batch = array.ndim > len(expected) and len(array) in (1, batch)
        got = array.shape[1:] if in_batch else array.shape
        alike = len(got) == len(expected) and all(got[k] == size for k, size in enumerate(expected) if k not in axes)
        if axes and alike and batch > 1 and not (in_batch and len(array) == batch):
            return f"; the port reads {got[axes[0]]} tokens"
        if axes and alike and got[axes[0]] < expected[axes[0]]:
            end = f"{expected[axes[0]]} tokens, of which the last is {tokens[i][-1]!r}"
            return f"; the port reads {got[axes[0]]} tokens of {what} {i}, which has {end}"
    return ""


def _expected(shapes: list[tuple[int, ...]]) -> str:
    texts = f", and one for each of {len(shapes)} texts, named i/STAGE" if len(shapes) > 1 else ""
    return f"{shapes[0]}{texts}, or a batch of them"


def _ids(golden: Golden) -> dict[str, list[Text]]:
    """Maps each name for token ids to the texts that have them. In a translation model, input_ids are the sources."""
    if golden.sources:
        theirs, ours = ("input_ids", "source_ids"), ("decoder_input_ids", "ids")
        return dict.fromkeys(theirs, golden.sources) | dict.fromkeys(ours, golden.texts)
    return dict.fromkeys(("input_ids", "ids"), golden.texts)


def _check_ids(texts: list[Text], number: int, ids: np.ndarray) -> None:
    shapes = [text.ids.shape for text in texts]
    if number == -1:
        given = per_text("ids", ids, shapes, (0,))
        before = per_text("ids", ids, shapes, (0,), at_end=True)
        if before and all(np.array_equal(each, text.ids) for each, text in zip(before, texts, strict=True)):
            given = before
    else:
        given = [ids] * len(shapes) if number < len(shapes) else None
    for i, text in enumerate(texts):
        if number not in (-1, i):
            continue
        if given is None or not np.array_equal(given[i], text.ids):
            got = (ids if given is None else given[i]).flat[:40].tolist()
            raise NpformerError(
                f"text {i}: expected the golden file's token ids, {text.ids.tolist()!s:.90}, got {got!s:.90}; "
                "run the port on the ids in the file"
            )
    if number >= len(shapes):
        raise NpformerError(f"{number}/ids: the golden file has {len(shapes)} texts, 0 to {len(shapes) - 1}")


def _nothing(golden: Golden, theirs: list[str]) -> str:
    known = [name for name in golden.stages if name.endswith(("attention.query", "attention.output"))]
    stage = next((name for name in known if table.module(golden.config, name)), next(iter(golden.stages)))
    module = table.module(golden.config, stage)
    also = f" or {module}" if module else ""
    return (
        f"no array has the name of a stage: expected names like {stage}{also}, "
        f"got {', '.join(theirs[:4]) or 'no arrays'!s:.200}; map your names to npformer's with names="
    )
