"""Token tables that are narrower than the layers, with projections before and after the stack.

Zhang et al., 2022, OPT: Open Pre-trained Transformer Language Models, and the code published for the 350M model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import Stage, within
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.embeddings import Embeddings
from npformer.engine.functions import embedding, embedding_backward, linear, linear_backward
from npformer.engine.layers.stack import Stack
from npformer.engine.runtime.packing import Batch
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, tap


@dataclass(frozen=True)
class ProjectedTokens(Embeddings):
    """token + position, or token W + position with a projection, for rows of the tables.

    Parameters
    ----------
    padding_idx, first_position, n_tokens, n_positions, projected : as in `Embeddings`
    width : int, width of the token table; the position table is as wide as the layers
    """

    norm: None = None

    def groups(self, d_model: int) -> dict[str, Group]:
        found = {"token": weight_group.table(self.n_tokens, self.width)}
        found |= {"project": weight_group.linear(self.width, d_model, bias=False)} if self.projected else {}
        return weight_group.within("embeddings", found | {"position": weight_group.table(self.n_positions, d_model)})

    def __call__(self, ids: np.ndarray, batch: Batch, weights: Mapping[str, Any]) -> np.ndarray:
        tables = weights["embeddings"]
        with scope("embeddings"):
            x = tap("token", embedding(ids, **tables["token"]))
            if self.projected:
                x = tap("project", linear(x, **tables["project"]))
            positions = embedding(batch.positions + self.first_position, **tables["position"])
            return tap("sum", x + tap("position", positions))

    def backward(self, grad: np.ndarray, stages: Stages, batch: Batch, weights: Mapping[str, Any]) -> dict[str, Any]:
        stages, tables, grads = stages.within("embeddings"), weights["embeddings"], dict[str, Any]()
        grad = stages.through_edit("sum", grad)
        positions = batch.positions + self.first_position
        grads["position"] = {"weight": embedding_backward(stages.through_edit("position", grad), positions)}
        if self.projected:
            grad = stages.through_edit("project", grad)
            grad, grads["project"] = linear_backward(grad, stages["token"], **tables["project"])
        trained = slice(None) if self.padding_idx is None else batch.ids != self.padding_idx
        d_token = stages.through_edit("token", grad)
        return grads | {"token": {"weight": embedding_backward(d_token[trained], batch.ids[trained])}}

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> dict[str, float]:
        found = {"position": float(direction.u @ direction.at(f"{at}embeddings.position"))}
        if self.projected:
            direction.linear(f"{at}embeddings.project", weights["embeddings"]["project"])
        return {"token": float(direction.u @ direction.at(f"{at}embeddings.token")), **found}

    @property
    def output(self) -> str:
        return "embeddings.sum"

    @property
    def stages(self) -> list[Stage]:
        function, tokens = "functions.embedding", "token"
        found = [Stage("token", "(T, E)", "E[ids]", function, "embed.hook_embed", kept=self.projected)]
        if self.projected:
            tokens = "project"
            found.append(Stage(tokens, "(T, D)", "E[ids] W", "functions.linear", parents=("token",), kept=False))
        found.append(Stage("position", "(T, D)", "P[positions]", function, "embed.hook_pos_embed", kept=False))
        formula, made_by = f"X = {tokens} + position", "token_projections.ProjectedTokens"
        return within(
            "embeddings", [*found, Stage("sum", "(T, D)", formula, made_by, parents=(tokens, "position"))], {}
        )


@dataclass(frozen=True)
class ProjectedStack(Stack):
    """A stack whose output is projected to the width of the token table.

    Parameters
    ----------
    layers, norm, after_first : as in `Stack`
    table_width : int, width of the token table
    """

    table_width: int = 0

    def finish(self, x: np.ndarray, weights: Mapping[str, Any]) -> np.ndarray:
        return tap("project", linear(super().finish(x, weights), **weights["project"]))

    def finish_backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, weights: Mapping[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        read = x if self.norm is None else stages["norm"]
        grad, d_project = linear_backward(stages.through_edit("project", grad), read, **weights["project"])
        grad, grads = super().finish_backward(grad, stages, x, weights)
        return grad, {**grads, "project": d_project}

    def width(self, d_model: int) -> int:
        return self.table_width

    def output(self, x: str) -> str:
        return "project"

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        direction.linear(f"{at}project", weights["project"])
        return super().pull(direction, at, weights)

    def groups(self, d_model: int) -> dict[str, Group]:
        return {**super().groups(d_model), "project": weight_group.linear(d_model, self.table_width, bias=False)}

    def stages(self, x: str) -> list[Stage]:
        found = super().stages(x)
        found[-1] = found[-1]._replace(kept=True)
        return [*found, project_stage(found[-1].name)]


def project_stage(x: str) -> Stage:
    """The stage of the projected output of a stack, computed from stage x."""
    return Stage("project", "(T, E)", "Z W", "functions.linear", parents=(x,))
