"""Random arrays for tests: the same arguments give the same numbers, which nobody can write to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Numbers of the standard normal distribution."""
    array = np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)
    array.flags.writeable = False
    return array


def tensors(shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """A checkpoint's tensors by their names, each its own numbers."""
    return {name: normal(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
