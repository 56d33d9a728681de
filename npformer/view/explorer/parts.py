"""The parts of a page for a state: the answer, each view, and the changeable parts of the model."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from npformer.base_model import BaseModel
from npformer.common.errors import NpformerError
from npformer.common.progress import before_each
from npformer.engine.taps import listen
from npformer.interpret.answer import ModelAnswer, answer_of, most_probable, outcome_of, probabilities_of
from npformer.interpret.edits import edit
from npformer.interpret.metric import asked_label
from npformer.interpret.next_words import MOST as MOST_WORDS
from npformer.interpret.next_words import next_words
from npformer.interpret.study_inputs import read_inputs
from npformer.interpret.traces import Trace, trace_and_answers
from npformer.text.inputs import Pair
from npformer.text.words import piece_names
from npformer.view.ablation_view import ablation
from npformer.view.answer_data import answer_meta, with_measured
from npformer.view.attribution_view import attribution
from npformer.view.document import View, described_view
from npformer.view.explorer.change_part import change_view
from npformer.view.explorer.compare_part import compare_view, comparison
from npformer.view.explorer.layer_part import layer_at, without_blocks
from npformer.view.explorer.program import program
from npformer.view.explorer.reading import cut_note, read_given
from npformer.view.explorer.state import State
from npformer.view.explorer.step_part import Stepped, names_of, step_view, stepped, value_before, value_of
from npformer.view.explorer.write_part import write_view
from npformer.view.head_view import heads
from npformer.view.lens_view import lens
from npformer.view.logit_view import logit
from npformer.view.model_view import model as model_view
from npformer.view.neuron_view import neurons
from npformer.view.page_view import NEXT, heads_to_ablate, page
from npformer.view.stage_view import shown_texts, stages

KEPT = 24  # number of parts to cache, so that a tab reopens at once
SEEN = 4  # number of states with cached traces
RUNS = 2  # number of states with cached runs of the page: a changed one, and the unchanged one
Part = dict[str, Any]


class Seen(NamedTuple):
    """A model's reading of a state: the text that the views show, its trace, and the answer, without effects of heads.

    shares: the probabilities of the labels or tokens; None if the model has no single answer.
    """

    text: Any
    trace: Trace
    answer: ModelAnswer | None
    shares: np.ndarray | None


class Parts:
    """Computes parts of a page, for one state at a time. `models` maps names to loaded models."""

    def __init__(self, models: Mapping[str, BaseModel]) -> None:
        self.names, self.models = list(models), list(models.values())
        self._kept: OrderedDict[tuple[State, str], Part] = OrderedDict()
        self._stepped: OrderedDict[State, Stepped] = OrderedDict()
        self._seen: OrderedDict[State, Seen] = OrderedDict()

    def part(self, state: State, name: str, check: Callable[[], None] = lambda: None) -> Part:
        """Returns a part, or {"error": message} for a state that the model cannot read or that lacks this part."""
        key = state, name
        if key not in self._kept:
            kind, *numbers = name.split(":")
            try:
                found = PARTS[kind](self, state, check, *map(int, numbers))
            except NpformerError as error:
                found = {"error": str(error)}
            self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    # --- reading a state ---------------------------------------------------------------------------------------------

    def seen(self, state: State) -> Seen:
        """Returns the model's reading of the first text, with all changes."""
        state = state.of_trace()
        if state not in self._seen:
            with self.changed(state):
                self._seen[state] = self._read(state)
            while len(self._seen) > SEEN:
                self._seen.popitem(last=False)
        self._seen.move_to_end(state)
        return self._seen[state]

    def _read(self, state: State) -> Seen:
        model = self.models[state.model]
        given = state.given(0, model)
        inputs = read_given(model, given)
        text = inputs if model.config.head == "translation" else given
        recorded, (answers,) = trace_and_answers(model, text)
        return Seen(text, recorded, outcome_of(model, inputs, answers), probabilities_of(model, inputs, answers))

    def original(self, state: State, index: int) -> Trace:
        """Returns a text's trace in the unchanged model, from which changes take rows and directions."""
        if index >= len(state.texts):
            raise NpformerError("text B: this change needs a second text, but there is only one")
        if index == 0:
            return self.seen(state.without_changes()).trace
        return self.seen(state.of_second()).trace

    @contextmanager
    def changed(self, state: State) -> Iterator[None]:
        """Changes the model in the `with` block."""
        edits = [change.edits(lambda index: self.original(state, index)) for change in state.changes]
        with edit(*edits) if any(edits) else nullcontext():
            yield

    # --- the parts ---------------------------------------------------------------------------------------------------

    def answer(self, state: State, check: Callable[[], None]) -> Part:
        """Returns the answer, the answer before the changes, and the names of the changes."""
        labels = [state.label(change) for change in state.changes]
        try:
            return self._answer(state) | {"changes": labels}
        except NpformerError as error:  # the page also needs the changes, so that the user can undo them
            return {"error": str(error), "changes": labels}

    def _answer(self, state: State) -> Part:
        model, seen = self.models[state.model], self.seen(state)
        is_changed = len(state.changes) > len(state.lines)
        before = self.seen(state.without_changes()).answer if is_changed else None
        words = None
        if seen.answer and seen.answer.about == NEXT:
            with self.changed(state):
                words = next_words(model, seen.text)
        explained = None
        if state.explained is not None and seen.shares is not None:
            _, explained = asked_label(model, state.explained, len(seen.shares), "explained")
        return {
            "answer": seen.answer and answer_meta(seen.answer, [heads(seen.trace)], words),
            "explained": explained,
            "numbers": [] if seen.shares is None else most_probable(seen.shares, MOST_WORDS),
            "before": before and before.outcomes,
            "notes": [each for each in self._cuts(state) if each],
            "tokens": piece_names(seen.trace.tokens),
        }

    def _cuts(self, state: State) -> list[str]:
        """Returns, for each text, a sentence if it was truncated to the model's maximum length, else ""."""
        model = self.models[state.model]
        names = ("The text", "Text B")[: len(state.texts)]
        return [cut_note(model, state.given(i, model), name) for i, name in enumerate(names)]

    def reasons(self, state: State, check: Callable[[], None]) -> Part:
        """Returns the answer with the words and heads that count most for and against it."""
        model, seen, label = self.models[state.model], self.seen(state), state.explained
        if not seen.answer:
            return {"answer": None}
        views: list[View] = [heads(seen.trace)]
        with self.changed(state), _checking(check):
            words = next_words(model, seen.text) if seen.answer.about == NEXT else None
            with suppress(NpformerError):  # the model has no label or word to explain
                views.append(attribution(model, seen.text, label=label, methods=["leave-one-out"], progress=False))
            answer = answer_of(model, seen.text, label)
            assert answer is not None
            with suppress(NpformerError):  # the model has no single answer
                chosen = heads_to_ablate(model, answer, heads(seen.trace))
                views.append(ablation(model, seen.text, label=label, heads=chosen, progress=False))
                answer = with_measured(answer, views[-1].found)  # type: ignore[attr-defined]
        return {"answer": answer_meta(answer, views, words)}

    def view(self, state: State, check: Callable[[], None], kind: str) -> Part:
        """Returns the data of a view, and its arrays under the keys that the data names."""
        seen, arrays = self.seen(state), dict[str, str]()
        model = self.models[state.model]
        if kind in OF_TRACE:
            found = OF_TRACE[kind](seen)
        else:
            with self.changed(state), before_each(check), _checking(check if kind == "ablation" else None):
                found = OF_MODEL[kind](model, seen, state.explained if seen.answer else None)

        def stored(data: str) -> str:
            key = hashlib.blake2b(data.encode("ascii"), digest_size=9).hexdigest()
            arrays[key] = data
            return key

        return {"view": described_view(found, shown_text(state), stored), "arrays": arrays}

    def change(self, state: State, check: Callable[[], None]) -> Part:
        """Returns the data of the tab `Change`, on which users change the model."""
        others: Trace | str | None = None
        if len(state.texts) > 1:
            try:
                others = self.original(state, 1)
            except NpformerError as error:
                others = str(error)
        model, seen = self.models[state.model], self.seen(state)
        return {"view": change_view(model, seen.trace, others, shown_text(state)), "arrays": {}}

    def step(self, state: State, check: Callable[[], None]) -> Part:
        """Returns the data of the tab `Step`, which runs the model's page line by line."""
        seen, run = self.seen(state), self.stepped(state)
        is_changed = len(state.lines) > len(run.refused)
        before = self.seen(state.without_stages()).answer if is_changed else None
        names = names_of(seen.trace.tokens), names_of(seen.trace.key_tokens)
        return {"view": step_view(run, before, *names, shown_text(state)), "arrays": {}}

    def value(self, state: State, check: Callable[[], None], index: int = -1) -> Part:
        """Returns the picture of an array that a line of the page computed."""
        return value_of(self.stepped(state), index)

    def was(self, state: State, check: Callable[[], None], step: int = 0, made: int = 0) -> Part:
        """Returns the array that a step computes for the unchanged text and page."""
        return value_before(self.stepped(state), self.stepped(state.without_changes()), step, made)

    def stepped(self, state: State) -> Stepped:
        """Runs the page for the first text, with the changed words and lines."""
        state = state.of_trace()
        if state not in self._stepped:
            model, given = self.models[state.model], self.seen(state.without_stages()).text
            inputs = read_inputs(model, given).inputs[0]
            self._stepped[state] = stepped(model, inputs, state.lines)
            while len(self._stepped) > RUNS:
                self._stepped.popitem(last=False)
        self._stepped.move_to_end(state)
        return self._stepped[state]

    def layer(self, state: State, check: Callable[[], None], layer: int = 0, token: int = 0) -> Part:
        """Returns the data about a layer at a token: what its blocks read and add, and their effect on the answer."""
        model, seen = self.models[state.model], self.seen(state)
        stages = frozenset(stage for change in state.changes if (stage := getattr(change, "stage", "")))
        found = layer_at(seen.trace, seen.answer, layer, token, stages)
        if seen.shares is None:
            return found
        best = int(seen.shares.argmax())
        if state.explained is not None:
            best, name = asked_label(model, state.explained, len(seen.shares), "explained")
            found["answer"] = name, float(seen.shares[best])
        inputs, before = read_inputs(model, seen.text).inputs[0], float(seen.shares[best])
        with _checking(check):
            return without_blocks(model, inputs, found, token, lambda: self.changed(state), best, before)

    def write(self, state: State, check: Callable[[], None]) -> Part:
        """Returns the data of the tab `Write`, which shows the next tokens or the beams."""
        seen = self.seen(state)
        with self.changed(state):
            return {"view": write_view(self.models[state.model], seen.text, shown_text(state)), "arrays": {}}

    def compare(self, state: State, check: Callable[[], None]) -> Part:
        """Returns the data of the tab `Compare`: the state against the unchanged model, text B and the other models."""
        seen = self.seen(state)
        others = [("the unchanged model and text", state.without_changes())] if state.changes else []
        others += [("text B in the unchanged model", state.of_second())] if len(state.texts) > 1 else []
        others += [(f"the model {name}", state.of_model(i)) for i, name in enumerate(self.names) if i != state.model]
        found = []
        for title, other in others:
            check()
            try:
                theirs = self.seen(other)
                found.append(comparison(title, (seen.trace, seen.answer), (theirs.trace, theirs.answer)))
            except NpformerError as error:
                found.append(comparison(title, (seen.trace, seen.answer), None, str(error)))
        return {"view": compare_view(found, shown_text(state)), "arrays": {}}

    def python(self, state: State, check: Callable[[], None]) -> Part:
        """Returns the Python program that computes the state."""
        return {"text": program(state, self.names[state.model], self.models[state.model])}

    def saved(self, state: State, check: Callable[[], None]) -> str:
        """Returns the offline page with all views, as HTML."""
        with self.changed(state):
            return page(self.models[state.model], state.given(0, self.models[state.model]), progress=False).html()


