"""Learning-rate schedules, which map a step, counted from 0, to a factor of the learning rate.

`constant` and `linear` return the same factors as in Transformers. `trainer.py` calls the schedule before each update.
"""

from __future__ import annotations

from collections.abc import Callable

from npformer.common.errors import NpformerError

Schedule = Callable[[int], float]


def constant(warmup: int = 0) -> Schedule:
    """factor(step) = min(1, step / warmup).

    Parameters
    ----------
    warmup : number of steps with a factor below 1

    Returns
    -------
    function from step to factor

    Examples
    --------
    >>> [constant(warmup=2)(step) for step in range(4)]
    [0.0, 0.5, 1.0, 1.0]
    """
    return lambda step: 1.0 if step >= warmup else step / warmup


def linear(warmup: int, total: int) -> Schedule:
    """factor(step) = step / warmup, then (total - step) / (total - warmup): rises from 0 to 1, then falls to 0.

    With a warm-up, the first update has a rate of 0, as in Transformers' get_linear_schedule_with_warmup.

    Parameters
    ----------
    warmup, total : numbers of steps

    Returns
    -------
    function from step to factor

    Raises
    ------
    NpformerError
        If warmup is not between 0 and total.

    Examples
    --------
    >>> [linear(warmup=2, total=4)(step) for step in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if not 0 <= warmup <= total:
        raise NpformerError(f"linear: expected warmup between 0 and the total of {total} steps, got {warmup}")

    def factor(step: int) -> float:
        return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))

    return factor


def noam(width: int, warmup: int) -> Schedule:
    """factor(step) = width^-0.5 min(n^-0.5, n warmup^-1.5), where n = step + 1.

    Parameters
    ----------
    width : d_model
    warmup : number of steps until the rate is largest, at least 1

    Returns
    -------
    function from step to factor

    Raises
    ------
    NpformerError
        If warmup is below 1.

    References
    ----------
    Vaswani et al., 2017, section 5.3.

    Examples
    --------
    >>> round(noam(width=512, warmup=4000)(3999), 6)
    0.000699
    """
    if warmup < 1:
        raise NpformerError(f"noam: expected a warmup of at least 1, got {warmup}")
    return lambda step: width**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
