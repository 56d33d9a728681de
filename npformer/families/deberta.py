"""DeBERTa-v2 and -v3 (He et al., 2021 and 2023): BERT's layers with disentangled attention.

Distances between tokens have a separate table, which every layer projects to keys, to queries, or to both. The
published models have no position table and no token type table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST, Config, InputConvolution, Positions
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.blocks import Convolution
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Disentangled
from npformer.families import base, bert
from npformer.families.base import Source, first, reject_other
from npformer.families.building import stack_of
from npformer.families.encoder_table import READ, SIZES, EncoderTable

THEIRS = {**base.ACTIVATIONS, "tanh": "tanh"}  # possible activations of the convolution
CONVOLUTIONS = {ours: first(THEIRS, ours) for ours in THEIRS.values()}
EXPECTED = {"relative_attention": True}  # required, because Transformers' default is False
FORMS = {"p2c": "query", "c2p": "key"}  # form of the table for each value in pos_att_type; written in this order


class Deberta(EncoderTable):
    """The family of DeBERTa."""

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        for name, value in EXPECTED.items():
            if data.get(name) is not value:
                raise NpformerError(f"{name}: {checks.shown(data.get(name))} is not supported; supported: {value}")
        norms, known = data.get("norm_rel_ebd", "none"), ("none", "layer_norm")
        if norms not in known:
            raise NpformerError(f"norm_rel_ebd: {checks.shown(norms)} is not supported; supported: {', '.join(known)}")
        config = super().read_config(data, head)
        reject_other(data, {"embedding_size": config.d_model})
        farthest = _whole(data, "max_relative_positions", config.max_length)
        buckets = _whole(data, "position_buckets", 0)
        if buckets > 0 and not 4 <= buckets < farthest:
            raise NpformerError(
                f"position_buckets: expected at least 4 and below max_relative_positions {farthest}, got {buckets}"
            )
        distances = Disentangled(
            2 * (buckets or farthest),
            farthest if buckets else 0,
            _forms(data),
            own=not _boolean(data, "share_att_key", False),
            norm=norms == "layer_norm",
        )
        return replace(
            config,
            mechanisms=(distances,),
            positions=Positions("learned" if _boolean(data, "position_biased_input", True) else "none"),
            n_token_types=checks.whole("type_vocab_size", data.get("type_vocab_size", 0), 0, MOST),
            convolution=_convolution(data),
        )

    def write_config(self, config: Config) -> dict[str, Any]:
        [distances] = config.mechanisms
        return {
            **super().write_config(config),
            **EXPECTED,
            "pos_att_type": [theirs for theirs, ours in FORMS.items() if ours in distances.forms],
            "position_biased_input": config.positions.table == "learned",
            "type_vocab_size": config.n_token_types,
            "norm_rel_ebd": "layer_norm" if distances.norm else "none",
            "max_relative_positions": distances.max_distance or distances.n_buckets,
            "position_buckets": distances.n_buckets if distances.max_distance else -1,
            "share_att_key": not distances.own,
            "conv_kernel_size": config.convolution.width if config.convolution else 0,
            **({"conv_act": CONVOLUTIONS[config.convolution.activation]} if config.convolution else {}),
        }

    def stack(self, config: Config) -> Stack:
        convolution = None
        if config.convolution:
            block = Convolution(ACTIVATIONS[config.convolution.activation], config.convolution.width)
            convolution = Layer((("convolution", block),), self.norm(config))
        return stack_of(config, self.norm(config), after_first=convolution)

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        found = super().sources(config, arrays, head)
        if config.convolution:
            found["convolution.weight"] = found["convolution.weight"]._replace(kernel=config.convolution.width)
        return found


def _convolution(data: Mapping[str, Any]) -> InputConvolution | None:
    """The convolution, which only the largest models have; None for other models."""
    width = checks.whole("conv_kernel_size", data.get("conv_kernel_size", 0), 0, MOST)
    if not width:
        return None
    if width % 2 == 0:
        raise NpformerError(f"conv_kernel_size: expected an odd number, got {width}")
    reject_other(data, {"conv_groups": 1})
    named = checks.one_of("conv_act", data.get("conv_act", "tanh"), THEIRS)
    return InputConvolution(width, THEIRS[named])


def _forms(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The forms in pos_att_type, which is a list of names or a string of names separated by bars."""
    given = data.get("pos_att_type")
    named = [each.strip() for each in given.lower().split("|")] if isinstance(given, str) else given or []
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise NpformerError(f"pos_att_type: expected a list of strings, got {checks.shown(given)}")
    found = {FORMS[checks.one_of("pos_att_type", each, FORMS)] for each in named if each}
    return tuple(sorted(found))


