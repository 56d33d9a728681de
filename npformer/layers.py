"""A layer of blocks and a stack of layers: the equations of encoder and decoder, on packed rows.

Attention Is All You Need (Vaswani et al., 2017), section 3.1. A layer of an encoder has the blocks attention and ffn,
one of a decoder has cross_attention between them. Weights are nested dicts with a group for each block and norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npformer import group
from npformer.blocks.attention import Attention
from npformer.blocks.block import Backward, Block, Shared
from npformer.blocks.rows import Rows
from npformer.direction import Direction
from npformer.group import Group
from npformer.mechanisms.mechanism import Mechanism, add_up
from npformer.norms import LAYER_NORM, LayerNorm
from npformer.runtime.threads import all_gather
from npformer.stage import EMBEDDED, INPUT, SOURCE, Stage, within
from npformer.tape import Stages
from npformer.taps import scope, spare, tap


@dataclass(frozen=True)
class Layer:
    """Y = Normalize(X + Block(X)) for one block after another, or Y = X + Block(Normalize(X)) with norm_first.

    Parameters
    ----------
    blocks : pairs of a name and a block, in the order in which they are computed
    norm : of each block, where its weights are given
    norm_first : bool

    References
    ----------
    Vaswani et al., 2017, sections 3.1 and 5.4; Xiong et al., 2020, figure 1, for norm_first.
    """

    blocks: tuple[tuple[str, Block], ...]
    norm: LayerNorm = LAYER_NORM
    norm_first: bool = False

    def __call__(self, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]) -> np.ndarray:
        for name, block in self.blocks:
            norm = weights.get(f"{name}_norm")
            h = tap(f"{name}_norm", self.norm(x, **norm)) if self.norm_first and norm is not None else x
            with scope(name):
                y = block(h, rows, **weights[name])
            y = tap(f"{name}_residual", (x if len(x) == len(y) else x[rows.attending]) + y)
            x = y if self.norm_first or norm is None else tap(f"{name}_norm", self.norm(y, out=spare(y), **norm))
            rows = rows.whole  # attention has left the attending rows only
        return x

    def backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]
    ) -> Backward:
        grads, shared = dict[str, Any](), Shared()
        inputs = [x, *(stages[self._output(name, weights)] for name, _ in self.blocks[:-1])]
        of_rows = [rows, *[rows.whole] * (len(self.blocks) - 1)]
        for (name, block), x, rows in zip(self.blocks[::-1], inputs[::-1], of_rows[::-1], strict=True):
            norm = weights.get(f"{name}_norm")
            h = x
            if norm is not None and self.norm_first:  # x + block(Normalize(x))
                h = stages[f"{name}_norm"]
            elif norm is not None:  # Normalize(x + block(x))
                grad, grads[f"{name}_norm"] = self._norm_backward(name, grad, stages, stages[f"{name}_residual"], norm)
            grad = stages.through_edit(f"{name}_residual", grad)
            dx, grads[name], more = block.backward(grad, stages.within(name), h, rows, **weights[name])
            if norm is not None and self.norm_first:
                dx, grads[f"{name}_norm"] = self._norm_backward(name, dx, stages, x, norm)
            dx[slice(None) if len(dx) == len(grad) else rows.attending] += grad
            grad = dx
            _add(shared, more)
        return grad, grads, shared

    def _norm_backward(
        self, name: str, grad: np.ndarray, stages: Stages, x: np.ndarray, norm: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return self.norm.backward(stages.through_edit(f"{name}_norm", grad), x, **norm)

    def _output(self, block: str, weights: Mapping[str, Any]) -> str:
        """The stage that is the output of a block and its norm."""
        return f"{block}_{'residual' if self.norm_first or weights.get(f'{block}_norm') is None else 'norm'}"

    def output(self, weights: Mapping[str, Any]) -> str:
        """The stage that is the layer's output."""
        return self._output(self.blocks[-1][0], weights)

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The part of each block in a logit, as `Block.pull`; direction is then that in the layer's input."""
        found = dict[str, np.ndarray]()
        for name, block in reversed(self.blocks):
            if not self.norm_first and (norm := weights.get(f"{name}_norm")) is not None:
                self.norm.pull(direction, f"{at}{name}_norm", f"{at}{name}_residual", **norm)
            found[name] = block.pull(direction, f"{at}{name}.", **weights[name])
        return found

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights that the layer may have."""
        found = dict[str, Group]()
        for name, block in self.blocks:
            found |= group.within(name, block.groups(d_model)) | {f"{name}_norm": group.norm(d_model)}
        return found

    def stages(self, weights: Mapping[str, Any]) -> list[Stage]:
        """The layer's stages in firing order, with the norms that are among the weights."""
        found, x = list[Stage](), INPUT
        for name, block in self.blocks:
            around, norm = block.around, f"{name}_norm" if weights.get(f"{name}_norm") is not None else ""
            read, letter, total = x, around.x, f"{around.x} + {around.output}"
            if norm and self.norm_first:
                found.append(self.norm.stage(norm, letter, x, around.normed, hook=around.norm_hook))
                read, letter = norm, around.normed
            given = {INPUT: read, SOURCE: SOURCE, EMBEDDED: EMBEDDED}
            found += within(name, block.stages, given, x=letter)
            formula = f"{around.total} = {total}" if self.norm_first else total
            parents = (x, found[-1].name)
            found.append(Stage(f"{name}_residual", "(T, D)", formula, "layers.Layer", around.total_hook, parents))
            if norm and not self.norm_first:
                found.append(self.norm.stage(norm, total, found[-1].name, around.total, hook=around.norm_hook))
            x = found[-1].name
        return found


