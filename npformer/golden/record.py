"""Recording a golden file: one model's stages in float32, their float64 truth, and the error budget of each.

The budget says how far a correct float32 port may be from the truth. Correct ports differ in rounding: in the order of
additions, in the last bit of exp or tanh. So the model is run a few times more, each value of each stage moved by up to
one unit in the last place, which draws as many samples of what rounding does from that stage on. The gap is the largest
distance of any of these runs from the truth, the budget FACTOR times that. Measured on tiny models and a six-layer
DistilBERT, torch stays within 1.6 gaps at every stage, and a port that adds in plain loops within 3.5, while the
smallest of the known mistakes, eps = 1e-5 in a single layer norm, is 7 gaps off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.errors import NpformerError
from npformer.golden.format import Golden
from npformer.interpret.edit import edit
from npformer.interpret.trace import Trace, post_process, texts_of
from npformer.model import Model
from npformer.runtime.batch import Text

DRAWS = 8
FACTOR = 5


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


def run(model: Model, texts: list[Text], stages: str | Iterable[str] = "*", seed: int | None = None) -> Trace:
    """The model's stages; with a seed, those of a run whose every value is off by a random unit in the last place."""
    with ExitStack() as stack:
        if seed is not None:
            stack.enter_context(edit({"*": jitter(seed)}))
        recorded = stack.enter_context(Trace(stages, model.config))
        post_process(model.config, model.run(texts))
    return recorded


def budgets(
    model: Model, texts: list[Text], recorded: Trace, truth: Trace, stages: str | Iterable[str]
) -> dict[str, float]:
    """FACTOR times the largest error of the float32 run and of DRAWS further ones with other rounding, a stage."""
    runs = [recorded, *(run(model, texts, stages, seed) for seed in range(DRAWS))]
    return {name: FACTOR * max(largest_error(each.texts(name), truth.texts(name)) for each in runs) for name in truth}


def largest_error(arrays: list[np.ndarray], truth: list[np.ndarray]) -> float:
    return max(float(np.abs(array - true).max()) for array, true in zip(arrays, truth, strict=True))


def in_float64(model: Model) -> Model:
    """The same model with its weights in float64: every stage of it is the truth that float32 rounds."""
    flat = {name: array.astype(np.float64) for name, array in layout.flatten(dict(model.weights)).items()}
    return Model(model.config, layout.unflatten(flat), model.folder, model.threads, model.same_bits)


def weights_sha256(model: Model) -> str:
    """Of each array in the order of their names: the name, then its values as little-endian float32, (in, out) by rows.

    A tied vocabulary projection is not counted, so that it does not matter in which format the weights were stored.
    """
    digest = hashlib.sha256()
    for name, array in sorted(layout.stored(dict(model.weights), model.config).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array, dtype="<f4").data)
    return digest.hexdigest()


def jitter(seed: int) -> Any:
    """Move every value by -1, 0 or 1 unit in its last place; zeros stay."""
    random = np.random.default_rng(seed)

    def moved(array: np.ndarray) -> np.ndarray:
        step = random.integers(-1, 2, array.shape, dtype=np.int8)
        return array + np.where(array == 0, 0, np.spacing(array)) * step

    return moved


def _version() -> str:
    try:
        return version("npformer")
    except PackageNotFoundError:
        return "source"
