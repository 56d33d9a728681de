"""`ParallelLayer`: attention and the feed-forward network read the same rows, each through its own norm.

Black et al., 2022, GPT-NeoX-20B: An Open-Source Autoregressive Language Model, section 2.1, "Parallel Attention + FF
Layers"; Wang and Komatsuzaki, 2021, GPT-J-6B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.engine.blocks.block import Backward, Shared
from npformer.engine.blocks.packed_texts import PackedTexts
from npformer.engine.descriptions.stage import EMBEDDED, INPUT, SOURCE, Stage, within
from npformer.engine.layers.layer import Layer, add_shared
from npformer.engine.tape import Stages
from npformer.engine.taps import scope, tap


@dataclass(frozen=True)
class ParallelLayer(Layer):
    """Z = X + Attention(Normalize(X)) + FFN(Normalize'(X)). Black et al., 2022, section 2.1.

    Parameters
    ----------
    blocks, norm, norm_first, unnormed : as in `Layer`, with norm_first=True and no unnormed blocks
    """

    norm_first: bool = True

    parallel: ClassVar[bool] = True

    def __call__(self, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]) -> np.ndarray:
        total = read = x
        for name, block in self.blocks:
            h = tap(f"{name}_norm", self.norm(read, **weights[f"{name}_norm"]))
            with scope(name):
                y = block(h, texts, **weights[name])
            if len(y) < len(total):  # attention returned only the rows that attend
                total = read = x[texts.attending]
                texts = texts.whole
            total = total + y
        return tap(self.output, total)

    def backward(
        self, grad: np.ndarray, stages: Stages, x: np.ndarray, texts: PackedTexts, weights: Mapping[str, Any]
    ) -> Backward:
        grads, shared, dx = dict[str, Any](), Shared(), np.zeros_like(x)
        grad = stages.through_edit(self.output, grad)
        attending = slice(None) if len(grad) == len(x) else texts.attending
        dx[attending] += grad
        for i, (name, block) in enumerate(self.blocks):
            read, own = (attending, texts.whole) if i else (slice(None), texts)
            h, norm = stages[f"{name}_norm"], f"{name}_norm"
            dh, grads[name], more = block.backward(grad, stages.within(name), h, own, **weights[name])
            d_read, grads[norm] = self.norm.backward(stages.through_edit(norm, dh), x[read], **weights[norm])
            dx[read] += d_read
            add_shared(shared, more)
        return dx, grads, shared

    @property
    def stages(self) -> list[Stage]:
        found, parents, letters = list[Stage](), [INPUT], ["X"]
        for name, block in self.blocks:
            around, norm = block.around, f"{name}_norm"
            found.append(self.norm.stage(norm, "X", INPUT, around.normed, hook=around.norm_hook))
            given = {INPUT: norm, SOURCE: SOURCE, EMBEDDED: EMBEDDED}
            found += within(name, block.stages, given, x=around.normed)
            parents, letters = [*parents, found[-1].name], [*letters, around.output]
        formula, made_by = f"{around.total} = {' + '.join(letters)}", "layers.ParallelLayer"
        return [*found, Stage(self.output, "(T, D)", formula, made_by, around.total_hook, tuple(parents))]
