"""A training run that is killed repeatedly, at any moment of a step or a save, ends with the same bits as an
uninterrupted run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.common.errors import NpformerError
from npformer.training import HeadLoss, Trainable, Trainer
from tests.support.subprocesses import run_module
from tests.training.test_trainer import RECIPE
from tests.training.test_training import examples, weights

KILLS = 24
pytestmark = pytest.mark.numbers


def train(folder: Path | None) -> Trainable:
    """Trains for 150 steps, and saves after each step."""
    trained = weights()
    run = Trainer(HeadLoss(trained.config), trained, replace(RECIPE, epochs=30), folder, save_every=1)
    run.train(examples(), lambda epoch: {"accuracy": epoch / 10})
    return trained


def kill_again_and_again(folder: Path) -> None:
    """Kills KILLS runs in `folder` at random moments after their first save. If a run ends before it is killed, it is
    compared with an uninterrupted run, and the next run begins anew. The last run is allowed to end.

    The runs are forks of a process without threads, so each begins at once.
    """
    kills, chosen, ended, whole = 0, random.Random(0), False, train(None).flat
    while kills < KILLS or not ended:
        if ended:
            shutil.rmtree(folder)
        before = stamp(folder)
        run = os.fork()
        if run == 0:
            try:
                train(folder)
                os._exit(0)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
        if kills < KILLS:
            while stamp(folder) == before and os.waitid(os.P_PID, run, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                time.sleep(0.0005)
            time.sleep(chosen.uniform(0, 0.02))
            os.kill(run, signal.SIGKILL)
        status = os.waitpid(run, 0)[1]
        ended = not os.WIFSIGNALED(status)
        kills += not ended
        if ended:
            assert os.WEXITSTATUS(status) == 0, f"after {kills} kills"
            assert sorted(os.listdir(folder)) == ["best.safetensors", "last.safetensors"]
            arrays, _ = load_arrays(folder / "last.safetensors")
            assert all(np.array_equal(arrays[f"w.{name}"], array) for name, array in whole.items()), kills


def stamp(folder: Path) -> int:
    path = folder / "last.safetensors"
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.slow
def test_kills_at_any_moment(tmp_path: Path) -> None:
    assert run_module("tests.training.test_kills", str(tmp_path / "run"), OPENBLAS_NUM_THREADS="1") == ""


@pytest.mark.parametrize("damage", ["a bit of the weights", "a bit of the state", "cut short", "of another kind"])
def test_a_checkpoint_that_was_changed_is_named(tmp_path: Path, damage: str) -> None:
    trained = weights()
    run = Trainer(HeadLoss(trained.config), trained, replace(RECIPE, epochs=1), tmp_path)
    run.train(examples())
    path = tmp_path / "last.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "a bit of the weights":
        data[-5] ^= 4
    elif damage == "a bit of the state":
        data[data.index(b'"step\\": 5'.replace(b'"', b'\\"', 1)) + 10] ^= 1
    elif damage == "cut short":
        del data[-5:]
    path.write_bytes(data)
    if damage == "of another kind":
        arrays, metadata = load_arrays(path)
        save_arrays(path, {name: each for name, each in arrays.items() if not name.startswith("m.")}, metadata)
    before = path.read_bytes()
    with pytest.raises(NpformerError, match=r"last\.safetensors: (damaged|not a valid|not a checkpoint)"):
        Trainer(HeadLoss(trained.config), weights(), replace(RECIPE, epochs=1), tmp_path).train(examples())
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["a bit", "another model", "a number that is none"])
def test_best_weights_that_were_changed_are_named(tmp_path: Path, damage: str) -> None:
    trained = weights()
    run = Trainer(HeadLoss(trained.config), trained, replace(RECIPE, epochs=1), tmp_path)
    run.train(examples(), lambda epoch: {"accuracy": 1.0})
    path = tmp_path / "best.safetensors"
    if damage == "a bit":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif damage == "another model":
        save_arrays(path, {"a": np.zeros(3)}, {})
    else:
        arrays, metadata = load_arrays(path)
        save_arrays(path, {name: np.full_like(array, np.nan) for name, array in arrays.items()}, metadata)
    with pytest.raises(NpformerError, match=r"best\.safetensors: (damaged|not the weights of this run)"):
        run.choose(lambda epoch: {"accuracy": 1.0})


if __name__ == "__main__":
    kill_again_and_again(Path(sys.argv[1]))
