"""Rejects unsupported features in config.json, before weights are read or downloaded.

A family that supports one of these features lists its field in `Family.reads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common.checks import one_of, shown
from npformer.common.errors import NpformerError
from npformer.families.base import Family

SHARED_NORM = "one norm shared by attention and a parallel feed-forward network"
EXPERTS = "a mixture of experts: a router that chooses feed-forward networks for each token"
#: Maps the model_type of an unsupported family to the missing feature.
MISSING = {
    "big_bird": "block-sparse attention with random blocks",
    "canine": "characters as tokens, with hash embeddings",
    "clip": "an image encoder and a text encoder with contrastive vectors",
    "convbert": "convolutions parallel to attention heads",
    "deberta": "disentangled attention in DeBERTa's first version",
    "deepseek_v3": "latent attention with compressed keys and values, and a mixture of experts",
    "falcon": SHARED_NORM,
    "funnel": "pooling of the sequence between layers",
    "gpt_oss": "attention sinks, and a mixture of experts",
    "ibert": "integer arithmetic",
    "longformer": "attention within a window, with global tokens",
    "m2m_100": "a pre-norm encoder and decoder, and language codes",
    "mamba": "a state-space layer instead of attention",
    "mbart": "a pre-norm encoder and decoder, and language codes",
    "mixtral": EXPERTS,
    "new": "rotary positions scaled to longer texts (NTK), and gated units with post-norm",
    "olmo": "layer norms without weights, and limits on queries, keys and values (clip_qkv)",
    "nystromformer": "attention approximated with landmarks",
    "phi": SHARED_NORM,
    "qwen2_5_vl": "image input, with rotary positions in three dimensions",
    "qwen3_moe": EXPERTS,
    "reformer": "locality-sensitive hashing attention",
    "roformer": "rotary positions on adjacent pairs of columns",
    "squeezebert": "convolutions instead of linear layers",
    "umt5": "relative positions in buckets, with a table for each layer",
    "vit": "image input, in patches",
    "wav2vec2": "speech input: convolutions over samples",
    "whisper": "speech input: convolutions over spectrograms, with an encoder and a decoder",
    "xlnet": "relative positions of Transformer-XL",
}

#: Maps each field that can change the result to the value that has no effect.
FIELDS = {
    "position_embedding_type": "absolute",
    "attention_type": "original_full",
    "rope_scaling": None,
    "rope_parameters": None,
}
#: Maps each field that describes quantized weights to the default name of the method.
QUANTIZATION = {"quantization_config": "bitsandbytes", "quantization": "MLX"}
#: After fine-tuning with quantized weights (QLoRA), a folder with plain weights still has the settings of this method.
MAY_BE_PLAIN = "bitsandbytes"
CODE = "auto_map"  # field that names the classes in the code of a checkpoint

#: Fields that are ignored because they do not change the result.
IGNORED = (
    *("_attn_implementation", "dtype", "reference_compile", "torch_dtype", "use_cache"),
    *("fused_bias_fc", "fused_dropout_add_ln", "reorder_and_upcast_attn", "use_flash_attn", "use_xentropy"),
)


def find_family(families: Mapping[str, Family], data: Mapping[str, Any]) -> Family:
    """The family of a config.json. Raises NpformerError for unsupported features."""
    name = data.get("model_type")
    try:
        if isinstance(name, str) and name in MISSING.keys() - families.keys():
            raise NpformerError(
                f"model_type: {name!r} needs {MISSING[name]}, which is not supported; "
                f"expected one of {', '.join(families)}"
            )
        family = families[one_of("model_type", name, families)]
    except NpformerError as error:
        code = own_code(data)
        raise NpformerError(f"{error}; {CODE}: the model is {code}, which is never run" if code else error) from None
    refuse_quantized(data)
    for field, neutral in FIELDS.items():
        value = data.get(field, neutral)
        if value != neutral and field not in family.reads:
            kind = value.get("rope_type", value.get("type", value)) if isinstance(value, Mapping) else value
            raise NpformerError(f"{field}: {shown(kind)} is not supported for {name} models; supported: {neutral!r}")
    return family


def quantized(data: Mapping[str, Any]) -> str:
    """The error message for a checkpoint with quantized weights, or "" if config.json names no quantization."""
    for field, default in QUANTIZATION.items():
        settings = data.get(field)
        if isinstance(settings, Mapping) and settings:
            method = str(settings.get("quant_method") or default)
            return (
                f"{field}: weights quantized with {method:.40} are not supported; use the original model, in float32, "
                "float16 or bfloat16"
            )
    return ""


def refuse_quantized(data: Mapping[str, Any]) -> None:
    """Raises NpformerError for a checkpoint that certainly has quantized weights."""
    if (problem := quantized(data)) and MAY_BE_PLAIN not in problem:
        raise NpformerError(problem)


def ignored(data: Mapping[str, Any], family: Family) -> list[str]:
    """The fields of a config.json that have no effect in this family."""
    names = (*IGNORED, *([CODE] if own_code(data) else []))
    return [name for name in names if name in data and name not in family.reads]


def own_code(data: Mapping[str, Any]) -> str:
    """The file and class of a checkpoint's own model code, as in Phi-3; "" for other checkpoints."""
    classes = data.get(CODE)
    named = (
        [each for key, each in classes.items() if key.startswith("AutoModel")] if isinstance(classes, Mapping) else []
    )
    return f"the checkpoint's own code ({shown(named[0])})" if named else ""