@dataclass(frozen=True)
class Stack:
    """Layers one after another, as many as there are weights, then a norm where its weights are given.

    Parameters
    ----------
    layers : Layer of each number, with the weights of `layers.0` and so on
    norm : of the last layer's rows
    after_first : a layer with the stack's own weights, which follows the first one
    """

    layers: tuple[Layer, ...]
    norm: LayerNorm = LAYER_NORM
    after_first: Layer | None = None

    @cached_property
    def mechanisms(self) -> list[Mechanism]:
        """The mechanisms of the layers' attention, each once."""
        blocks = [block for layer in self.layers for _, block in layer.blocks if isinstance(block, Attention)]
        return list(dict.fromkeys(each for block in blocks for each in block.mechanisms))

    def __call__(self, x: np.ndarray, rows: Rows, weights: Mapping[str, Any], first: int = 0) -> np.ndarray:
        """The last layer, (T, D). first: the number of the layer that reads x; those below it are not computed."""
        rows = self._begun(x, rows, weights)
        for i, (layer, of_layer) in list(enumerate(zip(self.layers, weights["layers"], strict=False)))[first:]:
            at = self._at(i, rows, last=i + 1 == len(weights["layers"]))
            with scope(f"layers.{i}"):
                x = layer(x, at, of_layer)
            if i == 0 and self.after_first is not None:
                x = self.after_first(x, at, weights)
        return tap("norm", self.norm(x, **weights["norm"])) if "norm" in weights else x

    def backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]
    ) -> Backward:
        """Backward of `__call__`. The gradients of mechanisms' groups are among the weights'."""
        rows, shared = self._begun(x, rows, weights), Shared()
        of_layers: list[dict[str, Any]] = [{} for _ in self.layers]
        grads: dict[str, Any] = {"layers": of_layers}
        inputs = [x, *(stages[name] for name in self.read("", weights)[1:])]
        if "norm" in weights:
            grad, grads["norm"] = self.norm.backward(stages.through_edit("norm", grad), inputs[-1], **weights["norm"])
        for i, layer in reversed(list(enumerate(self.layers))):
            at = self._at(i, rows, last=i + 1 == len(self.layers))
            if i == 0 and self.after_first is not None:
                first = stages[f"layers.0.{layer.output(weights['layers'][0])}"]
                grad, own, more = self.after_first.backward(grad, stages, first, at, weights)
                grads |= own
                _add(shared, more)
            within = stages.within(f"layers.{i}")
            grad, of_layers[i], more = layer.backward(grad, within, inputs[i], at, weights["layers"][i])
            _add(shared, more)
        for mechanism, begun in rows.mechanisms.items():
            if mechanism in shared:
                grads |= begun.end_backward(shared.pop(mechanism), weights)
        grad = grad + shared.pop(EMBEDDED)["rows"] if EMBEDDED in shared else grad
        return grad, grads, shared

    def output(self, weights: Mapping[str, Any]) -> str:
        """The stage that is the stack's output."""
        return "norm" if "norm" in weights else self.read("", weights)[-1]

    def read(self, x: str, weights: Mapping[str, Any]) -> list[str]:
        """The stages that each layer reads, the first of which is x, and the stage before the stack's norm."""
        layers = enumerate(zip(self.layers, weights["layers"], strict=False))
        found = [x, *(f"layers.{i}.{layer.output(of_layer)}" for i, (layer, of_layer) in layers)]
        if self.after_first is not None:
            found[1] = self.after_first.output(weights)
        return found

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """The parts of each layer's blocks in a logit, as `Layer.pull`; direction is then that in the stack's input.

        at: the beginning of the names of the stack's stages.
        """
        if "norm" in weights:
            self.norm.pull(direction, f"{at}norm", at + self.read("", weights)[-1], **weights["norm"])
        found = list[dict[str, np.ndarray]]()
        for i, layer in reversed(list(enumerate(self.layers))):
            after = self.after_first.pull(direction, at, weights) if i == 0 and self.after_first is not None else {}
            found.append(layer.pull(direction, f"{at}layers.{i}.", weights["layers"][i]) | after)
        return found[::-1]

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights that the stack may have."""
        found = {} if self.after_first is None else self.after_first.groups(d_model)
        for mechanism in self.mechanisms:
            found |= mechanism.groups(d_model)
        for i, layer in enumerate(self.layers):
            found |= group.within(f"layers.{i}", layer.groups(d_model))
        return found | {"norm": group.norm(d_model)}

    def stages(self, weights: Mapping[str, Any], x: str) -> list[Stage]:
        """The stack's stages in firing order, of which the first are computed from stage x."""
        found, given = list[Stage](), {INPUT: x, SOURCE: SOURCE, EMBEDDED: x}
        for i, (layer, of_layer) in enumerate(zip(self.layers, weights.get("layers", ()), strict=False)):
            found += within(f"layers.{i}", layer.stages(of_layer), given, f"blocks.{i}.")
            given[INPUT] = found[-1].name
            if i == 0 and self.after_first is not None:
                found += within("", self.after_first.stages(weights), given)
                given[INPUT] = found[-1].name
        return [*found, self.norm.stage("norm", "Z", given[INPUT])] if "norm" in weights else found

    def _begun(self, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]) -> Rows:
        """The rows with the stack's mechanisms, each of which begins once."""
        if rows.batch is None:
            return rows
        embedded = None if self.after_first is None else x
        if not self.mechanisms and embedded is None:
            return rows
        begun = {each: each.begin(weights, rows.batch) for each in self.mechanisms}
        [keys] = all_gather(rows.batch.places)  # of the whole text, where threads share its rows
        return rows._replace(embedded=embedded, mechanisms=begun, places=(rows.batch.places, keys))

    def _at(self, i: int, rows: Rows, last: bool) -> Rows:
        """The rows of a layer; the last layer computes the attending rows only."""
        if rows.caches is not None:
            rows = rows._replace(cache=rows.caches[i])
        return rows if last else rows.whole


def _add(shared: Shared, more: Shared) -> None:
    for owner, sums in more.items():
        add_up(shared.setdefault(owner, {}), sums)
