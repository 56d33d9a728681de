"""A layer of blocks: the equations of an encoder's or decoder's layer, on packed rows.

Attention Is All You Need (Vaswani et al., 2017), section 3.1. An encoder layer has the blocks attention and ffn. A
decoder layer also has cross_attention between these two. The weights are a nested dict with a group for each block and
norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.engine.blocks.block import Backward, Block, Shared
from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions import weight_group
from npformer.engine.descriptions.stage import EMBEDDED, INPUT, SOURCE, Stage, within
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.direction import Direction
from npformer.engine.mechanisms.mechanism import add_up
from npformer.engine.norms.layernorm import LAYER_NORM
from npformer.engine.norms.norm import Norm
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, spare, tap


@dataclass(frozen=True)
class Layer:
    """Blocks in sequence: Y = Normalize(X + Block(X)), or with norm_first Y = X + Block(Normalize(X)).

    Parameters
    ----------
    blocks : pairs of a name and a block, in the order of computation
    norm : Norm, applied once for each block, each time with its own weights
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

    def __call__(self, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]) -> np.ndarray:
        for name, block in self.blocks:
            before, after = self._norms(name)
            h = tap(before, self.norm(x, **weights[before])) if before else x
            with scope(name):
                y = block(h, texts, **weights[name])
            if len(y) < len(x):  # attention returned only the rows that attend
                x, texts = x[texts.attending], texts.whole
            y = tap(f"{name}_residual", x + y)
            x = tap(after, self.norm(y, out=spare(y), **weights[after])) if after else y
        return x

    def backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]
    ) -> Backward:
        grads, shared = dict[str, Any](), Shared()
        inputs = [x, *(stages[self._output(name)] for name, _ in self.blocks[:-1])]
        of_blocks = [texts, *[texts.whole] * (len(self.blocks) - 1)]
        for (name, block), x, texts in zip(self.blocks[::-1], inputs[::-1], of_blocks[::-1], strict=True):
            before, after = self._norms(name)
            if after:  # Normalize(x + block(x))
                grad = stages.through_edit(after, grad)
                grad, grads[after] = self.norm.backward(grad, stages[f"{name}_residual"], **weights[after])
            grad = stages.through_edit(f"{name}_residual", grad)
            h = stages[before] if before else x
            dx, grads[name], more = block.backward(grad, stages.within(name), h, texts, **weights[name])
            if before:  # x + block(Normalize(x))
                dx, grads[before] = self.norm.backward(stages.through_edit(before, dx), x, **weights[before])
            dx[slice(None) if len(dx) == len(grad) else texts.attending] += grad
            grad = dx
            add_shared(shared, more)
        return grad, grads, shared

    def _norms(self, block: str) -> tuple[str, str]:
        """The names of the norms before and after a block, or "" for a missing norm."""
        name = "" if block in self.unnormed else f"{block}_norm"
        return (name, "") if self.norm_first else ("", name)

    def _output(self, block: str) -> str:
        """The stage with the output of a block, or of the norm that follows the block."""
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


def add_shared(shared: Shared, more: Shared) -> None:
    """Adds the gradients in `more` to the gradients in `shared`, in place."""
    for owner, sums in more.items():
        add_up(shared.setdefault(owner, {}), sums)
