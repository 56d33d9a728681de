"""BART (Lewis et al., 2020): Marian's layers under a norm of the embeddings, with learned positions from row 2.

The model that generates is read (BartForConditionalGeneration); the one that classifies is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npformer.config import Config
from npformer.families.marian import Marian


@dataclass(frozen=True, eq=False, kw_only=True)
class Bart(Marian):
    """BART's checkpoints. Encoder and decoder always share one table."""

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        table = {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": None}
        return super().read_config({**data, **table}, head)

    def write_config(self, config: Config) -> dict[str, Any]:
        data = super().write_config(config)
        del data["share_encoder_decoder_embeddings"], data["decoder_vocab_size"]
        return data

    def groups(self, config: Config, head: str) -> list[str]:
        groups = super().groups(config, head)
        for side in ("encoder", "decoder"):
            groups.insert(groups.index(f"{side}.embeddings.position") + 1, f"{side}.embeddings.norm")
        return groups

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        dropped = dict.fromkeys(("*embeddings.norm", "*attention.output", "*ffn.output"), rate)
        return {**dropped, "*attention.weights": attention}


BART = Bart(
    model_type="bart",
    architectures={"BartForConditionalGeneration": "translation"},
    constants={"eps": 1e-5, "first_position": 2, "shared": True},
    ids={"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2},
    always={
        "normalize_before": False,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
    },
    generation_in_config=True,
    forced_end=2,
)
