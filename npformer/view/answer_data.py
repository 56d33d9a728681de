"""The model's answer, as data for the page: outcomes, and the words and heads that matter most to the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npformer.interpret.answer import Effect, ModelAnswer
from npformer.interpret.attribution import ODDS
from npformer.interpret.head_effects import HeadEffects
from npformer.interpret.next_words import NextWords
from npformer.interpret.stacks import Sides, stack_title
from npformer.text.words import shortened
from npformer.view.ablation_view import AblationView
from npformer.view.attribution_view import AttributionView
from npformer.view.document import View
from npformer.view.head_view import HeadView
from npformer.view.stack_view import sentence

LOOKS = 3  # maximum number of words, and of heads, listed for or against the answer
TRANSLATION = "translation"
PUNCTUATION = " .,;:!?"  # characters to strip from the ends of the words that are listed
LEAST = -1e9  # replaces log 0, because JSON has no infinity


def with_measured(answer: ModelAnswer, found: HeadEffects) -> ModelAnswer:
    """Replaces the heads' estimated effects with the measured changes in the answer's log-odds, largest first.

    Estimates have the wrong sign for some heads. For a translation, an effect is the change in the mean probability of
    the words, in percentage points, when a head of cross-attention is removed.
    """
    mean, what = answer.about == TRANSLATION, _named(answer, found.answer)
    estimated = {effect.attention for effect in answer.effects} or set(found.attentions)
    after = found.before + found.changes
    changes = 100 * found.changes if mean else log_odds(after) - log_odds(np.array(found.before))
    effects = [
        Effect(found.attentions[row], head, float(changes[row, head]))
        for row, head in np.argwhere(np.isfinite(changes)).tolist()
        if found.attentions[row] in estimated
    ]
    metric = "the words' mean probability in percentage points" if mean else f"the log-odds of {what}"
    return replace(answer, metric=metric, effects=tuple(sorted(effects, key=lambda effect: -abs(effect.change))))


def _named(answer: ModelAnswer, outcome: str) -> str:
    """Returns an outcome as part of a sentence: a label unchanged, a word in quotes."""
    return f"'{outcome}' as the {answer.about}" if answer.about in ("next token", "masked word") else outcome


def log_odds(shares: np.ndarray) -> np.ndarray:
    """Returns log p - log(1 - p), which is finite here even for probabilities of 0 and 1."""
    shares = np.clip(shares, 1e-16, 1 - 1e-16)
    return np.log(shares) - np.log1p(-shares)


def place_of(view: HeadView, effect: Effect) -> tuple[int, tuple[int, int]]:
    """Returns where a view shows the head of an effect: the index of the stack, and (the layer's index, the head)."""
    prefix, _, rest = effect.attention.rpartition("layers.")
    first = view.stacks[0]
    title, _, _ = stack_title(prefix, rest.partition(".")[2], Sides(first.queries, first.keys))
    place = next(i for i, stack in enumerate(view.stacks) if stack.title == title)
    return place, (view.stacks[place].numbers.index(effect.layer), effect.head)


def answer_meta(answer: ModelAnswer, views: Sequence[View], words: NextWords | None) -> dict[str, Any]:
    """Returns the answer for the page, with the words and heads that count most for and against the answer."""
    note = "mean of the words' probabilities" if answer.about == TRANSLATION else ""
    heads = " of cross-attention" if answer.about == TRANSLATION else ""
    units: list[str] = []
    first = views[0]
    assert isinstance(first, HeadView)
    found: dict[str, Any] = {
        "about": answer.about,
        "source": sentence(first.stacks[0].keys) if answer.about == TRANSLATION else None,
        "outcomes": [[outcome, share, f"{share:.2%}", note] for outcome, share in answer.outcomes],
        "words": [[], []], "heads": [[], []], "units": units,
        "next": words and {
            "words": words.words, "logits": words.logits.tolist(),
            "temperatures": words.temperatures, "others": np.maximum(words.others, LEAST).tolist(),
        },
    }  # fmt: skip
    method = next((each.methods[0] for each in views if isinstance(each, AttributionView)), None)
    if method is not None and method.signed:
        texts = method.words
        names = [shortened(word.strip(PUNCTUATION) or word, 40) for word in texts]
        places = [at if texts.count(word) > 1 else None for word, at in zip(texts, method.places, strict=True)]
        found["words"] = _for_and_against(list(zip(names, places, strict=True)), method.scores)
        units.append(f"Words: {method.unit}.")
    if answer.effects:
        choices = [_selection(views[0], effect) for effect in answer.effects]
        found["heads"] = _for_and_against(choices, np.array([-effect.change for effect in answer.effects]))
        measured = any(isinstance(each, AblationView) for each in views)
        verb = "fall" if answer.metric.startswith(ODDS) else "falls"
        estimated = "" if measured else "an estimate of "
        units.append(f"Heads{heads}: {estimated}how far {answer.metric} {verb} without the head.")
    if any(outcome.startswith("##") for outcome, _ in answer.outcomes):
        units.append("A token that begins with ## continues the word before it.")
    return found


def _selection(view: View, effect: Effect) -> dict[str, Any]:
    """Returns the kind of attention, the layer and the head that the head view must select to show an effect."""
    assert isinstance(view, HeadView)
    place, (layer, head) = place_of(view, effect)
    return {"attention": place or None, "layer": view.stacks[place].numbers[layer], "head": head}


def _for_and_against(items: Sequence[Any], scores: np.ndarray) -> list[list[tuple[Any, str]]]:
    """Returns two lists of (item, score): the LOOKS largest positive scores, and the LOOKS largest negative scores.

    Items with a magnitude below a tenth of the largest magnitude are left out.
    """
    order = np.argsort(-np.abs(scores), kind="stable").tolist()
    order = [i for i in order if abs(scores[i]) > 0.1 * abs(scores[order[0]])]
    signs = ([i for i in order if scores[i] > 0], [i for i in order if scores[i] < 0])
    return [[(items[i], f"{scores[i]:+z.2f}") for i in each[:LOOKS]] for each in signs]
