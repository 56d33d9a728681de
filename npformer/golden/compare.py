"""Compares another program's arrays with a golden file: one line for each stage, and the first stage that diverges.

The error of a stage is the largest distance of its values from the float64 truth. It is also given as a multiple of the
stage's budget, the largest error that a correct port in the same precision may have. `diagnose.py` explains why a stage
diverges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

import numpy as np

from npformer.checkpoint.parameters import parameters
from npformer.common.checks import one_of, shown
from npformer.common.errors import NpformerError
from npformer.common.halves import HALVES
from npformer.golden.budget import RATIOS
from npformer.golden.format import Golden
from npformer.golden.given_texts import choices, has_padding, renumbered, said_of
from npformer.golden.graph import made_from, parents, parted
from npformer.golden.masked_scores import without_masked_scores
from npformer.golden.mistakes.precision import held
from npformer.golden.names import Theirs, read
from npformer.golden.transposed import untransposed


@dataclass(frozen=True)
class StageError:
    """The error of one stage as a number and in budgets, and the text and index of the largest error."""

    stage: str
    max_abs: float  # NaN if the port's array is not finite or could not be compared
    budgets: float
    cosine: float  # cosine of the angle between the port's values and the truth
    worst: tuple[int, ...]
    problem: str = ""  # why the stage could not be compared

    @property
    def diverges(self) -> bool:
        return not self.budgets <= 1


@dataclass(frozen=True)
class Comparison:
    """The errors of another program's stages, in order of computation."""

    rows: list[StageError]
    theirs: Theirs
    missing: list[str]  # stages of the golden file that the other program lacks
    golden: Golden  # the file, or the part of it with which the arrays were compared
    dtype: str = "float32"  # the precision that sets the budgets
    evaluated: Comparison | None = None  # the comparison repeated after eval(), if a model in training mode diverged
    #: The comparison with sqrt(d_model) rounded the other way, if the same stage diverges first.
    alternative: Comparison | None = None

    @property
    def first(self) -> StageError | None:
        """The first stage that diverges."""
        return next((row for row in self.rows if row.diverges), None)

    @property
    def ok(self) -> bool:
        return self.first is None

    @property
    def unanswered(self) -> list[str]:
        """The final stages missing from the comparison, also as probabilities; [] if no stage was compared."""
        compared = {row.stage for row in self.rows}
        absent = [name for name in self.golden.answers if name in self.missing] if self.rows else []
        return [name for name in absent if name.replace("logits", "probabilities") not in compared]

    def with_note(self, note: str) -> Comparison:
        """Returns the comparison with one more note on how the arrays were read."""
        return replace(self, theirs=replace(self.theirs, notes=[*self.theirs.notes, note])) if note else self

    def without_partial(self) -> Comparison:
        """Returns the comparison without stages that the port exports for some texts only, which no diagnosis can use.

        The row of a correct stage remains, and so does a wrong stage if no other stage shows the fault.
        """
        partial = self.theirs.partial.keys() & self.theirs.stages.keys()
        others = any(row.diverges and row.stage not in partial for row in self.rows)
        dropped = {row.stage for row in self.rows if row.stage in partial and (others or not row.diverges)}
        if not dropped:
            return self
        first = min(dropped, key=list(self.golden.stages).index)
        texts = self.theirs.partial[first]
        more = f" and {len(dropped) - 1} more" if len(dropped) > 1 else ""
        which = f"text{'s' * (len(texts) > 1)} {', '.join(map(str, texts))}"
        note = f"{first}{more}: only in {which}; not used for the diagnosis"
        stages = {name: arrays for name, arrays in self.theirs.stages.items() if name not in dropped}
        rows = [row for row in self.rows if row.stage not in dropped or not row.diverges]
        return replace(self, rows=rows, theirs=replace(self.theirs, stages=stages, notes=[*self.theirs.notes, note]))

    @property
    def passes(self) -> bool:
        """Whether no stage diverges and the model's final stages were compared."""
        return self.ok and not self.unanswered

    def is_only_layout(self, row: StageError) -> bool:
        """Returns whether an unreadable stage must be correct, because a stage computed from it is correct."""
        config = self.golden.config
        after = made_from(parents(config, parameters(config)), row.stage)
        return any(each.stage in after and not each.diverges for each in self.rows)

    def __str__(self) -> str:
        lines = [f"{'stage':<31} {'max abs':>9} {'budgets':>9} {'cosine':>9}  worst at"]
        for row in self.rows:
            mark = " <" if row is self.first else ""
            if row.problem:
                lines.append(f"{row.stage:<31} {row.problem}{mark}")
                continue
            worst = ", ".join(map(str, row.worst))
            numbers = f"{row.max_abs:>9.2e} {row.budgets:>9.3g} {row.cosine:>9.6f}"
            lines.append(f"{row.stage:<31} {numbers}  {worst}{mark}")
        lines.append("")
        lines += [fill(note, 80, subsequent_indent="  ", break_on_hyphens=False) for note in self.theirs.notes]
        if self.theirs.unused:
            lines.append(_listed("not used", self.theirs.unused))
        if self.missing:
            lines.append(_listed("not compared, because the port has no such stage", self.missing))
        if self.dtype != "float32":
            lines.append(f"budgets for {self.dtype}: {RATIOS[self.dtype]:g} times the budgets for float32")
        if self.evaluated is not None:
            rest = "nothing diverges" if self.evaluated.ok else f"{self.evaluated.first.stage} diverges first"  # type: ignore[union-attr]
            lines.append(f"your model is in training mode, with its dropout on; after eval() {rest}")
        if not self.rows:
            lines.append("no stage was compared")
        elif self.first is None and self.missing:
            compared = f"{len(self.rows)} of {len(self.rows) + len(self.missing)} stages"
            within = "every compared stage is within its budget"
            if self.unanswered:
                lines.append(f"incomplete ({compared}): {within}")
                lines.append(f"export {' and '.join(self.unanswered)} too: without the answer, nothing passes")
            else:
                lines.append(f"pass ({compared}): {within}")
        elif self.first is None:
            lines.append(f"no stage diverges: all {len(self.rows)} are within their budgets")
        else:
            lines.append(f"the first stage that diverges: {self.first.stage}")
        return "\n".join(lines)


