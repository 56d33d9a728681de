"""The diagnosis of a port: its causes or the closest known mistakes, and their printed form."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from math import isclose
from typing import TYPE_CHECKING, Any

from npformer.golden.format import Golden
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes import precision
from npformer.golden.port import Port
from npformer.golden.weights import Finding

if TYPE_CHECKING:
    from npformer.golden.page_edits import Causes

TRAINING = "dropout left on"
ROUNDED = 0.25  # most correct ports stay within this fraction of their budgets
FARTHER = 4.0  # a cause is dropped if its remaining error exceeds ROUNDED and FARTHER times the best cause's
OF_PRECISION = {each.name for each in precision.MISTAKES}
SAME = 1e-4  # two variants give the same values if their distances differ by at most this fraction


@dataclass(frozen=True)
class Fit:
    """A mistake that reproduces the other program's values from its inputs, exactly or nearly."""

    mistake: Mistake
    way: str
    budgets: float  # largest distance from the other program's values, in budgets
    explained: float  # the share of the error that the mistake explains
    certain: bool  # whether the rest of the error is within the error budget

    def __str__(self) -> str:
        return f"{self.mistake.name}{f' ({self.way})' if self.way else ''}"


def together(fits: list[Fit]) -> list[Fit]:
    """Returns the best fit of each mistake, naming all its variants ("ways") that give the same values.

    If a variant fits both alone and with an addition, such as "a token sees only earlier tokens, padding is seen too",
    only the shorter one is named, because the addition changes no value.
    """
    best: dict[str, Fit] = {}
    for fit in fits:
        first = best.setdefault(fit.mistake.name, fit)
        if not isclose(fit.budgets, first.budgets, rel_tol=SAME) and fit.budgets > ROUNDED:
            continue
        if first.way.startswith(f"{fit.way}, "):
            best[fit.mistake.name] = replace(first, way=fit.way)
        elif fit.way not in first.way and not fit.way.startswith(f"{first.way}, "):
            best[fit.mistake.name] = replace(first, way=first.way and f"{first.way}, or {fit.way}")
    return list(best.values())


