"""Families of checkpoints: their fields in config.json, names of weights, special tokens and dropout.

To add a family, add a file here and an entry in `FAMILIES`. Most families are `EncoderTable`s.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from itertools import chain
from typing import Any, cast

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits
from npformer.config import Config
from npformer.engine.parts import Parts
from npformer.families.base import Family, Source, TensorPart, UnknownClass, label_count
from npformer.families.encoder_table import EncoderTable
from npformer.families.layer_types import LAYER_TYPES, check_layer_types
from npformer.families.text_model import text_config
from npformer.families.unsupported import CODE, find_family, ignored, own_code, quantized, refuse_quantized

__all__ = [
    "FAMILIES",
    "EncoderTable",
    "Family",
    "Source",
    "TensorPart",
    "UnknownClass",
    "distinct_encoders",
    "encoders",
    "family_of",
    "has_base",
    "ignored",
    "named_family",
    "names_head",
    "parts_of",
    "quantized",
    "read_config",
    "refuse_quantized",
    "text_config",
    "unread_code",
    "write_config",
]


class _Families(UserDict[str, Any]):
    """Imports the file of a family on first use, so that a model loads without the code of other families."""

    def __getitem__(self, model_type: str) -> Family:
        found = self.data[model_type]
        if isinstance(found, str):
            file, name = found.split(".")
            found = self.data[model_type] = getattr(import_module(f"{__name__}.{file}"), name)
        return cast(Family, found)


#: Maps each model_type to its family. Before its first use, a family is the string "file.name".
FAMILIES: MutableMapping[str, Family] = _Families(
    {
        "distilbert": "distilbert.DISTILBERT",
        "bert": "bert.BERT",
        "electra": "electra.ELECTRA",
        "albert": "albert.ALBERT",
        "roberta": "roberta.ROBERTA",
        "xlm-roberta": "roberta.XLM_ROBERTA",
        "camembert": "roberta.CAMEMBERT",
        "mpnet": "mpnet.MPNET",
        "deberta-v2": "deberta.DEBERTA",
        "modernbert": "modernbert.MODERNBERT",
        "nomic_bert": "nomic.NOMIC_BERT",
        "gpt2": "gpt2.GPT2",
        "llama": "llama.LLAMA",
        "mistral": "llama.MISTRAL",
        "qwen2": "llama.QWEN2",
        "qwen3": "llama.QWEN3",
        "gemma": "gemma.GEMMA",
        "gemma2": "gemma.GEMMA2",
        "gemma3_text": "gemma.GEMMA3",
        "gpt_neox": "gpt_neox.GPT_NEOX",
        "opt": "opt.OPT",
        "phi3": "phi3.PHI3",
        "bloom": "bloom.BLOOM",
        "smollm3": "smollm3.SMOLLM3",
        "olmo2": "olmo2.OLMO2",
        "marian": "marian.MARIAN",
        "bart": "bart.BART",
        "t5": "t5.T5",
        "mt5": "t5.MT5",
        "transformer": "torch_nn.TORCH_MODULES",
    }
)


def encoders() -> dict[str, EncoderTable]:
    """Maps each model_type to its family, for the families that are `EncoderTable`s."""
    return {name: each for name, each in FAMILIES.items() if isinstance(each, EncoderTable)}


def distinct_encoders() -> dict[str, EncoderTable]:
    """`encoders` without families that have the same tensor names as an earlier family, such as XLM-RoBERTa."""
    tables: dict[tuple[tuple[str, str], ...], EncoderTable] = {}
    for each in encoders().values():
        tables.setdefault(tuple(each.encoder.items()), each)
    return {each.model_type: each for each in tables.values()}


def has_base(model_type: str) -> bool:
    """Whether Transformers has a class for the encoder or decoder of this model_type without a head."""
    if model_type not in FAMILIES or model_type == "transformer":  # torch's own modules are not in Transformers
        return False
    return "base" in FAMILIES[model_type].architectures.values()


def names_head(data: Mapping[str, Any]) -> bool:
    """Whether a config.json determines the head. If it names no class, the family must have exactly one class."""
    family = named_family(data)
    if family is None:
        return True  # `read_config` rejects it
    return family.named_head(data) is not None if data.get("architectures") else not has_base(family.model_type)


def named_family(data: Mapping[str, Any]) -> Family | None:
    """The family of a config.json, or None for an unknown family."""
    name = data.get("model_type")
    return FAMILIES[name] if isinstance(name, str) and name in FAMILIES else None


def family_of(config: Config) -> Family:
    """The family of a model."""
    return FAMILIES[checks.one_of("model_type", config.model_type, FAMILIES)]


@lru_cache(maxsize=64)
def parts_of(config: Config) -> Parts:
    """The parts of a model, built once per config.

    Raises NpformerError if the config has a mechanism or another feature that the family does not support.
    """
    family = family_of(config)
    for each in chain(*config.layer_kinds):
        if type(each) not in family.mechanisms:
            raise NpformerError(f"mechanisms: a {config.model_type} model has no {type(each).__name__} attention")
    if config.causal and not (family.constants.get("causal") or "causal-lm" in family.all_heads):
        raise NpformerError(f"causal: a {config.model_type} model has no causal attention")
    parts = family.build(config, config.head)
    for field, own in (("n_kv_heads", "n_kv_heads"), ("head_width", "d_head"), ("score_scale", "scale")):
        if getattr(config, field) and not any(getattr(block, own) for block in parts.stack.attentions):
            raise NpformerError(f"{field}: expected 0, because it is fixed for {config.model_type} models")
    if config.parallel and not any(each.parallel for each in parts.stack.layers):
        raise NpformerError(f"parallel: expected False, because a {config.model_type} model has no parallel layers")
    if config.convolution and parts.stack.after_first is None:
        raise NpformerError(f"convolution: a {config.model_type} model has no convolution")
    if config.decoder:
        ends = config.decoder.end_ids
        return replace(parts, start_id=config.decoder.start_id, end_id=ends[0] if ends else None)
    return parts


def read_config(data: Mapping[str, Any], head: str | None = None, limits: Limits = LIMITS) -> Config:
    """Creates a `Config` from the content of a Hugging Face config.json.

    head: the head to read, if a checkpoint has several. The default is the head of the class in `architectures`, or
    "base" without `architectures`. For example, BertForPreTraining has a masked-word head and a next-sentence head, and
    the masked-word head is read by default.
    """
    data = text_config(data)
    family = find_family(FAMILIES, data)
    limits.check("labels", label_count(data), "labels")
    limits.check("layers", family.layer_count(data), "layers")
    config = family.read_config(data, head)
    if data.keys() & LAYER_TYPES:
        check_layer_types(data, config)
    limits.check("layers", config.n_layers + config.decoder.n_layers, "layers")
    if config.positions.table.startswith("sinusoidal"):
        limits.check("positions", config.n_positions * config.table_width, "numbers in the table of positions")
    return config


def unread_code(data: Mapping[str, Any], config: Config) -> str:
    """A note for a checkpoint with its own model class, which may compute differently; "" for other checkpoints.

    Some checkpoints, such as Phi-3, were published with their own code before Transformers had the same model.
    """
    code = own_code(data)
    if not code or CODE in family_of(config).reads:
        return ""
    return (
        f"{CODE}: {code} is never run; npformer computes a {config.model_type} model, as Transformers does by default"
    )


def write_config(config: Config) -> dict[str, Any]:
    """Returns the content of a Hugging Face config.json. Inverse of `read_config`."""
    return family_of(config).write_config(config)
