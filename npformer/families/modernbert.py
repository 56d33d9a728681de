"""ModernBERT (Warner et al., 2024): rotary embeddings, local layers, gated feed-forward networks, and no biases.

Every third layer attends to the whole text. The other layers attend to a window and have a different rotary base. Norms
come before the blocks. The first layer has no attention norm, because the embeddings end with a norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST, Config, Local, Positions
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Rotary, Window
from npformer.families.base import ACTIVATIONS, first, read_activation, read_padding
from npformer.families.building import stack_of
from npformer.families.encoder_table import SIZES, EncoderTable, usual_length
from npformer.families.layer_types import FULL, SLIDING, read_layer_types, write_layer_types
from npformer.families.rope import check_even_heads

POOLINGS = {"cls": "first", "mean": "mean"}
HEAD = {"head.hidden": "head.dense", "head.norm": "head.norm"}  # modules before the last layer of every head


class ModernBert(EncoderTable):
    """The family of ModernBERT, which reads config.json of Transformers 5 and of earlier versions."""

    def config(self, head: str, **fields: Any) -> Config:
        """As in `EncoderTable`. By default, every third layer attends to the whole text."""
        local = replace(self.constants["local"], layers=except_first(3, fields["n_layers"]))
        return super().config(head, **{"local": local, **fields})

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        below = read_activation("classifier_activation", data)
        window = checks.whole("local_attention", data.get("local_attention", 128), 2, MOST)
        pooling = checks.one_of("classifier_pooling", data.get("classifier_pooling", "cls"), POOLINGS)
        check_even_heads(data)
        pad = read_padding(data)
        wide = _theta(data, FULL, "global_rope_theta", 160_000.0)
        near = _theta(data, SLIDING, "local_rope_theta", 10_000.0) or wide
        return {
            "pad_id": pad,
            "padding_idx": pad,
            "mechanisms": _rotary(wide),
            "local": Local(_local_layers(data, n_layers), (*_rotary(near), Window(window // 2))),
            "head_activation": "" if below == read_activation(self.activation, data) else below,
            "pooling": POOLINGS[pooling],
        }

    def stack(self, config: Config) -> Stack:
        """As in `EncoderTable`, without the attention norm of the first layer."""
        stack = stack_of(config, self.norm(config))
        first, *others = stack.layers
        return replace(stack, layers=(replace(first, unnormed=("attention",)), *others))

    def write_config(self, config: Config) -> dict[str, Any]:
        local: Local = config.local or self.constants["local"]
        both = {FULL: config.mechanisms, SLIDING: local.mechanisms}
        thetas = {kind: sum(each.theta for each in of if isinstance(each, Rotary)) for kind, of in both.items()}
        window = next(each for each in local.mechanisms if isinstance(each, Window))
        return super().write_config(config) | {
            "pad_token_id": config.pad_id,
            "classifier_activation": first(ACTIVATIONS, config.below_head),
            "classifier_pooling": next(theirs for theirs, ours in POOLINGS.items() if ours == config.pooling),
            "local_attention": 2 * window.reach,
            **_steps(local.layers, config.n_layers),
            "layer_types": write_layer_types(local.layers, config.n_layers),
            "global_rope_theta": thetas[FULL],
            "local_rope_theta": thetas[SLIDING],
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": each} for kind, each in thetas.items()},
        }


def _theta(data: Mapping[str, Any], kind: str, old: str, default: float) -> float:
    """The base of the rotary embeddings in layers of this kind, or 0 for null in an older config.json."""
    if data.get("rope_scaling") is not None:
        raise NpformerError(f"rope_scaling: {checks.shown(data['rope_scaling'])} is not supported; supported: null")
    given = data.get("rope_parameters") or {}
    if not isinstance(given, Mapping) or not isinstance(given.get(kind) or {}, Mapping):
        raise NpformerError(f"rope_parameters: expected an object for each layer type, got {checks.shown(given)}")
    rope: Mapping[str, Any] = given.get(kind) or {}
    if rope.get("rope_type", "default") != "default":
        kind_of_rope = checks.shown(rope["rope_type"])
        raise NpformerError(f"rope_parameters: rope_type: {kind_of_rope} is not supported; supported: 'default'")
    if "rope_theta" not in rope and data.get(old, default) is None:
        return 0.0
    return float(checks.positive(f"rope_theta of {kind}", rope.get("rope_theta", data.get(old, default))))


def _local_layers(data: Mapping[str, Any], n_layers: int) -> tuple[int, ...]:
    """The local layers: the layers listed in `layer_types`, or by default all except regularly spaced global layers."""
    every = checks.whole("global_attn_every_n_layers", data.get("global_attn_every_n_layers", 3), 1, MOST)
    kinds = data.get("layer_types")
    if kinds is None:
        return except_first(every, n_layers)
    return read_layer_types(kinds, n_layers)


def except_first(period: int, n_layers: int) -> tuple[int, ...]:
    """All layers except the first of each period."""
    return tuple(i for i in range(n_layers) if i % period)


def _rotary(theta: float) -> tuple[Rotary, ...]:
    """Rotary embeddings with this base, or () for 0, which means null in an older config.json."""
    return (Rotary(theta),) if theta else ()


def _steps(local: tuple[int, ...], n_layers: int) -> dict[str, int]:
    """The spacing of global layers, for versions of Transformers without layer_types; {} for irregular spacing."""
    every = next((each for each in range(1, n_layers + 1) if except_first(each, n_layers) == local), None)
    return {} if every is None else {"global_attn_every_n_layers": every}


MODERNBERT = ModernBert(
    model_type="modernbert",
    reads=frozenset({"position_embedding_type", "rope_parameters", "rope_scaling"}),
    constants={
        "norm_first": True, "final_norm": True, "bias": False, "eps": 1e-5, "positions": Positions("none"),
        "mechanisms": (Rotary(160_000.0),), "local": Local((), (Rotary(10_000.0), Window(64))), "gated": True,
    },
    pair="cls $A sep $B sep",
    sizes=SIZES,
    usual=usual_length(8192),
    activation="hidden_activation",
    eps="norm_eps",
    architectures={
        "ModernBertModel": "base",
        "ModernBertForSequenceClassification": "sequence-classification",
        "ModernBertForTokenClassification": "token-classification",
        "ModernBertForQuestionAnswering": "question-answering",
        "ModernBertForMaskedLM": "masked-lm",
        "ModernBertForMultipleChoice": "multiple-choice",
    },
    prefix="model.",
    encoder={
        "embeddings.token": "model.embeddings.tok_embeddings",
        "embeddings.norm": "model.embeddings.norm",
        "layers.*.attention_norm": "model.layers.*.attn_norm",
        "layers.*.attention.query": "model.layers.*.attn.Wqkv",
        "layers.*.attention.key": "model.layers.*.attn.Wqkv",
        "layers.*.attention.value": "model.layers.*.attn.Wqkv",
        "layers.*.attention.output": "model.layers.*.attn.Wo",
        "layers.*.ffn_norm": "model.layers.*.mlp_norm",
        "layers.*.ffn.gate": "model.layers.*.mlp.Wi",
        "layers.*.ffn.up": "model.layers.*.mlp.Wi",
        "layers.*.ffn.output": "model.layers.*.mlp.Wo",
        "norm": "model.final_norm",
    },
    heads={
        "base": {},
        "sequence-classification": {**HEAD, "head.output": "classifier"},
        "token-classification": {**HEAD, "head.output": "classifier"},
        "question-answering": {**HEAD, "head.output": "classifier"},
        "masked-lm": {**HEAD, "head.output": "decoder"},
        "multiple-choice": {**HEAD, "head.output": "classifier"},
    },
    settings={"attention_bias": False, "mlp_bias": False, "norm_bias": False, "classifier_bias": False},
    supported={"masked-lm": {"decoder_bias": True}},
    stages={
        "model.layers.*.mlp.act": "layers.*.ffn.activation",
        "model.layers.*": "layers.*.ffn_residual",
        "model.embeddings": "embeddings.norm",
        "head": "head.norm",
    },
    dropped=("embeddings.norm", "layers.*.attention.output", "layers.*.ffn.gated"),
    read={
        "sequence-classification": "head.norm",
        "token-classification": "head.norm",
        "question-answering": "head.norm",
        "multiple-choice": "head.norm",
    },
)  # fmt: skip
