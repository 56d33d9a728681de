"""OLMo 2 (Team OLMo, 2024): Llama's layers, with a norm after each block instead of before each block.

Y = X + Normalize(Attention(X)) and Z = Y + Normalize(FFN(Y)) (2 OLMo 2 Furious, equations 1 and 2). Queries and keys
are normalized over all heads at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from npformer.config import Config
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Mechanism, Rotary, RowNorm
from npformer.families.building import with_output_norms
from npformer.families.encoder_table import usual_length
from npformer.families.llama import STAGES, Llama, kin_of_llama


class Olmo2(Llama):
    """The family of OLMo 2."""

    kinds: tuple[type[Mechanism], ...] = (RowNorm, Rotary)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        own = super().own_fields(data, head, n_layers)
        return own | {"mechanisms": (RowNorm(), *own["mechanisms"])}

    def stack(self, config: Config) -> Stack:
        """As in `Llama`, with norms of the blocks' outputs instead of their inputs."""
        stack = with_output_norms(super().stack(config), self.norm(config))
        layers = [replace(layer, unnormed=tuple(name for name, _ in layer.blocks)) for layer in stack.layers]
        return replace(stack, layers=tuple(layers))


CLASSES = {
    "Olmo2Model": "base",
    "Olmo2ForCausalLM": "causal-lm",
    "Olmo2ForSequenceClassification": "sequence-classification",
}
OLMO2 = kin_of_llama(
    Olmo2,
    "olmo2",
    CLASSES,
    {"eps": 1e-5, "mechanisms": (RowNorm(), Rotary(10_000.0))},
    {
        "layers.*.attention_norm": "",
        "layers.*.attention.output_norm": "model.layers.*.post_attention_layernorm",
        "layers.*.ffn_norm": "",
        "layers.*.ffn.output_norm": "model.layers.*.post_feedforward_layernorm",
    },
    ids={"eos_token_id": 50_279, "pad_token_id": 1},
    usual=usual_length(2048),
    stages={
        **STAGES,
        "model.layers.*.self_attn.q_norm": "layers.*.attention.query_normed",
        "model.layers.*.self_attn.k_norm": "layers.*.attention.key_normed",
    },
    supported={head: {"clip_qkv": None} for head in CLASSES.values()},
)
