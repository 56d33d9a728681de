"""Embeddings, the input of the first layer: sums of rows of learned tables, or of tables of sinusoidal positions.

Vaswani et al., 2017, sections 3.4 and 3.5; Devlin et al., 2019, figure 2. Next: `blocks/`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from npformer.engine.norms.layernorm import LAYER_NORM
from npformer.engine.norms.norm import Norm
from npformer.engine.runtime.packing import Batch
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, spare, tap


def sinusoidal_positions(length: int, width: int, dtype: type = np.float32, halves: bool = False) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / D)), (length, D).

    halves: all sines come before all cosines, as in Marian. Vaswani et al., 2017, section 3.5.
    """
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    if halves:
        return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :width].astype(dtype)
    table: np.ndarray = np.empty((length, width), dtype)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : width // 2]
    return table


@dataclass(frozen=True)
class Embeddings:
    """For each token, the sum of its rows in the tables.

    In the 2017 model, scale is sqrt(D) (section 3.4), and there is no norm. Models with tables that are narrower than
    the layers need a projection, for example ALBERT (Lan et al., 2020, section 3.1).

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
        counts = {"token": self.n_tokens, "position": self.n_positions, "segment": self.n_token_types}
        found = {name: weight_group.table(count, self.width) for name, count in counts.items() if count}
        found |= {} if self.norm is None else {"norm": self.norm.group(self.width)}
        found |= {"project": weight_group.linear(self.width, d_model)} if self.projected else {}
        return weight_group.within("embeddings", found)

    def __call__(self, ids: np.ndarray, batch: Batch, weights: Mapping[str, Any]) -> np.ndarray:
        """Normalize(scale * token [+ position] [+ segment]) [W + b], from rows of the tables: (T,) -> (T, D)."""
        tables = weights["embeddings"]
        with scope("embeddings"):
            tokens = embedding(ids, **tables["token"])
            x = tap("token", tokens if self.scale == 1 else tokens * self.scale)
            if "position" in tables:
                x = x + tap("position", embedding(batch.positions + self.first_position, **tables["position"]))
            if "segment" in tables:
                segments = tap("segment", embedding(batch.token_type_ids, **tables["segment"]))
                x = np.add(x, segments, out=x) if "position" in tables else x + segments
            x = tap("sum", x)
            if self.norm is not None:
                x = tap("norm", self.norm(x, out=spare(x), **tables["norm"]))
            return tap("project", linear(x, **tables["project"])) if "project" in tables else x

    def backward(self, grad: np.ndarray, stages: Stages, batch: Batch, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Backward of `__call__`: the gradients of the tables, as `SparseRows`, and of the norm and the projection.

        Tokens equal to padding_idx add nothing to the gradients of the token and position tables, as in torch.
        """
        stages, tables, grads = stages.within("embeddings"), weights["embeddings"], dict[str, Any]()
        if "project" in tables:
            normed = stages["sum" if self.norm is None else "norm"]
            grad, grads["project"] = linear_backward(stages.through_edit("project", grad), normed, **tables["project"])
        if self.norm is not None:
            grad = stages.through_edit("norm", grad)
            grad, grads["norm"] = self.norm.backward(grad, stages["sum"], **tables["norm"])
        grad = stages.through_edit("sum", grad)
        trained = slice(None) if self.padding_idx is None else batch.ids != self.padding_idx
        d_token = stages.through_edit("token", grad)
        d_token = d_token if self.scale == 1 else d_token * self.scale
        grads["token"] = {"weight": embedding_backward(d_token[trained], batch.ids[trained])}
        if "position" in tables:
            d_position, positions = stages.through_edit("position", grad), batch.positions + self.first_position
            grads["position"] = {"weight": embedding_backward(d_position[trained], positions[trained])}
        if "segment" in tables:
            d_segment = stages.through_edit("segment", grad)
            grads["segment"] = {"weight": embedding_backward(d_segment, batch.token_type_ids)}
        return grads

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> dict[str, float]:
        """The contribution of each table to a logit, given a direction in the output.

        at: the prefix of the stage names.
        """
        at, tables = f"{at}embeddings.", weights["embeddings"]
        if "project" in tables:
            direction.linear(f"{at}project", tables["project"])
        if self.norm is not None:
            self.norm.pull(direction, f"{at}norm", f"{at}sum", **tables["norm"])
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
        """The stages in order of computation."""
        groups, shape, function = self.groups(0), "(T, E)", "functions.embedding"
        token = "E[ids]" if self.scale == 1 else f"{self.scale:.6g} E[ids]"
        found = [
            Stage("token", shape, token, function, "embed.hook_embed", kept=False),
            Stage("position", shape, "P[positions]", function, "embed.hook_pos_embed", kept=False),
            Stage("segment", shape, "S[token_type_ids]", function, "embed.hook_token_type_embed", kept=False),
        ]
        found = [each for each in found if f"embeddings.{each.name}" in groups]
        parents = tuple([each.name for each in found])
        total = ("" if self.norm or self.projected else "X = ") + " + ".join(parents)
        found.append(Stage("sum", shape, total, "embeddings.Embeddings", parents=parents))
        if self.norm is not None:
            found.append(self.norm.stage("norm", "sum", "sum", "X", shape, "hook_full_embed"))
        if self.projected:
            formula, parents = "X = Normalize(sum) W + b", (found[-1].name,)
            found.append(Stage("project", "(T, D)", formula, "functions.linear", parents=parents))
        return within("embeddings", found, {})


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
