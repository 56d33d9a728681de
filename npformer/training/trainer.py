"""The training loop: epochs of shuffled batches, an evaluation after each epoch, and checkpoints.

A run that was stopped at any step can be resumed from its last checkpoint and ends with the same bits: the order of
examples depends only on the seed and the epoch, and dropout masks depend only on the seed and the step. A step has the
same bits for any number of threads. `batch_gradients.py` computes the gradients, and `run_folder.py` writes the
checkpoints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from npformer.common.checks import number, one_of, positive, shown, whole
from npformer.common.errors import NpformerError
from npformer.training.batch_gradients import gradients
from npformer.training.dropout import Dropout
from npformer.training.epoch_lines import Progress
from npformer.training.losses import Objective
from npformer.training.optimizer import Adam, clip_scale, global_norm
from npformer.training.run_folder import BEST, STEP, Checkpoints, TrainingState, identity
from npformer.training.schedule import Schedule, constant, linear, noam
from npformer.training.trainable import Trainable

E = TypeVar("E")
SCHEDULES = ("constant", "linear", "noam")

Evaluate = Callable[[int], dict[str, float]]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training run.

    Parameters
    ----------
    epochs, batch_size : number of passes over the examples, and number of examples per step
    learning_rate : peak learning rate, or with the schedule "noam" the factor of width^-0.5 min(n^-0.5, n warmup^-1.5)
    schedule : "constant", "linear" or "noam", after a warm-up
    warmup : number of steps, or a fraction of all steps if below 1
    betas, eps, weight_decay, lazy : as in `Adam`
    clip : maximum norm of the gradients; None for no limit
    dropout : mapping from stage or pattern, such as "layers.*.ffn.output", to the fraction of elements to set to 0
    average, average_every : number of last checkpoints to average in `Trainer.choose`, and number of steps between
        checkpoints (0 means one epoch)
    window : number of batches that are drawn together and sorted by length, so that examples in a batch have similar
        lengths
    seed : seed for the order of examples and for dropout

    Raises
    ------
    NpformerError
        If a value is out of range.

    Examples
    --------
    >>> Recipe(epochs=2, learning_rate=2e-5).batch_size
    32
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
        for name in ("epochs", "batch_size", "average", "window"):
            whole(name, getattr(self, name), 1)
        whole("average_every", self.average_every, 0)
        whole("seed", self.seed, 0)
        number("learning_rate", positive("learning_rate", self.learning_rate), 0, 1e3)
        number("eps", positive("eps", self.eps), 0, 1)
        if self.clip is not None:
            positive("clip", self.clip)
        number("warmup", self.warmup, 0)
        number("weight_decay", self.weight_decay, 0)
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise NpformerError(f"betas: expected two numbers of at least 0 and below 1, got {self.betas}")
        if not isinstance(self.dropout, Mapping):
            raise NpformerError(f"dropout: expected a mapping from stages to rates, got {shown(self.dropout)}")
        one_of("schedule", self.schedule, SCHEDULES)

    def averaged(self, per_epoch: int) -> range:
        """Returns the steps after which weights are saved for `average`. per_epoch: number of steps per epoch."""
        last, every = self.epochs * per_epoch, self.average_every or per_epoch
        return range(last - every * min(self.average - 1, (last - 1) // every), last + 1, every)

    def batches(self, lengths: Sequence[tuple[int, ...]], epoch: int) -> list[np.ndarray]:
        """Returns the batches of an epoch, as indices of examples, given the recipe, the epoch and the lengths."""
        random, size = np.random.default_rng((self.seed, epoch)), self.batch_size
        order = random.permutation(len(lengths))
        if self.window == 1:
            return [order[start : start + size] for start in range(0, len(order), size)]
        parts = (order[start : start + size * self.window] for start in range(0, len(order), size * self.window))
        order = np.concatenate([sorted(part, key=lambda i: lengths[i]) for part in parts])
        starts = random.permutation(np.arange(0, len(order), size))
        return [order[start : start + size] for start in starts]

    def factors(self, total: int, width: int) -> Schedule:
        """Returns the schedule, a function from the step to a factor of the learning rate.

        total: number of steps. width: d_model.
        """
        warmup = round(self.warmup * total) if self.warmup < 1 else int(self.warmup)
        if self.schedule == "linear":
            return linear(min(warmup, total), total)
        return constant(warmup) if self.schedule == "constant" else noam(width, max(1, warmup))


class Trainer(Generic[E]):
    """Trains weights on examples. If the folder has checkpoints, training resumes from them.

    Parameters
    ----------
    objective : HeadLoss, TranslationLoss, or another `Objective`
    weights : Trainable, updated in place
    recipe : Recipe
    folder : folder for `last.safetensors`, from which a run is resumed, and `best.safetensors`; None to save nothing
    threads : number of threads, which does not affect the result
    save_every : number of steps between saves within an epoch
    progress : Progress, optional

    Examples
    --------
    >>> from npformer.training import Example, HeadLoss
    >>> model = npformer.load("distilbert-sst2")
    >>> weights = Trainable(model.weights, model.config)
    >>> examples = [Example(npformer.Text(np.array([101, 2053, 102])), target=0)]
    >>> history = Trainer(HeadLoss(model.config), weights, Recipe(epochs=1)).train(examples)
    >>> [row["epoch"] for row in history]
    [0, 1]
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
        whole("threads", threads, 1)
        self.save_every, self.progress = whole("save_every", save_every, 1), progress
        self._per_epoch = 0
        self.state = TrainingState()
        self.optimizer = Adam(weights.flat, recipe.betas, recipe.eps, recipe.weight_decay, recipe.lazy)
        self._checkpoints = Checkpoints(self.folder, weights, self.optimizer)

    def train(
        self,
        examples: Sequence[E],
        evaluate: Evaluate = lambda epoch: {},
        score: str = "accuracy",
        held_out: Sequence[E] = (),
    ) -> list[dict[str, float]]:
        """Runs all remaining epochs.

        Parameters
        ----------
        examples : list of Example
        evaluate : function from the number of the epoch to a dict with metrics of the current weights
            The function is called with 0 before the first epoch, and after each epoch.
        score : name of the metric that selects the best weights; larger is better
        held_out : examples that `evaluate` uses, for the identity of the run

        Returns
        -------
        list of dict
            One row for the start and one per epoch.

        Raises
        ------
        NpformerError
            If there are no examples, the folder is in use by another run or has a checkpoint of a different run,
            `evaluate` does not return numbers, a dropout rate matches no stage of the model, or gradients or weights
            are not finite.
        """
        if not examples:
            raise NpformerError("no examples to train on")
        recipe, state = self.recipe, self.state
        self._per_epoch = per_epoch = -(-len(examples) // recipe.batch_size)
        total = per_epoch * recipe.epochs
        factors = recipe.factors(total, self.weights.config.d_model)
        this = identity(recipe, self.objective, self.weights, examples, held_out)
        with self._checkpoints.in_use():
            self._checkpoints.resume(this, state)
            if not state.history:
                self._end_epoch(0, {}, evaluate, score)
                self._checkpoints.save(this, state)
            lengths = [self.objective.lengths(example) for example in examples]
            batches = None
            while state.step < total:
                epoch, index = divmod(state.step, per_epoch)
                if batches is None or index == 0:
                    batches = recipe.batches(lengths, epoch)
                self._step([examples[i] for i in batches[index]], recipe.learning_rate * factors(state.step))
                if recipe.average > 1 and state.step in recipe.averaged(per_epoch):
                    self._checkpoints.keep(STEP.format(state.step), state.step)
                if self.progress:
                    self.progress.show(epoch + 1, recipe.epochs, state, per_epoch, total)
                if state.step % per_epoch == 0:
                    numbers = {"loss": state.loss / per_epoch, "train_accuracy": state.right / state.count}
                    self._end_epoch(epoch + 1, numbers, evaluate, score)
                if state.step % per_epoch == 0 or state.step % self.save_every == 0:
                    self._checkpoints.save(this, state)
            return state.history

    def _step(self, examples: Sequence[E], learning_rate: float) -> None:
        recipe, state, start = self.recipe, self.state, time.perf_counter()
        step, dropouts = state.step, list[Dropout]()

        def dropout(shard: int) -> Dropout | None:
            if not recipe.dropout:
                return None
            dropouts.append(Dropout(recipe.dropout, (recipe.seed, step, shard)))
            return dropouts[-1]

        batch = gradients(self.objective, self.weights, examples, self.threads, dropout)
        if step == 0 and dropouts and (unmatched := dropouts[0].unmatched):
            known = "npformer.trace(model, text) lists the stages"
            raise NpformerError(f"dropout: {unmatched[0]!r:.80} matches no stage of this model; {known}")
        norm = global_norm(batch.flat)
        if not np.isfinite(norm):
            raise NpformerError(f"step {step}: gradients are not finite; a smaller learning rate may help")
        self.optimizer.step(batch.flat, learning_rate, clip_scale(norm, recipe.clip), self.threads)
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
        try:
            measured = evaluate(epoch)
        except NpformerError as error:  # finite weights can still be too large for finite answers
            raise NpformerError(f"epoch {epoch}: {error}; a smaller learning rate may help") from None
        row = {"epoch": epoch, **numbers, **_metrics(measured)} | {"epoch": epoch, "seconds": round(state.seconds, 1)}
        is_best = score in row and not any(_rank(each, score) > _rank(row, score) for each in state.history)
        state.end_epoch(row)
        if self.progress:
            self.progress.epoch(row)
        if is_best or score not in row:
            self._checkpoints.keep(BEST, state.step)

    def choose(self, evaluate: Evaluate, score: str = "accuracy") -> dict[str, float]:
        """Restores the weights of the best epoch, or the mean of the last checkpoints if that scores higher.

        Returns
        -------
        dict
            The row of the best epoch in the history, or the metrics of the mean, with "states" instead of "epoch".

        Raises
        ------
        NpformerError
            If the run saved no weights, `evaluate` did not return this score, or `train` saved the best weights by a
            different score.

        References
        ----------
        Vaswani et al., 2017, section 6.1: averages of checkpoints.
        """
        history = self.state.history
        if self.folder is None or not history or not all(score in row for row in history):
            raise NpformerError(f"choose: expected a run with a folder and an evaluation that returns {score!r:.80}")
        best = max(history, key=lambda row: _rank(row, score))
        if self.recipe.average > 1:
            steps = self.recipe.averaged(self.state.step // self.recipe.epochs)
            self._checkpoints.take_mean([STEP.format(step) for step in steps])
            mean = evaluate(self.recipe.epochs)
            if mean[score] > best[score]:
                return {**mean, "states": len(steps)}
        self._checkpoints.take_best(int(best["epoch"]) * self._per_epoch, score)
        return best

    def remove_checkpoints(self) -> None:
        """Removes the checkpoints from the folder. The run can then no longer be resumed."""
        self._checkpoints.remove()


def _metrics(measured: Any) -> dict[str, float]:
    """Returns the metrics of an evaluation as Python numbers. Raises NpformerError for other values."""
    if not isinstance(measured, Mapping):
        raise NpformerError(f"evaluate: expected a dict of metrics, got {shown(measured)}")
    metrics = {
        name: each.item() if np.ndim(each) == 0 and hasattr(each, "item") else each for name, each in measured.items()
    }
    for name, each in metrics.items():
        if type(each) not in (int, float):
            raise NpformerError(f"evaluate: {name}: expected a number, got {shown(each)}")
    return metrics


def _rank(row: dict[str, float], score: str) -> tuple[float, float]:
    """Returns the rank of a row, by score and then by epoch. Rows with NaN or without the score rank last."""
    found = row.get(score, math.nan)
    return (-math.inf if math.isnan(found) else found, row["epoch"])
