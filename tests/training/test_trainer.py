"""The training loop learns, resumes with the same bits after any interruption, and keeps the best weights."""

from __future__ import annotations

import io
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from npformer.common.errors import NpformerError
from npformer.training import Example, HeadLoss, Recipe, Trainable, Trainer
from npformer.training.epoch_lines import Progress
from tests.training.test_training import examples, weights

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("window", [1, 3, 100])
def test_batches(window: int) -> None:
    """Every example occurs once. In larger windows, the lengths in a batch are more similar. The order differs between
    epochs, and is reproducible."""
    lengths = [(int(n), int(n) % 7) for n in np.random.default_rng(0).integers(1, 40, 205)]
    recipe = Recipe(batch_size=10, window=window, seed=3)
    batches = recipe.batches(lengths, 0)
    assert sorted(np.concatenate(batches)) == list(range(205))
    assert sorted(map(len, batches)) == [5, *[10] * 20]
    spread = np.mean([np.ptp([lengths[i][0] for i in batch]) for batch in batches])
    assert (spread > 25) if window == 1 else (spread < 16) if window == 3 else (spread < 3)
    again, other = recipe.batches(lengths, 0), recipe.batches(lengths, 1)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(batches, other, strict=True))


RECIPE = Recipe(epochs=3, batch_size=8, learning_rate=2e-3, dropout={"*ffn.output": 0.1}, seed=5)


def train(folder: Path | None, threads: int = 1, batch: Sequence[Example] = (), **options: Any) -> Trainer:
    trained = weights()
    run = Trainer(HeadLoss(trained.config), trained, RECIPE, folder, threads, **options)
    run.train(list(batch) or examples(), lambda epoch: {"accuracy": epoch / 10})
    return run


def same(a: Trainable, b: Trainable) -> bool:
    return all(np.array_equal(array, b.flat[name]) for name, array in a.flat.items())


def test_training_learns_and_keeps_the_best(tmp_path: Path) -> None:
    run = train(tmp_path, threads=2, save_every=2)
    assert [row["epoch"] for row in run.state.history] == [0, 1, 2, 3]
    assert run.state.history[3]["loss"] < run.state.history[1]["loss"]
    share = run.state.history[3]["train_accuracy"] * len(examples())
    assert (0 < share <= len(examples()), share) == (True, pytest.approx(round(share)))
    assert same(run.weights, train(None).weights)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best.safetensors", "last.safetensors"]
    best = load_file(tmp_path / "best.safetensors")
    assert all(np.array_equal(best[name], array) for name, array in run.weights.flat.items())


