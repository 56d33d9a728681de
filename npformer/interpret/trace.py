"""Records a forward pass: `trace` keeps every stage that `tap` names, text by text.

    t = trace(model, "I love ice cream")          with trace() as t: model(input_ids)
    t["layers.0.attention.weights"]               print(t)

`edit.py` changes stages, `stages.py` describes each one, `golden/` compares them with another program's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.config import Config
from npformer.errors import NpformerError
from npformer.families import read_config, write_config
from npformer.functions import softmax
from npformer.interpret import stages as table
from npformer.interpret.summary import COLUMNS, NUMBERS, StageSummary, Table, summary
from npformer.model import Model, Seq2Seq
from npformer.runtime.packing import Text
from npformer.tap import listen, tap
from npformer.text.encoding import read_texts
from npformer.transformer import POOLED_HEADS

INPUTS = ("ids", "lengths")  # the first taps of a forward: its inputs, which are not stages
RUNS = ("query_heads", "key_heads", "value_heads", "scores", "weights", "context")  # fire once a run of equal lengths
OF_SOURCE = ("cross_attention.key", "cross_attention.value")  # rows of the texts that a decoder attends to
PER_TEXT = ("pooler", "pooled")  # one row for each text, and likewise the logits that follow
OF_EITHER = ("logits", "probabilities")  # one row for each text, or one for each token
FORMAT = "npformer-trace"

Cut = Callable[[np.ndarray], list[np.ndarray]]
Join = Callable[[list[np.ndarray]], np.ndarray]


def is_input(name: str) -> bool:
    return name.rpartition(".")[2] in INPUTS


class TextParts:
    """Finds which part of a stage belongs to which text, from the taps of the forwards that run.

    Each tap named `lengths` starts a forward; an encoder-decoder starts one in the scope of its encoder and one in that
    of its decoder. Texts are numbered from 0 over all forwards of a scope.
    """

    def __init__(self) -> None:
        self._lengths: dict[str, np.ndarray] = {}  # scope -> its texts' lengths
        self._first: dict[str, int] = {}  # scope -> number of texts in earlier forwards
        self._covered: dict[str, int] = {}  # stage -> number of texts it has fired for
        self._pooled = False

    def hear(self, name: str, array: np.ndarray) -> None:
        """Notes the lengths of a forward, and whether its head pools each text to one row; called for every tap."""
        scope, _, last = name.rpartition(".")
        if last == "lengths":
            self._first[scope] = self._first.get(scope, 0) + len(self._lengths.get(scope, ()))
            self._lengths[scope] = array
            self._pooled = False
        self._pooled |= name in PER_TEXT

    def split(self, name: str, array: np.ndarray) -> tuple[int, Cut, Join]:
        """Returns the number of the first text in `array`, a function that cuts the array by text, and its inverse.

        An array that has no part for each text, or fires outside of any forward, stays whole.
        """
        own = max((each for each in self._lengths if name.startswith(each)), key=len, default="")
        first = max(self._covered.get(name, 0), self._first.get(own, 0))
        cut: Cut = _alone
        join: Join = _only
        if own in self._lengths:
            others = [lengths for scope, lengths in self._lengths.items() if scope != own]
            either = [*others, self._lengths[own]] if name.endswith(OF_SOURCE) else [self._lengths[own]]
            lengths = next((each for each in either if each.sum() == len(array)), None)
            if self._is_per_text(name) or (name.rpartition(".")[2] in RUNS and array.ndim == 4):
                cut, join = list, np.stack
            elif lengths is not None:
                cut, join = partial(np.split, indices_or_sections=np.cumsum(lengths)[:-1]), np.concatenate
            elif name in OF_EITHER and len(array) == len(self._lengths[own]):  # a head on texts that has no pooler
                cut, join = list, np.stack
        self._covered[name] = first + len(cut(array))
        return first, cut, join

    def _is_per_text(self, name: str) -> bool:
        return name in PER_TEXT or (self._pooled and name in OF_EITHER)


class Trace(Mapping[str, Any]):
    """A mapping from the names of stages, in firing order, to their arrays; a list of arrays for several texts.

    The array of a stage is (T, D) for the tokens of a text, (H, T, T) or (H, T, K) for its heads, (D,) or (C,) for the
    whole text. `tokens`, `segments` and `ids` describe the text (lists of these for several texts; None if unknown).
    A name that has not fired raises NpformerError and names the nearest ones.

    Parameters
    ----------
    stages : name of a stage, pattern with `*`, or several
        Only stages that match are kept.
    config : Config, optional
        The model's, for the label and the names that other libraries give to stages.

    Examples
    --------
    >>> with Trace("scores") as t:
    ...     y = npformer.tap("scores", np.array([[1.0, 2.0]]))
    >>> t["scores"]
    array([[1., 2.]])
    """

    def __init__(self, stages: str | Iterable[str] = "*", config: Config | None = None) -> None:
        self.wanted = [stages] if isinstance(stages, str) else list(stages)
        self.config = config
        self._arrays: dict[str, list[np.ndarray]] = {}
        self._ids: list[np.ndarray] = []
        self._segments: list[np.ndarray] = []
        self._tokens: list[list[str]] = []
        self._parts = TextParts()
        self._fired: dict[str, bool] = {}  # stage, in firing order -> whether it is kept
        self._listening: AbstractContextManager[None] | None = None

    # --- recording ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Trace:
        self._listening = listen(self._hear)
        self._listening.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._listening is not None:
            self._listening.__exit__(kind, error, where)
            self._listening = None
        if kind is None:
            table.matching(self.wanted, list(self._fired))

    def _hear(self, name: str, array: np.ndarray) -> np.ndarray:
        self._parts.hear(name, array)
        if name == "lengths":
            self._ids[-1:] = np.split(self._ids[-1], np.cumsum(array)[:-1])
        if name == "ids":
            self._ids.append(array)
        if is_input(name):
            return array
        if name not in self._fired:
            self._fired[name] = bool(table.selected(self.wanted, [name]))
        if self._fired[name]:
            _, cut, _ = self._parts.split(name, array)
            self._arrays.setdefault(name, []).extend(cut(array))
        return array

    def describe(self, tokens: list[list[str]], segments: list[np.ndarray]) -> None:
        """Adds the tokens and segments of a forward's texts, which no tap carries."""
        self._tokens += tokens
        self._segments += segments

    # --- reading -----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        if name not in self._arrays:
            if name in self._fired:
                raise NpformerError(f"{name!r}: not recorded; this trace was asked for {', '.join(self.wanted)}")
            raise NpformerError(table.unknown(str(name), list(self._fired or self._arrays)))
        return _one(self._arrays[name])

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def get(self, name: str, default: Any = None) -> Any:
        return _one(self._arrays[name]) if name in self._arrays else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def ids(self) -> Any:
        return _one(self._ids) if self._ids else None

    @property
    def tokens(self) -> Any:
        return _one(self._tokens) if self._tokens else None

    @property
    def segments(self) -> Any:
        return _one([each.tolist() for each in self._segments]) if self._segments else None

    def texts(self, name: str) -> list[np.ndarray]:
        """Returns a stage as a list with one array for each text, also for one text."""
        array = self[name]
        return array if isinstance(array, list) else [array]

    def select(self, pattern: str) -> dict[str, Any]:
        """Returns the stages that match a pattern: `t.select("layers.*.attention.weights")`."""
        return {name: self[name] for name in table.matching(pattern, list(self))}

    @property
    def label(self) -> Any:
        """The label with the largest logit; None for a model without labels for whole texts."""
        labels = self.config.labels if self.config and self.config.head == "sequence-classification" else ()
        if not labels or "logits" not in self:
            return None
        return _one([labels[int(np.argmax(logits))] for logits in self.texts("logits")])

    def row(self, name: str) -> StageSummary:
        """Describes a stage: shape, formula, function, its names in other libraries, mean, deviation and range."""
        return summary(name, self.texts(name), self.config)

    def table(self, columns: Sequence[str] = tuple(COLUMNS), stages: str | Iterable[str] = "*") -> Table:
        """Returns a table of the stages that match, with these columns of `summary.COLUMNS`."""
        return Table([self.row(name) for name in table.selected(stages, self)], columns)

    # --- showing -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<npformer.Trace: {len(self)} stages of {max(len(self._ids), 1)} text{'s' * (len(self._ids) > 1)}>"

    def __str__(self) -> str:
        return str(self.table(("name", "shape", *NUMBERS)))

    def _repr_html_(self) -> str:
        tokens = [" ".join(escape(token) for token in tokens) for tokens in self._tokens]
        title = f"<p>{'<br>'.join(tokens)}</p>\n" if tokens else ""
        return title + self.table()._repr_html_()

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file: stage `name` of text i as `i/name`, its token ids as `i/ids`."""
        arrays = {f"{i}/{name}": array for name, each in self._arrays.items() for i, array in enumerate(each)}
        arrays |= {f"{i}/ids": ids.astype(np.int64) for i, ids in enumerate(self._ids)}
        description = {
            "config": write_config(self.config) if self.config else None,
            "tokens": self._tokens,
            "segments": [each.tolist() for each in self._segments],
            "stages": list(self),
        }
        save_arrays(path, arrays, {"format": FORMAT, "description": json.dumps(description, ensure_ascii=False)})

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Reads the trace that `save` wrote. Raises NpformerError for any other file."""
        arrays, metadata = load_arrays(path)
        try:
            if metadata.get("format") != FORMAT:
                raise ValueError("no such format in its metadata")
            description = json.loads(metadata["description"])
            trace = cls(description["stages"])
            trace.config = description["config"] and read_config(description["config"])
            trace._tokens = [[str(token) for token in tokens] for tokens in description["tokens"]]
            trace._segments = [np.asarray(each, np.int64) for each in description["segments"]]
            trace._ids = list(_numbered(arrays, "ids"))
            trace._arrays = {str(name): list(_numbered(arrays, name)) for name in description["stages"]}
            if not all(trace._arrays.values()):
                raise ValueError("a stage is missing")
            labels = trace.config.labels if trace.config else ()
            if labels and any(logits.shape[-1:] != (len(labels),) for logits in trace._arrays.get("logits", ())):
                raise ValueError(f"logits: expected one for each of {len(labels)} labels")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise NpformerError(f"{path}: not a trace that npformer saved: {error!s:.200}") from None
        return trace