def nearest(certain: list[tuple[Fit, Port]]) -> list[tuple[Fit, Port]]:
    """Drops each cause whose remaining error exceeds rounding and is far larger than that of the best cause."""
    least = min((fit.budgets for fit, wrong in certain if wrong.dtype == "float32"), default=0.0)
    most = max(ROUNDED, FARTHER * least)
    return [(fit, wrong) for fit, wrong in certain if fit.budgets <= most or wrong.dtype != "float32"]


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of the first stage that diverges, and of later stages that it does not explain."""

    stage: str  # "" if no stage diverges
    # Difference between the other program's stage and the correct one, in budgets; inf if not comparable.
    rightly: float = 0.0
    inputs: tuple[str, ...] = ()  # the other program's stages from which the stage is computed
    fits: list[Fit] = field(default_factory=list)  # the causes, best first; without a cause, the closest mistakes
    weights: list[Finding] = field(default_factory=list)  # errors in the weights that the stages use
    training: bool = False  # the torch model is in training mode: its dropout is on
    then: list[Diagnosis] = field(default_factory=list)  # diagnoses of later stages
    groups: tuple[str, ...] = ()  # groups of weights that the stage uses
    where: str = ""  # the heads, rows and columns that differ, such as "head 2, row 70 of text 1"; "" if all differ
    between: tuple[str, ...] = ()  # the stages between the inputs and `stage`, which the other program lacks
    problem: str = ""  # why the stage could not be compared
    notes: tuple[str, ...] = ()  # layouts recognized by the diagnosis
    search: Callable[[], Causes] | None = field(default=None, repr=False, compare=False)

    @property
    def lies_earlier(self) -> bool:
        return self.rightly <= 1

    @property
    def mistake(self) -> str:
        """The name of the best certain cause; "" if no cause is certain."""
        return next(iter(self.causes), "")

    @property
    def causes(self) -> list[str]:
        """The names of all certain causes: training mode, weights, then other mistakes, best first."""
        found = [*([TRAINING] if self.training else []), *(each.cause for each in self.weights)]
        return list(dict.fromkeys([*found, *(fit.mistake.name for fit in self.known)]))

    @property
    def known(self) -> list[Fit]:
        """The certain fits; [] if they leave a later stage wrong and an edit of the page explains all stages."""
        certain = [fit for fit in self.fits if fit.certain]
        return [] if certain and self.leaves_more and self.edits and self.edits.explain_all else certain

    @property
    def leaves_more(self) -> bool:
        """Whether a later stage has no certain cause."""
        return any(not each.lies_earlier and not any(fit.certain for fit in each.fits) for each in self.then)

    @cached_property
    def edits(self) -> Causes | None:
        """The edits of the model's page that give the port's values, or None. The first access starts the search."""
        found = self.search() if self.search else None
        return found if found and found.stage == self.stage else None

    def searching(self, model: Any, golden: Golden, port: Port) -> Diagnosis:
        """Returns the diagnosis with `search` set; that search stops at the first fit if a known mistake is certain."""
        if self.weights or self.lies_earlier or not self.stage:
            return self
        alone = self.leaves_more or not any(fit.certain for fit in self.fits)

        def search() -> Causes:
            from npformer.golden.page_edits import edits_of_model  # a comparison alone needs no pages

            return edits_of_model(model, golden.inputs, port.given, port.budgets, self.stage, all_of_them=alone)

        return replace(self, search=search)

    def __str__(self) -> str:
        lines = [f"weights: {finding} ({finding.cause})" for finding in self.weights]
        lines += self.notes
        if self.weights:
            lines.append("the stages below are computed with these weights")
        if self.training:
            lines.append(f"cause: {TRAINING}\n    your model is in training mode; call eval() before using it")
        if not self.stage:
            told = "no other stage diverges" if lines else "no stage diverges: nothing to diagnose"
            return "\n".join([*lines, told])
        lines += self._lines()
        then = self.then if self.known or not any(fit.certain for fit in self.fits) else []
        for _, alike in groupby([self, *then], _of_any_layer):
            each, *others = alike
            if each is not self:
                said = f"with this mistake in the model, the next stage that diverges is {each._lines()[0]}"
                lines += ["", said, *each._lines()[1:]]
            if others:
                lines.append(f"  the same mistake in other stages: {', '.join(other.stage for other in others)}")
        return "\n".join(lines)

    def _lines(self) -> list[str]:
        if self.rightly == float("inf"):
            lines = [f"{self.stage}: your array cannot be used: {self.problem}"]
            lines += [f"  only these are not finite: {self.where}"] if self.where else []
            return [*lines, *(f"  cause: {fit}\n    {fit.mistake.explanation}" for fit in self.fits)]
        source = f"your stages up to {self.inputs[-1]}" if self.inputs else "the token ids"
        lines = [f"{self.stage}, computed again from {source}:"]
        if self.lies_earlier:
            return [*lines, "  agrees with yours; the fault is earlier, in how these stages are computed"]
        lines.append(f"  the correct value differs from yours by {self.rightly:.3g} budgets: the fault is here")
        certain = bool(self.known)
        edits = self.edits if self.edits is not None and self.edits.causes else None
        shown = self.fits[:4] if certain or not edits else []  # an edit that fits is better than the closest mistake
        for i, fit in enumerate(shown):
            if fit.certain:
                lines.append(f"  {'cause' if i == 0 else 'also fits'}: {fit}")
                lines.append(f"    {fit.mistake.explanation}")
                lines.append(f"    with it, the difference is {fit.budgets:.3g} budgets")
            else:
                lines.append(f"  closest known mistake: {fit}")
                left = f"the difference is {fit.budgets:.3g} budgets"
                lines.append(f"    with it, {left}; it explains {fit.explained:.0%} of the error")
        if not shown:
            lines.append("  no known mistake gives your values")
        if certain and edits and edits.causes[0].kind == "rounded" and self.mistake not in OF_PRECISION:
            edits = None  # a misread weight may also be nearly 0, like a part that is left out
        if edits:
            lines += [f"  {line}" for line in edits.lines(is_known=certain)]
            certain = True
        if self.where and not certain:
            lines.append(f"  only these values differ: {self.where}")
        if self.groups and not certain:
            lines.append(f"  check the weights that it uses: {', '.join(self.groups[:6])}")
        if self.between and not certain:
            lines.append(f"  to find it, export the stages between: {_shortened(self.between)}")
        return lines


def _shortened(names: tuple[str, ...]) -> str:
    """Lists at most eight of the stages, spread evenly."""
    places = sorted({round(i * (len(names) - 1) / 7) for i in range(8)}) if len(names) > 8 else range(len(names))
    return ", ".join(names[i] for i in places)


def _of_any_layer(diagnosis: Diagnosis) -> str:
    """Describes the cause without layer numbers, or names the stage if no cause is certain."""
    certain = [fit for fit in diagnosis.fits if fit.certain]
    return re.sub(r"layers\.\d+", "layers.*", str(certain[0])) if certain else diagnosis.stage
