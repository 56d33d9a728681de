"""The state of a training run, and the folder with its checkpoints, for resuming and for choosing the best weights.

`trainer.py` writes the checkpoints. Every file is written atomically.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.common.checks import number, whole
from npformer.common.errors import NpformerError
from npformer.common.files import place_in_folder
from npformer.common.locks import clear_partial, in_use
from npformer.training.optimizer import Adam
from npformer.training.trainable import Trainable

FORMAT = "npformer-training"
LAST, BEST, STEP = "last.safetensors", "best.safetensors", "step-{}.safetensors"


@dataclass
class TrainingState:
    """The state of a training run: finished steps, sums over the current epoch, and metrics of earlier epochs."""

    step: int = 0
    loss: float = 0.0
    right: int = 0
    count: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("step", "right", "count"):
            whole(name, getattr(self, name), 0, 2**63 - 1)
        for name in ("loss", "seconds"):
            number(name, getattr(self, name))
        rows = self.history if isinstance(self.history, list) else [None]
        if not all(
            isinstance(row, dict)
            and "epoch" in row
            and all(type(each) is float or (type(each) is int and abs(each) < 2**63) for each in row.values())
            for row in rows
        ):
            raise NpformerError("history: expected a list of objects with numbers, each with an epoch")

    def end_epoch(self, row: dict[str, float]) -> None:
        """Adds the row of a finished epoch to the history and sets the sums to 0."""
        self.history.append(row)
        self.loss, self.right, self.count, self.seconds = 0.0, 0, 0, 0.0


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a training run in a folder. Without a folder, nothing is saved."""

    folder: Path | None
    weights: Trainable
    optimizer: Adam

    def in_use(self) -> AbstractContextManager[None]:
        """Creates and locks the folder, so that two runs cannot mix their checkpoints."""
        return nullcontext() if self.folder is None else in_use(self.folder)

    def save(self, identity: str, state: TrainingState) -> None:
        """Writes the weights, Adam's moments and the state to `last.safetensors`."""
        if self.folder is not None:
            arrays = {f"w.{name}": array for name, array in self.weights.flat.items()} | self.optimizer.state()
            metadata = {"format": FORMAT, "run": identity, "state": json.dumps(asdict(state))}
            save_arrays(place_in_folder(self.folder / LAST), arrays, metadata)

    def resume(self, identity: str, state: TrainingState) -> None:
        """Reads weights, moments and state from `last.safetensors`, if it exists.

        Raises NpformerError if the file is invalid or belongs to a run with a different `identity`.
        """
        if self.folder is None:
            return
        path = self.folder / LAST
        if path.exists():
            arrays, metadata = load_arrays(path)
            if metadata.get("format") != FORMAT or metadata.get("run") != identity:
                raise NpformerError(
                    f"{path}: belongs to a run with a different recipe, model or data; use another folder"
                )
            try:
                for name, array in self.weights.flat.items():
                    array[...] = _of_shape(arrays[f"w.{name}"], array)
                self.optimizer.restore(arrays)
                for name, value in asdict(TrainingState(**json.loads(metadata["state"]))).items():
                    setattr(state, name, value)
            except (KeyError, ValueError, TypeError, IndexError, RecursionError) as error:
                raise NpformerError(f"{path}: not a checkpoint saved by npformer: {error!s:.200}") from None
        clear_partial(self.folder)  # temporary files of a killed run

    def keep(self, name: str, step: int) -> None:
        """Writes only the weights to a file with this name."""
        if self.folder is not None:
            path = place_in_folder(self.folder / name)
            save_arrays(path, self.weights.flat, {"format": FORMAT, "step": str(step)})

    def remove(self) -> None:
        """Removes the checkpoints, and also the folder if it contains nothing else."""
        if self.folder is not None:
            for path in self.folder.glob("*.safetensors"):
                if path.name in (LAST, BEST) or path.match(STEP.format("*")):
                    path.unlink()
            with suppress(OSError):
                self.folder.rmdir()

    def take_best(self, step: int, score: str) -> None:
        """Replaces the weights with the weights in `best.safetensors`.

        Raises NpformerError if the file does not have the weights after this step, which has the best score.
        """
        assert self.folder is not None
        _, metadata = load_arrays(self.folder / BEST)
        if metadata.get("step", str(step)) != str(step):  # if the step is missing, `take_mean` reports it
            raise NpformerError(
                f"{self.folder / BEST}: expected the weights of step {step}, which have the best {score!r:.80}, "
                f"got those of step {metadata['step']:.20}; give `train` the same score as `choose`"
            )
        self.take_mean([BEST])

    def take_mean(self, names: Sequence[str]) -> None:
        """Sets the weights to the mean of the weights in the files with these names."""
        assert self.folder is not None
        for count, name in enumerate(names):
            arrays, _ = load_arrays(self.folder / name)
            try:
                for key, array in self.weights.flat.items():
                    kept = _of_shape(arrays[key], array)
                    if not np.isfinite(kept).all():
                        raise ValueError(f"{key} is NaN or infinite")
                    array[...] = kept if count == 0 else array + kept
            except (KeyError, ValueError) as error:
                raise NpformerError(f"{self.folder / name}: not the weights of this run: {error!s:.200}") from None
        for array in self.weights.flat.values():
            array /= len(names)


def identity(recipe: Any, objective: Any, weights: Trainable, examples: Sequence[Any], held_out: Sequence[Any]) -> str:
    """The identity of a training run: recipe, objective, and a digest of the initial weights and examples."""
    digest = hashlib.sha256()
    for part in _bytes([list(weights.flat.items()), list(examples), list(held_out)]):
        digest.update(part)
    described: dict[str, Any] = {"recipe": asdict(recipe), "objective": type(objective).__name__}
    if is_dataclass(objective) and not isinstance(objective, type):
        described["settings"] = {each.name: repr(getattr(objective, each.name)) for each in fields(objective)}
    return json.dumps({**described, "start and data": digest.hexdigest()})


def _bytes(value: Any) -> Iterator[bytes]:
    """Yields the bytes of a nested value of arrays, numbers and strings."""
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


def _of_shape(stored: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Checks the shape of stored weights, because NumPy would broadcast a smaller array."""
    if stored.shape != weight.shape:
        raise ValueError(f"expected weights of shape {weight.shape}, got {stored.shape}")
    return stored
