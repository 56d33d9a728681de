"""`Fit`: a mistake that gives the other program's values of a stage. `diagnose.py` finds them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npformer.common.mistake import Mistake


@dataclass(frozen=True)
class Fit:
    """A mistake that gives their values, or nearly, when it is applied to their inputs."""

    mistake: Mistake
    way: str
    budgets: float  # largest distance from their values
    explained: float  # the share of the error that it explains
    certain: bool  # within the error budget

    def __str__(self) -> str:
        return f"{self.mistake.name}{f' ({self.way})' if self.way else ''}"


def together(fits: list[Fit]) -> list[Fit]:
    """Returns the best fit of each mistake; ways that give the same numbers are all said."""
    best: dict[str, Fit] = {}
    for fit in fits:
        first = best.setdefault(fit.mistake.name, fit)
        if fit.budgets == first.budgets and fit.way not in first.way:
            best[fit.mistake.name] = replace(first, way=first.way and f"{first.way}, or {fit.way}")
    return list(best.values())
