"""Seeing a forward pass: `trace` records every stage that `tap.py` names, text by text.

    t = trace(model, "I love ice cream")          with trace() as t: model(input_ids)
    t["layers.0.attention.weights"]               print(t)

Changing stages is in `edit.py`, what each stage is in `stages.py`, comparing them with another program's in `golden/`.
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
from npformer.runtime.batch import Text
from npformer.tap import listen, tap
from npformer.text.encoding import read_texts
from npformer.transformer import POOLED_HEADS

INPUTS = ("ids", "lengths")  # the first taps of a forward: what it computes from, no stages
RUNS = ("query_heads", "key_heads", "value_heads", "scores", "weights", "context")  # fire once a run of equal lengths
OF_SOURCE = ("cross_attention.key", "cross_attention.value")  # rows of the texts that a decoder looks at
PER_TEXT = ("pooler", "pooled")  # one row a text, and so are the logits that follow them
OF_EITHER = ("logits", "probabilities")  # one row a text or one a token
FORMAT = "npformer-trace"

Cut = Callable[[np.ndarray], list[np.ndarray]]
Join = Callable[[list[np.ndarray]], np.ndarray]


def is_input(name: str) -> bool:
    return name.rpartition(".")[2] in INPUTS


class TextParts:
    """Which part of a stage belongs to which text: hears every tap of the forwards that run meanwhile.

    A scope that taps lengths is a forward of its own (an encoder-decoder's encoder), the next such tap the next one.
    Texts are numbered through.
    """

    def __init__(self) -> None:
        self._lengths: dict[str, np.ndarray] = {}  # scope -> its texts' lengths
        self._first: dict[str, int] = {}  # scope -> how many texts earlier forwards had
        self._covered: dict[str, int] = {}  # stage -> how many texts it has fired for
        self._pooled = False

    def hear(self, name: str, array: np.ndarray) -> None:
        """Every tap: a forward's lengths, and what tells one head's logits from another's."""
        scope, _, last = name.rpartition(".")
        if last == "lengths":
            self._first[scope] = self._first.get(scope, 0) + len(self._lengths.get(scope, ()))
            self._lengths[scope] = array
            self._pooled = False
        self._pooled |= name in PER_TEXT

    def split(self, name: str, array: np.ndarray) -> tuple[int, Cut, Join]:
        """The number of the first text in `array`, what cuts such an array into one a text, and what joins them again.

        An array with no part for each text, or outside of any forward, comes as it is, as one.
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
    """The stages of one or more forwards, in firing order: name -> array of the text, or a list of one array a text.

    A stage of one text is (T, D), of its heads (H, T, T) or (H, T, K), of the whole text (D,) or (C,).
    tokens, segments, ids: of the text, or a list of them for several; None where they are not known.
    Recording: `with trace() as t:`. A name that never fired is an NpformerError with the nearest names.
    """

    def __init__(self, stages: str | Iterable[str] = "*", config: Config | None = None) -> None:
        self.wanted = [stages] if isinstance(stages, str) else list(stages)
        self.config = config
        self._arrays: dict[str, list[np.ndarray]] = {}
        self._ids: list[np.ndarray] = []
        self._segments: list[np.ndarray] = []
        self._tokens: list[list[str]] = []
        self._parts = TextParts()
        self._fired: dict[str, bool] = {}  # in order; whether the stage is wanted
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
        """Note what the taps do not say of the texts of a forward."""
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
        """A stage as a list of one array a text, also where there is one text."""
        array = self[name]
        return array if isinstance(array, list) else [array]

    def select(self, pattern: str) -> dict[str, Any]:
        """The stages that a pattern matches: `t.select("layers.*.attention.weights")`."""
        return {name: self[name] for name in table.matching(pattern, list(self))}

    @property
    def label(self) -> Any:
        """The label with the highest logit, of a model that has labels for whole texts; else None."""
        labels = self.config.labels if self.config and self.config.head == "sequence-classification" else ()
        if not labels or "logits" not in self:
            return None
        return _one([labels[int(np.argmax(logits))] for logits in self.texts("logits")])

    def row(self, name: str) -> StageSummary:
        """A stage's shape, formula, the function that makes it, its names elsewhere, its mean, deviation and range."""
        return summary(name, self.texts(name), self.config)

    def table(self, columns: Sequence[str] = tuple(COLUMNS), stages: str | Iterable[str] = "*") -> Table:
        """The rows of the stages that match, with some columns of `summary.COLUMNS`: as text, as HTML, for JSON."""
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
        """A safetensors file: text i's stage as `i/stage`, its token ids as `i/ids`; the rest in the metadata."""
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
        """The trace that `save` wrote. Raises NpformerError for any other file."""
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
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NpformerError(f"{path}: not a trace that npformer saved: {error!s:.200}") from None
        return trace


def trace(model: Model | None = None, text: Any = None, stages: str | Iterable[str] = "*") -> Trace:
    """The stages of running `model` on `text`: a string, a Pair, token ids, or a list of such texts.

    After the head's own stages comes `probabilities`, what the head's logits mean. `stages` is a pattern or several:
    only what matches is kept. Without a model: a trace to be filled, `with trace() as t: model(...)`.
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
    """One text or a list of them as token ids, tokens and segments: strings, Pairs, or token ids as they are.

    Too long a text is cut, with a warning; token ids are not.
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
        piece = next(iter(encoded.pieces), None)  # none of token ids
        types = np.zeros(len(text), np.int64) if text.segments is None else text.segments
        texts.append(text)
        tokens.append(piece.tokens if piece else _names(model, text.ids))
        segments.append(np.array(piece.type_ids) if piece else types)
    return texts, tokens, segments


def post_process(config: Config, answers: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Fire the last stages: what the logits of a model's answers mean, as its task understands them."""
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
    """Tokens by id, or the ids themselves where the model has no tokenizer."""
    try:
        tokenizer = model.tokenizer
    except NpformerError:  # ids need none: a golden's tiny model comes without
        return [str(number) for number in ids.tolist()]
    return [tokenizer.id_to_token(number) or str(number) for number in ids.tolist()]


def _alone(array: np.ndarray) -> list[np.ndarray]:
    return [array]


def _only(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0]


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _numbered(arrays: Mapping[str, np.ndarray], name: str) -> Iterator[np.ndarray]:
    """`0/name`, `1/name`, ..."""
    number = 0
    while f"{number}/{name}" in arrays:
        yield arrays[f"{number}/{name}"]
        number += 1