def compare(
    golden: Golden, arrays: Mapping[str, Any] | Any, names: Mapping[str, str] | None = None, dtype: str | None = None
) -> Comparison:
    """Compares another program's stages with a golden file.

    Parameters
    ----------
    golden : Golden
    arrays : mapping from name to array, or a torch model
        The names are those that npformer, Hugging Face or TransformerLens uses for stages. A list has one array for
        each text, like a trace of several texts. A torch model runs on the file's token ids, in its current mode
        (training or evaluation).
    names : mapping, optional
        Maps the other program's names to npformer's, if it uses none of these namings.
    dtype : "float32", "float16", "bfloat16", "tf32" or "int8", optional
        The intended precision of the port. By default, float16 or bfloat16 if at least half of the stages have that
        precision, else float32.

    Returns
    -------
    Comparison
        `ok`, `first` (the first stage that diverges) and `rows`; printing it shows a table.

    Raises
    ------
    NpformerError
        If no array is recognized, the arrays belong to different token ids, or the dtype is unknown.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> reference = npformer.golden.record(model, "I love ice cream", "logits")
    >>> compare(reference, {"logits": np.array([1.0, 2.0])}).first.stage
    'logits'
    """
    if dtype is not None:
        one_of("dtype", dtype, RATIOS)
    if not isinstance(golden, Golden):
        raise NpformerError(f"golden: expected a golden file, got {shown(golden)}; golden.load(path) reads one")
    if isinstance(arrays, Mapping):
        return _compare(golden, arrays, names, dtype)
    if not hasattr(arrays, "state_dict"):
        raise NpformerError(
            f"arrays: expected a torch model, or a mapping from names to arrays such as a trace, got {shown(arrays)}"
        )
    from npformer.golden.torch_model import is_training, stages_of

    comparison = _compare(golden, stages_of(arrays, golden), names, dtype)
    if comparison.ok or not is_training(arrays):
        return comparison
    evaluated = _compare(golden, stages_of(arrays, golden, after_eval=True), names, dtype)
    alike = [row.max_abs for row in comparison.rows] == [row.max_abs for row in evaluated.rows]
    return comparison if alike else replace(comparison, evaluated=evaluated)  # if alike, no dropout changed the result


def _compare(
    golden: Golden, arrays: Mapping[str, Any], names: Mapping[str, str] | None, dtype: str | None
) -> Comparison:
    """Compares the texts to which the arrays belong."""
    chosen = choices(golden, arrays, names)
    count = len(golden.texts)
    found = []
    for texts in chosen:
        own = golden if len(texts) == count else golden.of_texts(texts)
        each = _of_either_scale(own, renumbered(arrays, texts), names, dtype)
        found.append(each.with_note(said_of(texts, count)))
    if len(chosen[0]) == count or -1 not in found[0].theirs.numbers:
        return found[0]
    exact = [i for i, each in enumerate(found) if not has_padding(each.golden, each.theirs)]
    agreeing = [found[i] for i in exact or range(len(found)) if found[i].first is not found[i].rows[0]]
    if agreeing:  # if all are padded, the longest text, because a shorter text may be its beginning
        return max(agreeing, key=lambda each: (0, _place(each)) if exact else (len(each.golden.texts[0]), 0))
    if len(exact) > 1:
        numbers = " and ".join(str(chosen[i][0]) for i in exact)
        stage = found[0].rows[0].stage
        raise NpformerError(
            f"{stage}: its shape fits texts {numbers}, and its values fit none of them; name it by its text, such as "
            f"{chosen[exact[0]][0]}/{stage}"
        )
    return found[exact[0]] if exact else _of_either_scale(golden, arrays, names, dtype)


def _place(comparison: Comparison) -> int:
    """The index, in order of computation, of the first stage that diverges; the number of stages if none does."""
    order = list(comparison.golden.stages)
    return order.index(comparison.first.stage) if comparison.first else len(order)


