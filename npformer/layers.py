"""A layer of blocks and a stack of layers: the equations of encoder and decoder, on packed rows.

Attention Is All You Need (Vaswani et al., 2017), section 3.1. An encoder layer has the blocks attention and ffn. A
decoder layer also has cross_attention between these two. Weights are nested dicts with a group for each block and norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npformer import weight_group
from npformer.blocks.attention import Attention
from npformer.blocks.block import Backward, Block, Shared
from npformer.blocks.rows import Rows
from npformer.direction import Direction
from npformer.mechanisms.mechanism import Mechanism, add_up
from npformer.norms import LAYER_NORM, Norm
from npformer.runtime.threads import all_gather
from npformer.stage import EMBEDDED, INPUT, SOURCE, Stage, within
from npformer.tape import Stages
from npformer.taps import scope, spare, tap
from npformer.weight_group import Group


@dataclass(frozen=True)
class Layer:
    """Blocks in sequence: Y = Normalize(X + Block(X)), or with norm_first Y = X + Block(Normalize(X)).

    Parameters
    ----------
    blocks : pairs of a name and a block, in the order of computation
    norm : Norm, computed once for each block
    norm_first : bool
    unnormed : names of blocks without a norm

    References
    ----------
    Vaswani et al., 2017, sections 3.1 and 5.4; Xiong et al., 2020, figure 1, for norm_first.
    """

    blocks: tuple[tuple[str, Block], ...]
    norm: Norm = LAYER_NORM
    norm_first: bool = False
    unnormed: tuple[str, ...] = ()

    parallel: ClassVar[bool] = False  # all blocks read the input of the layer

    def __call__(self, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]) -> np.ndarray:
        for name, block in self.blocks:
            before, after = self._norms(name)
            h = tap(before, self.norm(x, **weights[before])) if before else x
            with scope(name):
                y = block(h, rows, **weights[name])
            y = tap(f"{name}_residual", (x if len(x) == len(y) else x[rows.attending]) + y)
            x = tap(after, self.norm(y, out=spare(y), **weights[after])) if after else y
            rows = rows.whole  # attention returned only the attending rows
        return x

    def backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]
    ) -> Backward:
        grads, shared = dict[str, Any](), Shared()
        inputs = [x, *(stages[self._output(name)] for name, _ in self.blocks[:-1])]
        of_rows = [rows, *[rows.whole] * (len(self.blocks) - 1)]
        for (name, block), x, rows in zip(self.blocks[::-1], inputs[::-1], of_rows[::-1], strict=True):
            before, after = self._norms(name)
            if after:  # Normalize(x + block(x))
                grad = stages.through_edit(after, grad)
                grad, grads[after] = self.norm.backward(grad, stages[f"{name}_residual"], **weights[after])
            grad = stages.through_edit(f"{name}_residual", grad)
            h = stages[before] if before else x
            dx, grads[name], more = block.backward(grad, stages.within(name), h, rows, **weights[name])
            if before:  # x + block(Normalize(x))
                dx, grads[before] = self.norm.backward(stages.through_edit(before, dx), x, **weights[before])
            dx[slice(None) if len(dx) == len(grad) else rows.attending] += grad
            grad = dx
            add_shared(shared, more)
        return grad, grads, shared

    def _norms(self, block: str) -> tuple[str, str]:
        """The names of the norm before a block and of the norm after it, with "" for a norm that does not exist."""
        name = "" if block in self.unnormed else f"{block}_norm"
        return (name, "") if self.norm_first else ("", name)

    def _output(self, block: str) -> str:
        """The stage with the output of a block, after the norm if one follows the block."""
        return self._norms(block)[1] or f"{block}_residual"

    @property
    def output(self) -> str:
        """The stage with the output of the layer."""
        return self._output(self.blocks[-1][0])

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The contribution of each block to a logit, as in `Block.pull`. Pulls direction back to the layer's input."""
        found = dict[str, np.ndarray]()
        for name, block in reversed(self.blocks):
            if after := self._norms(name)[1]:
                self.norm.pull(direction, f"{at}{after}", f"{at}{name}_residual", **weights[after])
            found[name] = block.pull(direction, f"{at}{name}.", **weights[name])
        return found

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, in the order of the forward pass."""
        found = dict[str, Group]()
        for name, block in self.blocks:
            before, after = self._norms(name)
            found |= {before: self.norm.group(d_model)} if before else {}
            found |= weight_group.within(name, block.groups(d_model))
            found |= {after: self.norm.group(d_model)} if after else {}
        return found

    @property
    def stages(self) -> list[Stage]:
        """The stages of the layer, in the order of the forward pass."""
        found, x = list[Stage](), INPUT
        for name, block in self.blocks:
            around, (before, after) = block.around, self._norms(name)
            read, letter, total = x, around.x, f"{around.x} + {around.output}"
            if before:
                found.append(self.norm.stage(before, letter, x, around.normed, hook=around.norm_hook))
                read, letter = before, around.normed
            given = {INPUT: read, SOURCE: SOURCE, EMBEDDED: EMBEDDED}
            found += within(name, block.stages, given, x=letter)
            formula = f"{around.total} = {total}" if self.norm_first else total
            parents = (x, found[-1].name)
            found.append(Stage(f"{name}_residual", "(T, D)", formula, "layers.Layer", around.total_hook, parents))
            if after:
                found.append(self.norm.stage(after, total, found[-1].name, around.total, hook=around.norm_hook))
            x = found[-1].name
        return found


@dataclass(frozen=True)
class Stack:
    """Layers in sequence, then an optional norm. If there are weights for fewer layers, the last layers are skipped.

    Parameters
    ----------
    layers : tuple of Layer; layer i has the weights `layers.i`
    norm : Norm of the last layer's output, optional
    after_first : Layer computed after the first layer, optional; its weights are next to `layers`, not in it
    """

    layers: tuple[Layer, ...]
    norm: Norm | None = None
    after_first: Layer | None = None

    @cached_property
    def mechanisms(self) -> list[Mechanism]:
        """The mechanisms in the attention of all layers, without duplicates."""
        return list(dict.fromkeys(each for block in self.attentions for each in block.mechanisms))

    @property
    def attentions(self) -> list[Attention]:
        """The self-attention of each layer."""
        blocks = [block.core for layer in self.layers for _, block in layer.blocks]
        return [block for block in blocks if isinstance(block, Attention)]

    def __call__(self, x: np.ndarray, rows: Rows, weights: Mapping[str, Any], first: int = 0) -> np.ndarray:
        """The output of the stack, (T, D). first: index of the layer that reads x; earlier layers are skipped."""
        rows = self._begun(x, rows, weights)
        for i, (layer, of_layer) in list(enumerate(zip(self.layers, weights["layers"], strict=False)))[first:]:
            at = self._at(i, rows, last=i + 1 == len(weights["layers"]))
            with scope(f"layers.{i}"):
                x = layer(x, at, of_layer)
            if i == 0 and self.after_first is not None:
                x = self.after_first(x, at, weights)
        return self.finish(x, weights)

    def finish(self, x: np.ndarray, weights: Mapping[str, Any]) -> np.ndarray:
        """The output of the stack, from the output x of its last layer."""
        return x if self.norm is None else tap("norm", self.norm(x, **weights["norm"]))

    def finish_backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, weights: Mapping[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Backward of `finish`: dx (T, D) and the gradients of the weights that `finish` uses."""
        if self.norm is None:
            return grad, {}
        grad, d_norm = self.norm.backward(stages.through_edit("norm", grad), x, **weights["norm"])
        return grad, {"norm": d_norm}

    def backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]
    ) -> Backward:
        """Backward of `__call__`. The gradients include those of the mechanisms' weights."""
        rows, shared = self._begun(x, rows, weights), Shared()
        of_layers: list[dict[str, Any]] = [{} for _ in self.layers]
        inputs = [x, *(stages[name] for name in self.read("")[1:])]
        grad, grads = self.finish_backward(grad, stages, inputs[-1], weights)
        grads["layers"] = of_layers
        for i, layer in reversed(list(enumerate(self.layers))):
            at = self._at(i, rows, last=i + 1 == len(self.layers))
            if i == 0 and self.after_first is not None:
                first = stages[f"layers.0.{layer.output}"]
                grad, own, more = self.after_first.backward(grad, stages, first, at, weights)
                grads |= own
                add_shared(shared, more)
            within = stages.within(f"layers.{i}")
            grad, of_layers[i], more = layer.backward(grad, within, inputs[i], at, weights["layers"][i])
            add_shared(shared, more)
        for mechanism, begun in rows.mechanisms.items():
            if mechanism in shared:
                grads |= begun.end_backward(shared.pop(mechanism), weights)
        grad = grad + shared.pop(EMBEDDED)["rows"] if EMBEDDED in shared else grad
        return grad, grads, shared

    def width(self, d_model: int) -> int:
        """The width of the output, for a model of width d_model."""
        return d_model

    def output(self, x: str) -> str:
        """The stage with the output of the stack. x: the stage that the stack reads."""
        return self.read(x)[-1] if self.norm is None else "norm"

    def read(self, x: str) -> list[str]:
        """The stages that the layers and the norm of the stack read: x, then the output of each layer."""
        found = [x, *(f"layers.{i}.{layer.output}" for i, layer in enumerate(self.layers))]
        if self.after_first is not None:
            found[1] = self.after_first.output
        return found

    def pull(self, direction: Direction, at: str, weights: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """The contributions of each layer's blocks to a logit, as in `Layer.pull`.

        Pulls direction back to the input of the stack. at: the prefix of the names of the stages.
        """
        if self.norm is not None:
            self.norm.pull(direction, f"{at}norm", at + self.read("")[-1], **weights["norm"])
        found = list[dict[str, np.ndarray]]()
        for i, layer in reversed(list(enumerate(self.layers))):
            after = self.after_first.pull(direction, at, weights) if i == 0 and self.after_first is not None else {}
            found.append(layer.pull(direction, f"{at}layers.{i}.", weights["layers"][i]) | after)
        return found[::-1]

    def groups(self, d_model: int) -> dict[str, Group]:
        """The groups of weights, in the order of the forward pass."""
        found = dict[str, Group]()
        for mechanism in self.mechanisms:
            found |= mechanism.groups(d_model)
        for i, layer in enumerate(self.layers):
            found |= weight_group.within(f"layers.{i}", layer.groups(d_model))
            if i == 0 and self.after_first is not None:
                found |= self.after_first.groups(d_model)
        return found if self.norm is None else {**found, "norm": self.norm.group(d_model)}

    def stages(self, x: str) -> list[Stage]:
        """The stages of the stack, in the order of the forward pass. x: the stage that the stack reads."""
        found, given = list[Stage](), {INPUT: x, SOURCE: SOURCE, EMBEDDED: x}
        for i, layer in enumerate(self.layers):
            found += within(f"layers.{i}", layer.stages, given, f"blocks.{i}.")
            given[INPUT] = found[-1].name
            if i == 0 and self.after_first is not None:
                found += within("", self.after_first.stages, given)
                given[INPUT] = found[-1].name
        return found if self.norm is None else [*found, self.norm.stage("norm", "Z", given[INPUT])]

    def _begun(self, x: np.ndarray, rows: Rows, weights: Mapping[str, Any]) -> Rows:
        """Calls `begin` of each mechanism once and returns the rows with the results."""
        if rows.batch is None:
            return rows
        embedded = None if self.after_first is None else x
        if not self.mechanisms and embedded is None:
            return rows
        begun = {each: each.begin(weights, rows.batch) for each in self.mechanisms}
        [keys] = all_gather(rows.batch.places)  # threads may share a text, but each row attends to the whole text
        return rows._replace(embedded=embedded, mechanisms=begun, places=(rows.batch.places, keys))

    def _at(self, i: int, rows: Rows, last: bool) -> Rows:
        """The rows for layer i. Only the last layer is limited to the attending rows."""
        if rows.caches is not None:
            rows = rows._replace(cache=rows.caches[i])
        return rows if last else rows.whole


def add_shared(shared: Shared, more: Shared) -> None:
    """Adds the gradients in `more` to those in `shared`, in place."""
    for owner, sums in more.items():
        add_up(shared.setdefault(owner, {}), sums)
