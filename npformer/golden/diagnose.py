"""Finds out why a stage diverges, by computing it again from the other program's own inputs.

If the correct computation gives their values, the fault lies earlier. If a known mistake gives their values, that is
the diagnosis. Each computation is the model's forward in float64, with their arrays in place of its stages;
`mistakes.py` has the mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.errors import NpformerError
from npformer.golden.budget import FACTOR, jitter, largest_error
from npformer.golden.compare import Comparison, compare
from npformer.golden.format import Golden
from npformer.golden.mistakes import HALF_PRECISION, MISTAKES, Mistake, Port, half
from npformer.golden.record import weights_sha256
from npformer.interpret import stages as table
from npformer.interpret.edit import Edits
from npformer.interpret.trace import Trace, post_process
from npformer.model import Model
from npformer.tap import listen

CANDIDATES = 5  # number of nearest mistakes whose rounding error is measured
ENOUGH = 32  # fewest numbers for a meaningful correlation
ALIKE = 12  # largest ratio between an error and that of simulated half precision, either way


@dataclass(frozen=True)
class Fit:
    """A mistake that gives their values from their inputs, and its distance from them in budgets."""

    mistake: Mistake
    way: str
    budgets: float

    def __str__(self) -> str:
        return f"{self.mistake.name}{f' ({self.way})' if self.way else ''}"


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of the first stage that diverges."""

    stage: str  # "" if none diverges
    rightly: float = 0.0  # budgets between their stage and the correct one from their inputs; inf: not comparable
    inputs: tuple[str, ...] = ()  # their earlier stages, used as they are
    fits: list[Fit] = field(default_factory=list)  # best first

    @property
    def lies_earlier(self) -> bool:
        return self.rightly <= 1

    @property
    def mistake(self) -> str:
        """The name of the mistake, "" if none was found."""
        return self.fits[0].mistake.name if self.fits else ""

    def __str__(self) -> str:
        if not self.stage:
            return "no stage diverges; there is nothing to diagnose"
        if self.rightly == float("inf"):
            return f"{self.stage}: what you have cannot be computed with; see its line above"
        source = f"your stages up to {self.inputs[-1]}" if self.inputs else "the token ids"
        lines = [f"{self.stage}, computed again from {source}:"]
        if self.lies_earlier:
            return f"{lines[0]}\n  agrees with yours; the fault lies earlier, in what these were made from"
        lines.append(f"  made rightly, it is {self.rightly:.3g} budgets from yours: the fault is here")
        if not self.fits:
            return "\n".join([*lines, "  none of the known mistakes gives what you have"])
        best = self.fits[0]
        lines += [
            f"  cause: {best}",
            f"    {best.mistake.explanation}",
            f"    with it, {best.budgets:.3g} budgets from yours",
        ]
        if len(self.fits) > 1:
            lines.append(f"  fits as well: {', '.join(map(str, self.fits[1:4]))}")
        return "\n".join(lines)


def diagnose(
    golden: Golden,
    arrays: Mapping[str, Any] | Any,
    model: Model,
    names: Mapping[str, str] | None = None,
    comparison: Comparison | None = None,
) -> Diagnosis:
    """Finds the cause of the first divergence: a known mistake, or a fault in an earlier stage.

    Parameters
    ----------
    golden, arrays, names : as in `compare`
    model : Model that the golden file was recorded from
    comparison : Comparison, optional
        The result of `compare` on the same arrays, if it is at hand.

    Returns
    -------
    Diagnosis
        `stage`, `mistake` (its name, "" if none of the known ones fits) and `fits`; printing it shows the reasons.

    Raises
    ------
    NpformerError
        If `model` has other weights than the golden file, or as in `compare`.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> reference = npformer.golden.record(model, "I love ice cream", ["*.scores", "*_heads"])
    >>> theirs = dict(npformer.trace(model, "I love ice cream"))
    >>> theirs["layers.0.attention.scores"] = theirs["layers.0.attention.scores"] * 32**0.5  # no division by sqrt(K)
    >>> diagnose(reference, theirs, model).mistake
    'unscaled scores'
    """
    check_model(golden, model)
    comparison = comparison or compare(golden, arrays, names)
    if comparison.first is None or comparison.first.problem:
        return Diagnosis(comparison.first.stage if comparison.first else "", float("inf"))
    return _Case(golden, comparison, model).diagnosis()


def check_model(golden: Golden, model: Model) -> None:
    """Raises NpformerError unless the golden file was recorded from this model's weights."""
    if weights_sha256(model) != golden.weights_sha256:
        raise NpformerError(
            f"these are not the weights that the golden file of {golden.model} was recorded from; give that model"
        )


class _Enough(Exception):
    """Raised to stop a forward once the wanted stage has fired."""