def _of_either_scale(
    golden: Golden, arrays: Mapping[str, Any], names: Mapping[str, str] | None, dtype: str | None
) -> Comparison:
    """Compares with sqrt(d_model) rounded as the checkpoint says, or unrounded if more stages then agree."""
    comparison = _of_either_padding(golden, arrays, names, dtype)
    other = None if comparison.ok else golden.with_unrounded_scale
    if other is None:
        return comparison
    said = f"sqrt(d_model) is not rounded to {golden.config.scale_dtype}, as transformers does in float32"
    unrounded = _of_either_padding(other, arrays, names, dtype).with_note(said)
    if _place(unrounded) > _place(comparison):
        return unrounded
    same = unrounded.first and comparison.first and unrounded.first.stage == comparison.first.stage
    return replace(comparison, alternative=unrounded) if same else comparison


def _of_either_padding(
    golden: Golden, arrays: Mapping[str, Any], names: Mapping[str, str] | None, dtype: str | None
) -> Comparison:
    """Compares texts as padded on the right, or on the left if that makes the embeddings correct.

    Left padding that shifts the positions is a mistake, which `diagnose` finds in texts read as padded on the right.
    """
    comparison = _compared(golden, read(golden, arrays, names), dtype)
    if comparison.ok or not has_padding(golden, comparison.theirs):
        return comparison
    before = _compared(golden, read(golden, arrays, names, at_end=True), dtype)
    first, other = _place(comparison), _place(before)
    embedded = before.first is None or not parted(before.first.stage)[2].startswith("embeddings.")
    return before if embedded and other > first else comparison


def _compared(golden: Golden, theirs: Theirs, dtype: str | None) -> Comparison:
    dtype = dtype or _dtype(golden, theirs)
    theirs = without_masked_scores(golden, untransposed(golden, theirs, RATIOS[dtype]), RATIOS[dtype])
    rows, missing = [], []
    for name in golden.stages:
        if name in theirs.problems:
            rows.append(StageError(name, np.nan, np.nan, np.nan, (), theirs.problems[name]))
        elif name in theirs.stages:
            rows.append(_error(name, theirs.stages[name], golden, RATIOS[dtype]))
        else:
            missing.append(name)
    return Comparison(rows, theirs, missing, golden, dtype).without_partial()


def _dtype(golden: Golden, theirs: Theirs) -> str:
    """Returns float16 or bfloat16 if at least half of the stages have that precision in the port only, else float32."""
    for kind in HALVES:
        known = [name for name, arrays in golden.stages.items() if not all(held(kind, array) for array in arrays)]
        compared = [theirs.stages[name] for name in known if name in theirs.stages]
        in_half = sum(all(held(kind, array) for array in arrays) for arrays in compared)
        if in_half and in_half * 2 >= len(compared):
            return kind
    return "float32"


def assert_close(
    golden: Golden, arrays: Mapping[str, Any] | Any, names: Mapping[str, str] | None = None, dtype: str | None = None
) -> None:
    """For tests: raises an AssertionError with the table of `compare` if a stage diverges or no stage was compared.

    Parameters
    ----------
    golden, arrays, names, dtype : as in `compare`

    Raises
    ------
    AssertionError
        If a stage diverges, or no stage was compared.
    NpformerError
        As in `compare`.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> reference = npformer.golden.record(model, "I love ice cream", "logits")
    >>> assert_close(reference, npformer.trace(model, "I love ice cream"))
    """
    comparison = compare(golden, arrays, names, dtype)
    if not comparison.ok or not comparison.rows:
        raise AssertionError(f"{comparison}")


@np.errstate(over="ignore", invalid="ignore")  # the row reports non-finite values
def _error(name: str, theirs: list[np.ndarray], golden: Golden, ratio: float) -> StageError:
    truth = golden.truth[name]
    errors = [np.abs(array.astype(np.float64) - true) for array, true in zip(theirs, truth, strict=True)]
    for i, array in enumerate(theirs):
        if not np.isfinite(array).all():
            worst = np.argwhere(~np.isfinite(array))[0]
            return StageError(
                name, np.nan, np.nan, np.nan, (i, *worst.tolist()), _not_finite(array, (i, *worst.tolist()))
            )
    text = int(np.argmax([error.max() for error in errors]))
    worst = np.unravel_index(int(errors[text].argmax()), errors[text].shape)
    largest = float(errors[text].max())
    budgets = largest / (golden.budgets[name] * ratio)
    return StageError(name, largest, budgets, _cosine(theirs, truth), (text, *map(int, worst)))


def _not_finite(array: np.ndarray, where: tuple[int, ...]) -> str:
    count = int((~np.isfinite(array)).sum())
    return f"{array[where[1:]]} at {', '.join(map(str, where))}; {count} values of text {where[0]} are not finite"


def _cosine(theirs: list[np.ndarray], truth: list[np.ndarray]) -> float:
    a, b = (np.concatenate([each.ravel() for each in arrays]).astype(np.float64) for arrays in (theirs, truth))
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else float(np.array_equal(a, b))


def _listed(title: str, names: list[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return fill(f"{title}: {', '.join(names[:6])}{more}", 80, subsequent_indent="  ", break_on_hyphens=False)
