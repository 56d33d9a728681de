"""Families of checkpoints, one file each: config.json, the names of the weights, and whatever else sets one apart.

A new family is a file here and a line in `FAMILIES`. BERT's relatives are an `EncoderTable` (`table.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer import checks
from npformer.config import Config
from npformer.families.base import Family, Source
from npformer.families.bert import BERT
from npformer.families.distilbert import DISTILBERT
from npformer.families.electra import ELECTRA
from npformer.families.marian import MARIAN
from npformer.families.table import EncoderTable
from npformer.families.torch_nn import TORCH_MODULES

__all__ = ["FAMILIES", "EncoderTable", "Family", "Source", "encoders", "family_of", "read_config", "write_config"]

#: model_type -> family.
FAMILIES: dict[str, Family] = {each.model_type: each for each in (DISTILBERT, BERT, ELECTRA, MARIAN, TORCH_MODULES)}


def encoders() -> dict[str, EncoderTable]:
    """The families that are tables: model_type -> family."""
    return {name: each for name, each in FAMILIES.items() if isinstance(each, EncoderTable)}


def family_of(config: Config) -> Family:
    """A model's family."""
    return FAMILIES[checks.one_of("model_type", config.model_type, FAMILIES)]


def read_config(data: Mapping[str, Any], head: str | None = None) -> Config:
    """The content of a Hugging Face config.json as a `Config`.

    head: another head than `architectures` names, for a checkpoint that carries several (BertForPreTraining, read here
    as its masked-word head, also has the one for the next sentence). Without `architectures` the head is "base".
    """
    return FAMILIES[checks.one_of("model_type", data.get("model_type"), FAMILIES)].read_config(data, head)


def write_config(config: Config) -> dict[str, Any]:
    """The content of a config.json that Hugging Face reads, and `read_config` reads back."""
    return family_of(config).write_config(config)
