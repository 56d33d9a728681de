"""Every exercise: correct solutions pass, and each mistake in its table is named, without any other mistake."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from npformer.learn.answers import FACTOR, Truth, call, in_float64, leaves, mapped, truth
from npformer.learn.chapters import EXERCISES
from npformer.learn.contents import GIVEN, PAGES, definition, right, split
from npformer.learn.exercise import Exercise, Slip
from npformer.learn.judge import PASSED, WRONG, Judged, judge
from npformer.learn.programs import BODY, edited
from npformer.learn.template import signatures
from tests.learn import loops

SIGNATURES = signatures()
PAGE = SimpleNamespace(**{name: right(name) for name in EXERCISES}, __file__="page.py")
LONG = (
    "multi_head_attention",
    "encoder_layer",
    "encoder",
    "distilbert",
    "multi_head_attention_backward",
    "encoder_layer_backward",
    "distilbert_backward",
    "cached_attention",
    "cached_gpt2_layer",
    "gpt2_step",
)
#: Functions with many mistakes, for which the search through all pairs reaches its time limit.
SEARCHED = ("layer_norm", "softmax", "embed", "layer_norm_backward", "scaled_dot_product_attention",
            "scaled_dot_product_attention_backward")  # fmt: skip


def as_learner(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns the function as a learner writes it: with the template's signature, and float32 input and output."""

    def learners(*args: Any) -> Any:
        return mapped(lambda array: array.astype(np.float32) if array.dtype.kind == "f" else array, function(*args))

    learners.__signature__ = SIGNATURES[name]  # type: ignore[attr-defined]
    return learners


@cache
def right_answers(name: str) -> tuple[Truth, ...]:
    return tuple(truth(EXERCISES[name].right, args) for args in EXERCISES[name].cases())


def judged(name: str, function: Callable[..., Any], file: str = "") -> Judged:
    """Returns the judge's findings. To save time, the correct answers are computed once for all functions."""
    answers = iter(right_answers(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[judge.__module__], "truth", lambda right, args: next(answers))
        return judge(EXERCISES[name], function, SIGNATURES[name], file)


def test_every_exercise_is_a_function_of_a_page() -> None:
    assert [name for name in PAGES if name not in GIVEN] == list(EXERCISES)


@pytest.mark.parametrize("name", PAGES)
def test_the_course_has_all_that_a_definition_reads(name: str) -> None:
    page = vars(import_module(f"npformer.plain.{PAGES[name]}"))
    read = {each.id for each in ast.walk(ast.parse(definition(name))) if isinstance(each, ast.Name)}
    assert {each for each in read if each in page} <= {*PAGES, "np", "math"}


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=lambda each: each.name)
def test_a_mistake_is_an_edit_of_code_that_the_page_has_once(exercise: Exercise) -> None:
    signature, _, body = split(exercise.name)
    for slip in (*exercise.slips, *exercise.constants):
        assert slip.edits, slip.name
        assert slip.sentence.endswith("."), f"{slip.sentence}: a line of the table has no arrow"
        for old, _ in slip.edits:
            assert old == BODY or f"{signature}\n{body}".count(old) == 1, (slip.name, old)
        assert edited(exercise.name, slip.edits), f"{slip.name}: two edits overlap"


@pytest.mark.parametrize("module", [PAGE, loops], ids=["page", "loops"])
def test_right_solutions_pass(module: Any) -> None:
    for name in EXERCISES:
        verdict = judged(name, getattr(module, name), str(module.__file__)).verdict
        assert verdict.state == PASSED, verdict


@pytest.mark.parametrize("module", [PAGE, loops], ids=["page", "loops"])
def test_right_solutions_stay_within_half_of_the_budget(module: Any) -> None:
    """The rest of the budget is for other correct solutions, whose errors may be larger."""
    for name, exercise in EXERCISES.items():
        for args, true in zip(exercise.cases(), right_answers(name), strict=True):
            answer, exact = dict(leaves(call(getattr(module, name), args).answer)), dict(leaves(true.outcome.answer))
            for path, budget in true.budgets.items():
                finite = np.isfinite(exact[path])
                error = np.abs(np.asarray(answer[path], np.float64) - exact[path])[finite].max(initial=0)
                assert error <= budget / 2, (name, path, error / budget * FACTOR)


