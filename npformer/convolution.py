"""A convolution of a text's rows, each from its neighbours, which DeBERTa's largest models add to their first layer.

`encoder_layers.py` has the layers it stands between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npformer.activations import BACKWARDS
from npformer.functions import linear, linear_backward
from npformer.multi_head import Linear
from npformer.runtime.threads import all_gather
from npformer.tape import Stages
from npformer.taps import spare, tap


@dataclass(frozen=True)
class Convolution:
    """C = act(Conv(X)), for the rows X of a text, of which each is at its place.

    Parameters
    ----------
    hidden : {"weight": (K D, D), "bias": (D,)}, W_1, ..., W_K one below the other
    norm : {"weight": (D,), "bias": (D,)}, of the sum with a layer
    activation : function such as `gelu`
    places : (T,) integer array, each row's place in its text
    row_indices : integer array, the rows that are computed; all unless given

    References
    ----------
    He et al., 2021, as the code of its second version has it: nGram induced input encoding.
    """

    hidden: Linear
    norm: Linear
    activation: Callable[..., np.ndarray]
    places: np.ndarray
    row_indices: np.ndarray | None = None

    def __call__(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The rows' convolution, (T, D) -> (T, D), or those of row_indices."""
        whole, at = self._neighbours(x, lengths)
        h = tap("hidden", linear(_windows(whole, at), **self.hidden))
        return tap("activation", self.activation(h, out=spare(h)))

    def backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Backward of `__call__`: dx (T, D) and the gradients of W and b."""
        whole, at = self._neighbours(x, lengths)
        grad = BACKWARDS[self.activation](stages.through_edit("activation", grad), stages["hidden"])
        grad = stages.through_edit("hidden", grad)
        d_windows, d_hidden = linear_backward(grad, _windows(whole, at), **self.hidden)
        dx = np.zeros((len(whole) + 1, whole.shape[1]), grad.dtype)
        for j, rows in enumerate(at.T):  # a row is at most once the neighbour of the same side
            dx[rows] += d_windows.reshape(*at.shape, whole.shape[1])[:, j]
        return dx[:-1], d_hidden

    def _neighbours(self, x: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All rows, and for each that is computed the K rows at the places around it, -1 where the text has none.

        y_i = b + sum_j x[place i + j - (K - 1) / 2] W_j, with zeros for what is not there.
        """
        whole, places = all_gather(x, self.places)  # of the whole text, where this call has only some of its rows
        counts = lengths if len(whole) == len(x) else np.array([len(whole)])
        texts = np.repeat(np.arange(len(counts)), counts)
        texts = np.concatenate([texts, np.full(len(whole) - len(texts), len(counts))])  # rows that fill up the batch
        reach = self.hidden["weight"].shape[0] // x.shape[1] // 2
        stride = int(np.ptp(places)) + 2 * reach + 1
        keys = texts * stride + places - places.min()
        order = np.argsort(keys, kind="stable")
        own = keys if len(whole) == len(x) else self.places - places.min()
        own = own if self.row_indices is None else own[self.row_indices]
        wanted = own[:, None] + np.arange(-reach, reach + 1)
        found = order[np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)]
        return whole, np.where(keys[found] == wanted, found, -1)


def _windows(x: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The rows at (N, K) of x (T, D) side by side, zeros for -1: (N, K D)."""
    return np.concatenate([x, np.zeros_like(x[:1])])[at].reshape(len(at), at.shape[1] * x.shape[1])
