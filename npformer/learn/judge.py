"""Judges a learner's function: right, not yet written, or wrong, with the reason in a sentence.

`answers.py` compares numbers. A mistake is named only if it reproduces the learner's numbers in every case.
"""

from __future__ import annotations

import errno
import inspect
import linecache
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from npformer.learn.answers import (
    Case,
    Outcome,
    Truth,
    copied,
    in_form_of,
    is_numeric,
    leaves,
    near,
    raised,
    same,
    truth,
)
from npformer.learn.causes import cause
from npformer.learn.contents import Function
from npformer.learn.exercise import Exercise
from npformer.learn.shown import difference, shown_answer, shown_case, value_name
from npformer.learn.widening import widening

SECONDS = 1.5  # seconds of processor time to search for a cause beyond the exercise's table of mistakes
LINE, MESSAGE = 150, 300  # maximum characters to show of a learner's line and of a message
PRINTED = 2**24  # maximum bytes of output of a process, so that a printing loop cannot fill the disk
NARROW = "Use math.sqrt and float() for numbers, or end with .astype(x.dtype)."
PASSED, UNWRITTEN, WRONG = "passed", "not yet written", "wrong"
#: Function -> its parameters in the course of npformer 0.4, if they differ from the current parameters.
OLDER = {
    "linear": "x, weight, bias",
    "layer_norm": "x, weight, bias, eps=1e-12",
    "softmax": "x",
    "causal_mask": "n_queries, n_keys",
    "multi_head_attention": "x, n_heads, query, key, value, output, mask=None",
    "encoder_layer": "x, n_heads, attention, attention_norm, ffn, ffn_norm",
    "encoder": "x, n_heads, layers",
    "classify": "ids, n_heads, weights",
    "cross_entropy": "logits, target",
    "linear_backward": "grad, x, weight",
    "layer_norm_backward": "grad, x, weight, eps=1e-12",
}


@dataclass(frozen=True)
class Verdict:
    """The verdict on a function.

    Parameters
    ----------
    name : str
    state : PASSED, UNWRITTEN or WRONG
    kind : "numbers", "form", "dtype", "argument", "exception", "random", "signature", "missing", "syntax" or "time", if
        wrong
    problem : str, one sentence
    cause, sentence : str, the name and the explanation of the known mistake that gives the learner's numbers, or ""
    line : int, the number of the line that raised an exception; 0 without an exception
    numbers : str, the first case that shows the problem
    note : str, a remark on a right function, or ""
    """

    name: str
    state: str
    kind: str = ""
    problem: str = ""
    cause: str = ""
    sentence: str = ""
    line: int = 0
    numbers: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Call:
    """A call of the learner's function."""

    args: tuple[Any, ...]
    outcome: Outcome
    error: BaseException | None = None
    written: str = ""  # name of an argument that the call changed


@dataclass(frozen=True)
class Judged:
    """A verdict that has no cause yet, and the cases in which a cause must reproduce the learner's answers.

    The search for a cause does not run the learner's code, so it is done later, outside the time limit.
    """

    exercise: Exercise
    verdict: Verdict
    cases: tuple[Case, ...] = ()

    def with_cause(self) -> Verdict:
        """Returns the verdict with the known mistake, if any, that reproduces the learner's answers."""
        if not self.cases:
            return self.verdict
        name, sentence = cause(self.exercise, self.cases, SECONDS)
        return replace(self.verdict, cause=name, sentence=sentence)


def judge(exercise: Exercise, function: Any, signature: inspect.Signature, file: str) -> Judged:
    """Judges a function of the learner's file."""
    problem = _signature_problem(exercise.name, function, signature)
    if problem:
        return Judged(exercise, Verdict(exercise.name, WRONG, "signature", problem))
    names = list(signature.parameters)
    calls = [_called(function, args, names) for args in exercise.cases()]
    if any(isinstance(each.error, NotImplementedError) for each in calls):
        return Judged(exercise, Verdict(exercise.name, UNWRITTEN))
    truths = [truth(exercise.right, each.args) for each in calls]
    calls = [_in_form(each, true) for each, true in zip(calls, truths, strict=True)]
    for each, true in zip(calls, truths, strict=True):
        verdict = _judged(exercise, function, each, true, names, file)
        if verdict is not None:
            return Judged(exercise, verdict, _cases(verdict, calls, truths))
    dtypes = (_dtype(exercise.name, each.outcome.answer, true) for each, true in zip(calls, truths, strict=True))
    found = sorted(filter(None, dtypes), key=lambda verdict: verdict.state == PASSED)  # wrong dtypes come first
    verdict = next(iter(found), Verdict(exercise.name, PASSED))
    return Judged(exercise, replace(verdict, note=_widened(function, calls)) if verdict.note else verdict)


def _widened(function: Function, calls: Sequence[_Call]) -> str:
    """Returns a note on a right function that returns float64. It names the expression that widens the arrays."""
    for each in calls:
        line, source = widening(function, each.args)
        if line:
            return f"Note: line {line}, `{short(source)}`, is float64, so the answer is float64. {NARROW}"
    return f"Note: the answer is float64. A float64 number or array, such as np.sqrt(2), widens float32. {NARROW}"


