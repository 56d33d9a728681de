"""The base of families like the 2017 model (Vaswani et al.): an encoder stack, a decoder stack, or both.

These families are Marian (`marian.py`), BART (`bart.py`) and torch's own modules (`torch_nn.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from npformer.config import Config
from npformer.families.base import Family
from npformer.families.building import decoder_of
from npformer.group import Group
from npformer.parts import Parts

_PROJECTIONS = ("query", "key", "value", "output")


class Transformer(Family):
    """A family like the 2017 model."""

    def build(self, config: Config, head: str) -> Parts:
        parts = super().build(config, head)
        if config.decoder and config.n_layers:
            return replace(parts, decoder=decoder_of(config))
        embeddings, stack = decoder_of(config) if config.decoder else (parts.embeddings, parts.stack)
        return replace(parts, embeddings=embeddings, stack=stack)

    def weights(self, config: Config, head: str) -> dict[str, Group]:
        """Those of torch's single layers and attention are not in a stack."""
        if not config.torch_class.endswith(("Layer", "Attention")):
            return super().weights(config, head)
        one = config if config.n_layers or config.decoder else replace(config, n_layers=1)
        parts = self.build(one, head)
        (_, attention), *_ = parts.stack.layers[0].blocks
        return {
            **parts.groups(config.d_model),
            **attention.groups(config.d_model),
            **parts.stack.layers[0].groups(config.d_model),
        }

    def groups(self, config: Config, head: str) -> list[str]:
        return [*_groups(config), *self.head_groups(head)]

    def optional(self, config: Config) -> frozenset[str]:
        computed = {f"{side}.embeddings.position" for side in ("encoder", "decoder")} | {"embeddings.position"}
        return frozenset({"head.output.bias"} | (computed if config.positions.table != "learned" else set()))

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        return {**residual_rates(rate), "*ffn.activation": rate, "*attention.weights": attention}


def residual_rates(rate: float) -> dict[str, float]:
    """Dropout as in the 2017 paper, section 5.4: on each block's output, and on the sums of tokens and positions."""
    return {"*embeddings.sum": rate, "*attention.output": rate, "*ffn.output": rate}


def sides(config: Config) -> dict[str, str]:
    """The stacks of a model: "encoder" and "decoder" -> the prefix of its groups."""
    if config.decoder and config.n_layers:
        return {"encoder": "encoder.", "decoder": "decoder."}
    return {"decoder" if config.decoder else "encoder": ""}


def _groups(config: Config) -> Iterator[str]:
    if config.torch_class == "nn.MultiheadAttention":
        yield from _PROJECTIONS
        return
    for side, start in sides(config).items():
        stack: Any = config.decoder if side == "decoder" else config
        if stack.vocab_size:
            yield from (f"{start}embeddings.token", f"{start}embeddings.position")
        layers = [""] if config.torch_class.endswith("Layer") else [f"layers.{n}." for n in range(stack.n_layers)]
        for layer in layers:
            yield from (f"{start}{layer}{group}" for group in _layer(side))
        if config.final_norm:
            yield f"{start}norm"


def _layer(side: str) -> Iterator[str]:
    blocks = ("attention", "cross_attention") if side == "decoder" else ("attention",)
    for block in blocks:
        yield from (f"{block}.{projection}" for projection in _PROJECTIONS)
        yield f"{block}_norm"
    yield from ("ffn.hidden", "ffn.output", "ffn_norm")
