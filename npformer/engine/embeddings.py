"""Embeddings, the input of the first layer: sums of rows of learned tables, sometimes with sinusoidal positions.

Vaswani et al., 2017, sections 3.4 and 3.5; Devlin et al., 2019, figure 2. Next: `blocks/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.common.arraylike import as_numbers
from npformer.common.errors import NpformerError
from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import Stage, within
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.functions import (
    embedding,
    embedding_backward,
    linear,
    linear_backward,
)
from npformer.engine.multi_head import Linear
from npformer.engine.norms.layernorm import LAYER_NORM
from npformer.engine.norms.norm import Norm
from npformer.engine.runtime.packing import Batch
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, spare, tap


def sinusoidal_positions(length: int, width: int, dtype: type = np.float32, halves: bool = False) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)).

    Parameters
    ----------
    length : int, number of positions
    width : int, D
    dtype : float32 or float64
    halves : bool, all sines first and then all cosines, as in Marian

    Returns
    -------
    (length, D) array

    References
    ----------
    Vaswani et al., 2017, section 3.5.

    Examples
    --------
    >>> sinusoidal_positions(2, 4)
    array([[0.    , 1.    , 0.    , 1.    ],
           [0.8415, 0.5403, 0.01  , 0.9999]], dtype=float32)
    """
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    if halves:
        return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :width].astype(dtype)
    table: np.ndarray = np.empty((length, width), dtype)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : width // 2]
    return table


def embeddings(
    ids: np.ndarray,
    positions: np.ndarray,
    token_type_ids: np.ndarray | None,
    token: Mapping[str, np.ndarray],
    position: Mapping[str, np.ndarray] | None = None,
    norm: Linear | None = None,
    segment: Mapping[str, np.ndarray] | None = None,
    project: Linear | None = None,
    scale: float = 1.0,
    normalize: Norm = LAYER_NORM,
) -> np.ndarray:
    """Normalize(scale * token [+ position] [+ segment]) [W + b], from rows of the tables: (T,), (T,), (T,) -> (T, D).

    In the 2017 model, scale is sqrt(D) (section 3.4), and there is no norm. `project` is W and b, for models with
    tables narrower than their layers, such as ALBERT (Lan et al., 2020, section 3.1).
    """
    with scope("embeddings"):
        tokens = embedding(ids, **token) if scale == 1 else embedding(ids, **token) * scale
        total = tap("token", tokens)
        if position is not None:
            total = total + tap("position", embedding(positions, **position))
        if segment is not None:
            rows = tap(
                "segment", embedding(np.zeros_like(ids) if token_type_ids is None else token_type_ids, **segment)
            )
            total = total + rows if position is None else np.add(total, rows, out=total)
        total = tap("sum", total)
        x = total if norm is None else tap("norm", normalize(total, out=spare(total), **norm))
        return x if project is None else tap("project", linear(x, **project))


def embeddings_backward(
    grad: np.ndarray,
    stages: Stages,
    ids: np.ndarray,
    positions: np.ndarray,
    token_type_ids: np.ndarray | None,
    token: Mapping[str, np.ndarray],
    position: Mapping[str, np.ndarray] | None = None,
    norm: Linear | None = None,
    segment: Mapping[str, np.ndarray] | None = None,
    project: Linear | None = None,
    scale: float = 1.0,
    padding_idx: int | None = None,
    normalize: Norm = LAYER_NORM,
) -> dict[str, Any]:
    """Backward of `embeddings`: the gradients of the tables, as `SparseRows`, and of the norm and the projection.

    Tokens equal to padding_idx add nothing to the gradients of the token and position tables, as in torch.
    """
    stages = stages.within("embeddings")
    grads: dict[str, Any] = {}
    if project is not None:
        normed = stages["sum" if norm is None else "norm"]
        grad, grads["project"] = linear_backward(stages.through_edit("project", grad), normed, **project)
    if norm is not None:
        grad, grads["norm"] = normalize.backward(stages.through_edit("norm", grad), stages["sum"], **norm)
    grad = stages.through_edit("sum", grad)
    d_token = stages.through_edit("token", grad)
    trained = slice(None) if padding_idx is None else ids != padding_idx
    grads["token"] = {"weight": embedding_backward((d_token if scale == 1 else d_token * scale)[trained], ids[trained])}
    if position is not None:
        d_position = stages.through_edit("position", grad)
        grads["position"] = {"weight": embedding_backward(d_position[trained], positions[trained])}
    if segment is not None:
        token_type_ids = np.zeros_like(ids) if token_type_ids is None else token_type_ids
        grads["segment"] = {"weight": embedding_backward(stages.through_edit("segment", grad), token_type_ids)}
    return grads


