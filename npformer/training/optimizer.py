"""Adam and AdamW, computed block by block, and gradient clipping by norm.

Kingma and Ba, 2015; Loshchilov and Hutter, 2019. The formulas are the same as in torch.optim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from npformer.common.checks import unknown, whole
from npformer.common.errors import NpformerError
from npformer.engine.functions import SparseRows
from npformer.engine.runtime.threads import run_tasks, single_blas_thread
from npformer.training.trainable import Gradient

BLOCK = 1 << 16  # elements updated at a time, so that four arrays fit in the cache of a core


def is_decayed(name: str) -> bool:
    """Returns whether weight decay applies to a parameter: True for linear weights and tables, not biases and norms.

    Parameters
    ----------
    name : flat name of the parameter

    Returns
    -------
    bool

    Examples
    --------
    >>> is_decayed("layers.0.ffn_norm.weight")
    False
    """
    group, _, kind = name.rpartition(".")
    return kind == "weight" and not group.endswith("norm")


def global_norm(gradients: Mapping[str, Gradient]) -> float:
    """sqrt(sum of the squares of all gradients).

    Parameters
    ----------
    gradients : mapping from name to array or SparseRows

    Returns
    -------
    float

    Examples
    --------
    >>> global_norm({"a": np.array([3.0]), "b": np.array([4.0])})
    5.0
    """
    arrays = [grad.values if isinstance(grad, SparseRows) else grad for grad in gradients.values()]
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    # One BLAS thread, because several threads would change the order of addition.
    with single_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        blocks = (array[start : start + BLOCK] for array in flat for start in range(0, len(array), BLOCK))
        return math.sqrt(sum(float(np.dot(block, block)) for block in blocks))


def clip_scale(norm: float, most: float | None) -> float:
    """min(1, most / (norm + 1e-6)): the factor for gradients of this norm, as in torch's clip_grad_norm_.

    Parameters
    ----------
    norm : float
    most : maximum norm; None for no limit

    Returns
    -------
    float

    Examples
    --------
    >>> round(clip_scale(4.0, 1.0), 4)
    0.25
    """
    return 1.0 if most is None else min(1.0, most / (norm + 1e-6))


class Adam:
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps).

    Parameters
    ----------
    parameters : mapping from name to array, updated in place
    betas, eps : b1 and b2, eps
    weight_decay : float, as in AdamW: w -= lr * weight_decay * w before each update
    lazy : bool
        If True, only the rows of a table that have a gradient (`SparseRows`) are updated, which is faster, as in
        torch.optim.SparseAdam. If False, the other rows are updated with a gradient of 0, as in torch.optim.Adam.
    decayed : function from the name of a parameter to a bool that says whether weight decay applies

    Raises
    ------
    NpformerError
        If a beta is not in [0, 1), eps is not positive, or weight_decay is negative.

    References
    ----------
    Kingma and Ba, 2015, algorithm 1; Loshchilov and Hutter, 2019, algorithm 2.

    Examples
    --------
    >>> w = np.array([1.0, 1.0])
    >>> Adam({"w": w}).step({"w": np.array([0.5, -2.0])}, learning_rate=0.1)
    >>> w
    array([0.9, 1.1])
    """

    def __init__(
        self,
        parameters: Mapping[str, np.ndarray],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        lazy: bool = True,
        decayed: Callable[[str], bool] = is_decayed,
    ) -> None:
        if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1 and eps > 0 and weight_decay >= 0):
            got = f"{betas}, {eps}, {weight_decay}"
            raise NpformerError(f"Adam: expected 0 <= betas < 1, eps > 0 and weight_decay >= 0, got {got}")
        self.parameters = dict(parameters)
        self.betas, self.eps, self.weight_decay, self.lazy = betas, eps, weight_decay, lazy
        self._decayed = {name: decayed(name) for name in self.parameters}
        self.m = {name: np.zeros_like(array) for name, array in self.parameters.items()}
        self.v = {name: np.zeros_like(array) for name, array in self.parameters.items()}
        self.t = 0

    def step(
        self, gradients: Mapping[str, Gradient], learning_rate: float, scale: float = 1.0, threads: int = 1
    ) -> None:
        """Updates the parameters with the gradients, which are first multiplied by `scale`.

        Parameters without a gradient do not change. Raises NpformerError for a gradient without a parameter, or with a
        different shape.
        """
        for name, grad in gradients.items():
            if name not in self.parameters:
                raise unknown("Adam: gradient", name, self.parameters, "Its names are the names of the parameters")
            if not isinstance(grad, SparseRows) and grad.shape != self.parameters[name].shape:
                expected = self.parameters[name].shape
                raise NpformerError(f"Adam: gradient {name}: expected {expected}, got {grad.shape}")
        self.t += 1
        tasks = []
        for name, grad in gradients.items():
            decay = learning_rate * self.weight_decay if self._decayed[name] else 0.0
            if isinstance(grad, SparseRows) and self.lazy:
                tasks.append(partial(self._update_rows, name, grad, learning_rate, scale, decay))
                continue
            dense = self._dense(name, grad)
            arrays = [each[name].reshape(-1) for each in (self.parameters, self.m, self.v)]
            for part in _parts(dense.size):
                w, m, v = (array[part] for array in arrays)
                tasks.append(partial(self._update, w, m, v, dense.reshape(-1)[part], learning_rate, scale, decay))
        run_tasks(tasks, threads)

    def _dense(self, name: str, grad: Gradient) -> np.ndarray:
        if not isinstance(grad, SparseRows):
            return np.ascontiguousarray(grad)
        dense = np.zeros_like(self.parameters[name])
        dense[grad.ids] = grad.values
        return dense

    def _update_rows(self, name: str, grad: SparseRows, learning_rate: float, scale: float, decay: float) -> None:
        whole = [self.parameters[name], self.m[name], self.v[name]]
        rows = [array[grad.ids] for array in whole]
        w, m, v = (each.reshape(-1) for each in rows)
        self._update(w, m, v, grad.values.reshape(-1), learning_rate, scale, decay)
        for array, moved in zip(whole, rows, strict=True):
            array[grad.ids] = moved

    @np.errstate(over="ignore", invalid="ignore")  # `Trainer` checks after each epoch that the weights are finite
    def _update(
        self, w: np.ndarray, m: np.ndarray, v: np.ndarray, grad: np.ndarray, rate: float, scale: float, decay: float
    ) -> None:
        """Applies the formula to flat arrays in place. Without the scratch array, the step would be:

        m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= size m / (sqrt(v) / root + eps)
        """
        b1, b2 = self.betas
        size, root = rate / (1 - b1**self.t), math.sqrt(1 - b2**self.t)
        scratch = np.empty(min(BLOCK, len(w)), w.dtype)
        for start in range(0, len(w), BLOCK):
            block = slice(start, start + BLOCK)
            g = grad[block] if scale == 1 else grad[block] * scale
            w_, m_, v_ = w[block], m[block], v[block]
            t = scratch[: len(w_)]
            if decay:
                w_ *= 1 - decay
            m_ *= b1
            m_ += np.multiply(g, 1 - b1, out=t)
            v_ *= b2
            np.multiply(g, g, out=t)
            t *= 1 - b2
            v_ += t
            np.sqrt(v_, out=t)
            t /= root
            t += self.eps
            np.divide(m_, t, out=t)
            t *= size
            w_ -= t

    def state(self) -> dict[str, np.ndarray]:
        """The state of the optimizer, for `restore`: m and v by name, and t."""
        moments = {f"m.{name}": array for name, array in self.m.items()}
        moments |= {f"v.{name}": array for name, array in self.v.items()}
        return {**moments, "t": np.array([self.t], np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `state`.

        Raises NpformerError for a moment with a wrong shape or dtype, or with invalid numbers, and KeyError if a moment
        is missing.
        """
        for name in self.parameters:
            for key, moment, least in ((f"m.{name}", self.m[name], -np.inf), (f"v.{name}", self.v[name], 0)):
                stored = state[key]
                if stored.shape != moment.shape or stored.dtype != moment.dtype:
                    expected = f"{moment.dtype} of {moment.shape}"
                    raise NpformerError(f"{key:.200}: expected {expected}, got {stored.dtype} of {stored.shape}")
                if not np.isfinite(stored).all() or not (stored >= least).all():
                    raise NpformerError(f"{key:.200}: expected finite numbers{' of at least 0' if least == 0 else ''}")
                moment[...] = stored
        self.t = whole("t", int(state["t"][0]), 0)


def _parts(size: int) -> Sequence[slice]:
    """Splits a large array into parts for several threads."""
    step = 16 * BLOCK
    return [slice(start, start + step) for start in range(0, size, step)]
