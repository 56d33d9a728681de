"""BART (Lewis et al., 2020): Marian's layers, a norm after the embeddings, and learned positions that start at row 2.

BartForConditionalGeneration generates text, and so does BartModel with a tied table. For classification and question
answering, the decoder also reads the text, shifted right, and the head reads the decoder's output. BartForCausalLM is
only the decoder, a causal stack that does not use the cross-attention weights in the files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST, Config, Positions
from npformer.engine.norms.norm import Norm
from npformer.families.base import (
    Source,
    read_activation,
    read_fields,
    read_text_ids,
    reject_other,
    write_text_ids,
)
from npformer.families.marian import DECODER_FIELDS, FIELDS, LAYER, Marian
from npformer.families.roberta import SPECIAL_TOKENS
from npformer.families.vaswani import check_one_end

#: For each head, the module of each group of weights.
TOP = {
    "sequence-classification": {"pooler": "classification_head.dense", "head.output": "classification_head.out_proj"},
    "question-answering": {"head.output": "qa_outputs"},
}
#: The head of a model with only a decoder, and the groups of weights that its layers lack.
ALONE = "causal-lm"
CROSSED = tuple(group for group in LAYER if group.startswith("cross_attention"))


class Bart(Marian):
    """The family of BART. The encoder and the decoder always share a token table."""

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        if (head or self.head_of(data)) == ALONE:
            return self._read_decoder({**self.ids, "bos_token_id": 0, **data})
        table = {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": None}
        return super().read_config({**data, **table}, head)

    def _read_decoder(self, data: Mapping[str, Any]) -> Config:
        """The config of a model with only a decoder."""
        reject_other(data, self.always)
        fields = read_fields({**FIELDS, **DECODER_FIELDS}, data, self.model_type) | read_text_ids(data)
        activation = read_activation("activation_function", data)
        return self.config(ALONE, **fields, padding_idx=fields["pad_id"], activation=activation)

    def config(self, head: str, **fields: Any) -> Config:
        alone = {"shared": False, "causal": True} if head == ALONE else {}
        return super().config(head, **{**fields, **alone})

    def check(self, config: Config) -> Config:
        if config.head == ALONE:
            checks.whole("decoder_layers", config.n_layers, 1, MOST)
            return super().check(config)
        if not config.n_layers or not config.decoder:
            raise NpformerError(
                "encoder_layers, decoder_layers: expected at least one layer each, "
                f"got {config.n_layers} and {config.decoder.n_layers}"
            )
        check_one_end(config)
        return super().check(config)

    def write_config(self, config: Config) -> dict[str, Any]:
        data = super().write_config(config)
        del data["share_encoder_decoder_embeddings"], data["decoder_vocab_size"]
        return data if config.decoder else {**data, "is_decoder": True, **write_text_ids(config)}

    def table_norm(self, config: Config) -> Norm:
        return self.norm(config)

    def head_groups(self, head: str) -> Collection[str]:
        return TOP.get(head) or super().head_groups(head)

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        top = TOP.get(head, {})
        stacks = {ours: each for ours, each in arrays.items() if each[0] not in top}
        if not config.decoder:
            stacks = {
                ours: (group if group.startswith("head.") else f"decoder.{group}", array)
                for ours, (group, array) in stacks.items()
            }
        above = {ours: f"{top[group]}.{array}" for ours, (group, array) in arrays.items() if group in top}
        found = super().sources(config, stacks, head) | {ours: Source((name,)) for ours, name in above.items()}
        if not config.decoder:  # a file with both stacks has a shared table
            table = found["embeddings.token.weight"]
            found["embeddings.token.weight"] = Source((*table.names, "model.shared.weight"))
        return found

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        if config.decoder:
            return frozenset()
        modules = [f"model.decoder.layers.{n}.{LAYER[each]}" for n in range(config.n_layers) for each in CROSSED]
        return frozenset(f"{module}.{array}" for module in modules for array in ("weight", "bias"))

    def optional(self, config: Config) -> frozenset[str]:
        return frozenset() if config.head in TOP else super().optional(config)

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        dropped = dict.fromkeys(("*embeddings.norm", "*attention.output", "*ffn.output"), rate)
        if config.head == "sequence-classification" and head is not None:
            dropped["pooled"] = head
        return {**dropped, "*attention.weights": attention}


BART = Bart(
    model_type="bart",
    architectures={
        "BartForConditionalGeneration": "translation",
        "BartForSequenceClassification": "sequence-classification",
        "BartForQuestionAnswering": "question-answering",
        "BartForCausalLM": ALONE,
        "BartModel": "translation",  # as in facebook/bart-base, which projects with the token table
    },
    prefix="model.",
    special_tokens=SPECIAL_TOKENS,
    pair="cls $A sep sep $B sep",
    constants={"eps": 1e-5, "positions": Positions(first=2), "shared": True},
    ids={"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2},
    always={
        "normalize_before": False,
        "normalize_embedding": True,
        "static_position_embeddings": False,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
    },
    writes="text2text-generation",
    unbiased=frozenset({ALONE}),
    stages={f"model.{side}.embed_tokens": f"{side}.embeddings.token" for side in ("encoder", "decoder")},
)
