"""Disentangled attention: a score is a sum of products of content and of distance. DeBERTa (He et al., 2021), 3.1.

Each token has a vector for its content, and each distance between two tokens has a vector. `attention.py` computes the
products of two content vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import Stage
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.functions import Linear, embedding_backward, linear, linear_backward
from npformer.engine.mechanisms.distances import of_all
from npformer.engine.mechanisms.mechanism import Mechanism, Sums
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.runtime.packing import Batch
from npformer.engine.runtime.products import inner_products_in_room
from npformer.engine.tape import Stages
from npformer.engine.taps import tap


@dataclass(frozen=True)
class Disentangled(Mechanism):
    """score_ij = (q_i . k_j + q_i . K_r(i, j) + k_j . Q_r(i, j)) / sqrt(3 K), where r is the distance. Section 3.1.

    With only one of the two products that contain r, the divisor is sqrt(2 K). Without these products, it is sqrt(K).

    Parameters
    ----------
    n_rows : int, rows of the distance table
    max_distance : int, as in `log_buckets`; 0 means that each distance has its own row
    forms : the products with distances: "key" for content to distance, "query" for distance to content
    own : bool, layers have separate weights to project the table; if False, the weights of query and key are used
    norm : bool, the table has a norm
    eps : float, eps of that norm
    table : (R, D) array, the normalized rows of the table that the batch needs
    first : int, index of the first of these rows in the whole table
    projected : (R, D) arrays by form, the table projected to keys and to queries in one layer
    """

    n_rows: int
    max_distance: int = 0
    forms: tuple[str, ...] = ("key", "query")
    own: bool = False
    norm: bool = False
    eps: float = 0.0
    table: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)), compare=False, repr=False)
    first: int = field(default=0, compare=False, repr=False)
    projected: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def check(self, config: Any) -> None:
        checks.whole("disentangled.n_rows", self.n_rows, 1)
        checks.whole("disentangled.max_distance", self.max_distance, 0)
        checks.boolean("disentangled.own", self.own)
        checks.boolean("disentangled.norm", self.norm)
        if self.forms not in ((), ("key",), ("query",), ("key", "query")):
            raise NpformerError(f"disentangled.forms: expected key, query, both or neither, got {self.forms!r:.200}")
        if config.kv_heads != config.n_heads or config.d_head * config.n_heads != config.d_model:
            raise NpformerError(
                "disentangled: expected n_kv_heads 0 and head_width 0, because the distance table has d_model columns, "
                f"got {config.n_kv_heads} and {config.head_width}"
            )

    def for_model(self, config: Any) -> Disentangled:
        return replace(self, eps=config.eps)

    @property
    def products(self) -> int:
        return 1 + len(self.forms)

    @property
    def n_buckets(self) -> int:
        """The number of buckets for each sign, which is also the row of distance 0 in the whole table."""
        return self.n_rows // 2

    def groups(self, d_model: int) -> dict[str, Group]:
        found = {"distances": weight_group.table(self.n_rows, d_model)}
        return found | {"distances_norm": LayerNorm(self.eps).group(d_model)} if self.norm else found

    def projections(self, d_model: int) -> dict[str, Group]:
        return {f"distance_{form}": weight_group.linear(d_model, d_model, joined=3) for form in self.forms if self.own}

    def begin(self, weights: Mapping[str, Any], batch: Batch) -> Disentangled:
        farthest = batch.farthest
        if self.max_distance:
            farthest = int(log_buckets(np.array(farthest), self.n_buckets, self.max_distance))
        first = max(self.n_buckets - farthest, 0)
        table = weights["distances"]["weight"][first : self.n_buckets + farthest + 1]
        if "distances_norm" in weights:
            table = LayerNorm(self.eps)(table, **weights["distances_norm"])
        return replace(self, table=table, first=first)

    def end_backward(self, sums: Sums, weights: Mapping[str, Any]) -> dict[str, Any]:
        grad, tree = sums["table"], {}
        ids = np.arange(self.first, self.first + len(grad))
        if "distances_norm" in weights:
            table = weights["distances"]["weight"][ids]
            grad, tree["distances_norm"] = LayerNorm(self.eps).backward(grad, table, **weights["distances_norm"])
        return {"distances": {"weight": embedding_backward(grad, ids)}, **tree}

    def in_layer(self, projections: Mapping[str, Linear]) -> Disentangled:
        """Returns the mechanism with the table projected to keys, x W_k + b_k, and to queries, x W_q + b_q."""
        layers = self._layers(projections).items()
        return replace(self, projected={form: linear(self.table, **projections[name]) for form, name in layers})

    def in_layer_backward(self, sums: Sums, projections: Mapping[str, Linear], grads: dict[str, Any]) -> Sums:
        d_table = np.zeros_like(self.table)
        for form, name in self._layers(projections).items():
            grad = sums[form].swapaxes(0, 1).reshape(self.table.shape)
            more, of_layer = linear_backward(grad, self.table, **projections[name])
            d_table += more
            grads[name] = (
                {part: each + grads[name][part] for part, each in of_layer.items()} if name in grads else of_layer
            )
        return {"table": d_table}

    def _layers(self, projections: Mapping[str, Linear]) -> dict[str, str]:
        """Maps each form to its projection: distance_query or distance_key if the layer has it, else query or key."""
        own = {form: f"distance_{form}" for form in self.forms}
        return {form: name if name in projections else form for form, name in own.items()}

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray] | None:
        if not self.forms:
            return None
        tables = {f"distance_{name}": each[None] for name, each in self._heads(n_heads).items()}
        return {**tables, "ids": self._ids(queries, keys)[:, None]}

    def _heads(self, n_heads: int) -> dict[str, np.ndarray]:
        """The heads of the projected table by form, (H, R, K) each."""
        forms = self.projected.items()
        return {form: each.reshape(len(each), n_heads, -1).swapaxes(0, 1) for form, each in forms}

    def _ids(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        zero = self.n_buckets - self.first
        return distance_rows(queries, keys, zero, len(self.table), self.max_distance, self.n_buckets)

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        tables = {name: each[0] for name, each in terms.items() if name != "ids"}
        scores += tap("distance_scores", distance_scores(q, k, terms["ids"][:, 0], **tables) * scale)
        return scores

    def add_backward(
        self,
        grad: np.ndarray,
        q: np.ndarray,
        k: np.ndarray,
        scale: float,
        queries: np.ndarray,
        keys: np.ndarray,
        stages: Stages,
    ) -> tuple[np.ndarray, np.ndarray | float, np.ndarray | float, Sums]:
        if not self.forms:
            return super().add_backward(grad, q, k, scale, queries, keys, stages)
        of_terms = stages.through_edit("distance_scores", grad) * scale
        tables = {f"distance_{name}": each for name, each in self._heads(q.shape[-3]).items()}
        dq, dk, sums = distance_scores_backward(of_terms, q, k, self._ids(queries, keys), **tables)
        return grad, dq, dk, {form: each.sum(axis=0) for form, each in sums.items()}

    def formula(self, scores: str) -> str:
        return f"{scores} + distance_scores" if self.forms else scores

    @property
    def added(self) -> tuple[Stage, ...]:
        if not self.forms:
            return ()
        of_forms = {"key": ("Q_h K_r^T", "query_heads"), "query": ("Q_r K_h^T", "key_heads")}
        products, parents = zip(*(of_forms[form] for form in self.forms), strict=True)
        total = f"({' + '.join(products)})" if len(products) > 1 else products[0]
        formula, made_by = f"{total} / sqrt({self.products} K), r: distances", "mechanisms.disentangled.distance_scores"
        return (Stage("distance_scores", "(H, T, T)", formula, made_by, parents=parents, kept=False),)


def log_buckets(distance: np.ndarray, n_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance i - j, from -n_buckets + 1 to n_buckets - 1.

    With m = n_buckets / 2, each distance up to m has its own bucket. Larger distances share buckets by their logarithm:
    bucket(d) = sign(d) (m + ceil(log(|d| / m) / log((max_distance - 1) / m) (m - 1))). He et al., 2021, the published
    code of DeBERTa v2.
    """
    middle = n_buckets // 2
    far = np.maximum(np.abs(distance), middle).astype(np.float32) / np.float32(middle)
    # float32, as in torch, because rounding at the last distance of a bucket decides whether `ceil` returns the next
    # integer.
    step = np.log(far) / np.log(np.float32((max_distance - 1) / middle)) * np.float32(middle - 1)
    return np.where(np.abs(distance) <= middle, distance, np.sign(distance) * (np.ceil(step).astype(int) + middle))


