"""Gemma, Gemma 2 and Gemma 3 (Gemma Team, 2024 and 2025): Llama's layers with other norms and scaled embeddings.

RMSNorm multiplies by 1 + weight. Token rows are multiplied by sqrt(D), rounded to the training dtype in config.json:
for 3072 columns, 55.5 in bfloat16 instead of 55.43. Gemma 2 also normalizes the output of each block, applies soft caps
to scores and logits, and has a window in every other layer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST, ROUNDED, Config, Local
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Mechanism, Rotary, SoftCap, Window, ZeroCentredHeadNorm
from npformer.engine.norms.norm import Norm
from npformer.engine.norms.zero_centred import ZeroCentredRMSNorm
from npformer.families.base import write_text_ids
from npformer.families.building import with_output_norms
from npformer.families.encoder_table import decoder_classes, usual_length
from npformer.families.layer_types import FULL, SLIDING, read_layer_types, write_layer_types
from npformer.families.llama import READS, Llama, kin_of_llama, window_of, window_size
from npformer.families.rope import read_rotary, write_rotary
from npformer.families.text_model import VISION, text_tensor


class Gemma(Llama):
    """The family of Gemma."""

    bidirectional = False  # whether use_bidirectional_attention is supported

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        """As in `EncoderTable`. "gelu" in config.json means the tanh approximation, as in Gemma's training."""
        if data.get(self.activation) == "gelu" and self.activation == "hidden_act":
            data = {**data, self.activation: self.usual_activation}
        return super().read_config(data, head)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        if data.get("use_bidirectional_attention") and not self.bidirectional:
            raise NpformerError(f"use_bidirectional_attention: True is not supported for {self.model_type} models")
        dtype = data.get("dtype", data.get("torch_dtype"))
        scale_dtype = dtype if isinstance(dtype, str) and dtype in ROUNDED else "float32"
        return super().own_fields(data, head, n_layers) | {"scale_dtype": scale_dtype}

    def width(self, data: Mapping[str, Any]) -> Any:
        return data.get("head_dim", 256)

    def write_config(self, config: Config) -> dict[str, Any]:
        return super().write_config(config) | {"dtype": config.scale_dtype}

    def norm(self, config: Config) -> Norm:
        return ZeroCentredRMSNorm(config.eps)


class Gemma2(Gemma):
    """The family of Gemma 2."""

    kinds: tuple[type[Mechanism], ...] = (Rotary, SoftCap, Window)

    def config(self, head: str, **fields: Any) -> Config:
        """As in `Family`. By default, every layer except the last of each period has a window."""
        local = replace(self.constants["local"], layers=self.local_layers({}, fields["n_layers"]))
        return super().config(head, **{"local": local, **fields})

    def local_layers(self, data: Mapping[str, Any], n_layers: int) -> tuple[int, ...]:
        """The layers with a window."""
        kinds = data.get("layer_types")
        if kinds is not None:
            return read_layer_types(kinds, n_layers)
        return except_last(2, n_layers)

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        own = super().own_fields(data, head, n_layers)
        scalar = checks.whole("query_pre_attn_scalar", data.get("query_pre_attn_scalar", 256), 1, MOST)
        d_head = own["head_width"] or data["hidden_size"] // data["num_attention_heads"]
        wide, near = (self.mechanisms_with(each, data) for each in self.rotations(data))
        return own | {
            "score_scale": 0.0 if scalar == d_head else scalar**-0.5,
            "mechanisms": wide,
            "local": Local(self.local_layers(data, n_layers), (*near, self.window(data))),
            "logit_cap": _cap("final_logit_softcapping", data, self.constants.get("logit_cap")),
        }

    def rotations(self, data: Mapping[str, Any]) -> tuple[Rotary, Rotary]:
        """The rotary embeddings of global layers and of local layers."""
        return (read_rotary(data),) * 2

    def mechanisms_with(self, rotary: Rotary, data: Mapping[str, Any]) -> tuple[Mechanism, ...]:
        """The mechanisms of a layer with these rotary embeddings, without a window."""
        cap = _cap("attn_logit_softcapping", data, 50.0)
        return (rotary, SoftCap(cap)) if cap else (rotary,)

    def window(self, data: Mapping[str, Any]) -> Window:
        return window_of(data.get("sliding_window", 4096))

    def write_config(self, config: Config) -> dict[str, Any]:
        local: Local = config.local or self.constants["local"]
        caps = [each.cap for each in config.mechanisms if isinstance(each, SoftCap)]
        return super().write_config(config) | {
            "query_pre_attn_scalar": round(config.score_scale**-2) if config.score_scale else config.d_head,
            "sliding_window": window_size(local.mechanisms),
            "layer_types": write_layer_types(local.layers, config.n_layers),
            "attn_logit_softcapping": caps[0] if caps else None,
            "final_logit_softcapping": config.logit_cap or None,
        }

    def stack(self, config: Config) -> Stack:
        """As in `Llama`, with a norm of each block's output."""
        return with_output_norms(super().stack(config), self.norm(config))


