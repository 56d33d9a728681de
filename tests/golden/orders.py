"""Orders in which correct programs add up a product's terms, for torch to run a model in.

torch's own run is one draw of rounding. A BLAS for another CPU adds one term after another where torch's keeps sixteen
partial sums, and its error is another, often a larger one; both are right. What a stage's error may be is therefore
measured on several orders. Only `make.py` uses this; it needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

ROWS = 64  # rows worked on at a time, which stay in a core's cache

Order = Callable[[int], Sequence[Sequence[int]]]  # of K terms: the partial sums, each with its terms in order

ORDERS: dict[str, Order | None] = {
    "as torch adds": None,
    "one term after another": lambda k: [range(k)],
    "the last term first": lambda k: [range(k)[::-1]],
    "even and odd terms apart": lambda k: [range(0, k, 2), range(1, k, 2)],
}


def added(order: str) -> AbstractContextManager[Any]:
    """Add up every product of float32 inside in one of the ORDERS."""
    partial_sums = ORDERS[order]
    return nullcontext() if partial_sums is None else _Adding(partial_sums)


class _Adding(TorchFunctionMode):
    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is functional.linear:
            x, weight, bias = (*args, *kwargs.values(), None)[:3]
            y = self._product(x, weight.T)
            return y if bias is None else y + bias
        if function in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            return self._product(*args)
        return function(*args, **kwargs)

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if b.ndim == 2:  # a weight, and rows of any leading shape
            rows = a.reshape(-1, a.shape[-1]).split(ROWS)
            return torch.cat([self._sum(some, b) for some in rows]).reshape(*a.shape[:-1], b.shape[-1])
        return torch.stack([self._product(each, other) for each, other in zip(a, b, strict=True)])

    def _sum(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        columns, rows = a.T.contiguous().unsqueeze(-1), b.contiguous().unsqueeze(-2)
        total = None
        for terms in self.order(len(columns)):
            part = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
            for k in terms:
                part.addcmul_(columns[k], rows[k])
            total = part if total is None else total + part
        assert total is not None
        return total
