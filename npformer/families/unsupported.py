"""What npformer does not compute: refused by name, from config.json alone, before weights are read or downloaded.

A family that computes one of these mechanisms names its field in `Family.reads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common.checks import one_of, shown
from npformer.common.errors import NpformerError
from npformer.families.base import Family

#: model_type of families that are not here -> the mechanism that they would need.
MISSING = {
    "big_bird": "attention to blocks, some of them random",
    "bloom": "ALiBi: scores that fall with the distance, in a decoder without an encoder",
    "canine": "characters as tokens, by hashes",
    "convbert": "convolutions beside attention heads",
    "deberta": "disentangled attention of contents and relative positions",
    "funnel": "pooling of the sequence between layers",
    "gemma3_text": "rotary positions, gated units and RMS norms, in a decoder without an encoder",
    "ibert": "integers in place of floats",
    "llama": "rotary positions, gated units and RMS norms, in a decoder without an encoder",
    "longformer": "attention within a window, with global tokens",
    "m2m_100": "norms before the blocks of an encoder and a decoder, and codes of languages",
    "mbart": "norms before the blocks of an encoder and a decoder, and codes of languages",
    "mistral": "rotary positions, gated units and RMS norms, in a decoder without an encoder",
    "mt5": "relative positions in buckets, and RMS norms",
    "new": "rotary positions stretched to longer texts (NTK), and gated units under BERT's norms",
    "nystromformer": "attention approximated by landmarks",
    "qwen2": "rotary positions, gated units and RMS norms, in a decoder without an encoder",
    "qwen3": "rotary positions, gated units and RMS norms, in a decoder without an encoder",
    "reformer": "attention within hashes",
    "roformer": "rotary positions of neighbouring pairs",
    "squeezebert": "convolutions in place of linear layers",
    "t5": "relative positions in buckets, and RMS norms",
    "xlnet": "relative positions of Transformer-XL",
}

#: Fields that change what is computed -> the value with which they change nothing.
FIELDS = {
    "position_embedding_type": "absolute",
    "attention_type": "original_full",
    "rope_scaling": None,
    "rope_parameters": None,
}
CODE = "auto_map"  # classes of a checkpoint's own code

#: Fields that change how it is computed and not what: they are ignored.
IGNORED = (
    *("_attn_implementation", "dtype", "reference_compile", "torch_dtype", "use_cache"),
    *("fused_bias_fc", "fused_dropout_add_ln", "reorder_and_upcast_attn", "use_flash_attn", "use_xentropy"),
)


def find_family(families: Mapping[str, Family], data: Mapping[str, Any]) -> Family:
    """The family of a config.json. Raises NpformerError for what npformer does not compute, with its name."""
    name, code = data.get("model_type"), _own_code(data)
    try:
        if isinstance(name, str) and name in MISSING.keys() - families.keys():
            raise NpformerError(
                f"model_type: {name!r} needs {MISSING[name]}, which is not here; expected one of {', '.join(families)}"
            )
        family = families[one_of("model_type", name, families)]
    except NpformerError as error:
        raise NpformerError(f"{error}; {code}" if code else str(error)) from None
    for field, neutral in FIELDS.items():
        value = data.get(field, neutral)
        if value != neutral and field not in family.reads:
            kind = value.get("rope_type", value.get("type", value)) if isinstance(value, Mapping) else value
            raise NpformerError(f"{field}: {shown(kind)} is not supported for a {name}; supported: {neutral!r}")
    if code and CODE not in family.reads:
        raise NpformerError(f"{code}, and which may differ from what a {name} computes elsewhere")
    return family


def ignored(data: Mapping[str, Any]) -> list[str]:
    """The fields of a config.json that change nothing."""
    return [name for name in IGNORED if name in data]


def _own_code(data: Mapping[str, Any]) -> str:
    """Says that a model is code among the checkpoint's files; "" if it is none."""
    classes = data.get(CODE)
    named = (
        [each for key, each in classes.items() if key.startswith("AutoModel")] if isinstance(classes, Mapping) else []
    )
    return f"{CODE}: the model is code of the checkpoint's own ({shown(named[0])}), which is never run" if named else ""
