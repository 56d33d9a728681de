"""Finds out why stages diverge, by computing each again from the other program's earlier stages.

If the correct computation gives the other program's values, the fault is in an earlier stage. If a known mistake gives
them, that mistake is the diagnosis, and it is put into the model to explain the next stage that diverges. Every
computation is a forward pass of the model on the other program's arrays, in float64 except where it measures rounding
errors. `mistakes/` defines the mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.common.errors import NpformerError
from npformer.common.halves import HALVES, half
from npformer.engine.runtime.threads import single_blas_thread
from npformer.golden.budget import FACTOR, RATIOS, largest_error
from npformer.golden.compare import Comparison, StageError, compare
from npformer.golden.diagnosis import ROUNDED, Diagnosis, Fit, nearest, together
from npformer.golden.format import Golden
from npformer.golden.forward import Forward
from npformer.golden.graph import HEAD, block_of, matches, parents, parted, span
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes import GENERAL, LAST, general, of_model, precision
from npformer.golden.mistakes.elsewhere import elsewhere, narrower
from npformer.golden.mistakes.general import RENAMED, names_of, said_of
from npformer.golden.mistakes.precision import HALF, half_of
from npformer.golden.mistakes.rows import made_in_rows, suspects, where_wrong, wrong_rows
from npformer.golden.names import Theirs
from npformer.golden.not_finite import overflow, scores_of, where_not_finite
from npformer.golden.pairs import Causes, two_mistakes
from npformer.golden.port import Port, with_padding
from npformer.golden.record import check_model, with_scale
from npformer.golden.transposed import maps, untransposed
from npformer.golden.ways import computed, cut, share_explained
from npformer.golden.weights import Finding, as_ours, check_weights
from npformer.model import Model, Seq2Seq

CANDIDATES = 8  # number of closest mistakes for which the rounding error is measured
DRAWS = 3  # runs with random rounding that measure that error
EXPLAINED = 0.9  # the closest mistake is reported if it explains at least this fraction of the error
HALVED = 0.5  # a cause must leave less than this fraction of the error unexplained
FAULTS = 5  # maximum number of faults to report, one after another
LATER = 4  # number of diverging stages after a fault that decide between its possible causes

RELATIONS = general.MISTAKES  # the least specific mistakes, the last of `GENERAL`
ROUNDING = {mistake.name for mistake in precision.MISTAKES}
Progress = Callable[[str], object]


def diagnose(
    golden: Golden,
    arrays: Mapping[str, Any] | Any,
    model: Model | Seq2Seq,
    names: Mapping[str, str] | None = None,
    comparison: Comparison | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Finds why stages diverge: known mistakes, wrong weights, or a fault in an earlier stage.

    Parameters
    ----------
    golden, arrays, names, dtype : as in `compare`
    model : Model that the golden file was recorded from
    comparison : Comparison, optional
        The result of `compare` on the same arrays, to save time.
    progress : function of a str, optional
        Called with each stage and mistake before the mistake is tried.

    Returns
    -------
    Diagnosis
        `stage`, `mistake` (the name of the best fit, "" if no mistake is certain), `fits` and `then`; printing it shows
        the reasons.

    Raises
    ------
    NpformerError
        If the weights of `model` differ from those of the golden file, or for the reasons given in `compare`.

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
    comparison = comparison or compare(golden, arrays, names, dtype)
    found = _diagnosed(comparison, model, progress)
    if found.causes or comparison.alternative is None:
        return found
    other = _diagnosed(comparison.alternative, model, progress)
    return other if other.causes else found


def _diagnosed(comparison: Comparison, model: Model | Seq2Seq, progress: Progress | None) -> Diagnosis:
    """Returns the diagnosis of a comparison."""
    golden = comparison.golden
    model = with_scale(model, golden.config.scale_dtype)
    findings = check_weights(model, comparison.theirs.weights, comparison.dtype)
    if comparison.evaluated is not None:
        return replace(_diagnosed(comparison.evaluated, model, progress), training=True)
    if (first := comparison.first) is None:
        return Diagnosis("", weights=findings)
    rows = [row for row in comparison.rows if row.diverges and not row.problem]
    of_other_text = first.stage in comparison.theirs.other_tokens and not comparison.is_only_layout(first)
    if first.stage in comparison.theirs.problems and (of_other_text or not rows):
        return Diagnosis(first.stage, float("inf"), weights=findings, problem=first.problem)
    if not rows:
        with single_blas_thread():
            return _Case(comparison, model, findings, progress).not_finite(first)
    with single_blas_thread():
        case = _Case(comparison, model, findings, progress)
        if (theirs := case.untransposed()) is not comparison.theirs:
            case = _Case(replace(comparison, theirs=theirs), model, findings, progress)
        notes = tuple(each for each in theirs.notes if each not in comparison.theirs.notes)
        found = replace(case.diagnosis([row.stage for row in rows]), notes=notes)
        return found.searching(model, comparison.golden, case.right)


class _Case:
    """A comparison to diagnose: the other program's stages and weights, and the ports that explain them."""

    def __init__(
        self, comparison: Comparison, model: Model | Seq2Seq, findings: list[Finding], progress: Progress | None = None
    ) -> None:
        golden, config = comparison.golden, model.config
        self.golden, self.comparison, self.findings = golden, comparison, findings
        self.progress = progress or (lambda told: None)
        theirs, dtype = comparison.theirs, comparison.dtype
        self.given = theirs.stages
        weights = layout.flat_arrays(model.weights)
        if findings:
            weights = weights | as_ours(model, theirs.weights)
        if dtype in HALVES:
            weights = {name: half(dtype, array) for name, array in weights.items()}
        self.texts = list(range(len(golden.texts)))  # indices of the texts to compare
        #: Mistakes that could explain the unpadded texts; None if these texts are correct.
        self.promising: set[str] | None = None
        self.parts: Causes = []  # the mistakes of the model that explain a part of the last stage's error
        self.runs: dict[tuple[int, int | None], tuple[Port, dict[str, list[np.ndarray]]]] = {}  # of `everywhere`
        self.mistakes = of_model(config)
        self.again: tuple[Mistake, ...] = ()  # the causes found so far, and variants of them in fewer places
        self.forward = Forward(self.given, weights, model.threads)
        lengths, source_lengths = (tuple(map(len, texts)) for texts in (golden.texts, golden.sources))
        self.right = Port(
            config, weights, golden.texts, "", [], frozenset(), with_padding(theirs.widths, lengths), lengths,
            known=tuple(name for name in parents(config, weights) if not name.endswith(".input")),
            sources=golden.sources, source_lengths=source_lengths,
            source_widths=with_padding(theirs.source_widths, source_lengths), given=theirs.stages,
            truth=golden.truth,
            budgets={stage: budget * RATIOS[dtype] for stage, budget in golden.budgets.items()}, stored=weights,
        )  # fmt: skip

    def untransposed(self) -> Theirs:
        """Returns the other program's arrays, with scores and weights transposed back even after an earlier fault."""
        theirs, stages = self.comparison.theirs, maps(self.golden, self.comparison.theirs)
        if not any(row.diverges and row.stage in stages for row in self.comparison.rows):
            return theirs
        given = {name: arrays for name, arrays in self.given.items() if name not in stages}
        forward = Forward(given, self.right.weights, self.forward.threads)
        right = forward(replace(self.right, given=given))
        return untransposed(self.golden, theirs, self.ratio(self.right), right)

    def diagnosis(self, diverging: list[str]) -> Diagnosis:
        """Explains the diverging stages in order, each with a port that has the causes found so far."""
        if renamed := self.renamed(diverging):
            return renamed
        found, bases = list[Diagnosis](), [self.right]
        for i, stage in enumerate(diverging):
            if len(found) == FAULTS or ((found or self.findings) and self.explained(stage, bases)):
                continue
            if found and self.lacks(bases[-1], stage):
                continue
            each, certain = self.explain(stage, bases[-1])
            if not certain and (pair := self.two(each, bases[-1])):
                first, wrong, each, certain = pair
                found.append(first)
                bases.append(wrong)
            if len(certain) > 1:  # other stages decide between the causes
                after = diverging[i + 1 :]
                unexplained = (name for name in after if not self.explained(name, [self.right]))
                others = self.deciding(stage, [*after[:LATER], *islice(unexplained, LATER)])
                known = [sum(self.explained(name, [port]) for name in others) for _, port in certain]
                certain = [pair for pair, count in zip(certain, known, strict=True) if count == max(known)]
                each = replace(each, fits=together([fit for fit, _ in certain]))
            found.append(each)
            if not certain or certain[0][0].mistake.reorders:
                break
            fit, wrong = certain[0]
            again = (
                narrower(fit.mistake, fit.way, bases[-1], wrong),
                *(fit.mistake for fit, _ in certain if fit.mistake not in RELATIONS),
            )
            self.again += tuple(each for each in again if each not in self.again)
            bases.append(replace(wrong, dtype="float32"))
        first = found[0] if found else Diagnosis("")
        return replace(first, then=found[1:], weights=self.findings)

    def not_finite(self, row: StageError) -> Diagnosis:
        """Explains the first stage that diverges if it has numbers that are not finite."""
        theirs = self.given[row.stage]
        causal = self.right.config.causal or parted(row.stage)[0] == "decoder."
        scores = scores_of(row.stage, self.everywhere(self.right), causal)
        fit, where = overflow(theirs, scores), where_not_finite(theirs)
        found = Diagnosis(row.stage, float("inf"), weights=self.findings, problem=row.problem, where=where)
        return replace(found, fits=[fit]) if fit else found

    def deciding(self, stage: str, later: list[str]) -> list[str]:
        """Returns the stages that decide between causes: later stages, and stages of the same block or the same name.

        For example, a cause in all layers is wrong if it would change the stage in a layer where the stage is correct.
        """
        block, kind = block_of(stage), parted(stage)[2]
        like = [name for name in self.given if block and (block_of(name) == block or parted(name)[2] == kind)]
        return list(dict.fromkeys(name for name in (*later, *like) if name != stage and name in self.golden.budgets))

    def renamed(self, diverging: list[str]) -> Diagnosis | None:
        """Returns the diagnosis if the port only confuses names of stages, else None."""
        found = {
            stage: names_of(replace(self.right, stage=stage, theirs=self.given[stage]))
            for stage in diverging
            if stage in self.golden.truth
        }
        if self.findings or len(found) < len(diverging) or not all(found.values()):
            return None
        of = parents(self.right.config, self.right.weights)
        if all(set(of.get(stage, ())) & set(names) for stage, names in found.items()):
            return None  # each stage equals one of its parents, so a step was left out, and the names are correct
        first = diverging[0]
        each, certain = self.explain(first, self.right)
        others = [fit for fit, port in certain if all(self.explained(name, [port]) for name in self.given)]
        fit = Fit(RENAMED, said_of(found), 0.0, 1.0, True)
        return replace(each, fits=together([fit, *others]))

    def explained(self, stage: str, bases: Iterable[Port]) -> bool:
        """Returns whether one of the ports gives the other program's values of a stage."""
        theirs = self.looked_at(self.given[stage])
        for base in bases:
            made = self.everywhere(base).get(stage)
            if made is None:
                continue
            error, budget = largest_error(cut(made, theirs, base), theirs), self.budget(base, stage)
            if error <= budget:
                return True
            draws = [self.everywhere(base, seed).get(stage, made) for seed in range(DRAWS)]
            if error <= FACTOR * self.ratio(base) * max(largest_error(draw, made) for draw in draws):
                return True
        return False

    def lacks(self, base: Port, stage: str) -> bool:
        """Returns whether the port with the causes found so far has no such stage, because a cause removed it."""
        return stage not in (self.everywhere(base) or [stage])

    def everywhere(self, base: Port, seed: int | None = None) -> dict[str, list[np.ndarray]]:
        """Computes all stages in one run, each from the other program's inputs. Returns {} for an impossible port."""
        key = id(base), seed
        if key not in self.runs:
            made: dict[str, list[np.ndarray]] = {}
            with suppress(NpformerError):
                made = self.forward(base, "", np.float64 if seed is None else np.float32, seed)
            self.runs[key] = base, made
        return {name: self.looked_at(arrays) for name, arrays in self.runs[key][1].items()}

    def explain(self, stage: str, base: Port) -> tuple[Diagnosis, Causes]:
        """Returns the diagnosis of a stage, and the certain causes, each with its port."""
        port = self.at_stage(base, stage)
        right = self.compute(port)
        port = replace(port, rightly=right)
        budgets = largest_error(self.looked_at(right), self.looked_at(port.theirs)) / self.budget(port)
        before = [name for name in self.golden.stages if name in self.given]
        inputs = tuple(before[: before.index(stage)])
        if budgets <= 1:
            return Diagnosis(stage, budgets, inputs), []
        groups = tuple(f"{group}.*" for group in suspects(port, self.comparison.theirs.weights))
        found = Diagnosis(stage, budgets, inputs, groups=groups, between=port.between)
        closest: list[Fit] = []
        self.promising = None
        if (rounded := half_of(port, self.golden.budgets[stage], self.comparison.dtype)) is not None:
            kind, what = rounded
            fit = Fit(HALF, f"{kind}, {what}", budgets / RATIOS[kind], 1.0, True)
            return replace(found, fits=[fit]), [(fit, replace(port, dtype=kind))]
        for mistakes, tried, texts in self.tiers(port):
            fits = [
                (replace(fit, certain=fit.certain and not self.refuted(fit, wrong, port, texts)), wrong)
                for fit, wrong in self.fits(mistakes, tried, texts)
            ]
            certain = nearest([(fit, wrong) for fit, wrong in fits if fit.certain])
            if certain:
                self.texts = texts
                return replace(found, fits=together([fit for fit, _ in certain])), certain
            if mistakes is self.mistakes and tried is port and texts is self.texts:
                closest += [fit for fit, _ in fits]
        best = {fit.mistake.name: fit for fit in sorted(closest, key=lambda fit: fit.explained)}
        where = where_wrong(self.looked_at(port.theirs), self.looked_at(right), self.budget(port))
        return replace(found, fits=list(best.values())[:-3:-1], where=where), []

    def two(self, unknown: Diagnosis, base: Port) -> tuple[Diagnosis, Port, Diagnosis, Causes] | None:
        """Finds two mistakes that together explain a stage: the diagnoses of both, a port with the first, and the
        causes of the second. Returns None without such a pair."""
        port = self.at_stage(base, unknown.stage)

        def second(wrong: Port) -> Causes:
            self.promising, there = None, self.at_stage(wrong, unknown.stage)
            there = replace(there, rightly=self.compute(there))
            found = [each for each in self.fits(self.mistakes, there, self.texts) if each[0].certain]
            bases = port, there
            return nearest([each for each in found if not any(self.refuted(*each, of, self.texts) for of in bases)])

        if not unknown.between or not (pairs := two_mistakes(self.parts, second)):
            return None
        first, rest = pairs[0].first, [fit for pair in pairs for fit, _ in pair.second]
        one = replace(unknown, fits=together([pair.first for pair in pairs]))
        return one, pairs[0].port, replace(unknown, rightly=first.budgets, fits=together(rest)), pairs[0].second

    def refuted(self, fit: Fit, wrong: Port, base: Port, texts: list[int]) -> bool:
        """Returns whether a cause cannot be right: it would change a correct stage, or only undoes an earlier cause.

        Other stages do not refute a mistake in precision. If the cause is a rule for the stage that it explains, only
        the stages computed from that stage refute it, because a port may make the mistake in this stage alone.
        """
        if self.takes_back(wrong, base):
            return True
        if fit.mistake.name in ROUNDING:
            return False
        before, self.texts = self.texts, texts
        try:
            near = self.changed_with(wrong, base)
            return any(self.explained(name, [base]) and not self.explained(name, [wrong]) for name in near)
        finally:
            self.texts = before

    def changed_with(self, wrong: Port, base: Port) -> list[str]:
        """Returns the other stages that a cause must explain: the rest of the block, or all layers for a head.

        If the cause has a rule for the stage itself, these are only stages that the cause's other rules change: those
        computed from the stage, and those of a single layer.
        """
        block, near = block_of(base.stage), list[str]()
        if wrong.is_rule_for(base):
            others = [each for each, _ in wrong.rules[len(base.rules) :] if not matches(base.stage, each)]
            of = parents(base.config, base.weights) if others else {}
            near = [name for name in of if base.stage in of[name] and any(matches(name, each) for each in others)]
            near += [each for each in others if each in self.given]  # stages of a single layer
        elif block:
            near = [name for name in self.given if name != base.stage and block_of(name) == block]
        elif base.stage.startswith(HEAD):
            near = [name for name in self.given if block_of(name)]
        return [name for name in near if name in self.given and name in self.everywhere(wrong)]

    def takes_back(self, wrong: Port, base: Port) -> bool:
        """Returns whether a cause's rules only undo an earlier cause's rules, and change nothing on their own."""
        added, count = wrong.rules[len(base.rules) :], len(self.right.rules)
        if len(base.rules) == count or not added or wrong.rules[: len(base.rules)] != base.rules:
            return False
        right = self.at_stage(self.right, base.stage)
        alone = replace(wrong, rules=(*self.right.rules, *added))
        with suppress(NpformerError):
            made = self.compute(right), self.compute(alone)
            return largest_error(*map(self.looked_at, made)) <= self.budget(base)
        return False

    def tiers(self, port: Port) -> Iterator[tuple[tuple[Mistake, ...], Port, list[int]]]:
        """Yields groups of mistakes to try, in order, each with the port to change and the texts to compare."""
        if self.again:
            yield self.again, port, self.texts
        yield self.mistakes, port, self.texts
        unpadded = self.unpadded(port)
        if unpadded != self.texts:  # a mistake may depend on the other program's padding
            if (batch := port.in_a_batch()) is not None:
                yield self.mistakes, batch, self.texts
            if self.promising:
                yield self.mistakes, port, unpadded
        yield GENERAL, port, self.texts
        yield (*elsewhere(self.mistakes), *LAST), port, self.texts
        if wrong_rows(port) is not None:
            yield tuple(map(made_in_rows, self.mistakes)), port, self.texts

    def unpadded(self, port: Port) -> list[int]:
        """Returns the compared texts that have no padding, or all of them if the port masks its padding."""
        return [i for i in self.texts if port.hides or not port.is_padded(i)]

    def fits(self, mistakes: Iterable[Mistake], port: Port, texts: list[int]) -> Causes:
        """Returns the mistakes that give the other program's values on these texts, exactly or nearly, best first.

        Retries take most of the time. A mistake is therefore tried again, in a padded batch or on some of the texts,
        only if it could explain the differences in the texts without padding.
        """
        theirs, budget = [port.theirs[i] for i in texts], self.budget(port)
        first = mistakes is self.mistakes and texts is self.texts and not port.hides
        some = self.unpadded(port) if first else []
        if mistakes is self.mistakes and self.promising is not None:
            mistakes = [each for each in mistakes if each.name in self.promising]
        tried, promising, parts = [], set[str](), list[tuple[Fit, Port]]()
        for mistake, way, wrong, made in computed(self.forward, mistakes, port, self.progress):
            explained = share_explained(port, made, texts, budget)
            distance = largest_error([made[i] for i in texts], theirs) if explained else 0.0
            parts += [(Fit(mistake, way, distance / budget, explained, True), wrong)] if explained else []
            if explained > 1 - HALVED:
                tried.append((distance, explained, mistake, way, wrong, made))
            if share_explained(port, made, some, budget) > 1 - HALVED:
                promising.add(mistake.name)
        if some and largest_error([port.theirs[i] for i in some], [port.rightly[i] for i in some]) > budget:
            self.promising = promising
        self.parts = parts if first else self.parts
        found = []
        for distance, explained, mistake, way, wrong, made in sorted(tried, key=lambda each: each[0])[:CANDIDATES]:
            allowed = self.budget(wrong)
            simulated = wrong.dtype == "float32" or explained >= EXPLAINED  # a wide budget alone proves nothing
            certain = (simulated and distance <= allowed) or (
                explained > EXPLAINED and distance <= self.rounding(wrong, made)
            )
            if certain or explained >= EXPLAINED:
                found.append((Fit(mistake, way, distance / allowed, explained, certain), wrong))
        order = {id(each[4]): i for i, each in enumerate(tried)}  # of equal fits, the more common is first
        return sorted(found, key=lambda each: (max(each[0].budgets, ROUNDED), order[id(each[1])]))

    def looked_at(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [arrays[i] for i in self.texts]

    def at_stage(self, base: Port, stage: str) -> Port:
        """Returns the port that computes one stage from the other program's nearest stages."""
        before = {name: None for name in self.given if name != stage}
        between = span(parents(base.config, base.weights), stage, before)
        return replace(base, stage=stage, theirs=self.given[stage], span=between)

    def ratio(self, port: Port) -> float:
        return max(RATIOS[port.dtype], RATIOS[self.comparison.dtype])

    def budget(self, port: Port, stage: str = "") -> float:
        return self.golden.budgets[stage or port.stage] * self.ratio(port)

    def compute(self, port: Port, dtype: Any = np.float64, seed: int | None = None) -> list[np.ndarray]:
        """Computes a port's stage from the other program's inputs, one array for each text."""
        return cut(self.forward(port, port.stage, dtype, seed)[port.stage], port.theirs, port)

    def rounding(self, port: Port, made: list[np.ndarray]) -> float:
        """Returns the error budget of a stage with a mistake, measured again, because its values may be larger."""
        draws = [self.compute(port, np.float32, seed) for seed in range(DRAWS)]
        return FACTOR * self.ratio(port) * max(largest_error(draw, made) for draw in draws)
