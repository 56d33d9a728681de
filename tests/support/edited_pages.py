"""Ports with planted mistakes: a model's page, with edits of its source, run on the texts of a golden file.

    stages = run(model, recorded, edited(("q @ k.mT / math.sqrt(q.shape[-1])", "q @ k.mT")))

The page is the one file that `npformer.plain.source(model, standalone=True)` writes. In edits, `seen` is the mask of a
padded batch, (B, 1, 1, L), `lengths` the number of tokens of each text, (B,), and `at()` the group of the weights that
the current call reads, such as "layers.0.attention.query". Edits can also call `half`, `tf32` and `reduce`.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np

from npformer import golden
from npformer.checkpoint import flatten, unflatten
from npformer.common.halves import half
from npformer.engine.runtime.packing import Text
from npformer.golden.mistakes.precision import tf32
from npformer.golden.page_edits.stages import Recorder, Stages
from npformer.model import Model
from npformer.pages.find import page_of
from npformer.pages.run import functions_of
from npformer.pages.sizes import bind
from npformer.pages.standalone import standalone_model
from npformer.plain.formulas import softmax
from npformer.plain.roberta import padded_positions

Arrays = dict[str, np.ndarray]
#: Edits that let the pages of encoder-decoders read a padded batch, instead of one text without padding.
PADDED = {
    "bart": (("positions, True, ", "positions, seen, "), ("source, True, ", "source, seen, ")),
    "t5": (("bias, True, ", "bias, seen, "), ("source, 0, True, ", "source, 0, seen, ")),
}


@dataclass(frozen=True)
class Plant:
    """Mistakes in a port: edits of its page, and changes to its inputs and outputs. `a & b` has the mistakes of both.

    edits : pairs of a text that occurs once in the page, and its replacement
    added : source of functions that replace those of the same names, or that edits call
    weights : functions that get the weights by flat name, and return new values for some of them
    inputs : functions that get the arguments that depend on the texts, and return new values for some of them
    stage : functions that get the name and value of a stage, and return the value with which the page continues
    exported : functions that get the stages, and return values to export instead; a value of None is not exported
    """

    edits: tuple[tuple[str, str], ...] = ()
    added: str = ""
    weights: tuple[Callable[[Arrays], Arrays], ...] = ()
    inputs: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = ()
    stage: tuple[Callable[[str, np.ndarray], np.ndarray], ...] = ()
    exported: tuple[Callable[[Arrays], dict[str, Any]], ...] = ()

    def __and__(self, other: Plant) -> Plant:
        return Plant(**{name: getattr(self, name) + getattr(other, name) for name in vars(self)})


def edited(*edits: tuple[str, str], added: str = "") -> Plant:
    return Plant(edits, added=added)


def layer(of: str, function: Callable[..., Any]) -> Plant:
    """Returns a `Plant` that replaces the layer function `of` with `function`, a layer function of another page."""
    return edited((f"x = {of}(", f"x = {function.__name__}("), added=inspect.getsource(function))


def rotated(layers: tuple[int, ...]) -> Plant:
    """Returns a `Plant` in which layer i of the page rotates with the angles of layer `layers[i]`."""
    return edited(("layers, rotations, reaches)", f"layers, [rotations[i] for i in {layers}], reaches)"))


def weights(change: Callable[[Arrays], Arrays]) -> Plant:
    return Plant(weights=(change,))


def changed(part: str, change: Callable[[np.ndarray], np.ndarray]) -> Plant:
    """Returns a `Plant` that changes the weights whose names contain `part`."""
    return weights(lambda flat: {name: change(w) for name, w in flat.items() if part in name})


def taken(*pairs: tuple[str, str]) -> Plant:
    """Returns a `Plant` that uses other weights: ("layers.0.", "layers.1.") gives layer 0 the weights of layer 1."""

    def found(flat: Arrays) -> Arrays:
        names = {name: name.replace(own, other) for own, other in pairs for name in flat if own in name}
        return {name: flat[other] for name, other in names.items() if other in flat}

    return weights(found)


def swapped(one: str, other: str) -> Plant:
    """Returns a `Plant` that exchanges the weights of two parts of every layer, such as query and key."""
    return taken((one, other), (other, one))


def resplit(*shape: int) -> Plant:
    """Returns a `Plant` that splits fused columns of queries, keys and values, (heads, 3, 8), as if the shape were
    (3, heads, 8), or the reverse."""

    def split(flat: Arrays) -> Arrays:
        found = {}
        for query in [name for name in flat if ".attention.query." in name]:
            names = [query.replace("query", each) for each in ("query", "key", "value")]
            fused = np.concatenate([flat[name] for name in names], axis=-1)
            order = np.arange(fused.shape[-1]).reshape(shape).swapaxes(0, 1).ravel()
            found |= dict(zip(names, np.split(fused[..., order], 3, axis=-1), strict=True))
        return found

    return weights(split)


def inputs(change: Callable[[dict[str, Any]], dict[str, Any]] | None = None, **new: str) -> Plant:
    """Returns a `Plant` that changes arguments, by a function or by expressions such as positions="positions + 1"."""
    return Plant(inputs=(change or _computed(new),))


def exported(change: Callable[[Arrays], dict[str, Any]] | None = None, **new: str) -> Plant:
    """Returns a `Plant` that changes exported values, by a function or by expressions such as logits="2 * logits"."""
    return Plant(exported=(change or _computed(new),))


def _computed(new: Mapping[str, str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    return lambda given: {name: eval(text, {"np": np, **given}) for name, text in new.items()}


def at_stage(end: str, change: Callable[[np.ndarray], np.ndarray]) -> Plant:
    """Returns a `Plant` that changes the stages whose names end in `end`; the page continues with the new values."""
    return Plant(stage=(lambda name, x: change(x) if name.endswith(end) else x,))


def run(model: Any, recorded: golden.Golden, plant: Plant | None = None, padded: bool = True) -> Arrays:
    """Returns the golden file's stages, computed by the page in a padded batch, or one text at a time as `i/stage`."""
    plant, texts = plant or Plant(), recorded.inputs
    flat = {name: np.array(array) for name, array in flatten(dict(model.weights)).items()}
    for change in plant.weights:
        flat |= {name: np.asarray(array, np.float32) for name, array in change(flat).items()}
    shown = _Edited(model, recorded, plant, padded)
    tree = unflatten(flat)
    if padded:
        return shown.run(tree, texts[0], _batch(model.config, texts))
    runs = [shown.run(tree, text, {}) for text in texts]
    return {f"{i}/{name}": array for i, each in enumerate(runs) for name, array in each.items()}