def distance_rows(
    queries: np.ndarray, keys: np.ndarray, zero: int, n_rows: int, max_distance: int, n_buckets: int
) -> np.ndarray:
    """The row of the distance table for each query and key, (N, L), (N, S) -> (N or 1, L, S).

    The distance is query - key. Distances beyond the table use its first or last row. The first axis is 1 if all texts
    have the same places. zero: the row of distance 0. max_distance: 0 if each distance has its own row.
    """
    queries, keys = of_all(queries, keys)
    distance = queries[:, :, None] - keys[:, None, :]
    bucket = log_buckets(distance, n_buckets, max_distance) if max_distance else distance
    return np.clip(bucket + zero, 0, n_rows - 1)


def distance_scores(
    q: np.ndarray,
    k: np.ndarray,
    ids: np.ndarray,
    distance_key: np.ndarray | None = None,
    distance_query: np.ndarray | None = None,
) -> np.ndarray:
    """q_i . K_r(i, j) + k_j . Q_r(i, j), which is added to q k^T, (..., H, L, S). He et al., 2021, equation 4.

    distance_key, distance_query (..., H, R, K): K_r and Q_r, the distance table as keys and as queries; at least one is
    given. ids (N or 1, L, S): r, the row of the table for each query and key.
    """
    products = []
    if distance_key is not None:  # q @ K.mT, with bits that do not depend on the number of rows of the table
        products.append(_gathered(inner_products_in_room(q, distance_key), ids))
    if distance_query is not None:
        products.append(_gathered(inner_products_in_room(k, distance_query), ids.mT).mT)
    return reduce(np.add, products)


