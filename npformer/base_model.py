"""`BaseModel`, the base class of all models: config, weights, threads and files, without a forward pass.

`model.py` defines the models, and `generation/` generates text with models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits
from npformer.common.other_libraries import MODEL, Answering
from npformer.config import Config
from npformer.engine.parts import Parts
from npformer.engine.replay.replays import Replays
from npformer.engine.runtime.mapped import MappedFile, mapped_files
from npformer.engine.runtime.packing import Batch, Text, pack
from npformer.engine.runtime.runner import Runner
from npformer.engine.tape import Stages
from npformer.engine.taps import listening
from npformer.families import parts_of


def expect_finite(answers: Sequence[Mapping[str, np.ndarray]], of: str = "text") -> None:
    """Raises NpformerError if an answer contains NaN or infinity.

    Raises no error while a trace records stages, because the trace shows where the value comes from. of: the kind of
    input, for the message.
    """
    if listening():
        return
    for index, answer in enumerate(answers):
        for name, array in answer.items():
            if not np.isfinite(array).all():
                raise NpformerError(
                    f"{of} {index}: {name}: not finite, because an intermediate number is too large for {array.dtype} "
                    "or the weights are damaged; npformer.trace shows the first stage that is not finite"
                )


def packed(config: Config, texts: Sequence[Text]) -> Batch:
    """Packs texts into a batch for a model with this config."""
    return pack(texts, config.uncounted, last=config.pooling == "last", padding=config.pad_id)


class BaseModel(Runner, Answering):
    """The base class of all models: config, weights, tokenizer folder, threads. Parameters as in `Model`."""

    config: Config
    tokenizer: Any  # read from the folder when it is first used
    lines = MODEL

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, Any],
        folder: Path | None = None,
        threads: int | None = None,
        same_bits: bool | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        if not isinstance(config, Config):
            raise NpformerError(f"model: config: expected a Config, got {shown(config)}")
        self._check_head(config)
        super().__init__(threads, same_bits)
        self.config = config
        self.weights = weights
        self.folder = folder
        self.limits = limits

    def _check_head(self, config: Config) -> None:
        """Raises NpformerError for a head that this class does not support."""

    @cached_property
    def _files(self) -> list[MappedFile]:
        """The memory-mapped files of the weights."""
        return mapped_files(self.weights)

    @property
    def replays(self) -> Replays:
        """The programs of recurring passes, for the current config."""
        config, found = self.__dict__.get("_replays", (None, None))
        if found is None or config is not self.config:
            found = Replays()
            self.__dict__["_replays"] = self.config, found
        return found

    @property
    def parts(self) -> Parts:
        """The embeddings, layers and head, built from the config by the family."""
        return parts_of(self.config)

    @property
    def dtype(self) -> np.dtype:
        return self.weights.get("decoder", self.weights)["embeddings"]["token"]["weight"].dtype

    @contextmanager
    def cores(self, threads: int | None = None) -> Iterator[None]:
        """Does the same as in `Runner`, but first checks that the weight files are unchanged, which takes microseconds.

        Turns off NumPy's floating-point warnings in the block, because `expect_finite` reports non-finite values.
        """
        self._check_files()
        with np.errstate(all="ignore"), super().cores(threads):
            yield

    def _check_files(self) -> None:
        for file in self._files:
            file.check()

    def __getstate__(self) -> dict[str, Any]:
        """Checks that the weight files are unchanged. Returns the state for pickle and copy, with weights as arrays."""
        self._check_files()
        return {name: value for name, value in self.__dict__.items() if name not in ("_files", "_replays")}

    def run(self, inputs: Sequence[Any]) -> list[dict[str, np.ndarray]]:
        """Returns the answers for each input, without padding. Their bits do not depend on other inputs or on threads.

        An input is a `Text` or, for a `Seq2Seq`, a pair of source and target.
        """
        raise NotImplementedError

    def check_inputs(self, inputs: Sequence[Any]) -> None:
        """Checks that no input is empty or too long, and that all ids are in the vocabulary."""
        raise NotImplementedError

    def backward(self, grads: Mapping[str, np.ndarray], stages: Stages, inputs: Sequence[Any]) -> dict[str, Any]:
        """Computes the gradients of the weights for a recorded `run`. grads: the gradients of the packed answers."""
        raise NotImplementedError

    def _tokenizer_folder(self) -> Path:
        if self.folder is None:
            raise NpformerError("this model was created without a folder, so it has no tokenizer; pass token ids")
        return self.folder


def check_model(where: str, model: Any, *kinds: type) -> None:
    """Raises NpformerError unless `model` is a model, and an instance of one of `kinds` if any are given."""
    if isinstance(model, kinds or BaseModel):
        return
    hint = "npformer.load(name) returns one"
    if isinstance(getattr(model, "model", None), BaseModel):  # a pipeline
        hint = "use its attribute .model"
    elif isinstance(model, BaseModel):
        hint = f"{where} does not accept a translation model"
    raise NpformerError(f"{where}: expected a Model, got {model!r:.60}; {hint}")