def trace(model: Model | None = None, text: Any = None, stages: str | Iterable[str] = "*") -> Trace:
    """Runs a model on texts and records its stages, up to `probabilities`.

    Parameters
    ----------
    model : Model, optional
        Without a model, an empty trace to fill: `with trace() as t: model(...)`.
    text : str, Pair, token ids, or a list of these
    stages : name of a stage, pattern with `*`, or several
        Only stages that match are kept.

    Returns
    -------
    Trace

    Raises
    ------
    NpformerError
        If `model` is no model, a pattern matches no stage, or a text cannot be read.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> t = trace(model, "I love ice cream", "layers.0.attention.*")
    >>> t.tokens
    ['[CLS]', 'i', 'love', 'ice', 'cream', '[SEP]']
    >>> t["layers.0.attention.weights"].shape
    (12, 6, 6)
    """
    if model is None:
        return Trace(stages)
    if not isinstance(model, Model | Seq2Seq):
        raise NpformerError(f"trace: expected a model, such as npformer.load({str(model)!r:.60}), got {model!r:.60}")
    if text is None:
        raise NpformerError("trace: expected a text to run the model on; trace(model, text), or with trace() as t: ...")
    inputs, tokens, segments = texts_of(model, text)
    recorded = Trace(stages, model.config)
    recorded.describe(tokens, segments)
    with recorded:
        post_process(model.config, model.run(inputs))
    return recorded