STOPPED = """
import sys
sys.path[:0] = [{root!r}]
from pathlib import Path
from tests.training import test_trainer as t
t.train(Path({folder!r}), save_every=1)
"""


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """A run that is killed twice and resumes with more threads has the weights of an uninterrupted run."""
    code = STOPPED.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path))
    for _ in range(2):
        started = _stamp(tmp_path)
        process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        deadline = time.monotonic() + 300
        while _stamp(tmp_path) == started and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "last.safetensors").exists()
    (tmp_path / ".best.safetensors.0123abcd.partial").mkdir()  # like a file that a killed write leaves
    (tmp_path / ".best.safetensors.0123abcd.lock").touch()
    resumed = train(tmp_path, threads=2)
    whole = train(None)
    assert not list(tmp_path.glob(".*"))
    assert same(resumed.weights, whole.weights)
    for a, b in zip(resumed.state.history, whole.state.history, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def _stamp(folder: Path) -> int:
    path = folder / "last.safetensors"
    return path.stat().st_mtime_ns if path.exists() else 0


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    others = [examples(7), [Example(each.text, 1 - each.target) for each in examples()], examples()[::-1]]
    for batch in others:
        with pytest.raises(NpformerError, match=r"last\.safetensors: belongs to a run with a different"):
            train(tmp_path, batch=batch)
    for smoothing, held_out in ((0.1, []), (0.0, examples(3))):
        trained = weights()
        run = Trainer(HeadLoss(trained.config, smoothing), trained, RECIPE, tmp_path)
        with pytest.raises(NpformerError, match=r"last\.safetensors: belongs to a run with a different"):
            run.train(examples(), held_out=held_out)


def test_choosing_weights(tmp_path: Path) -> None:
    """`choose` restores the epoch with the highest score, or the later of two epochs with equal scores. If the mean of
    the weights has a higher score, it restores the mean."""
    trained, kept = weights(), {}
    run = Trainer(HeadLoss(trained.config), trained, replace(RECIPE, average=2), tmp_path)

    def evaluate(epoch: int) -> dict[str, float]:
        kept[epoch] = trained.flat["head.output.weight"].copy()
        return {"accuracy": [math.nan, 0.5, 0.5, 0.2][epoch]}

    run.train(examples(), evaluate)
    assert run.choose(lambda epoch: {"accuracy": 0.4})["epoch"] == 2
    assert np.array_equal(trained.flat["head.output.weight"], kept[2])
    assert run.choose(lambda epoch: {"accuracy": 0.6}) == {"accuracy": 0.6, "states": 2}
    assert np.abs(trained.flat["head.output.weight"] - (kept[2] + kept[3]) / 2).max() < 1e-7  # float32 rounds twice
    with pytest.raises(NpformerError, match="choose: expected a run with a folder and an evaluation that returns 'f1'"):
        run.choose(evaluate, "f1")
    with pytest.raises(NpformerError, match="choose: expected a run with a folder"):
        Trainer(HeadLoss(trained.config), trained, RECIPE, tmp_path).choose(evaluate)
    with pytest.raises(NpformerError, match="choose: expected a run with a folder"):
        train(None).choose(evaluate)


def test_weights_chosen_by_another_score_are_an_error(tmp_path: Path) -> None:
    """`train` keeps one epoch's weights. It cannot restore the best epoch of a different score."""
    trained = weights()
    run = Trainer(HeadLoss(trained.config), trained, RECIPE, tmp_path)
    run.train(examples(), lambda epoch: {"f1": [0.1, 0.9, 0.2, 0.3][epoch], "recall": epoch / 10})
    assert run.choose(lambda epoch: {}, "recall")["epoch"] == 3  # without "accuracy", the last weights are kept
    with pytest.raises(
        NpformerError, match=r"expected the weights of step 5, which have the best 'f1', got .* step 15"
    ):
        run.choose(lambda epoch: {}, "f1")


def test_dropout_of_an_unknown_stage_is_an_error() -> None:
    trained = weights()
    recipe = replace(RECIPE, dropout={"*ffn.output": 0.1, "layers.*.attn": 0.1})
    with pytest.raises(NpformerError, match=r"dropout: 'layers\.\*\.attn' matches no stage of this model"):
        Trainer(HeadLoss(trained.config), trained, recipe).train(examples())


def test_metrics_are_numbers(tmp_path: Path) -> None:
    """NumPy's numbers are stored as Python numbers. Other values are an error before the first step."""
    trained = weights()
    run = Trainer(HeadLoss(trained.config), trained, replace(RECIPE, epochs=1), tmp_path / "a")
    history = run.train(examples(), lambda epoch: {"accuracy": np.float32(0.5), "n": np.int64(3), "epoch": 7})
    assert [(row["epoch"], row["accuracy"], row["n"]) for row in history] == [(0, 0.5, 3), (1, 0.5, 3)]
    for measured, message in (
        ({"accuracy": "0.5"}, "evaluate: accuracy: expected a number, got '0.5'"),
        ({"accuracy": 0.5, "f1": [0.1, 0.2]}, "evaluate: f1: expected a number, got a list"),
        (None, "evaluate: expected a dict of metrics, got None"),
    ):
        run = Trainer(HeadLoss(trained.config), trained, RECIPE, tmp_path / "b")
        with pytest.raises(NpformerError, match=message):
            run.train(examples(), lambda epoch, measured=measured: measured)


@pytest.mark.parametrize(
    ("average", "every", "steps"),
    [(1, 0, [30]), (2, 0, [20, 30]), (9, 0, [10, 20, 30]), (3, 4, [22, 26, 30]), (9, 7, [2, 9, 16, 23, 30])],
)
def test_the_states_that_are_averaged(average: int, every: int, steps: list[int]) -> None:
    """The average includes the last weights and the weights of earlier steps or epochs, but not the initial weights."""
    recipe = replace(RECIPE, epochs=3, average=average, average_every=every)
    assert list(recipe.averaged(per_epoch=10)) == steps


def test_averaging_within_an_epoch(tmp_path: Path) -> None:
    trained = weights()
    run = Trainer(HeadLoss(trained.config), trained, replace(RECIPE, average=2, average_every=1), tmp_path)
    run.train(examples(), lambda epoch: {"accuracy": 0.5})
    last = {name: array.copy() for name, array in trained.flat.items()}
    run.choose(lambda epoch: {"accuracy": 0.6})
    before = load_file(tmp_path / f"step-{run.state.step - 1}.safetensors")
    for name, array in trained.flat.items():
        assert np.array_equal(array, (before[name] + last[name]) / 2), name


def test_progress_is_one_line_per_epoch_without_a_terminal() -> None:
    stream = io.StringIO()
    train(None, progress=Progress(stream))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[3].startswith("epoch 3  loss ")


def test_recipes_that_make_no_sense() -> None:
    for wrong in (
        {"epochs": 0}, {"epochs": 1.5}, {"learning_rate": 0}, {"schedule": "cosine"}, {"learning_rate": math.nan},
        {"betas": (2, 2)}, {"weight_decay": -1}, {"weight_decay": math.inf}, {"clip": 0}, {"clip": math.nan},
        {"eps": math.inf}, {"seed": -1}, {"warmup": math.nan}, {"window": 0}, {"average": 0}, {"betas": 0.9},
        {"dropout": 0.1},
    ):  # fmt: skip
        with pytest.raises(NpformerError):
            Recipe(**wrong)
    trained = weights()
    for number in ({"threads": 0}, {"save_every": 0}):
        with pytest.raises(NpformerError, match="expected a whole number of at least 1, got 0"):
            Trainer(HeadLoss(trained.config), trained, RECIPE, **number)