def embeddings_stages(groups: Collection[str], normalize: Norm = LAYER_NORM, scale: float = 1.0) -> list[Stage]:
    """The stages of `embeddings` in firing order. groups: names of the tables, the norm and the projection."""
    rows, function = "(T, E)", "functions.embedding"
    token = "E[ids]" if scale == 1 else f"{scale:.6g} E[ids]"
    found = [
        Stage("token", rows, token, function, "embed.hook_embed", kept=False),
        Stage("position", rows, "P[positions]", function, "embed.hook_pos_embed", kept=False),
        Stage("segment", rows, "S[token_type_ids]", function, "embed.hook_token_type_embed", kept=False),
    ]
    found = [each for each in found if each.name in groups]
    parents = tuple([each.name for each in found])
    total = ("" if {"norm", "project"} & {*groups} else "X = ") + " + ".join(parents)
    found.append(Stage("sum", rows, total, "embeddings.embeddings", parents=parents))
    if "norm" in groups:
        found.append(normalize.stage("norm", "sum", "sum", "X", rows, "hook_full_embed"))
    if "project" in groups:
        parents = (found[-1].name,)
        found.append(Stage("project", "(T, D)", "X = Normalize(sum) W + b", "functions.linear", parents=parents))
    return within("embeddings", found, {})


@dataclass(frozen=True)
class Embeddings:
    """`embeddings` as a part of a model.

    Parameters
    ----------
    norm : Norm of the sum, optional
    scale : float, factor of token rows
    first_position : int, row of the position table for the first token of a text
    padding_idx : int, a token whose row is not trained, optional
    n_tokens, n_positions, n_token_types : int, rows of the tables; 0 means no such table
    width : int, width of the tables
    projected : bool, a linear layer projects the rows to the width of the model
    """

    norm: Norm | None = LAYER_NORM
    scale: float = 1.0
    first_position: int = 0
    padding_idx: int | None = None
    n_tokens: int = 0
    n_positions: int = 0
    n_token_types: int = 0
    width: int = 0
    projected: bool = False

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, in the order of the forward pass."""
        rows = {"token": self.n_tokens, "position": self.n_positions, "segment": self.n_token_types}
        found = {name: weight_group.table(count, self.width) for name, count in rows.items() if count}
        found |= {} if self.norm is None else {"norm": self.norm.group(self.width)}
        found |= {"project": weight_group.linear(self.width, d_model)} if self.projected else {}
        return weight_group.within("embeddings", found)

    def __call__(self, ids: np.ndarray, batch: Batch, weights: Mapping[str, Any]) -> np.ndarray:
        positions = batch.positions + self.first_position
        tables = weights["embeddings"]
        normalize = self.norm or LAYER_NORM
        return embeddings(ids, positions, batch.token_type_ids, **tables, normalize=normalize, scale=self.scale)

    def backward(self, grad: np.ndarray, stages: Stages, batch: Batch, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Backward of `__call__`: the gradients of the weights."""
        return embeddings_backward(
            grad, stages, batch.ids, batch.positions + self.first_position, batch.token_type_ids,
            **weights["embeddings"], normalize=self.norm or LAYER_NORM, scale=self.scale, padding_idx=self.padding_idx,
        )  # fmt: skip

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> dict[str, float]:
        """The contribution of each table to a logit, given a direction in the output.

        at: the prefix of the stage names.
        """
        at, tables = f"{at}embeddings.", weights["embeddings"]
        if "project" in tables:
            direction.linear(f"{at}project", tables["project"])
        if "norm" in tables:
            (self.norm or LAYER_NORM).pull(direction, f"{at}norm", f"{at}sum", **tables["norm"])
        names = [name for name in ("token", "position", "segment") if name in tables]
        return {name: float(direction.u @ direction.at(at + name)) for name in names}

    @property
    def dropped(self) -> str:
        """The stage to which training applies dropout."""
        return "embeddings.sum" if self.norm is None else "embeddings.norm"

    @property
    def output(self) -> str:
        return "embeddings.project" if self.projected else self.dropped

    @property
    def stages(self) -> list[Stage]:
        """The stages in firing order."""
        groups = [name.removeprefix("embeddings.") for name in self.groups(0)]
        return embeddings_stages(groups, self.norm or LAYER_NORM, self.scale)


def shift_right(target: Any, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the decoder's input and labels for teacher forcing: [start, *target] and [*target, end].

    Parameters
    ----------
    target : (L,) token ids
    start, end : int, token ids

    Returns
    -------
    two (L + 1,) arrays, the input and the labels

    Raises
    ------
    NpformerError
        target is not a sequence of whole numbers.

    Examples
    --------
    >>> npformer.shift_right([12, 4433, 2304], start=0, end=99999)
    (array([   0,   12, 4433, 2304]), array([   12,  4433,  2304, 99999]))
    """
    ids = as_numbers("shift_right: target", target, keeps=True)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise NpformerError(f"shift_right: target: expected whole numbers (L,), got {ids.dtype} of shape {ids.shape}")
    ids = ids.astype(np.int64)
    return np.concatenate([[start], ids]), np.concatenate([ids, [end]])
