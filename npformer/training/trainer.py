"""The training loop: epochs of shuffled batches, an evaluation after each, and checkpoints to go on from.

A run that was stopped, at whatever step, goes on from its last checkpoint to the same bits: the order of the examples
and what dropout draws depend on the seed, the epoch and the step alone, and a step has the same bits for any number of
threads. `gradients.py` makes the gradients.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.errors import NpformerError
from npformer.training.dropout import Dropout
from npformer.training.gradients import Objective, gradients
from npformer.training.optimiser import Adam, clip_scale, global_norm
from npformer.training.progress import Progress
from npformer.training.schedule import Schedule, constant, linear, noam
from npformer.training.trainable import Trainable

E = TypeVar("E")
FORMAT = "npformer-training"
LAST, BEST, STEP = "last.safetensors", "best.safetensors", "step-{}.safetensors"
SCHEDULES = ("constant", "linear", "noam")

Evaluate = Callable[[int], dict[str, float]]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. warmup: steps, or below 1 the share of all steps. clip: the gradients' largest norm.

    dropout: stage or pattern -> rate. schedule "noam" takes learning_rate as the factor of width^-0.5 min(...).
    average: the weights at the end and at so many less one places before it are kept for `Run.choose`, each
    average_every steps apart (0: an epoch). window: batches are of examples of like length, by sorting so many
    batches' worth of shuffled ones; then their order is drawn.
    """

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    schedule: str = "linear"
    warmup: float = 0.06
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float | None = 1.0
    dropout: dict[str, float] = field(default_factory=dict)
    lazy: bool = True
    average: int = 1
    average_every: int = 0
    window: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "average", "average_every", "window", "seed"):
            least = 0 if name in ("average_every", "seed") else 1
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise NpformerError(f"{name}: expected a whole number from {least}, got {getattr(self, name)!r:.80}")
        ranges = {"learning_rate": (0, 1e3), "eps": (0, 1), "clip": (0, math.inf)}  # without their ends
        for name, (low, high) in ranges.items():
            if (value := getattr(self, name)) is not None and not low < value < high:
                raise NpformerError(f"{name}: expected a number between {low} and {high}, got {value}")
        for name, value in (("warmup", self.warmup), ("weight_decay", self.weight_decay)):
            if not 0 <= value < math.inf:
                raise NpformerError(f"{name}: expected a number from 0, got {value}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise NpformerError(f"betas: expected two numbers from 0 to below 1, got {self.betas}")
        if self.schedule not in SCHEDULES:
            raise NpformerError(f"schedule: expected one of {', '.join(SCHEDULES)}, got {self.schedule!r:.80}")

    def averaged(self, per_epoch: int) -> range:
        """The steps after which weights are kept for their mean, with so many steps an epoch."""
        last, every = self.epochs * per_epoch, self.average_every or per_epoch
        return range(last - every * min(self.average - 1, (last - 1) // every), last + 1, every)

    def batches(self, lengths: Sequence[tuple[int, ...]], epoch: int) -> list[np.ndarray]:
        """An epoch's batches: the indices of examples of these lengths, drawn by the seed and the epoch alone."""
        random, size = np.random.default_rng((self.seed, epoch)), self.batch_size
        order = random.permutation(len(lengths))
        if self.window == 1:
            return [order[start : start + size] for start in range(0, len(order), size)]
        parts = (order[start : start + size * self.window] for start in range(0, len(order), size * self.window))
        order = np.concatenate([sorted(part, key=lambda i: lengths[i]) for part in parts])
        starts = random.permutation(np.arange(0, len(order), size))
        return [order[start : start + size] for start in starts]

    def factors(self, total: int, width: int) -> Schedule:
        """What multiplies the learning rate at each of `total` steps."""
        warmup = round(self.warmup * total) if self.warmup < 1 else int(self.warmup)
        if self.schedule == "linear":
            return linear(min(warmup, total), total)
        return constant(warmup) if self.schedule == "constant" else noam(width, max(1, warmup))


@dataclass
class State:
    """Where a run stands: steps done, what the epoch at hand has added up, and a row of numbers an epoch."""

    step: int = 0
    loss: float = 0.0
    right: int = 0
    count: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class Run(Generic[E]):
    """One training, and the folder of its checkpoints: `last.safetensors`, to go on from, and `best.safetensors`.

    evaluate(epoch): numbers of the model as it stands, before the first epoch (0) and after each; `score` names the one
    that is to be large, and the weights with the largest are kept. Where a folder holds a run's checkpoint already, it
    goes on from there; NpformerError where that was another run's.
    """

    def __init__(
        self,
        objective: Objective[E],
        weights: Trainable,
        recipe: Recipe,
        folder: str | Path | None = None,
        threads: int = 1,
        save_every: int = 500,
        progress: Progress | None = None,
    ) -> None:
        self.objective, self.weights, self.recipe, self.threads = objective, weights, recipe, threads
        self.folder = None if folder is None else Path(folder)
        self.save_every, self.progress = save_every, progress
        self.state = State()
        self.optimiser = Adam(weights.flat, recipe.betas, recipe.eps, recipe.weight_decay, recipe.lazy)
        self._identity = ""  # what must be the same for a run to go on

    def train(
        self,
        examples: Sequence[E],
        evaluate: Evaluate = lambda epoch: {},
        score: str = "accuracy",
        held_out: Sequence[E] = (),
    ) -> list[dict[str, float]]:
        """All epochs, or those that are left; the history: a row an epoch, the first before any.

        held_out: what `evaluate` measures on, so that a run does not go on with another.
        """
        if not examples:
            raise NpformerError("no examples to train on")
        recipe, state = self.recipe, self.state
        per_epoch = -(-len(examples) // recipe.batch_size)
        total = per_epoch * recipe.epochs
        factors = recipe.factors(total, self.weights.config.d_model)
        self._identity = self._described(examples, held_out)
        self._resume()
        if not state.history:
            self._end_epoch(0, {}, evaluate, score)
        lengths = [self.objective.lengths(example) for example in examples]
        batches = None
        while state.step < total:
            epoch, index = divmod(state.step, per_epoch)
            if batches is None or index == 0:
                batches = recipe.batches(lengths, epoch)
            self._step([examples[i] for i in batches[index]], recipe.learning_rate * factors(state.step))
            if recipe.average > 1 and state.step in recipe.averaged(per_epoch):
                self._keep(STEP.format(state.step))
            if self.progress:
                self.progress.show(epoch + 1, recipe.epochs, state, per_epoch, total)
            if state.step % per_epoch == 0:
                numbers = {"loss": state.loss / per_epoch, "train_accuracy": state.right / state.count}
                self._end_epoch(epoch + 1, numbers, evaluate, score)
            elif state.step % self.save_every == 0:
                self._save()
        return state.history

    def _step(self, examples: Sequence[E], learning_rate: float) -> None:
        recipe, state, start = self.recipe, self.state, time.perf_counter()
        step = state.step
        batch = gradients(
            self.objective, self.weights, examples, self.threads,
            lambda shard: Dropout(recipe.dropout, (recipe.seed, step, shard)) if recipe.dropout else None,
        )  # fmt: skip
        norm = global_norm(batch.flat)
        if not np.isfinite(norm):
            raise NpformerError(f"step {step}: the gradients are not finite; a smaller learning rate may help")
        self.optimiser.step(batch.flat, learning_rate, clip_scale(norm, recipe.clip), self.threads)
        state.step += 1
        state.loss += batch.loss
        state.right += batch.right
        state.count += batch.count
        seconds = time.perf_counter() - start
        state.seconds += seconds
        if self.progress:
            self.progress.add(batch.tokens, seconds)

    def _end_epoch(self, epoch: int, numbers: dict[str, float], evaluate: Evaluate, score: str) -> None:
        state = self.state
        if not all(np.isfinite(array).all() for array in self.weights.flat.values()):
            raise NpformerError(f"epoch {epoch}: weights are not finite; a smaller learning rate may help")
        row = {"epoch": epoch, **numbers, **evaluate(epoch), "seconds": round(state.seconds, 1)}
        is_best = score in row and not any(_rank(each, score) > _rank(row, score) for each in state.history)
        state.history.append(row)
        state.loss, state.right, state.count, state.seconds = 0.0, 0, 0, 0.0
        if self.progress:
            self.progress.epoch(row)
        if is_best or score not in row:
            self._keep(BEST)
        self._save()

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Write `last.safetensors`: weights, moments, and where the run stands, whole or not at all."""
        if self.folder is None:
            return
        arrays = {f"w.{name}": array for name, array in self.weights.flat.items()} | self.optimiser.state()
        metadata = {"format": FORMAT, "run": self._identity, "state": json.dumps(asdict(self.state))}
        save_arrays(self.folder / LAST, arrays, metadata)

    def _keep(self, name: str) -> None:
        """Write the weights as they are, whole or not at all."""
        if self.folder is not None:
            save_arrays(self.folder / name, self.weights.flat, {"format": FORMAT, "step": str(self.state.step)})

    def choose(self, evaluate: Evaluate, score: str = "accuracy") -> dict[str, float]:
        """Make the weights the best epoch's, or the mean of the recipe's `average` states where that scores higher.

        The best epoch's row of the history, or the mean's numbers, with "states" for "epoch". Averaging checkpoints:
        Vaswani et al., 2017, section 6.1. Raises NpformerError for a run that kept no weights, or has no such score.
        """
        if self.folder is None or not all(score in row for row in self.state.history):
            raise NpformerError(f"choose: expected a run with a folder, whose evaluation gives {score!r:.80}")
        best = max(self.state.history, key=lambda row: _rank(row, score))
        if self.recipe.average > 1:
            steps = self.recipe.averaged(self.state.step // self.recipe.epochs)
            self._load_mean([STEP.format(step) for step in steps])
            mean = evaluate(self.recipe.epochs)
            if mean[score] > best[score]:
                return {**mean, "states": len(steps)}
        self._load_mean([BEST])
        return best

    def _load_mean(self, names: Sequence[str]) -> None:
        assert self.folder is not None
        for count, name in enumerate(names):
            arrays, _ = load_arrays(self.folder / name)
            for key, array in self.weights.flat.items():
                array[...] = arrays[key] if count == 0 else array + arrays[key]
        for array in self.weights.flat.values():
            array /= len(names)

    def _resume(self) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NpformerError(f"{self.folder}: cannot be made: {error.strerror or error}") from None
        path = self.folder / LAST
        if path.exists():
            arrays, metadata = load_arrays(path)
            if metadata.get("format") != FORMAT or metadata.get("run") != self._identity:
                raise NpformerError(f"{path}: belongs to a run with another recipe, model or data; give another folder")
            for name, array in self.weights.flat.items():
                array[...] = arrays[f"w.{name}"]
            self.optimiser.restore(arrays)
            for name, value in json.loads(metadata["state"]).items():
                setattr(self.state, name, value)
        for stale in self.folder.glob(".*.safetensors.*.partial"):  # of a run that was killed while it wrote
            shutil.rmtree(stale, ignore_errors=True)

    def _described(self, examples: Sequence[E], held_out: Sequence[E]) -> str:
        """What makes a run this one: its recipe, its objective with the model's config, first weights, examples."""
        digest = hashlib.sha256()
        for part in _bytes([list(self.weights.flat.items()), list(examples), list(held_out)]):
            digest.update(part)
        described: dict[str, Any] = {"recipe": asdict(self.recipe), "objective": type(self.objective).__name__}
        if is_dataclass(self.objective) and not isinstance(self.objective, type):
            described["settings"] = asdict(self.objective)
        return json.dumps({**described, "start and data": digest.hexdigest()})


def _rank(row: dict[str, float], score: str) -> tuple[float, float]:
    """Larger is better, then later; what is no number comes last."""
    return (-math.inf if math.isnan(row[score]) else row[score], row["epoch"])


def _bytes(value: Any) -> Iterator[bytes]:
    """All that a value of arrays, numbers and texts consists of."""
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif is_dataclass(value):
        yield from _bytes([getattr(value, each.name) for each in fields(value)])
    elif isinstance(value, list | tuple):
        yield b"["
        for each in value:
            yield from _bytes(each)
        yield b"]"
    else:
        yield repr(value).encode() + b","
