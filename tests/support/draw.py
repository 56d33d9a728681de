"""Random, read-only arrays for tests: the same arguments give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Returns numbers drawn from the standard normal distribution."""
    array = np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)
    array.flags.writeable = False
    return array


def tensors(shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """Returns a checkpoint's tensors by name, each drawn separately."""
    return {name: normal(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
