"""Records a forward pass: `trace` stores every stage that `tap` names, text by text.

    t = trace(model, "I love ice cream")          with trace() as t: model(input_ids)
    t["layers.0.attention.weights"]               print(t)

`edits.py` changes stages, `stages.py` describes stages, and `golden/` compares stages with another program's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from npformer.base_model import BaseModel, check_model
from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.config import POOLED_HEADS, Config
from npformer.engine.descriptions import earlier_names
from npformer.engine.functions import softmax
from npformer.engine.output_heads.formulas import probabilities
from npformer.engine.taps import listen, tap
from npformer.families import read_config, write_config
from npformer.interpret import stages as table
from npformer.interpret.gradients import Gradients, differentiate
from npformer.interpret.study_inputs import read_inputs, tokens_read_again
from npformer.interpret.summary import COLUMNS, NUMBERS, StageSummary, Table, summary
from npformer.interpret.text_parts import TextParts, is_input

FORMAT = "npformer-trace"


class Trace(Mapping[str, Any]):
    """A mapping from the names of stages, in order, to their arrays, or for several texts to lists of arrays.

    A stage's array is (T, D) for the tokens of a text, (H, T, T) or (H, T, K) for its heads, and (D,) or (C,) for the
    whole text. `tokens`, `token_type_ids` and `ids` describe the text: lists for several texts, and None if unknown.
    `key_tokens` and `key_ids` describe the source of a translation. `grads` has the requested gradients.
    TransformerLens's hooks and Hugging Face's module paths are accepted as names. Looking up a stage that has not fired
    raises NpformerError, with the nearest names.

    Parameters
    ----------
    stages : name of a stage, pattern with `*`, or several
        Only matching stages are recorded.
    config : Config, optional
        The model's config, for the label and for the names of stages in other libraries.

    Examples
    --------
    >>> with Trace("scores") as t:
    ...     y = npformer.tap("scores", np.array([[1.0, 2.0]]))
    >>> t["scores"]
    array([[1., 2.]])
    """

    def __init__(self, stages: str | Iterable[str] = "*", config: Config | None = None) -> None:
        self.wanted = _patterns(stages)
        self.config = config
        self._arrays: dict[str, list[np.ndarray]] = {}
        self._ids: list[np.ndarray] = []
        self._token_type_ids: list[np.ndarray] = []
        self._tokens: list[list[str]] = []
        self._parts = TextParts()
        self._fired: dict[str, bool] = {}  # stage, in order of computation -> whether the trace stores it
        self._listening: AbstractContextManager[None] | None = None
        self._grads: Trace | None = None
        self._key_tokens: list[list[str]] = []  # the tokens that the encoder of an encoder-decoder reads
        self._key_ids: list[np.ndarray] = []

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
            table.matching(self.wanted, list(self._fired), self.fired)

    def _hear(self, name: str, array: np.ndarray) -> np.ndarray:
        self._parts.hear(name, array)
        if name == "lengths":
            self._ids[-1:] = np.split(self._ids[-1], np.cumsum(array)[:-1])
        if name == "ids":
            self._ids.append(array)
        if is_input(name):
            return array
        if name not in self._fired:
            fired = [*self._fired, name] if self.config is None else self.fired
            self._fired[name] = bool(table.selected(self.wanted, [name], fired))
        if self._fired[name]:
            _, cut, _ = self._parts.split(name, array)
            self._arrays.setdefault(name, []).extend(cut(array))
        return array

    def describe(self, tokens: list[list[str]], token_type_ids: list[np.ndarray]) -> None:
        """Adds the tokens and token_type_ids of the texts, because no tap records them."""
        self._tokens += tokens
        self._token_type_ids += token_type_ids

    def describe_source(self, tokens: list[list[str]], ids: list[np.ndarray]) -> None:
        """Adds the tokens that an encoder-decoder's encoder reads, and their ids."""
        self._key_tokens += tokens
        self._key_ids += ids

    def keep_gradients(self, gradients: Gradients) -> None:
        """Stores the gradients of a metric with respect to the recorded stages in `grads`, which is also a trace."""
        grads = self._grads = Trace(self.wanted, self.config)
        grads._ids, grads._tokens, grads._token_type_ids = self._ids, self._tokens, self._token_type_ids
        grads._key_ids, grads._key_tokens = self._key_ids, self._key_tokens
        for name in self._fired:
            grads._fired[name] = name in self._arrays and name in gradients
            if grads._fired[name]:
                parts = [self._parts.split(name, grad)[1](grad) for grad in gradients[name]]
                grads._arrays[name] = [each for part in parts for each in part]

    # --- reading -----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        ours = self._ours(name)
        if ours not in self._arrays:
            if ours in self._fired:
                raise NpformerError(f"{name!r}: not recorded; this trace records only {', '.join(self.wanted)}")
            if "*" in str(name):
                raise NpformerError(f"{name!r}: this is a pattern, not a stage; use trace.select({name!r})")
            raise NpformerError(table.unknown(str(name), list(self._fired or self._arrays)))
        return _one(self._arrays[ours])

    def _ours(self, name: str) -> str:
        """Returns npformer's name for a stage, given the name itself, a TransformerLens hook or a module path."""
        if name in self._arrays:
            return name
        return table.ours_in(self.fired, str(name))

    @property
    def fired(self) -> list[str]:
        """All stages of the model, in order of computation. Without a config, only the stages that have fired."""
        return table.names(self.config) if self.config is not None else list(self._fired or self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays or (isinstance(name, str) and self._ours(name) in self._arrays)

    def get(self, name: str, default: Any = None) -> Any:
        ours = self._ours(name)
        return _one(self._arrays[ours]) if ours in self._arrays else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def _ipython_key_completions_(self) -> list[str]:
        """Lists the stages that IPython and Jupyter offer after `trace["`."""
        return list(self)

    @property
    def ids(self) -> Any:
        return _one(self._ids) if self._ids else None

    @property
    def grads(self) -> Trace:
        """The gradients of the requested metric with respect to each stage."""
        if self._grads is None:
            raise NpformerError("grads: the trace has no gradients; trace(model, text, grads=metric) records them")
        return self._grads

    @property
    def tokens(self) -> Any:
        return _one(self._tokens) if self._tokens else None

    @property
    def token_type_ids(self) -> Any:
        return _one([each.tolist() for each in self._token_type_ids]) if self._token_type_ids else None

    @property
    def key_tokens(self) -> Any:
        return _one(self._key_tokens) if self._key_tokens else None

    @property
    def key_ids(self) -> Any:
        return _one(self._key_ids) if self._key_ids else None

    def texts(self, name: str) -> list[np.ndarray]:
        """Returns a stage as a list of one array per text, even for a single text."""
        array = self[name]
        return array if isinstance(array, list) else [array]

    def select(self, pattern: str) -> dict[str, Any]:
        """Returns the stages that match a pattern.

        Examples
        --------
        >>> t = npformer.trace(npformer.load("distilbert-sst2"), "I love ice cream")
        >>> len(t.select("layers.*.attention.weights"))
        6
        """
        return {name: self[name] for name in table.matching(pattern, list(self), self.fired)}

    @property
    def label(self) -> Any:
        """The label with the largest logit, or None for a model without text labels."""
        labels = self.config.labels if self.config and self.config.head == "sequence-classification" else ()
        if not labels or "logits" not in self:
            return None
        return _one([labels[int(np.argmax(logits))] for logits in self.texts("logits")])

    def row(self, name: str) -> StageSummary:
        """Summarizes a stage: shape, formula, function, names in other libraries, mean, deviation and range."""
        return summary(name, self.texts(name), self.config)

    def table(self, columns: Sequence[str] = tuple(COLUMNS), stages: str | Iterable[str] = "*") -> Table:
        """Returns a table of the matching stages, with these columns of `summary.COLUMNS`."""
        return Table([self.row(name) for name in table.selected(stages, list(self), self.fired)], columns)

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
        """Writes a safetensors file.

        Stage `name` of text i has the name `i/name`, its token ids `i/ids`, and the ids of its source `i/source_ids`.
        """
        arrays = {f"{i}/{name}": array for name, each in self._arrays.items() for i, array in enumerate(each)}
        arrays |= {f"{i}/ids": ids.astype(np.int64) for i, ids in enumerate(self._ids)}
        arrays |= {f"{i}/source_ids": ids.astype(np.int64) for i, ids in enumerate(self._key_ids)}
        description = {
            "config": write_config(self.config) if self.config else None,
            "tokens": self._tokens,
            "key_tokens": self._key_tokens,
            "segments": [each.tolist() for each in self._token_type_ids],
            "names": earlier_names.NAMES,
            "stages": list(self),
        }
        save_arrays(path, arrays, {"format": FORMAT, "description": json.dumps(description, ensure_ascii=False)})

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Reads the trace that `save` wrote. Raises NpformerError for any other file."""
        arrays, metadata = load_arrays(path)
        try:
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its metadata does not name the format {FORMAT!r}")
            description = json.loads(metadata["description"])
            json.dumps(description, ensure_ascii=False).encode()  # raises UnicodeEncodeError for lone surrogates
            trace = cls(description["stages"])
            trace.config = description["config"] and read_config(description["config"])
            trace._tokens = [[str(token) for token in tokens] for tokens in description["tokens"]]
            trace._token_type_ids = [np.asarray(each, np.int64) for each in description["segments"]]
            trace._ids = list(_numbered(arrays, "ids"))
            trace._key_tokens = [[str(token) for token in tokens] for tokens in description.get("key_tokens", ())]
            trace._key_ids = list(_numbered(arrays, "source_ids"))
            trace._arrays = {str(name): list(_numbered(arrays, name)) for name in description["stages"]}
            if not all(trace._arrays.values()):
                raise ValueError("a stage is missing")
            labels = trace.config.labels if trace.config else ()
            if labels and any(logits.shape[-1:] != (len(labels),) for logits in trace._arrays.get("logits", ())):
                raise ValueError(f"logits: expected one per label, {len(labels)}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise NpformerError(f"{path}: not a trace saved by npformer: {error!s:.200}") from None
        try:
            is_gated = trace.config.gated if trace.config else any(name.endswith("ffn.gated") for name in trace)
            earlier_names.refuse(trace, is_gated, description.get("names"))
        except NpformerError as error:
            raise NpformerError(f"{path}: {error}") from None
        return trace


def trace(
    model: BaseModel | None = None,
    text: Any = None,
    stages: str | Iterable[str] = "*",
    *,
    grads: Any = None,
    position: int | None = None,
) -> Trace:
    """Runs a model on texts and records its stages, up to `probabilities`, or up to `logits` for a translation.

    Parameters
    ----------
    model : Model or Seq2Seq, optional
        Without a model, an empty trace, which records the forward passes in its `with` block.
    text : str, Pair, token ids, or a list of these
        A translation model takes texts, which it translates, or tuples of token ids (source, target).
    stages : name of a stage, pattern with `*`, or several
        Only matching stages are recorded.
    grads : label, word, True or function, optional
        A metric; the trace `grads` has its gradients with respect to the stages. A label (name or number) selects
        its logit; True selects the logit of the model's answer. A function maps the dict of a text's answers to a
        number; its derivative is computed by differences, or given by `interpret.edits.Differentiable`.
    position : int, optional
        The token of the logit, if `grads` is a label and the head has a row for each token.

    Returns
    -------
    Trace

    Raises
    ------
    NpformerError
        If `model` is not a model, a pattern matches no stage, a text cannot be read, or the model does not support the
        metric.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> t = trace(model, "I love ice cream", "layers.0.attention.*", grads="POSITIVE")
    >>> t.tokens
    ['[CLS]', 'i', 'love', 'ice', 'cream', '[SEP]']
    >>> t["layers.0.attention.weights"].shape, t.grads["layers.0.attention.weights"].shape
    ((12, 6, 6), (12, 6, 6))
    >>> with trace() as recorded:
    ...     output = model([[101, 2053, 102]])
    >>> recorded["embeddings.norm"].shape
    (3, 384)
    """
    if model is None:
        return Trace(stages)
    check_model("trace", model)
    if text is None:
        raise NpformerError("trace: expected a text: trace(model, text), or with trace() as t: ...")
    return trace_and_answers(model, text, stages, grads, position)[0]


def trace_and_answers(
    model: BaseModel, text: Any, stages: str | Iterable[str] = "*", grads: Any = None, position: int | None = None
) -> tuple[Trace, list[dict[str, np.ndarray]]]:
    """Returns a trace, as `trace` does, and the answers of the same forward pass."""
    recorded = Trace(stages, model.config)
    read = read_inputs(model, text)
    rows = read.tokens
    if model.config.decoder:
        recorded.describe_source(read.source_tokens or rows, [each.ids for each in read.sources or read.texts])
        if not read.sources:  # the decoder reads the text one position later
            rows = [tokens_read_again(model, each) for each in rows]
    recorded.describe(rows, read.token_type_ids)
    with recorded:
        if grads is None:
            answers = model.run(read.inputs)
        else:
            answers, by_stage = differentiate(model, read.inputs, grads, position)
            recorded.keep_gradients(by_stage)
        post_process(model.config, answers)
    return recorded, answers


def post_process(config: Config, answers: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Fires the last stages: the probabilities of the model's task, computed from the logits in `answers`."""
    if config.head == "question-answering":
        for name in ("start", "end"):
            tap(f"{name}_probabilities", np.concatenate([softmax(answer[f"{name}_logits"]) for answer in answers]))
    elif config.head == "multiple-choice":
        tap("probabilities", softmax(np.stack([answer["logits"] for answer in answers]), axis=0))
    elif config.head not in ("base", "translation"):
        joined = np.stack if config.head in POOLED_HEADS else np.concatenate
        probabilities(joined([answer["logits"] for answer in answers]), config.scoring)


def _patterns(stages: str | Iterable[str]) -> list[str]:
    found = [stages] if isinstance(stages, str) else list(stages) if isinstance(stages, Iterable) else [None]
    patterns = [each for each in found if isinstance(each, str)]
    if len(patterns) < len(found):
        raise NpformerError(f"trace: stages: expected the name of a stage, a pattern or a list, got {shown(stages)}")
    return patterns


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _numbered(arrays: Mapping[str, np.ndarray], name: str) -> Iterator[np.ndarray]:
    """Yields the array `i/name` of each text i."""
    number = 0
    while f"{number}/{name}" in arrays:
        yield arrays[f"{number}/{name}"]
        number += 1
