"""`Trainable`: the trainable weights of a model, as writable copies.

`batch_gradients.py` sums gradients by the names of these weights, and `optimizer.py` updates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.storage import writable
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.functions import SparseRows, embedding_backward
from npformer.engine.runtime.narrow import NarrowWeight

Gradient = np.ndarray | SparseRows


class Trainable:
    """Writable weights: `tree` for forward passes, and `flat`, a dict of the arrays in `tree` that training updates.

    Tied arrays (a vocabulary projection and its token table, or layers that share weights) share memory and have one
    entry in `flat`. Tables of sinusoids have no entry.

    Parameters
    ----------
    tree : nested dict of arrays, as in `Model.weights`
    config : Config

    Raises
    ------
    NpformerError
        If the weights are stored in fewer bytes (`keep` of `npformer.load`).

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> weights = Trainable(model.weights, model.config)
    >>> weights.flat["head.output.weight"] is weights.tree["head"]["output"]["weight"]
    True
    """

    def __init__(self, tree: Mapping[str, Any], config: Config) -> None:
        self.config = config
        self.flat: dict[str, np.ndarray] = {}
        self._tied: dict[str, tuple[str, bool]] = {}  # for a tied name, its name in `flat` and whether to transpose
        flat = layout.flatten(dict(tree))
        for name, array in flat.items():
            if isinstance(array, NarrowWeight):
                raise NpformerError(f"{name}: expected float32, got {array.stored}; load the model without keep")
        arrays = writable(flat)
        seen: dict[int, str] = {}
        for name, array in arrays.items():
            own = array if array.base is None else array.base  # a tied projection is a transposed view of the table
            table = seen.setdefault(id(own), name)
            if table != name:
                self._tied[name] = (table, array is not own)
            elif not self._computed(name):
                self.flat[name] = array
        self.tree = layout.unflatten(arrays)

    def _computed(self, name: str) -> bool:
        return name.endswith("embeddings.position.weight") and self.config.positions.table != "learned"

    def collect(self, tree: Mapping[str, Any]) -> dict[str, Gradient]:
        """Flattens a tree of gradients to a dict with the names of `flat`, and adds the gradients of tied arrays."""
        flat: dict[str, Gradient] = {}
        for name, grad in layout.flatten(dict(tree)).items():
            table, transposed = self._tied.get(name, (name, False))
            if table in self.flat:
                each = grad.T if transposed and isinstance(grad, np.ndarray) else grad
                flat[table] = add(flat[table], each) if table in flat else each
        return flat


def add(a: Gradient, b: Gradient) -> Gradient:
    """a + b for two gradients of the same array. May overwrite `a`."""
    if isinstance(a, SparseRows) and isinstance(b, SparseRows):
        return embedding_backward(np.concatenate([a.values, b.values]), np.concatenate([a.ids, b.ids]))
    if isinstance(a, SparseRows):
        a, b = b, a
    assert isinstance(a, np.ndarray)
    a = np.require(a, requirements=["C", "W"])  # the gradient of a tied projection is a transposed view
    if isinstance(b, SparseRows):
        a[b.ids] += b.values
    else:
        a += b
    return a
