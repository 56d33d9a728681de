"""The kinds of changes in a state. Each has an effect on the model or a text, a name on the page, and a line of Python.

A change is declared as fields, which the page sends as JSON. `Change.edits` returns the edits for `npformer.edit`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.interpret.attribution import without_words
from npformer.interpret.edits import Change as StageChange
from npformer.interpret.edits import add, replace_row, scale, scale_head, without_head, zero
from npformer.interpret.metric import MASKS
from npformer.interpret.traces import Trace
from npformer.text.words import shortened

Edits = dict[str, StageChange]
Traces = Callable[[int], Trace]  # the index of a text -> the trace of the unchanged model
STAGE = re.compile(r"[a-z_]+(\.[a-z_]+|\.\d+){0,8}")
LARGEST = 100.0  # maximum factor
TIMES = "\N{MULTIPLICATION SIGN}"
LONGEST = 200  # maximum characters of a word


@dataclass(frozen=True)
class StateChange:
    """A change of the model or of a text. Subclasses declare the fields that the page sends."""

    kind: ClassVar[str]

    def check(self, where: str) -> None:
        """Raises NpformerError for a factor out of range, or a text that cannot be the name of a stage."""
        for name in ("factor",):
            value = getattr(self, name, 0.0)
            if not math.isfinite(value) or abs(value) > LARGEST:
                raise NpformerError(f"{where}.{name}: expected a number from -{LARGEST:g} to {LARGEST:g}, got {value}")
        stage = getattr(self, "stage", "a")
        if not STAGE.fullmatch(stage):
            raise NpformerError(f"{where}.stage: expected the name of a stage, got {shown(stage)}")

    @property
    def label(self) -> str:
        """The name of the change on the page."""
        raise NotImplementedError

    def edits(self, traces: Traces) -> Edits:
        """Returns the edits of the model's stages. A change to a text has no edits."""
        return {}

    def program(self) -> str:
        """Returns Python code for `edits`, with `first` and `second` for the traces of the texts; "" without edits."""
        return ""


@dataclass(frozen=True)
class ScaleHead(StateChange):
    """Multiplies the output of a head; 0 removes it."""

    attention: str  # for example layers.3.attention
    head: int
    factor: float = 0.0
    kind: ClassVar[str] = "head"

    def check(self, where: str) -> None:
        super().check(where)
        if not STAGE.fullmatch(self.attention):
            raise NpformerError(f"{where}.attention: expected an attention block, got {shown(self.attention)}")

    @property
    def label(self) -> str:
        name = f"{place(self.attention)}, head {self.head}"
        return f"without {name}" if not self.factor else f"{name} {TIMES} {self.factor:g}"

    def edits(self, traces: Traces) -> Edits:
        stage = f"{self.attention}.context"
        return scale_head(stage, self.head, self.factor) if self.factor else without_head(stage, self.head)

    def program(self) -> str:
        stage = f"{self.attention}.context"
        if not self.factor:
            return f'without_head("{stage}", {self.head})'
        return f'scale_head("{stage}", {self.head}, {self.factor!r})'


@dataclass(frozen=True)
class ScaleStage(StateChange):
    """Multiplies a stage, such as the output of a layer's attention or FFN; 0 removes it."""

    stage: str  # the stage's name, such as layers.3.ffn.output
    factor: float = 0.0
    kind: ClassVar[str] = "stage"

    @property
    def label(self) -> str:
        return f"without {place(self.stage)}" if not self.factor else f"{place(self.stage)} {TIMES} {self.factor:g}"

    def edits(self, traces: Traces) -> Edits:
        return scale(self.stage, self.factor) if self.factor else zero(self.stage)

    def program(self) -> str:
        return f'scale("{self.stage}", {self.factor!r})' if self.factor else f'zero("{self.stage}")'


@dataclass(frozen=True)
class PatchRow(StateChange):
    """Replaces a token's row in a stage with the second text's row at the same position."""

    stage: str
    position: int
    kind: ClassVar[str] = "patch"

    @property
    def label(self) -> str:
        return f"row {self.position} of {place(self.stage)} from text B"

    def edits(self, traces: Traces) -> Edits:
        other = rows(traces(1), self.stage)
        if not 0 <= self.position < len(other):
            raise NpformerError(f"patch of {self.stage}: text B has no token {self.position}; it has {len(other)}")
        return replace_row(self.stage, self.position, other[self.position])

    def program(self) -> str:
        return f'replace_row("{self.stage}", {self.position}, second["{self.stage}"][{self.position}])'


@dataclass(frozen=True)
class AddDirection(StateChange):
    """Adds `factor` times the difference of two texts' mean rows, text B minus text A, to every row of a stage."""

    stage: str
    factor: float = 1.0
    kind: ClassVar[str] = "direction"

    @property
    def label(self) -> str:
        return f"{self.factor:+g} {TIMES} (B - A) at {place(self.stage)}"

    def edits(self, traces: Traces) -> Edits:
        first, second = (rows(traces(i), self.stage).mean(axis=0) for i in (0, 1))
        return add(self.stage, self.factor * (second - first))

    def program(self) -> str:
        difference = f'second["{self.stage}"].mean(axis=0) - first["{self.stage}"].mean(axis=0)'
        return f'add("{self.stage}", {self.factor!r} * ({difference}))'