def of_each(slow: Sequence[str]) -> list[Any]:
    return [pytest.param(each, id=name, marks=[pytest.mark.slow] * (name in slow)) for name, each in EXERCISES.items()]


@pytest.mark.parametrize("exercise", of_each(slow=LONG))
def test_every_mistake_is_named_and_no_other(exercise: Exercise) -> None:
    """The judge names the first mistake that fits, so any two mistakes in a table must differ in at least one case."""
    assert_named(exercise, exercise.slips)


@pytest.mark.parametrize("name", LONG)
def test_a_mistake_of_a_long_function_is_named(name: str) -> None:
    assert_named(EXERCISES[name], EXERCISES[name].slips[-2:])


def assert_named(exercise: Exercise, slips: Sequence[Slip]) -> None:
    for slip in slips:
        verdict = judged(exercise.name, as_learner(slip.wrong(), exercise.name)).with_cause()
        assert (verdict.state, verdict.cause, verdict.sentence) == (WRONG, slip.name, slip.sentence), verdict


@pytest.mark.parametrize("exercise", of_each(slow=LONG))
def test_the_number_of_a_mistake_is_found(exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npformer.learn.judge.SECONDS", 600.0)  # a slow machine needs more than 0.75 s
    for constant in exercise.constants:
        for start in constant.starts:
            number = 1.7 * start
            function = as_learner(constant.wrong(number=number), exercise.name)
            verdict = judged(exercise.name, function).with_cause()
            assert (verdict.cause, verdict.sentence) == (
                constant.name,
                constant.sentence.format(number=f"{number:.4g}"),
            )


def test_every_mistake_gives_numbers_in_some_case() -> None:
    """A mistake that always raises an exception would be named for any program that raises the same exception."""
    silent = [
        (exercise.name, slip.name)
        for exercise in EXERCISES.values()
        for slip in exercise.slips
        if all(call(slip.wrong(), args).raised for args in exercise.cases())
    ]
    assert silent == []


def test_each_mistake_of_an_exercise_has_another_sentence() -> None:
    for exercise in EXERCISES.values():
        sentences = [slip.sentence for slip in exercise.slips]
        assert len(set(sentences)) == len(sentences), exercise.name


def nearly(slip: Slip) -> Callable[..., Any]:
    """Returns the mistake with numbers off by about a thousandth. The factor varies, because a constant factor is
    itself a mistake.
    """

    def off(array: np.ndarray) -> np.ndarray:
        return array * np.linspace(1.001, 1.002, array.size).reshape(array.shape) if array.dtype.kind == "f" else array

    return lambda *args: mapped(off, slip.wrong()(*args))


@pytest.mark.parametrize("exercise", of_each(slow=[*LONG, *SEARCHED]))
def test_a_mistake_is_not_named_for_nearly_its_numbers(exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a known mistake gives the learner's numbers only approximately, it is not the cause.

    Nothing fits, so the search through all pairs of mistakes reaches its limit, which is shorter here.
    """
    monkeypatch.setattr(sys.modules[judge.__module__], "SECONDS", 0.5)
    step = 12 if exercise.name in LONG else 6  # a sample, because the rule does not depend on the mistake
    for slip in exercise.slips[::step]:
        wrong = [call(slip.wrong(), in_float64(args)) for args in exercise.cases()]
        if any(each.raised for each in wrong) or not floats(wrong[0].answer):
            continue
        verdict = judged(exercise.name, as_learner(nearly(slip), exercise.name)).with_cause()
        assert verdict.state == WRONG
        assert verdict.cause == "", (slip.name, verdict.cause)


def floats(answer: Any) -> bool:
    """Returns whether all arrays of an answer have finite numbers that are not all 0, so a factor changes them."""
    arrays = [np.asarray(each) for _, each in leaves(answer)]
    return all(each.dtype.kind == "f" and each.ndim and np.isfinite(each).all() and each.any() for each in arrays)


def test_the_page_of_the_course_counts_the_mistakes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learn" / "course.md").read_text(encoding="utf-8")
    [said] = re.findall(r"list of mistakes, more than (\d+) in all", " ".join(page.split()))
    assert int(said) < sum(len(each.slips) for each in EXERCISES.values()) <= int(said) + 20
