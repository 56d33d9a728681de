"""Recording a golden file: one model's stages in float32, their float64 truth, and the error budget of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.errors import NpformerError
from npformer.golden.budget import budgets, in_float64, run
from npformer.golden.format import Golden
from npformer.interpret.trace import texts_of
from npformer.model import Model


def record(model: Model, texts: Any, stages: str | Iterable[str] = "*", name: str | None = None) -> Golden:
    """The golden file of a float32 model and a text, or a list of them: strings, Pairs, or token ids.

    stages: a pattern or several; only what matches is kept. name: what the file calls the model, by default the name of
    its folder.
    """
    if model.dtype != np.float32:
        raise NpformerError(
            f"golden record: expected a float32 model, got {model.dtype}; the truth is computed from it"
        )
    inputs, tokens, _ = texts_of(model, texts)
    recorded = run(model, inputs, stages)
    truth = run(in_float64(model), inputs, stages)
    return Golden(
        model=name or (model.folder.name if model.folder else model.config.model_type),
        config=model.config,
        weights_sha256=weights_sha256(model),
        versions={"npformer": _version(), "numpy": np.__version__},
        texts=inputs,
        tokens=tokens,
        stages={stage: recorded.texts(stage) for stage in recorded},
        truth={stage: truth.texts(stage) for stage in truth},
        budgets=budgets(model, inputs, recorded, truth, stages),
    )


def weights_sha256(model: Model) -> str:
    """Of each array in the order of their names: the name, then its values as little-endian float32, (in, out) by rows.

    A tied vocabulary projection is not counted, so that it does not matter in which format the weights were stored.
    """
    digest = hashlib.sha256()
    for name, array in sorted(layout.stored(dict(model.weights), model.config).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array, dtype="<f4").data)
    return digest.hexdigest()


def _version() -> str:
    try:
        return version("npformer")
    except PackageNotFoundError:
        return "source"