def run_in_chunks(
    model: Any, recorded: golden.Golden, first: int, plant: Plant | None = None,
    cached: Callable[[Any], Any] = lambda past: past,
) -> Arrays:  # fmt: skip
    """Returns the stages, except scores and weights, of a page with a cache that reads `first` tokens, then the rest.

    cached: a function that gets the cache after the first chunk, and returns the cache that the second chunk reads
    """
    shown, tree, stages = _Edited(model, recorded, plant or Plant(), False), dict(model.weights), {}
    for i, text in enumerate(recorded.inputs):
        chunks, past = [], None
        for chunk in (slice(first), slice(first, None)):
            past = cached(past) if past else None
            chunks.append(shown.run(tree, text, {"past": past} if past else {}, chunk))
            past = shown.past
        for name, own in chunks[0].items():
            if not name.endswith((".weights", "scores", "probabilities")):
                stages[f"{i}/{name}"] = np.concatenate([own, chunks[1][name]], axis=-2)
    return stages


def diagnosed(model: Model, plant: Plant, shown: Callable[[str], bool]) -> golden.Diagnosis:
    """Returns the diagnosis of a port with mistakes, from the stages that it shows. The correct port must pass."""
    recorded = golden.record(model, [Text(np.arange(5, 14)), Text(np.arange(20, 26))])
    comparison = golden.compare(recorded, run(model, recorded, padded=False))
    assert comparison.ok, comparison
    assert not comparison.missing, comparison.missing
    stages = run(model, recorded, plant, padded=False)
    return golden.diagnose(recorded, {name: array for name, array in stages.items() if shown(name)}, model)


def diagnosis(model: Model, plant: Plant, full: bool) -> str:
    """Returns the diagnosis from all stages if `full`, otherwise from hidden states and answers."""
    answers = ("embeddings.sum", "embeddings.norm", "norm", "logits", "project")
    ends = ("",) if full else ("ffn_residual", "ffn_norm", *(f"/{each}" for each in answers))
    return str(diagnosed(model, plant, lambda stage: stage.endswith(ends))).partition("then")[0]


