"""The state of the page: texts, changes and options, read from JSON with limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.text.inputs import Pair
from npformer.view.explorer.changes import ChangeLine, ChangeWord, StateChange, mask_token, read_change, words_changed

CHARACTERS = 20_000  # maximum length of a text
CHANGES = 200


@dataclass(frozen=True)
class State:
    """The state of a page, which shows the first text. A second text is for comparison, patching or a direction.

    texts: one or two texts, each a tuple of one string, or of two strings that a model reads together.
    changes: in the order in which they were made. model: index of the model that is shown. explained: the index of the
    label or token that the words and heads explain, or None for the model's own answer.
    """

    texts: tuple[tuple[str, ...], ...]
    changes: tuple[StateChange, ...] = ()
    model: int = 0
    explained: int | None = None

    def given(self, index: int, model: Any, changed: bool = True) -> Any:
        """Returns a text as a model reads it, with changed words; a Pair if it has a second part that is not empty."""
        words = self.words if changed and index == 0 else ()
        mask = mask_token(model) if any(each.to is None for each in words) else ""
        parts = [
            words_changed(text, [each for each in words if each.part == part], mask)
            for part, text in enumerate(self.texts[index])
        ]
        return Pair(*parts) if parts[1:] and parts[1].strip() else parts[0]

    def label(self, change: StateChange) -> str:
        """Returns the name of a change for the page, with the word's number if the word occurs more than once."""
        if isinstance(change, ChangeWord) and change.part < len(self.texts[0]):
            same = self.texts[0][change.part].split().count(change.word)
            return f"{change.label} (word {change.at + 1})" if same > 1 else change.label
        return change.label

    def of_trace(self) -> State:
        """Returns the state without the explained outcome, which does not affect traces."""
        return replace(self, explained=None)

    @property
    def words(self) -> tuple[ChangeWord, ...]:
        """The changes of words of the first text."""
        return tuple(each for each in self.changes if isinstance(each, ChangeWord))

    @property
    def lines(self) -> list[ChangeLine]:
        """The changes of lines of the plain page."""
        return [each for each in self.changes if isinstance(each, ChangeLine)]

    def without_stages(self) -> State:
        """Returns the state with only the first text and its changed words, which is all that the plain page reads."""
        return replace(self, texts=self.texts[:1], changes=self.words)

    def without_changes(self) -> State:
        """Returns the state without changes of the model or the texts."""
        return replace(self, changes=())

    def of_model(self, model: int) -> State:
        """Returns the state in which another model, without changes, reads the texts with the same changed words."""
        return replace(self, changes=self.words, model=model, explained=None)

    def of_second(self) -> State:
        """Returns the state of the second text alone, in the unchanged model."""
        return replace(self, texts=self.texts[1:], changes=())


def read_state(value: Any, models: int = 1) -> State:
    """Reads a state that a page sent. Raises NpformerError for anything else."""
    if not isinstance(value, dict):
        raise NpformerError(f"state: expected texts, edits and options, got {shown(value)}")
    if unknown := sorted(value.keys() - {"texts", "edits", "options"}):
        raise NpformerError(f"state: expected texts, edits and options, got {shown(unknown[0])}")
    texts = _texts(value.get("texts"))
    edits = value.get("edits", [])
    if not isinstance(edits, list) or len(edits) > CHANGES:
        raise NpformerError(f"state.edits: expected a list of at most {CHANGES} changes, got {shown(edits)}")
    changes = tuple(read_change(each, f"state.edits[{i}]") for i, each in enumerate(edits))
    options = value.get("options", {})
    if not isinstance(options, dict) or options.keys() - {"model", "explained"}:
        raise NpformerError(f"state.options: expected a dict with the keys model and explained, got {shown(options)}")
    model = options.get("model", 0)
    if type(model) is not int or not 0 <= model < models:
        raise NpformerError(f"state.options.model: expected a model from 0 to {models - 1}, got {shown(model)}")
    explained = options.get("explained")
    if explained is not None and (type(explained) is not int or explained < 0):
        raise NpformerError(f"state.options.explained: expected the number of an outcome, got {shown(explained)}")
    return State(texts, changes, model, explained)


def _texts(value: Any) -> tuple[tuple[str, ...], ...]:
    """Reads one or two texts, each a list of one or two strings."""
    if not isinstance(value, list) or not 1 <= len(value) <= 2:
        raise NpformerError(f"state.texts: expected one or two texts, got {shown(value)}")
    for i, parts in enumerate(value):
        if not isinstance(parts, list) or not 1 <= len(parts) <= 2 or not all(isinstance(each, str) for each in parts):
            raise NpformerError(f"state.texts[{i}]: expected a list of one or two strings, got {shown(parts)}")
        if sum(map(len, parts)) > CHARACTERS:
            raise NpformerError(
                f"state.texts[{i}]: expected at most {CHARACTERS:,} characters, got {sum(map(len, parts)):,}"
            )
    return tuple(tuple(parts) for parts in value)
