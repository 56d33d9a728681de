"""Tied weights: arrays with two names, such as the token table and the projection to the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npformer.checkpoint.parameters import Parameter, computed, parameters
from npformer.checkpoint.storage import Array, place
from npformer.config import Config

TOKENS, PROJECTION = "embeddings.token.weight", "head.output.weight"


def ties(config: Config) -> dict[str, str]:
    """Maps each tied array, which is stored only once, to the name of the array that it is tied to."""
    tied = _shared_layers(config)
    if config.head in ("masked-lm", "causal-lm") and config.tied:
        tied[PROJECTION] = TOKENS
    if config.shared:
        tied[f"decoder.{TOKENS}"] = f"encoder.{TOKENS}"
    if config.tied and config.head == "translation":
        tied[PROJECTION] = f"{'encoder' if config.shared else 'decoder'}.{TOKENS}"
    return tied


def _shared_layers(config: Config) -> dict[str, str]:
    """Maps each array of a layer that shares weights with an earlier layer to the array of the earlier layer."""
    first, tied = dict[tuple[int, int, str], str](), dict[str, str]()
    for name in parameters(config) if config.sharing else []:
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            earlier = first.setdefault((*config.group_of(int(layer)), rest), name)
            if earlier != name:
                tied[name] = earlier
    return tied


def drawn(config: Config) -> dict[str, Parameter]:
    """The parameters that training initializes: all except tied arrays and tables of sinusoids."""
    tied = ties(config)
    return {name: each for name, each in parameters(config).items() if name not in tied and not computed(name, config)}


def with_tables(found: Mapping[str, Array], pairs: Mapping[str, str]) -> dict[str, Array]:
    """Adds missing tables from the arrays that are tied to them. pairs: the name of the table for each array's name.

    safetensors.torch.save_model stores only one of the tied arrays, possibly the projection instead of the table.
    """
    stored = {
        table: found[name].T if name == PROJECTION else found[name] for name, table in pairs.items() if name in found
    }
    return {**stored, **found}


def is_table(found: Mapping[str, Array], name: str, table: str) -> bool:
    """Whether a tied array is missing or equals its table.

    If a checkpoint has two different arrays although the config ties them, both arrays are used, as in Transformers 5.
    """
    if name not in found or table not in found:
        return name not in found
    array = found[name].T if name == PROJECTION else found[name]
    if place(array) == place(found[table]):
        return True
    return array.dtype == found[table].dtype and np.array_equal(array, found[table])
