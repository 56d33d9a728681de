"""Llama (Touvron et al., 2023; Grattafiori et al., 2024) and related families: Mistral, Qwen2 and Qwen3.

These models are causal pre-norm stacks with RMSNorm, rotary embeddings, grouped queries and gated feed-forward
networks. Mistral has a window in every layer. Qwen2 has biases for query, key and value. Qwen3 has head norms. A head
for whole texts reads the last token that is not padding.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from npformer.common import checks
from npformer.config import MOST, Config, Local, Positions
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.blocks import Attention, Gated
from npformer.engine.layers.layer import Layer
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import HeadNorm, Mechanism, Rotary, Window
from npformer.engine.norms.norm import Norm
from npformer.engine.norms.root_mean_square import RMSNorm
from npformer.families.base import read_padding
from npformer.families.building import mechanisms_of
from npformer.families.encoder_table import DECODER_HEADS, SIZES, EncoderTable, decoder_classes, usual_length
from npformer.families.layer_types import read_layer_types, write_layer_types
from npformer.families.rope import longest, read_rotary, write_rotary


class Llama(EncoderTable):
    """The family of Llama. Subclasses add windows, biases and head norms."""

    kinds: tuple[type[Mechanism], ...] = (Rotary,)  # classes of mechanisms in the layers
    scalings: tuple[str, ...] = ("linear", "dynamic", "llama3", "yarn", "longrope")  # scalings of rotary embeddings
    answering_prefix = "transformer."  # prefix of the stack in the class for question answering

    @property
    def mechanisms(self) -> tuple[type, ...]:
        return self.kinds

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        n_heads = checks.whole("num_attention_heads", data["num_attention_heads"], 1, MOST)
        kv_heads = data.get("num_key_value_heads")
        kv_heads = n_heads if kv_heads is None else checks.whole("num_key_value_heads", kv_heads, 1, n_heads)
        width = self.width(data)
        width = data["hidden_size"] // n_heads if width is None else checks.whole("head_dim", width, 1, MOST)
        rotary = self.rotary(data, width)
        return {
            "n_kv_heads": 0 if kv_heads == n_heads else kv_heads,
            "head_width": 0 if width * n_heads == data["hidden_size"] else width,
            "padding_idx": read_padding({**self.ids, **data}),
            "bias": self.biased(data),
            "mechanisms": (rotary,),
            **longest(rotary),
        }

    def width(self, data: Mapping[str, Any]) -> Any:
        """The width of a head in config.json; None means hidden_size / num_attention_heads."""
        return data.get("head_dim")

    def rotary(self, data: Mapping[str, Any], d_head: int) -> Rotary:
        """The rotary embeddings of heads of this width."""
        return read_rotary(data)

    def biased(self, data: Mapping[str, Any]) -> bool:
        """Whether query, key and value have biases."""
        return checks.boolean("attention_bias", data.get("attention_bias", False))

    def write_config(self, config: Config) -> dict[str, Any]:
        [rotary] = [each for each in config.mechanisms if isinstance(each, Rotary)]
        return super().write_config(config) | {
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.d_head,
            "attention_bias": config.bias,
            **write_rotary(rotary),
        }

    # --- weights -----------------------------------------------------------------------------------------------------

    def current(self, name: str, known: Container[str]) -> str:
        """As in `Family`. The prefix differs between the classes of Transformers, and the base model has no prefix."""
        bare = name.removeprefix(self.prefix).removeprefix(self.answering_prefix)
        return next((each for each in (self.prefix + bare, self.answering_prefix + bare, bare) if each in known), name)

    def _written(self, name: str, config: Config) -> str:
        name = super()._written(name, config)
        if config.head == "question-answering" and name.startswith(self.prefix):
            return self.answering_prefix + name.removeprefix(self.prefix)
        return name

    # --- the model ---------------------------------------------------------------------------------------------------

    def norm(self, config: Config) -> Norm:
        return RMSNorm(config.eps)

    def stack(self, config: Config) -> Stack:
        norm = self.norm(config)
        feed = Gated(ACTIVATIONS[config.activation], config.d_ffn, bias=False)
        layers = [
            Layer((("attention", self.attention(config, i)), ("ffn", feed)), norm, norm_first=True)
            for i in range(config.n_layers)
        ]
        return Stack(tuple(layers), norm)

    def attention(self, config: Config, layer: int) -> Attention:
        return Attention(
            *(config.n_heads, mechanisms_of(config, layer), config.bias, config.kv_heads, config.d_head),
            scale=config.score_scale or None,
        )

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        """The frequencies in files that earlier versions of Transformers wrote, such as the files of Llama 2."""
        return frozenset(f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.n_layers))


class Mistral(Llama):
    """Llama with a window in every layer: the token itself and the `sliding_window` - 1 tokens before it."""

    answering_prefix = "model."
    kinds: tuple[type[Mechanism], ...] = (Rotary, Window)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        own, size = super().own_fields(data, head, n_layers), data.get("sliding_window", 4096)
        return own if size is None else own | {"mechanisms": (*own["mechanisms"], window_of(size))}

    def biased(self, data: Mapping[str, Any]) -> bool:
        return False

    def write_config(self, config: Config) -> dict[str, Any]:
        return super().write_config(config) | {"sliding_window": window_size(config.mechanisms)}


class Qwen2(Llama):
    """Llama with biases for query, key and value, and a window in some layers."""

    kinds: tuple[type[Mechanism], ...] = (Rotary, Window)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        own, local = super().own_fields(data, head, n_layers), _local_layers(data, n_layers)
        if not local:
            return own
        return own | {"local": Local(local, (*own["mechanisms"], window_of(data.get("sliding_window", 4096))))}

    def biased(self, data: Mapping[str, Any]) -> bool:
        return True

    def write_config(self, config: Config) -> dict[str, Any]:
        layers = config.local.layers if config.local else ()
        return super().write_config(config) | {
            "use_sliding_window": bool(layers),
            "sliding_window": window_size(config.local.mechanisms) if config.local else None,
            "max_window_layers": min(layers, default=config.n_layers),
            "layer_types": write_layer_types(layers, config.n_layers),
        }

    def attention(self, config: Config, layer: int) -> Attention:
        """As in `Llama`, without a bias in the output projection, and with the default scale of scores."""
        return replace(super().attention(config, layer), output_bias=False, scale=None)


class Qwen3(Qwen2):
    """Qwen2 with head norms. `attention_bias` in config.json applies to all four linear layers of attention."""

    kinds = (HeadNorm, Rotary, Window)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        own = super().own_fields(data, head, n_layers)
        local: Local | None = own.get("local")
        if local:
            own["local"] = Local(local.layers, (HeadNorm(), *local.mechanisms))
        return own | {"mechanisms": (HeadNorm(), *own["mechanisms"])}

    def width(self, data: Mapping[str, Any]) -> Any:
        return data.get("head_dim", 128)

    def biased(self, data: Mapping[str, Any]) -> bool:
        return Llama.biased(self, data)

    def attention(self, config: Config, layer: int) -> Attention:
        return Llama.attention(self, config, layer)


def window_of(size: Any) -> Window:
    """The `Window` for a `sliding_window` of this size: a token sees itself and the size - 1 tokens before it."""
    return Window(checks.whole("sliding_window", size, 1, MOST) - 1)


def window_size(mechanisms: tuple[Any, ...]) -> int | None:
    """The value of `sliding_window` in config.json, or None without a window."""
    return next((each.reach + 1 for each in mechanisms if isinstance(each, Window)), None)


def _local_layers(data: Mapping[str, Any], n_layers: int) -> tuple[int, ...]:
    """The layers with a window: the layers listed in `layer_types`, or by default all from `max_window_layers` on."""
    if not checks.boolean("use_sliding_window", data.get("use_sliding_window", False)):
        return ()
    if data.get("sliding_window", 4096) is None:
        return ()
    kinds = data.get("layer_types")
    if kinds is None:
        return tuple(range(checks.whole("max_window_layers", data.get("max_window_layers", 28), 0, MOST), n_layers))
    return read_layer_types(kinds, n_layers)


HEADS = {**DECODER_HEADS, "token-classification": {"head.output": "score"}}
ENCODER = {
    "embeddings.token": "model.embed_tokens",
    "layers.*.attention_norm": "model.layers.*.input_layernorm",
    "layers.*.attention.query": "model.layers.*.self_attn.q_proj",
    "layers.*.attention.key": "model.layers.*.self_attn.k_proj",
    "layers.*.attention.value": "model.layers.*.self_attn.v_proj",
    "layers.*.attention.query_norm": "model.layers.*.self_attn.q_norm",
    "layers.*.attention.key_norm": "model.layers.*.self_attn.k_norm",
    "layers.*.attention.output": "model.layers.*.self_attn.o_proj",
    "layers.*.ffn_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.ffn.gate": "model.layers.*.mlp.gate_proj",
    "layers.*.ffn.up": "model.layers.*.mlp.up_proj",
    "layers.*.ffn.output": "model.layers.*.mlp.down_proj",
    "norm": "model.norm",
}
STAGES = {"model.layers.*.mlp.act_fn": "layers.*.ffn.activation", "model.layers.*": "layers.*.ffn_residual"}
READS = frozenset({"position_embedding_type", "rope_parameters", "rope_scaling"})


def kin_of_llama(
    kind: type[Llama],
    model_type: str,
    architectures: Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
    encoder: Mapping[str, str] | None = None,
    **fields: Any,
) -> Llama:
    """Creates a family similar to Llama.

    constants, encoder: the entries that differ from Llama's. A group with module "" is removed.
    """
    settings: dict[str, Any] = {
        "activation": "hidden_act",
        "usual_activation": "silu",
        "eps": "rms_norm_eps",
        "reads": READS,
        "stages": STAGES,
    }
    return kind(
        model_type=model_type,
        constants={
            "norm_first": True, "final_norm": True, "causal": True, "pooling": "last", "eps": 1e-6, "tied": False,
            "positions": Positions("none"), "activation": "silu", "mechanisms": (Rotary(10_000.0),), "bias": False,
            "gated": True, **(constants or {}),
        },
        single="$A",
        pair="$A $B",
        sizes=SIZES,
        architectures=architectures,
        prefix="model.",
        encoder={group: module for group, module in {**ENCODER, **(encoder or {})}.items() if module},
        heads={head: HEADS[head] for head in architectures.values()},
        unbiased=frozenset({"causal-lm", "sequence-classification"}),
        read={"token-classification": "norm"},
        read_rate={"token-classification": 0.1},
        **settings | fields,
    )  # fmt: skip


WITHOUT_BIAS, WITHOUT_BIASES = {"mlp_bias": False}, {"attention_bias": False}
IDS, LONG = {"bos_token_id": 1, "eos_token_id": 2}, usual_length(32_768)
NORMED = {"mechanisms": (HeadNorm(), Rotary(10_000.0))}
LLAMA = kin_of_llama(Llama, "llama", decoder_classes("Llama"), ids=IDS, settings=WITHOUT_BIAS, usual=usual_length(2048))
MISTRAL = kin_of_llama(
    *(Mistral, "mistral", decoder_classes("Mistral")), ids=IDS, settings=WITHOUT_BIASES, usual=usual_length(131_072)
)
QWEN2 = kin_of_llama(Qwen2, "qwen2", decoder_classes("Qwen2"), {"bias": True}, usual=LONG)
QWEN3 = kin_of_llama(Qwen3, "qwen3", decoder_classes("Qwen3"), NORMED, usual=LONG)