class _Edited(Stages):
    """An edited page, instrumented."""

    def __init__(self, model: Any, recorded: golden.Golden, plant: Plant, padded: bool) -> None:
        super().__init__()
        self.model, self.plant, self.axes_before = model, plant, int(padded)
        self.names = set(recorded.stages)
        self.last_layer = max(model.config.n_layers, model.config.decoder.n_layers) - 1
        source = _source(model)
        for old, new in (*(PADDED.get(model.config.model_type, ()) if padded else ()), *plant.edits):
            count = source.count(old)
            assert count == 1, (
                f"{old!r} -> {new!r}: expected the text once in the page of {model.config.model_type}, found {count}; "
                f"npformer.plain.source({model.config.model_type!r}, standalone=True) shows the page"
            )
            source = source.replace(old, new)
        self.page = types.ModuleType("page")
        self.page.__dict__.update(_page=self, half=half, tf32=tf32, reduce=reduce, at=lambda: ".".join(self.scope))
        for definition in f"{source}\n\n\n{plant.added.strip()}".split("\n\n\n"):
            exec(_compiled(definition), self.page.__dict__)

    def run(self, tree: Any, text: Any, batch: Mapping[str, Any], chunk: slice | None = None) -> Arrays:
        """Returns the stages of a padded batch or, if the batch has no ids, of a text or a chunk of its tokens."""
        functions = functions_of(page_of(self.model.config), self.model.config, tree)
        rows, head = (bind(each, self.model.config, tree, text) for each in functions)
        given = {**rows.keywords, **head.keywords, **batch}
        given |= {name: given[name][chunk] for name in ("ids", "positions") if chunk}
        for change in self.plant.inputs:
            given |= change(given)
        self.page.__dict__.update({name: given[name] for name in ("seen", "lengths") if name in given})

        def call() -> None:
            found = self._own(rows, given)()
            x, *others = found if isinstance(found, tuple) else (found,)
            self.past = others[0] if others else None
            self._own(head, given | ({"source": others[0]} if others else {}))(x)

        with np.errstate(all="ignore"):
            stages = {name: array for name, array in self.recorded(call).items() if name in self.names}
            if "probabilities" in self.names:
                stages["probabilities"] = softmax(stages["logits"])
        for change in self.plant.exported:
            stages |= change(stages)
        return {name: array for name, array in stages.items() if array is not None}

    def _own(self, bound: Any, given: Mapping[str, Any]) -> Callable[..., Any]:
        """Returns this page's version of a function of `npformer.plain`, with the given arguments."""
        names = inspect.signature(bound.func).parameters
        own = {
            name: vars(self.page)[value.__name__] if isinstance(value, types.FunctionType) else value
            for name, value in given.items()
            if name in names
        }
        return partial(vars(self.page)[bound.func.__name__], **own)

    def keep(self, name: str, value: np.ndarray) -> np.ndarray:
        if name in self.names:
            for change in self.plant.stage:
                value = change(name, value)
        return super().keep(name, value)


@lru_cache(maxsize=1024)
def _compiled(definition: str) -> types.CodeType:
    """Returns a page's definition, instrumented and compiled. Most definitions are the same in every port."""
    tree = ast.fix_missing_locations(Recorder().visit(ast.parse(definition)))
    return compile(tree, "an edited page", "exec")


@lru_cache(maxsize=64)
def _source(model: Any) -> str:
    """Returns the page of a model as the source of one file, without the functions that read its weights."""
    return standalone_model(model)[0].partition("\n\n\ndef read(path):")[0]


def _batch(config: Any, texts: Iterable[Any]) -> dict[str, Any]:
    """Returns the arguments of a page for a batch padded on the right."""
    of_source, targets = zip(*(each if isinstance(each, tuple) else (each, None) for each in texts), strict=True)
    ids, seen, types = _padded(config, of_source)
    places = np.arange(ids.shape[1])
    positions = config.positions.first + places
    if config.uncounted is not None:
        positions = padded_positions(ids, config.uncounted)
    batch = {
        "ids": ids, "token_type_ids": types, "seen": seen[:, None, None, :], "mask": seen[:, None, None, :],
        "lengths": seen.sum(1), "text_positions": places, "positions": positions, "pad_id": config.pad_id or 0,
    }  # fmt: skip
    if not config.decoder:
        return batch
    shifted = np.concatenate([np.full_like(ids[:, :1], config.decoder.start_id), ids[:, :-1]], axis=1)
    read = shifted if targets[0] is None else _padded(config, targets)[0]
    places = np.arange(read.shape[1])
    return batch | {
        "target_ids": read, "target_text_positions": places, "target_positions": config.positions.first + places
    }  # fmt: skip


def _padded(config: Any, texts: Iterable[Text]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, mask and token types, each (B, L)."""
    texts = list(texts)
    width = max(map(len, texts))
    ids, types = (np.zeros((len(texts), width), int) for _ in range(2))
    ids += config.pad_id or 0
    for i, text in enumerate(texts):
        ids[i, : len(text)] = text.ids
        if text.token_type_ids is not None:
            types[i, : len(text)] = text.token_type_ids
    return ids, np.arange(width) < np.array([[len(text)] for text in texts]), types