class Gemma3(Gemma2):
    """The family of Gemma 3 for text: head norms replace soft caps, and local layers have their own rotary base.

    With `use_bidirectional_attention`, as in EmbeddingGemma, attention is not causal, and half of the window is on
    either side of a token.
    """

    kinds = (ZeroCentredHeadNorm, Rotary, Window)
    bidirectional = True

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        return super().own_fields(data, head, n_layers) | ({"causal": False} if _bidirectional(data) else {})

    def local_layers(self, data: Mapping[str, Any], n_layers: int) -> tuple[int, ...]:
        kinds, named = data.get("layer_types"), ("sliding_window_pattern", "_sliding_window_pattern")
        if kinds is not None:
            return read_layer_types(kinds, n_layers)
        period = next((data[name] for name in named if data.get(name) is not None), 6)
        return except_last(checks.whole(named[0], period, 1, MOST), n_layers)

    def rotations(self, data: Mapping[str, Any]) -> tuple[Rotary, Rotary]:
        """As in `Gemma2`. In older files, `rope_scaling` applies only to global layers."""
        given = data.get("rope_parameters") or {}
        kinds = [given.get(kind) or {} if isinstance(given, Mapping) else given for kind in (FULL, SLIDING)]
        scaling = data.get("rope_scaling") or {}
        if not all(isinstance(each, Mapping) for each in (*kinds, scaling)) or (given and not any(kinds)):
            raise NpformerError(f"rope_parameters: expected an object for each layer type, got {checks.shown(given)}")
        wide = {"rope_theta": data.get("rope_theta", 1e6), **kinds[0], **scaling}
        near = {"rope_theta": data.get("rope_local_base_freq", 1e4), **kinds[1]}
        wide, near = ({**data, "rope_scaling": None, "rope_parameters": each} for each in (wide, near))
        rotations = read_rotary(wide), read_rotary(near)
        for each in rotations:
            if each.same_until(1) is not None:
                kind = type(each.scaling).__name__.lower()
                raise NpformerError(f"rope_parameters: rope_type: {kind!r} is not supported for gemma3 models")
        return rotations

    def mechanisms_with(self, rotary: Rotary, data: Mapping[str, Any]) -> tuple[Mechanism, ...]:
        return ZeroCentredHeadNorm(), rotary

    def window(self, data: Mapping[str, Any]) -> Window:
        size = data.get("sliding_window", 4096)
        return Window(checks.whole("sliding_window", size, 1, MOST) // 2) if _bidirectional(data) else window_of(size)

    def write_config(self, config: Config) -> dict[str, Any]:
        local: Local = config.local or self.constants["local"]
        wide, near = (
            next(each for each in of if isinstance(each, Rotary)) for of in (config.mechanisms, local.mechanisms)
        )
        data = super().write_config(config) | write_text_ids(config)
        if not config.causal:
            del data["is_causal"]  # with `is_causal`, Transformers would use a different window
            reach = next(each.reach for each in local.mechanisms if isinstance(each, Window))
            data |= {"use_bidirectional_attention": True, "sliding_window": 2 * reach}
        kinds = {kind: write_rotary(each)["rope_parameters"] for kind, each in ((FULL, wide), (SLIDING, near))}
        return data | {"rope_local_base_freq": near.theta, "rope_parameters": kinds}

    def current(self, name: str, known: Container[str]) -> str:
        """As in `Llama`. In checkpoints for images and text, the tensors of the text model have a longer prefix."""
        return super().current(text_tensor(name), known)

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        return super().stored_elsewhere(config) | {f"{module}.*" for module in VISION}


def _bidirectional(data: Mapping[str, Any]) -> bool:
    name = "use_bidirectional_attention"
    return checks.boolean(name, data.get(name) or False)


def except_last(period: int, n_layers: int) -> tuple[int, ...]:
    """All layers except the last of each period."""
    return tuple(i for i in range(n_layers) if (i + 1) % period)


def _cap(name: str, data: Mapping[str, Any], default: float | None) -> float:
    """A soft cap in config.json, or 0 for null."""
    cap = data.get(name, default)
    return 0.0 if cap is None else float(checks.positive(name, cap))


IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
TANH = "gelu_pytorch_tanh"
SHARED: dict[str, Any] = {"ids": IDS, "usual_activation": TANH, "reads": READS | {"dtype", "torch_dtype"}}
CONSTANTS: dict[str, Any] = {"tied": True, "scale_embedding": True, "scale_dtype": "float32", "activation": "gelu_tanh"}


GEMMA = kin_of_llama(
    Gemma, "gemma", decoder_classes("Gemma", answers=False), CONSTANTS, usual=usual_length(8192), **SHARED
)
ROTARY, CAP = Rotary(10_000.0), SoftCap(50.0)
#: Maps norms to their modules: the norms that Llama lacks, and the norms whose module names mean another norm in Llama.
NORMS = {
    "layers.*.attention.output_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.ffn_norm": "model.layers.*.pre_feedforward_layernorm",
    "layers.*.ffn.output_norm": "model.layers.*.post_feedforward_layernorm",
}
GEMMA2 = kin_of_llama(
    Gemma2,
    "gemma2",
    decoder_classes("Gemma2", answers=False),
    {
        **CONSTANTS,
        "mechanisms": (ROTARY, CAP),
        "local": Local((), (ROTARY, CAP, Window(4095))),
        "logit_cap": 30.0,
    },
    NORMS,
    activation="hidden_activation",
    usual=usual_length(8192),
    **SHARED,
)
GEMMA3 = kin_of_llama(
    Gemma3,
    "gemma3_text",
    {
        "Gemma3TextModel": "base",
        "Gemma3ForCausalLM": "causal-lm",
        "Gemma3TextForSequenceClassification": "sequence-classification",
    },
    {
        **CONSTANTS,
        "mechanisms": (ZeroCentredHeadNorm(), Rotary(1e6)),
        "local": Local((), (ZeroCentredHeadNorm(), ROTARY, Window(4095))),
    },
    NORMS,
    activation="hidden_activation",
    usual=usual_length(131_072),
    **SHARED,
    settings={"attn_logit_softcapping": None},
)
