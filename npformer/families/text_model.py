"""The text model of a checkpoint for images and text: Gemma 3 with 4B or more parameters.

The config.json of such a checkpoint describes the text model in `text_config`, without fields that have default values.
The tensors of the text model have a longer prefix. The files also contain a vision model, which npformer does not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from npformer.common import checks
from npformer.common.errors import NpformerError


class TextModel(NamedTuple):
    """The text model of a family for images and text."""

    model_type: str  # model_type of the text model
    architectures: Mapping[str, str]  # class of the text model with the same head, by the model's class
    defaults: Mapping[str, Any]  # defaults in Transformers for fields that config.json may omit


#: Maps the model_type of a model for images and text to its text model.
TEXT_MODELS = {
    "gemma3": TextModel(
        "gemma3_text",
        {
            "Gemma3Model": "Gemma3TextModel",
            "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
            "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
        },
        {
            "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
        },
    ),
}  # fmt: skip
TEXT, PICTURES = "text_config", "vision_config"
#: Fields that describe images.
OF_PICTURES = {PICTURES, "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index"}
#: Modules of the vision model.
VISION = ("vision_tower", "multi_modal_projector")


def text_config(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json of the text model, or `data` itself for a checkpoint with only a text model."""
    name = data.get("model_type")
    if not isinstance(name, str) or name not in TEXT_MODELS:
        return data
    model, own = TEXT_MODELS[name], data.get(TEXT)
    if not isinstance(own, Mapping):
        raise NpformerError(f"{TEXT}: expected an object, got {checks.shown(own)}")
    outer = {field: value for field, value in data.items() if field != TEXT and field not in OF_PICTURES}
    found = {**model.defaults, **outer, **own, "model_type": model.model_type}
    classes = data.get("architectures")
    if isinstance(classes, list) and classes:
        found["architectures"] = [model.architectures.get(str(classes[0]), classes[0])]
    return found


def text_tensor(name: str) -> str:
    """The name of a tensor in a file with only the text model. Transformers 4 and 5 write different prefixes."""
    whole = name.removeprefix("model.")
    if whole.startswith(VISION):
        return whole
    inner = whole.removeprefix("language_model.")
    return name if inner == whole else inner if whole == name else f"model.{inner}"
