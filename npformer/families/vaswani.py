"""`Transformer`, the base class of families with an encoder stack, a decoder stack or both (Vaswani et al., 2017).

These families are Marian (`marian.py`), BART (`bart.py`), T5 (`t5.py`) and torch's own modules (`torch_nn.py`).
"""

from __future__ import annotations

from dataclasses import replace

from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.embeddings import Embeddings
from npformer.engine.layers.stack import Stack
from npformer.engine.norms.norm import Norm
from npformer.engine.parts import Parts
from npformer.families.base import Family
from npformer.families.building import decoder_stack_of, embeddings_of


class Transformer(Family):
    """A family with an encoder, a decoder or both, as in the 2017 paper."""

    def build(self, config: Config, head: str) -> Parts:
        parts = super().build(config, head)
        if not config.decoder:
            return parts
        embeddings = embeddings_of(config, self.table_norm(config), config.decoder.vocab_size)
        stack = self.decoder_stack(config)
        if config.n_layers:
            return replace(parts, decoder=(embeddings, stack))
        return replace(parts, embeddings=embeddings, stack=stack)

    def embeddings(self, config: Config) -> Embeddings:
        return embeddings_of(config, self.table_norm(config), config.vocab_size)

    def decoder_stack(self, config: Config) -> Stack:
        """The stack of a decoder."""
        return decoder_stack_of(config, self.norm(config))

    def table_norm(self, config: Config) -> Norm | None:
        """The norm of the embeddings. The 2017 model has no such norm."""
        return None

    def weights(self, config: Config, head: str) -> dict[str, Group]:
        """As in `Family`. For a single layer or attention of torch, names of weights have no prefix of a stack."""
        if not config.torch_class.endswith(("Layer", "Attention")):
            return super().weights(config, head)
        parts = self.build(config if config.n_layers or config.decoder else replace(config, n_layers=1), head)
        layer, width = parts.stack.layers[0], config.d_model
        answering = parts.head.groups(width)
        if config.torch_class.endswith("Attention"):
            (_, attention), *_ = layer.blocks
            return attention.groups(width) | answering
        norm = replace(parts.stack, layers=()).groups(width)
        return parts.embeddings.groups(width) | layer.groups(width) | norm | answering

    def optional(self, config: Config) -> frozenset[str]:
        computed = {f"{side}.embeddings.position" for side in ("encoder", "decoder")} | {"embeddings.position"}
        return frozenset({"head.output.bias"} | (computed if config.positions.table != "learned" else set()))

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        return {**residual_rates(rate), "*ffn.activation": rate, "*attention.weights": attention}


def check_one_end(config: Config) -> None:
    """Raises NpformerError for a classifier without a decoder, or without exactly one end token."""
    ends = config.decoder.end_ids
    if config.head == "sequence-classification" and not config.decoder:
        raise NpformerError(
            f"a {config.model_type} classifier reads a row of its decoder, and the model has only an encoder; use a "
            "checkpoint with both"
        )
    if config.head == "sequence-classification" and len(ends) != 1:
        raise NpformerError(
            f"eos_token_id: expected one id, because a classifier reads the row of this token, got {ends}"
        )


def residual_rates(rate: float) -> dict[str, float]:
    """Dropout rates for the output of each block and for the sums of embeddings, as in the 2017 paper, section 5.4."""
    return {"*embeddings.sum": rate, "*attention.output": rate, "*ffn.output": rate}
