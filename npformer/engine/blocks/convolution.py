"""A convolution over the rows of a text. The largest DeBERTa models add it to the output of their first layer.

He et al., 2021, call it nGram induced input encoding. The code follows the implementation in DeBERTa-v2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npformer.engine.activations import BACKWARDS
from npformer.engine.blocks.block import Activation, Around, Backward, Block
from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import EMBEDDED, Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.functions import linear, linear_backward
from npformer.engine.runtime.threads import all_gather
from npformer.engine.tape import Stages
from npformer.engine.taps import spare, tap


@dataclass(frozen=True)
class Convolution(Block):
    """act(Conv(E)), where E is the input of the stack. The block does not read the input of its layer.

    Parameters
    ----------
    activation : function such as `gelu`
    width : int, width of the kernel in rows, for the shape of the weights
    """

    activation: Activation
    width: int = 0

    around = Around("Z of layer 0", "activation", "", "")
    dropped = "hidden"

    def __call__(self, x: np.ndarray, texts: PackedTexts, **weights: Any) -> np.ndarray:
        h = tap("hidden", convolve(*self._read(texts), **weights, row_indices=texts.attending))
        return tap("activation", self.activation(h, out=spare(h)))

    def backward(self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, **weights: Any) -> Backward:
        grad = BACKWARDS[self.activation](stages.through_edit("activation", grad), stages["hidden"])
        grad = stages.through_edit("hidden", grad)
        d_embedded, grads = convolve_backward(grad, *self._read(texts), **weights, row_indices=texts.attending)
        return np.zeros_like(x), grads, {EMBEDDED: {"rows": d_embedded}}

    def pull(self, direction: Direction, at: str, **weights: Any) -> np.ndarray:
        """u . act(h) = (u act(h) / h) . (b + sum_j E[place + j - (K + 1) / 2] W_j): one term for each row of E."""
        embedded = direction.stages[direction.embedded]
        here = replace(direction)  # a copy, because the block does not read the rows of the layer
        here.gate(f"{at}hidden", f"{at}activation")
        here.linear(f"{at}hidden", weights)
        of_kernel = here.u.reshape(-1, embedded.shape[1])
        near = direction.places[direction.row] + np.arange(len(of_kernel)) - len(of_kernel) // 2
        added: np.ndarray = ((near[:, None] == direction.places) * (of_kernel @ embedded.T)).sum(axis=0)
        return added

    def groups(self, d_model: int) -> dict[str, Group]:
        return {"": weight_group.linear(self.width * d_model, d_model)}

    @property
    def stages(self) -> list[Stage]:
        formula, function = "Concat(rows around each row of X) W + b", f"activations.{self.activation.__name__}"
        return [
            Stage("hidden", "(T, D)", formula, "blocks.convolution.convolve", parents=(EMBEDDED,)),
            Stage("activation", "(T, D)", "act(hidden)", function, parents=("hidden",), kept=False),
        ]

    @staticmethod
    def _read(texts: PackedTexts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert texts.embedded is not None
        assert texts.batch is not None
        return texts.embedded, texts.lengths, texts.batch.places


def convolve(
    x: np.ndarray,
    lengths: np.ndarray,
    places: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    row_indices: np.ndarray | None = None,
) -> np.ndarray:
    """y_i = b + sum_j x[place_i + j - (K + 1) / 2] W_j for j = 1 ... K, with zeros for places without a row.

    x (T, D): the rows of texts with these lengths, at these places (T,). weight (K D, D): W_1, ..., W_K stacked
    vertically. row_indices: the rows to compute, by default all rows.
    """
    whole, at = _neighbours(x, lengths, places, weight, row_indices)
    return linear(_windows(whole, at), weight, bias)


def convolve_backward(
    grad: np.ndarray,
    x: np.ndarray,
    lengths: np.ndarray,
    places: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    row_indices: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Backward of `convolve`: dx (T, D) and the gradients of W and b."""
    whole, at = _neighbours(x, lengths, places, weight, row_indices)
    d_windows, grads = linear_backward(grad, _windows(whole, at), weight, bias)
    dx = np.zeros((len(whole) + 1, whole.shape[1]), grad.dtype)
    for j, neighbours in enumerate(at.T):  # `+=` is correct, because each row is neighbour j of at most one row
        dx[neighbours] += d_windows.reshape(*at.shape, whole.shape[1])[:, j]
    return dx[:-1], grads


def _neighbours(
    x: np.ndarray, lengths: np.ndarray, places: np.ndarray, weight: np.ndarray, row_indices: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """All rows, and the indices of the K rows around each computed row, with -1 for places without a row."""
    whole, all_places = all_gather(x, places)  # a thread may compute only some rows of a text, but it reads all rows
    counts = lengths if len(whole) == len(x) else np.array([len(whole)])
    texts = np.repeat(np.arange(len(counts)), counts)
    texts = np.concatenate([texts, np.full(len(whole) - len(texts), len(counts))])  # rows added after the last text
    reach = weight.shape[0] // x.shape[1] // 2
    stride = int(np.ptp(all_places)) + 2 * reach + 1
    keys = texts * stride + all_places - all_places.min()
    order = np.argsort(keys, kind="stable")
    own = keys if len(whole) == len(x) else places - all_places.min()
    own = own if row_indices is None else own[row_indices]
    wanted = own[:, None] + np.arange(-reach, reach + 1)
    found = order[np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)]
    return whole, np.where(keys[found] == wanted, found, -1)


def _windows(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Concatenates the K rows of x (T, D) that each row of `at` (N, K) selects, (N, K D). -1 selects zeros."""
    return np.concatenate([x, np.zeros_like(x[:1])])[at].reshape(len(at), at.shape[1] * x.shape[1])