def texts_of(model: Model, given: Any) -> tuple[list[Text], list[list[str]], list[np.ndarray]]:
    """Reads one text or a list of texts (str, Pair or token ids): their token ids, tokens and segments.

    A text that is too long for the model is cut, with a warning; token ids are not cut.
    """
    if model.config.head == "translation":
        raise NpformerError(
            "a translation model's stages depend on a target too: with trace() as t: model(ids, labels=...); npformer "
            "view shows the attention of a text that it translates first"
        )
    several = isinstance(given, list) and not all(isinstance(each, int | np.integer) for each in given)
    texts, tokens, segments = [], [], []
    for encoded in read_texts(model, given if several else [given]):
        (text,) = encoded.texts
        piece = next(iter(encoded.pieces), None)  # token ids come without a piece
        types = np.zeros(len(text), np.int64) if text.segments is None else text.segments
        texts.append(text)
        tokens.append(piece.tokens if piece else _names(model, text.ids))
        segments.append(np.array(piece.type_ids) if piece else types)
    return texts, tokens, segments


def post_process(config: Config, answers: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Fires the last stages: the probabilities that the model's task computes from the logits of `answers`."""
    from npformer.tasks.task import probabilities
    from npformer.tasks.text_classification import default_function

    if config.head == "question-answering":
        for name in ("start", "end"):
            tap(f"{name}_probabilities", np.concatenate([softmax(answer[f"{name}_logits"]) for answer in answers]))
    elif config.head == "multiple-choice":
        tap("probabilities", softmax(np.stack([answer["logits"] for answer in answers]), axis=0))
    elif config.head in POOLED_HEADS:
        function = default_function(config) if config.labels else "softmax"
        probabilities(np.stack([answer["logits"] for answer in answers]), function)
    elif config.head != "base":
        probabilities(np.concatenate([answer["logits"] for answer in answers]))


def _names(model: Model, ids: np.ndarray) -> list[str]:
    """Returns the token of each id, or the id itself if the model has no tokenizer."""
    try:
        tokenizer = model.tokenizer
    except NpformerError:  # token ids need no tokenizer: a golden file's tiny model comes without one
        return [str(number) for number in ids.tolist()]
    return [tokenizer.id_to_token(number) or str(number) for number in ids.tolist()]


def _alone(array: np.ndarray) -> list[np.ndarray]:
    return [array]


def _only(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0]


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _numbered(arrays: Mapping[str, np.ndarray], name: str) -> Iterator[np.ndarray]:
    """Yields the arrays `0/name`, `1/name`, ..."""
    number = 0
    while f"{number}/{name}" in arrays:
        yield arrays[f"{number}/{name}"]
        number += 1
