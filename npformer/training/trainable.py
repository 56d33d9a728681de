"""A model's weights as training changes them: writable copies, what is tied once, what is computed left alone.

`gradients.py` sums gradients by the names here, `optimiser.py` moves the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.config import Config
from npformer.functions import SparseRows, embedding_backward

Gradient = np.ndarray | SparseRows


class Trainable:
    """The tree that `forward` computes with, and `flat`, the arrays of it that training moves: name -> array.

    An array that is another one (a projection tied to its token table) is still the same memory here. Tables of
    sinusoids are no parameters.
    """

    def __init__(self, tree: Mapping[str, Any], config: Config) -> None:
        self.config = config
        self.flat: dict[str, np.ndarray] = {}
        self._tied: dict[str, tuple[str, bool]] = {}  # name -> the array that it is, and whether it is its transpose
        arrays: dict[str, np.ndarray] = {}
        seen: dict[tuple[int, int], str] = {}
        for name, array in layout.flatten(dict(tree)).items():
            place = (array.__array_interface__["data"][0], array.size)
            if place in seen:
                table = seen[place]
                self._tied[name] = (table, array.shape != arrays[table].shape or not array.flags.c_contiguous)
                arrays[name] = arrays[table].T if self._tied[name][1] else arrays[table]
                continue
            seen[place] = name
            arrays[name] = np.array(array, order="C")
            if not self._computed(name):
                self.flat[name] = arrays[name]
        self.tree = layout.unflatten(arrays)

    def _computed(self, name: str) -> bool:
        return name.endswith("embeddings.position.weight") and getattr(self.config, "positions", "learned") != "learned"

    def collect(self, tree: Mapping[str, Any]) -> dict[str, Gradient]:
        """A backward pass's tree of gradients by the names of `flat`, those of tied arrays added up."""
        flat: dict[str, Gradient] = {}
        for name, grad in layout.flatten(dict(tree)).items():
            table, transposed = self._tied.get(name, (name, False))
            if table in self.flat:
                each = grad.T if transposed and isinstance(grad, np.ndarray) else grad
                flat[table] = add(flat[table], each) if table in flat else each
        return flat


def add(a: Gradient, b: Gradient) -> Gradient:
    """The sum of two gradients of one array; `a` may become it."""
    if isinstance(a, SparseRows) and isinstance(b, SparseRows):
        return embedding_backward(np.concatenate([a.values, b.values]), np.concatenate([a.ids, b.ids]))
    if isinstance(a, SparseRows):
        a, b = b, a
    assert isinstance(a, np.ndarray)
    a = np.require(a, requirements=["C", "W"])  # a transposed view comes first where a projection is tied
    if isinstance(b, SparseRows):
        a[b.ids] += b.values
    else:
        a += b
    return a
