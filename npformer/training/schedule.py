"""Learning-rate schedules: functions of the step, counted from 0, whose number multiplies the learning rate.

They are those of torch and Transformers, step for step. `trainer.py` asks them before each update.
"""

from __future__ import annotations

from collections.abc import Callable

from npformer.errors import NpformerError

Schedule = Callable[[int], float]


def constant(warmup: int = 0) -> Schedule:
    """1, after `warmup` steps that rise to it: 0, 1 / warmup, 2 / warmup, ..."""
    return lambda step: 1.0 if step >= warmup else step / warmup


def linear(warmup: int, total: int) -> Schedule:
    """Rising from 0 at the first step to 1 at step `warmup`, and from there falling to 0 at step `total`.

    The first update has the rate 0, as with Transformers' get_linear_schedule_with_warmup.
    """
    if not 0 <= warmup <= total:
        raise NpformerError(f"linear: warmup must lie in 0 ... total, {total}, got {warmup}")

    def factor(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))

    return factor


def noam(width: int, warmup: int) -> Schedule:
    """width^-0.5 min(n^-0.5, n warmup^-1.5) for the n-th step, n = step + 1. Vaswani et al., 2017, section 5.3."""
    if warmup < 1:
        raise NpformerError(f"noam: warmup must be at least 1, got {warmup}")
    return lambda step: width**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