def _signature_problem(name: str, function: Any, expected: inspect.Signature) -> str:
    """Returns a sentence if a function's signature is wrong: it cannot be called as expected, or renames a parameter.

    `*args` may stand for any of the parameters, as in a decorator. Functions without a signature, such as those of
    np.vectorize, are checked only when they are called.
    """
    if not callable(function):
        return f"{name} is no longer a function."
    try:
        signature = inspect.signature(function)
    except Exception:
        return ""
    given, wanted = list(signature.parameters.values()), list(expected.parameters.values())
    placed = [each for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    rest = any(each.kind is each.VAR_POSITIONAL for each in given)
    named = all(theirs.name == ours.name for theirs, ours in zip(placed, wanted, strict=False))
    calls = [[ours for ours in wanted if ours.default is ours.empty], wanted]
    if named and (rest or len(placed) >= len(wanted)) and all(_takes(signature, len(call)) for call in calls):
        return ""
    got = short(f"{name}{signature}", MESSAGE)
    if str(signature) == f"({OLDER.get(name)})":
        advice = f"`npformer learn reset {name}` writes the new form, and saves your code in another file"
        return f"{got} has the parameters of npformer 0.4; expected {name}{expected}. Change them, or {advice}."
    return f"The signature was changed: expected {name}{expected}, got {got}."


def _takes(signature: inspect.Signature, count: int) -> bool:
    """Returns whether a function can be called with `count` positional arguments."""
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _called(function: Function, args: tuple[Any, ...], names: list[str]) -> _Call:
    given = copied(args)
    try:
        with np.errstate(all="ignore"):
            answer = function(*given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the learner's code may raise anything, SystemExit included
        return _Call(args, raised(error), error, _written(args, given, names))
    return _Call(args, Outcome(_frozen(answer)), None, _written(args, given, names))


def _in_form(made: _Call, true: Truth) -> _Call:
    return made if made.error else replace(made, outcome=Outcome(in_form_of(made.outcome.answer, true.outcome.answer)))


def _frozen(answer: Any) -> Any:
    """Returns the answer with copies of its arrays, because a later call could change them."""
    try:
        return copied((answer,))[0]
    except Exception:
        return answer


def _written(before: tuple[Any, ...], after: tuple[Any, ...], names: list[str]) -> str:
    for name, old, new in zip(names, before, after, strict=False):
        kept = dict(leaves(old))
        for path, value in leaves(new):
            if not is_numeric(value):
                continue
            if path not in kept or not np.array_equal(
                value, kept.pop(path), equal_nan=np.asarray(value).dtype.kind == "f"
            ):
                return f"{name}.{path}" if path else name
        if removed := [path for path, value in kept.items() if is_numeric(value)]:
            return f"{name}.{removed[0]}"
    return ""


# --- one call ---------------------------------------------------------------------------------------------------------


def _judged(
    exercise: Exercise, function: Function, made: _Call, true: Truth, names: list[str], file: str
) -> Verdict | None:
    """Returns the first problem of a call, or None if the call has no problem."""
    wrong, values = Verdict(exercise.name, WRONG), exercise.values
    if made.error is not None:
        return _exception(wrong, made, names, file)
    numbers = shown_answer(names, made.args, made.outcome.answer, true, values)
    if made.written:
        problem = f"It writes to its argument {made.written}. Return a new array, and change copies only."
        if "." in made.written:
            name, _, place = made.written.partition(".")
            problem = f"It changes its argument {name}, at {place}. Copy the list and the array, and change the copies."
        if same(made.outcome.answer, true):
            numbers = shown_case(names, made.args)
        return replace(
            wrong, kind="argument", problem=problem, cause="in-place write", sentence=problem, numbers=numbers
        )
    problem = _form(made.outcome.answer, true.outcome.answer, values)
    if problem:
        return replace(wrong, kind="form", problem=problem, numbers=numbers)
    if any(np.asarray(value).dtype == np.float16 for _, value in leaves(made.outcome.answer)):
        problem = "Wrong dtype: expected float32, got float16, which has only three digits."
        return replace(wrong, kind="dtype", problem=problem, numbers=numbers)
    if not same(made.outcome.answer, true):
        again = (_called(function, made.args, names).outcome for _ in range(_repeats(made.outcome.answer)))
        if not all(_equal(in_form_of(each.answer, true.outcome.answer), made.outcome.answer) for each in again):
            problem = "Two calls with the same arguments give different answers."
            return replace(wrong, kind="random", problem=problem, numbers=numbers)
        return replace(wrong, kind="numbers", problem=_values(made.outcome.answer, true, values), numbers=numbers)
    return None


def _repeats(answer: Any) -> int:
    """Returns how often to repeat a call to detect randomness: 20 times for a token id, which may agree by chance."""
    return 20 if isinstance(answer, int | np.integer) else 1


def _equal(a: Any, b: Any) -> bool:
    first, second = dict(leaves(a)), dict(leaves(b))
    return first.keys() == second.keys() and all(near(first[path], second[path], 0.0) for path in first)


def said_of(error: BaseException) -> str:
    """Returns the type of an exception and the first line of its message."""
    said = raised(error).message.splitlines()[:1]
    return f"{short(type(error).__name__)}: {short(said[0], MESSAGE) if said else ''}".rstrip(": ")


def short(text: str, longest: int = LINE) -> str:
    """Shortens text from a learner's file for a report, and escapes control characters."""
    text = text[: longest + 1]
    text = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)
    return text if len(text) <= longest else f"{text[:longest]} ..."


def raised_at(error: BaseException, file: str) -> tuple[int, str]:
    """Returns the line number of a traceback's innermost frame in a file, and the start of a sentence about this line.

    If no frame is in the file, returns 0 and "".
    """
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    if not frames:
        return 0, ""
    line = frames[-1].lineno or 0
    return line, f"Line {line}, `{short(linecache.getline(file, line).strip())}`, raises"


def _exception(wrong: Verdict, made: _Call, names: list[str], file: str) -> Verdict:
    assert made.error is not None
    line, place = raised_at(made.error, file)
    problem = f"{place or 'It raises'} {said_of(made.error)}"
    if isinstance(made.error, OSError) and made.error.errno == errno.EFBIG:
        problem += f". The output is limited to {PRINTED // 2**20} MB."
    return replace(wrong, kind="exception", problem=problem, line=line, numbers=shown_case(names, made.args))


def _form(answer: Any, right: Any, values: Sequence[str] = (), path: str = "") -> str:
    """Returns a sentence if an answer's type, structure or shape differs from the right answer's, else ""."""
    where = f" for {value_name(values, path)}" if path else ""
    if answer is None:
        return f"It returns None{where}. Is a return missing?"
    if isinstance(right, dict):
        if not isinstance(answer, dict):
            return f"Expected a dict{where}, got {_kind(answer)}."
        if missing := [str(name) for name in right if name not in answer]:
            return f"The dict{where} lacks {', '.join(missing)}."
        if extra := [str(name) for name in answer if name not in right]:
            return f"The dict{where} has an unknown key {extra[0]}."
        parts = ((answer[name], right[name], values, f"{path}.{name}".lstrip(".")) for name in right)
        return next(filter(None, (_form(*each) for each in parts)), "")
    if isinstance(right, list | tuple):
        if not isinstance(answer, list | tuple) or len(answer) != len(right):
            return f"Expected {len(right)} values{where}, got {_kind(answer)}."
        parts = ((*each, values, f"{path}.{i}".lstrip(".")) for i, each in enumerate(zip(answer, right, strict=True)))
        return next(filter(None, (_form(*each) for each in parts)), "")
    if not is_numeric(answer):
        return f"Expected {'a number' if np.ndim(right) == 0 else 'an array'}{where}, got {_kind(answer)}."
    if np.shape(answer) != np.shape(right):
        return f"Wrong shape{where}: expected {np.shape(right)}, got {np.shape(answer)}."
    return ""


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "bfiu":
        return f"an array of dtype {value.dtype}; .astype(np.float32) makes it an array of numbers"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a value of type {type(value).__name__}"


def _values(answer: Any, true: Truth, values: Sequence[str]) -> str:
    """Returns a sentence about wrong numbers, NaN or infinity."""
    exact = dict(leaves(true.outcome.answer))
    for path, value in leaves(answer):
        numbers, right = np.asarray(value), np.asarray(exact[path])
        if numbers.dtype.kind == "f" and right.dtype.kind == "f":
            if np.isnan(numbers).any() and not np.isnan(right).any():
                return "The answer contains NaN."
            if np.isinf(numbers).any() and not np.isinf(right).any():
                return "The answer contains infinity."
    return f"The numbers are wrong{difference(answer, true, values)}."


def _dtype(name: str, answer: Any, true: Truth) -> Verdict | None:
    """Returns a verdict if right numbers have the wrong dtype. A function that returns float64 passes, with a note."""
    wrong, exacts = Verdict(name, WRONG, "dtype"), dict(leaves(true.outcome.answer))
    for path, value in leaves(answer):
        exact = exacts[path]
        kind, got = np.asarray(exact).dtype.kind, np.asarray(value).dtype
        if np.ndim(exact) == 0 and got.kind in ("iu" if kind in "iu" else "fiu"):
            continue
        expected = {"f": "float32", "b": "bool"}.get(kind, "an integer dtype")
        if str(got) == expected or (got.kind in "iu" and kind in "iu"):
            continue
        if str(got) == "float64" and kind == "f":
            return Verdict(name, PASSED, note="float64")
        return replace(wrong, problem=f"Right numbers, but the wrong dtype: expected {expected}, got {got}.")
    return None


def _cases(verdict: Verdict, calls: list[_Call], truths: list[Truth]) -> tuple[Case, ...]:
    """Returns the cases in which a cause must reproduce the learner's answers; () if no cause can be found."""
    if verdict.kind in ("random", "argument") or any(each.written for each in calls):
        return ()
    return tuple(Case.of(each.args, each.outcome, true) for each, true in zip(calls, truths, strict=True))