class _Case:
    """One diverging stage, the other program's earlier arrays, and the correct model."""

    def __init__(self, golden: Golden, comparison: Comparison, model: Model) -> None:
        assert comparison.first is not None
        self.golden, self.stage = golden, comparison.first.stage
        theirs = comparison.theirs
        self.theirs = [array.astype(np.float64) for array in theirs.stages[self.stage]]
        order = list(golden.stages)
        self.given = {name: theirs.stages[name] for name in order[: order.index(self.stage)] if name in theirs.stages}
        weights = {name: array.astype(np.float64) for name, array in layout.flatten(dict(model.weights)).items()}
        width = max(theirs.width, *(len(text) for text in golden.texts), 0)
        self.port = Port(model.config, weights, golden.texts, (), self.stage, self.theirs, width)
        groups = dict.fromkeys(name.rpartition(".")[0] for name in weights)
        self.port = replace(self.port, groups=tuple(group for group in groups if self._bears(group)))
        self.rightly = self.compute(self.port)

    def diagnosis(self) -> Diagnosis:
        budgets = self.distance(self.rightly) / self.golden.budgets[self.stage]
        if budgets <= 1:
            return Diagnosis(self.stage, budgets, tuple(self.given))
        everything = list(range(len(self.theirs)))
        unpadded = [i for i in everything if len(self.golden.texts[i]) == self.port.width]
        fits = self.exact_fits(everything)
        if not fits and unpadded and len(unpadded) < len(everything):  # a mistake may depend on their padding
            fits = self.exact_fits(unpadded)
        return Diagnosis(self.stage, budgets, tuple(self.given), fits or self.half_fits())

    def exact_fits(self, texts: list[int]) -> list[Fit]:
        """Returns the mistakes that give their values on these texts within the budget, best first."""
        budget, tried = self.golden.budgets[self.stage], []
        for mistake in MISTAKES:
            for way, port in mistake.ways(self.port):
                with suppress(NpformerError):  # impossible with these weights or texts
                    made = self.compute(port)
                    if self.distance(made, self.rightly, texts) > budget:
                        tried.append((self.distance(made, texts=texts), mistake, way, port, made))
        fits = []
        for distance, mistake, way, port, made in sorted(tried, key=lambda each: each[0])[:CANDIDATES]:
            if distance <= max(budget, self.rounding(port, made)):
                fits.append(Fit(mistake, way, distance / budget))
        return fits

    def half_fits(self) -> list[Fit]:
        """Returns half precision as the mistake if the error has its size and is unrelated to the values."""
        error = _flat(self.theirs) - _flat(self.rightly)
        with np.errstate(invalid="ignore", divide="ignore"):  # a constant stage has no correlation
            related = abs(np.corrcoef(error, _flat(self.rightly))[0, 1]) > 0.5
        fits = []
        for kind, port in HALF_PRECISION.ways(self.port):
            simulated = _rms(_flat(self.compute(port)) - _flat(self.rightly))
            apart = abs(np.log(_rms(error) / simulated)) if simulated else np.inf
            held = all(np.array_equal(half(kind, array), array) for array in self.theirs)
            if apart < np.log(ALIKE) and (held or (error.size >= ENOUGH and not related)):
                fits.append((not held, apart, Fit(HALF_PRECISION, kind, self.distance(self.rightly))))
        budget = self.golden.budgets[self.stage]
        return [replace(fit, budgets=fit.budgets / budget) for _, _, fit in sorted(fits, key=lambda each: each[:2])[:1]]

    def compute(self, port: Port, dtype: Any = np.float64, seed: int | None = None) -> list[np.ndarray]:
        """Computes the stage from their inputs as `port` does, one array for each text."""
        weights = layout.unflatten({name: array.astype(dtype, copy=False) for name, array in port.weights.items()})
        model = Model(port.config, weights, threads=1)
        noise = [] if seed is None else [{"*": jitter(seed)}]
        recorded = Trace(self.stage, port.config)

        def stop(name: str, array: np.ndarray) -> np.ndarray:
            if name == self.stage and len(recorded.texts(name)) == len(port.texts):
                raise _Enough
            return array

        with ExitStack() as stack:
            stack.enter_context(suppress(_Enough))
            stack.enter_context(recorded)
            stack.enter_context(listen(stop))
            stack.enter_context(
                listen(Edits({} if port.from_ids else self.given, *(make() for make in port.edits), *noise), first=True)
            )
            post_process(port.config, model.run(port.texts))
        return [
            array[tuple(slice(size) for size in theirs.shape)]  # without padding that a mistake has added
            for array, theirs in zip(recorded.texts(self.stage), self.theirs, strict=True)
        ]

    def distance(
        self, made: list[np.ndarray], other: list[np.ndarray] | None = None, texts: list[int] | None = None
    ) -> float:
        """Returns the largest difference between `made` and `other` (by default theirs), on some or all texts."""
        other = self.theirs if other is None else other
        chosen = range(len(made)) if texts is None else texts
        return largest_error([made[i] for i in chosen], [other[i] for i in chosen])

    def rounding(self, port: Port, made: list[np.ndarray]) -> float:
        """Returns the error budget of a stage with a mistake: its numbers may be larger than the correct ones."""
        draws = [self.compute(port, np.float32, seed) for seed in range(3)]
        return FACTOR * max(largest_error(draw, made) for draw in draws)

    def _bears(self, group: str) -> bool:
        """Tells whether a group of weights is used between the stages they gave and the one in question."""
        place = {name: i for i, name in enumerate(table.names(self.port.config))}
        norms = [
            place[name] for name in self.given if name.endswith("norm")
        ]  # later stages depend only on the last one
        made = place.get("logits" if group == "head.output" else group, -1)
        return group not in self.given and max(norms, default=-1) < made <= place[self.stage]


def _flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays]).astype(np.float64)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