@dataclass(frozen=True)
class ChangeWord(StateChange):
    """Masks, deletes or replaces a word of the first text. Words are separated by white space."""

    at: int
    word: str  # the word at index `at`, as typed
    to: str | None = None  # the new word; "" deletes the word, and None masks it
    part: int = 0  # for a pair, 0 or 1
    kind: ClassVar[str] = "word"

    def check(self, where: str) -> None:
        for word in (self.word, self.to or ""):
            if len(word) > LONGEST:
                raise NpformerError(f"{where}: expected a word of at most {LONGEST} characters, got {len(word)}")

    @property
    def label(self) -> str:
        if self.to is None:
            return f"“{self.word}” masked"
        return f"“{self.word}” → “{self.to}”" if self.to else f"without “{self.word}”"

    def changed(self, text: str, mask: str) -> tuple[int, int, str]:
        """Returns (start, end, new): the word's span in a text, and the string that replaces it."""
        spans = list(re.finditer(r"\S+", text))
        if not 0 <= self.at < len(spans) or spans[self.at][0] != self.word:
            got = spans[self.at][0] if 0 <= self.at < len(spans) else "no word"
            raise NpformerError(f"word {self.at}: expected {shown(self.word)}, got {shown(got)}")
        return *spans[self.at].span(), mask if self.to is None else self.to


@dataclass(frozen=True)
class ChangeLine(StateChange):
    """Replaces a statement of the model's plain page, on the tab `Step`. This does not affect the engine's answer."""

    line: int  # the number of the statement's first line
    old: str
    to: str
    kind: ClassVar[str] = "line"

    def check(self, where: str) -> None:
        for text in (self.old, self.to):
            if len(text) > 1000:
                raise NpformerError(f"{where}: expected a statement of at most 1000 characters, got {len(text)}")

    @property
    def label(self) -> str:
        return shortened(f"page, line {self.line}: {self.to}", 80)


KINDS: Mapping[str, type[StateChange]] = {
    each.kind: each for each in (ScaleHead, ScaleStage, PatchRow, AddDirection, ChangeWord, ChangeLine)
}


def read_change(value: Any, where: str) -> StateChange:
    """Reads a change that a page sent. Raises NpformerError for an unknown kind or field, or a wrong value."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or value["kind"] not in KINDS:
        raise NpformerError(f"{where}: expected a change with a kind, one of {', '.join(KINDS)}, got {shown(value)}")
    kind = KINDS[value["kind"]]
    given = {name: each for name, each in value.items() if name != "kind"}
    types = {each.name: str(each.type) for each in fields(kind)}
    for name, each in given.items():
        if name not in types:
            raise NpformerError(f"{where}.{name}: unknown field of {kind.kind}")
        given[name] = _value(each, types[name], f"{where}.{name}")
    try:
        change = kind(**given)
    except TypeError:  # raised if a field without a default is missing
        missing = next(name for name in types if name not in given)
        raise NpformerError(f"{where}.{missing}: missing") from None
    change.check(where)
    return change


def _value(value: Any, declared: str, where: str) -> Any:
    """Returns a value from JSON as the declared type. Raises NpformerError if it has a different type."""
    if declared == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if declared == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if declared.startswith("str") and (isinstance(value, str) or (value is None and "None" in declared)):
        return value
    raise NpformerError(f"{where}: expected {declared}, got {shown(value)}")


def words_changed(text: str, changes: list[ChangeWord], mask: str) -> str:
    """Returns a text with its words changed. The numbers of words in the changes refer to the text as typed."""
    found = sorted((each.changed(text, mask) for each in changes), reverse=True)
    for start, end, word in found:
        text = text[:start] + word + text[end:] if word.strip() else without_words(text, start, end)
    return text


def mask_token(model: Any) -> str:
    """Returns the model's mask token. Raises NpformerError if the model has none."""
    found = next((name for name in MASKS if model.tokenizer.token_to_id(name) is not None), None)
    if found is None:
        raise NpformerError("the model has no mask token; replace or delete the word")
    return found


def rows(trace: Trace, stage: str) -> np.ndarray:
    """Returns a stage, (T, D). Raises NpformerError if the stage does not have one row for each token."""
    array: np.ndarray = trace[stage]
    if array.ndim != 2:
        raise NpformerError(f"{stage}: expected a stage with a row for each token, got shape {array.shape}")
    return array


OUTPUTS = ("ffn_norm", "ffn_residual")  # the stages that can be the last stage of a layer
BLOCKS = {"attention": "attention", "cross_attention": "cross-attention", "ffn": "FFN"}


def place(name: str) -> str:
    """Names a block or stage: "layer 3" for `layers.3.attention`, "FFN of layer 3" for `layers.3.ffn.output`."""
    before, _, rest = name.rpartition("layers.")
    number, _, block = rest.partition(".")
    stack = before.strip(".").rpartition(".")[2]
    layer = f"{stack} layer {number}".strip() if number.isdigit() else name
    first, _, last = block.partition(".")
    if not number.isdigit() or (first == "attention" and not last):
        return layer
    if last in ("", "output") and first in BLOCKS:
        return f"{BLOCKS[first]} of {layer}"
    if block in OUTPUTS:
        return f"the output of {layer}"
    return f"{block} of {layer}"
