"""Orders of summation that correct programs use; torch runs a model forward and backward in each of them.

The rounding errors of torch's own run are one sample of many. A BLAS for another CPU may add one term after another
where torch's BLAS keeps sixteen partial sums. Its error is different, often larger, but both results are correct. The
permitted error is therefore measured over several orders: those of known kernels, and shuffled orders. Stages with few
numbers need many orders: for one stage of eleven numbers, four orders gave errors of up to 0.7e-6, shuffled orders of
up to 1.4e-6, and a kernel for ARM of 1.9e-6. Only the scripts that make golden values use this; it needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

ROWS = 256  # rows of a product computed at a time, few enough for the CPU's caches
SUMS = 65536  # entries of small products computed at a time

Order = Callable[[int], Sequence[Sequence[int]]]  # number of terms -> partial sums, each a list of its terms in order


@cache
def _shuffled(seed: int, k: int) -> Sequence[Sequence[int]]:
    return [np.random.default_rng((seed, k)).permutation(k).tolist()]


ORDERS: dict[str, Order | None] = {
    "as torch adds": None,
    "one term after another": lambda k: [range(k)],
    "the last term first": lambda k: [range(k)[::-1]],
    "even and odd terms apart": lambda k: [range(0, k, 2), range(1, k, 2)],
    **{f"shuffled by seed {seed}": partial(_shuffled, seed) for seed in range(8)},
}

#: Functions that add in torch's own order. They must not be called when golden values are made.
OTHER_PRODUCTS = {
    f"aten::{name}" for name in ("addbmm", "addmm", "addmv", "baddbmm", "dot", "linear", "mkldnn_linear", "mv", "vdot")
}


def errors(
    run: Callable[[], dict[str, np.ndarray]],
    truth: dict[str, np.ndarray],
    orders: Iterable[str] = ORDERS,
    as_torch: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """error/<name> -> the largest error of that array in run(), a float32 run, for each order of summation.

    as_torch: the arrays that run() returns if sums are in torch's own order, if they are known.
    """
    found: dict[str, list[float]] = {}
    for order in orders:
        with added(order):
            arrays = as_torch if ORDERS[order] is None and as_torch is not None else run()
        for name, array in truth.items():
            found.setdefault(f"error/{name}", []).append(largest(arrays[name] - array))
    return {name: np.array(each) for name, each in found.items()}


def largest(errors: np.ndarray) -> float:
    """Returns the largest finite magnitude; torch gives NaN for rows of padding."""
    return float(np.abs(errors[np.isfinite(errors)]).max(initial=0))


@contextmanager
def added(order: str) -> Iterator[None]:
    """Inside this context, every product, and the mean and variance of every norm, are summed in the given order."""
    partial_sums = ORDERS[order]
    if partial_sums is None:
        yield
    else:
        with sdpa_kernel(SDPBackend.MATH), _Adding(partial_sums):  # other attention kernels hide their products
            yield


class _Adding(TorchDispatchMode):
    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (aten.mm.default, aten.bmm.default):
            return self._product(*args)
        if function in (aten.addmm.default, aten.baddbmm.default) and not kwargs:
            added, a, b = args
            return self._product(a, b) + added
        if function is aten.baddbmm.default:
            added, a, b = args
            return kwargs.get("alpha", 1) * self._product(a, b) + kwargs.get("beta", 1) * added
        if function is aten.convolution.default:
            return self._convolution(*args)
        if function is aten.native_layer_norm.default:
            return self._layer_norm(*args)
        if function._schema.name in OTHER_PRODUCTS:
            raise NotImplementedError(f"{function}: its order of adding cannot be chosen here")
        return function(*args, **(kwargs or {}))

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """(..., M, K) @ (..., K, N), computed for as many rows or matrices at a time as fit in a core's cache."""
        if a.ndim == 2:
            return torch.cat([self._products(rows[None], b[None])[0] for rows in a.split(ROWS)])
        together = max(1, SUMS // (a.shape[1] * b.shape[2]))
        return torch.cat([self._products(*pair) for pair in zip(a.split(together), b.split(together), strict=True)])

    def _products(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """(B, M, K) @ (B, K, N)"""
        columns = a.permute(2, 0, 1).contiguous()[..., None]
        rows = b.permute(1, 0, 2).contiguous()[:, :, None]
        zeros = torch.zeros(len(a), a.shape[1], b.shape[2], dtype=b.dtype)
        return self._sum(a.shape[2], zeros, lambda part, k: part.addcmul_(columns[k], rows[k]))

    def _convolution(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: Any, padding: Any, *args: Any
    ) -> torch.Tensor:
        """(B, D, L) -> (B, E, L), weight (E, D, K): the product of the K columns around each column with the weight."""
        around = torch.nn.functional.pad(x, (padding[0], padding[0])).unfold(2, weight.shape[2], stride[0])
        rows = around.transpose(1, 2).flatten(2)
        return torch.stack([self._product(each, weight.flatten(1).T) + bias for each in rows]).transpose(1, 2)

    def _layer_norm(
        self, x: torch.Tensor, shape: Any, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (width,) = shape
        columns = x.movedim(-1, 0).contiguous()
        zeros = torch.zeros_like(columns[0])
        mean = self._sum(width, zeros, lambda part, k: part.add_(columns[k])) / width
        columns = columns - mean
        variance = self._sum(width, zeros, lambda part, k: part.addcmul_(columns[k], columns[k])) / width
        scale = (variance + eps).rsqrt()
        y = (columns * scale).movedim(0, -1)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias, mean[..., None], scale[..., None]

    def _sum(self, terms: int, zeros: torch.Tensor, add: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
        """Computes each partial sum with add(sum, term) in its order, and adds the partial sums one after another."""
        total = None
        for places in self.order(terms):
            part = zeros.clone()
            for k in places:
                add(part, k)
            total = part if total is None else total + part
        assert total is not None
        return total