def distance_scores_backward(
    grad: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    ids: np.ndarray,
    distance_key: np.ndarray | None = None,
    distance_query: np.ndarray | None = None,
) -> tuple[np.ndarray | float, np.ndarray | float, Sums]:
    """Backward of `distance_scores`: dq (..., H, L, K), dk (..., H, S, K), and dK, dQ (..., H, R, K) by form.

    dq = C K and dK = C^T q, where C[i, r] is the sum of grad[i, j] over all j with r(i, j) = r. dk and dQ are computed
    in the same way from the transpose of grad.
    """
    dq: np.ndarray | float = 0.0
    dk: np.ndarray | float = 0.0
    sums: Sums = {}
    if distance_key is not None:
        to_distance = _scattered(grad, ids, distance_key.shape[-2])
        dq, sums["key"] = to_distance @ distance_key, to_distance.mT @ q
    if distance_query is not None:
        to_content = _scattered(grad.mT, ids.mT, distance_query.shape[-2])
        dk, sums["query"] = to_content @ distance_query, to_content.mT @ k
    return dq, dk, sums


def _gathered(products: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """products[..., i, ids[n, i, j]], (N, H, L, R) -> (N, H, L, S). ids (N or 1, L, S)."""
    if len(ids) > 1:
        return np.take_along_axis(products, ids[:, None], axis=-1)
    length, n_rows = products.shape[-2:]
    flat = products.reshape(*products.shape[:-2], length * n_rows)
    return flat.take(ids[0] + np.arange(length)[:, None] * n_rows, axis=-1)


def _scattered(grad: np.ndarray, ids: np.ndarray, n_rows: int) -> np.ndarray:
    """Backward of `_gathered`: (N, H, L, S) -> (N, H, L, R)."""
    total = np.zeros((*grad.shape[:-1], n_rows), grad.dtype)
    for text, of_text in enumerate(ids):
        here = slice(None) if len(ids) == 1 else slice(text, text + 1)
        for i, of_query in enumerate(of_text):
            order = np.argsort(of_query, kind="stable")  # makes equal ids adjacent, so that they can be summed
            starts = np.flatnonzero(np.diff(of_query[order], prepend=-1))
            total[here, ..., i, of_query[order[starts]]] = np.add.reduceat(grad[here, ..., i, order], starts, axis=-1)
    return total
