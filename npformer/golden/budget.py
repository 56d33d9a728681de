"""The error budget of each stage: how far a correct float32 port may be from the truth.

Correct ports differ only in rounding, such as the order of additions or the last bit of exp or tanh. To sample these
errors, the model runs a few more times with every value of every stage moved by up to one unit in the last place. The
gap is the largest distance of any run from the truth, and the budget is FACTOR times the gap. On tiny models and a
six-layer DistilBERT, torch stays within 1.6 gaps at every stage, and a port that adds in plain loops stays within 3.5.
The smallest known mistake, eps = 1e-5 in a single layer norm, is 7 gaps from the truth.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.engine.taps import listen
from npformer.interpret.text_parts import is_input
from npformer.interpret.traces import Trace, post_process
from npformer.model import Model, Seq2Seq

DRAWS = 8
FACTOR = 5

#: Precision of a port -> its budgets divided by the float32 budgets. One ratio serves all stages, because small errors
#: grow in the same proportion in every precision. float16 and tf32 keep 13 fewer bits than float32, and bfloat16 keeps
#: 16 fewer. But such a port rounds each number once, by at most half a unit in the last place, while `jitter` moves it
#: by up to a whole unit. On tiny models, correct ports stay within half of these budgets, as do torch's half(),
#: bfloat16() and autocast.
RATIOS = {"float32": 1.0, "float16": 2.0**11, "tf32": 2.0**11, "bfloat16": 2.0**14, "int8": 2.0**15}


def run(model: Model | Seq2Seq, inputs: list[Any], stages: str | Iterable[str] = "*", seed: int | None = None) -> Trace:
    """Runs the model and records its stages. With a seed, moves each value by -1, 0 or 1 unit in the last place."""
    with ExitStack() as stack:
        if seed is not None:
            moved = jitter(seed)
            stack.enter_context(listen(lambda name, array: array if is_input(name) else moved(array), first=True))
        recorded = stack.enter_context(Trace(stages, model.config))
        post_process(model.config, model.run(inputs))
    return recorded


def budgets(
    model: Model | Seq2Seq, inputs: list[Any], recorded: Trace, truth: Trace, stages: str | Iterable[str]
) -> dict[str, float]:
    """Maps each stage to FACTOR times the largest error of the float32 run and of DRAWS runs with random rounding."""
    runs = [recorded, *(run(model, inputs, stages, seed) for seed in range(DRAWS))]
    return {name: FACTOR * max(largest_error(each.texts(name), truth.texts(name)) for each in runs) for name in truth}


def largest_error(arrays: list[np.ndarray], truth: list[np.ndarray]) -> float:
    return max(float(np.abs(array - true).max()) for array, true in zip(arrays, truth, strict=True))


def in_float64(model: Model | Seq2Seq) -> Model | Seq2Seq:
    """Returns the same model with weights in float64; its stages serve as the reference."""
    flat = {name: array.astype(np.float64) for name, array in layout.flatten(dict(model.weights)).items()}
    return type(model)(model.config, layout.unflatten(flat), model.folder, model.threads, model.same_bits, model.limits)


def jitter(seed: int) -> Any:
    """Returns a function that moves every value of an array by -1, 0 or 1 unit in the last place; zeros stay zero."""
    random = np.random.default_rng(seed)

    def moved(array: np.ndarray) -> np.ndarray:
        step = random.integers(-1, 2, array.shape, dtype=np.int8)
        return array + np.where(array == 0, 0, np.spacing(array)) * step

    return moved
