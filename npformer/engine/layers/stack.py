"""A stack of layers, in which each layer reads the output of the previous layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npformer.engine.blocks.attention import Attention
from npformer.engine.blocks.block import Backward, Shared
from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import EMBEDDED, INPUT, SOURCE, Stage, within
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.layers.layer import Layer, add_shared
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.norms.norm import Norm
from npformer.engine.runtime.steps import Steps
from npformer.engine.runtime.threads import all_gather
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, tap


@dataclass(frozen=True)
class Stack:
    """Layers in sequence, then an optional norm. If the weights have fewer layers, the last layers are skipped.

    Parameters
    ----------
    layers : tuple of Layer; layer i has the weights `layers.i`
    norm : Norm of the last layer's output, optional
    after_first : Layer computed after the first layer, optional; its weights are next to `layers`, not in `layers`
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

    def __call__(self, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any], first: int = 0) -> np.ndarray:
        """The output of the stack, (T, D). first: index of the layer that reads x; earlier layers are skipped."""
        texts = self._begun(x, texts, weights)
        for i in range(first, self._count(weights)):
            x = self._layer(i, x, texts, weights)
        return self.finish(x, weights)

    def in_steps(self, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]) -> Steps[np.ndarray]:
        """Computes the output of `__call__` in steps, one for each layer."""
        texts = self._begun(x, texts, weights)
        for i in range(self._count(weights)):
            x = self._layer(i, x, texts, weights)
            yield
        return self.finish(x, weights)

    def _layer(self, i: int, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]) -> np.ndarray:
        """The output of layer i, given its input x."""
        at = self._at(i, texts, last=i + 1 == len(weights["layers"]))
        with scope(f"layers.{i}"):
            x = self.layers[i](x, at, weights["layers"][i])
        return self.after_first(x, at, weights) if i == 0 and self.after_first is not None else x

    def _count(self, weights: Mapping[str, Any]) -> int:
        """The number of layers that have weights."""
        return min(len(self.layers), len(weights["layers"]))

    def finish(self, x: np.ndarray, weights: Mapping[str, Any]) -> np.ndarray:
        """The output of the stack, given the output x of its last layer."""
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
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]
    ) -> Backward:
        """Backward of `__call__`. The result includes the gradients of the mechanisms' weights."""
        texts, shared = self._begun(x, texts, weights), Shared()
        of_layers: list[dict[str, Any]] = [{} for _ in self.layers]
        inputs = [x, *(stages[name] for name in self.read("")[1:])]
        grad, grads = self.finish_backward(grad, stages, inputs[-1], weights)
        grads["layers"] = of_layers
        for i, layer in reversed(list(enumerate(self.layers))):
            at = self._at(i, texts, last=i + 1 == len(self.layers))
            if i == 0 and self.after_first is not None:
                first = stages[f"layers.0.{layer.output}"]
                grad, own, more = self.after_first.backward(grad, stages, first, at, weights)
                grads |= own
                add_shared(shared, more)
            within = stages.within(f"layers.{i}")
            grad, of_layers[i], more = layer.backward(grad, within, inputs[i], at, weights["layers"][i])
            add_shared(shared, more)
        for mechanism, begun in texts.mechanisms.items():
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

    def _begun(self, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]) -> PackedTexts:
        """Calls `begin` of each mechanism once and returns the texts with the results."""
        if texts.batch is None:
            return texts
        embedded = None if self.after_first is None else x
        if not self.mechanisms and embedded is None:
            return texts
        begun = {each: each.begin(weights, texts.batch) for each in self.mechanisms}
        [keys] = all_gather(texts.batch.places)  # threads may share a text, but every row attends to the whole text
        return texts._replace(embedded=embedded, mechanisms=begun, places=(texts.batch.places, keys))

    def _at(self, i: int, texts: PackedTexts, last: bool) -> PackedTexts:
        """The texts for layer i. Only the last layer is limited to the attending rows."""
        if texts.caches is not None:
            texts = texts._replace(cache=texts.caches[i])
        return texts if last else texts.whole