def _boolean(data: Mapping[str, Any], name: str, default: bool) -> bool:
    return checks.boolean(name, data.get(name, default))


def _whole(data: Mapping[str, Any], name: str, default: int) -> int:
    """A positive integer, or the default if the value is missing or below 1. Transformers writes -1 for the default."""
    value = data.get(name, -1)
    return default if type(value) is int and value < 1 else checks.whole(name, value, 1, MOST)


DEBERTA = Deberta(
    model_type="deberta-v2",
    constants={
        "pooler": "gelu",
        "positions": Positions("none"),
        "pad_id": 0,
        "padding_idx": 0,
        "mechanisms": (Disentangled(512, 512, norm=True),),  # as in version 3
    },
    settings={"z_steps": 0, "legacy": True},
    sizes=SIZES,
    activation="hidden_act",
    eps="layer_norm_eps",
    architectures={
        "DebertaV2Model": "base",
        "DebertaV2ForSequenceClassification": "sequence-classification",
        "DebertaV2ForTokenClassification": "token-classification",
        "DebertaV2ForQuestionAnswering": "question-answering",
        "DebertaV2ForMaskedLM": "masked-lm",
        "DebertaV2ForMultipleChoice": "multiple-choice",
    },
    prefix="deberta.",
    encoder={
        **bert.tables("deberta."),
        "distances": "deberta.encoder.rel_embeddings",
        "distances_norm": "deberta.encoder.LayerNorm",
        "convolution": "deberta.encoder.conv.conv",
        "convolution_norm": "deberta.encoder.conv.LayerNorm",
        "layers.*.attention.query": "deberta.encoder.layer.*.attention.self.query_proj",
        "layers.*.attention.key": "deberta.encoder.layer.*.attention.self.key_proj",
        "layers.*.attention.value": "deberta.encoder.layer.*.attention.self.value_proj",
        "layers.*.attention.distance_key": "deberta.encoder.layer.*.attention.self.pos_key_proj",
        "layers.*.attention.distance_query": "deberta.encoder.layer.*.attention.self.pos_query_proj",
        "layers.*.attention.output": "deberta.encoder.layer.*.attention.output.dense",
        "layers.*.attention_norm": "deberta.encoder.layer.*.attention.output.LayerNorm",
        "layers.*.ffn.hidden": "deberta.encoder.layer.*.intermediate.dense",
        "layers.*.ffn.output": "deberta.encoder.layer.*.output.dense",
        "layers.*.ffn_norm": "deberta.encoder.layer.*.output.LayerNorm",
    },
    heads={
        "base": {},
        "sequence-classification": {"pooler": "pooler.dense", "head.output": "classifier"},
        "token-classification": {"head.output": "classifier"},
        "question-answering": {"head.output": "qa_outputs"},
        "masked-lm": bert.WORDS,
        "multiple-choice": {"pooler": "pooler.dense", "head.output": "classifier"},
    },
    supported={  # settings of the pooler
        "sequence-classification": {"pooler_hidden_act": "gelu"},
        "multiple-choice": {"pooler_hidden_act": "gelu"},
    },
    twins={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    buffers=frozenset(  # older files have position ids and an unused table of positions
        {"deberta.embeddings.position_ids", "deberta.embeddings.position_embeddings.weight"}
    ),
    stages={
        **bert.stages("deberta."),
        "deberta.encoder.conv": "convolution_norm",
        "pooler": "pooled",
        "classifier": "logits",
    },
    read=READ,
)