@contextmanager
def _checking(check: Callable[[], None] | None) -> Iterator[None]:
    """Calls `check` at every stage, so that long work ends soon after it is superseded.

    Listeners change the last digits of gradients, so parts with gradients are interrupted between batches only.
    """
    if check is None:
        yield
        return

    def heard(name: str, array: Any) -> Any:
        check()
        return array

    with listen(heard):
        yield


def shown_text(state: State) -> str:
    """Returns the first text as typed, with the two parts of a pair joined."""
    return " / ".join(filter(str.strip, state.texts[0]))


def _stages(seen: Seen) -> View:
    walk = stages(seen.trace)
    return replace(walk, texts=shown_texts(seen.text if isinstance(seen.text, str | Pair) else None, walk.sides))


def _ablation(model: Any, seen: Seen, label: int | None) -> View:
    chosen = heads_to_ablate(model, answer_of(model, seen.text, label), heads(seen.trace))
    return ablation(model, seen.text, label=label, heads=chosen, progress=False)


#: Views of the trace of a state.
OF_TRACE: Mapping[str, Callable[[Seen], View]] = {
    "heads": lambda seen: heads(seen.trace),
    "model": lambda seen: model_view(seen.trace),
    "neurons": lambda seen: neurons(seen.trace),
    "stages": _stages,
}
#: Views for which the model is run again, for the explained label or token, or None for the model's own answer.
OF_MODEL: Mapping[str, Callable[[Any, Seen, int | None], View]] = {
    "attribution": lambda model, seen, label: attribution(
        model, seen.text, label=None if model.config.head == "masked-lm" else label, progress=False
    ),  # masked-lm models have only the roll-out, which does not depend on a label
    "logit": lambda model, seen, label: logit(model, seen.text, label=label),
    "lens": lambda model, seen, label: lens(model, seen.text, label=label),
    "ablation": _ablation,
}
#: Views for which the model runs many times: the page shows the answer before them.
SLOW = ("attribution", "ablation")


def _part_of_view(kind: str) -> Callable[..., Part]:
    return lambda parts, state, check: parts.view(state, check, kind)


#: Name of a part -> the function that computes it.
PARTS: Mapping[str, Callable[..., Part]] = {
    "answer": Parts.answer,
    "reasons": Parts.reasons,
    "change": Parts.change,
    "step": Parts.step,
    "value": Parts.value,
    "was": Parts.was,
    "layer": Parts.layer,
    "write": Parts.write,
    "compare": Parts.compare,
    "python": Parts.python,
    **{kind: _part_of_view(kind) for kind in (*OF_TRACE, *OF_MODEL)},
}
