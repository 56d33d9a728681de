"""Splits the weights, biases and outputs of another program's fused layers: query, key and value, or gate and up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npformer.checkpoint.tree import module_path, sources
from npformer.config import Config
from npformer.families import family_of
from npformer.families.base import TensorPart
from npformer.golden.graph import QKV

#: Common names of the linear layer that computes query, key and value together.
FUSED = ("qkv", "qkv_proj", "Wqkv", "in_proj", "c_attn", "query_key_value")
ENDS = (".weight", ".bias", "_weight", "_bias")  # torch's attention has in_proj_weight


def cut(config: Config, arrays: Mapping[str, Any], names: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Splits fused arrays into their parts; returns all arrays, and `names` without the fused entries.

    A fused array is recognized by its name, or by an entry of `names` like {"my.0.proj": "layers.0.attention.qkv"}. An
    output is split along its last axis, a weight (3D, D) or (D, 3D) along its longer axis, in the order that the
    family's files use.
    """
    known, found = fused_parts(config), dict[str, Any]()
    for name, value in arrays.items():
        number, slash, plain = name.partition("/") if name.partition("/")[0].isdecimal() else ("", "", name)
        path, end = split_ending(names.get(name) or names.get(plain) or plain)
        shape = tuple(np.shape(value))
        axis = 0 if end == ".weight" and len(shape) == 2 and shape[0] > shape[1] else -1
        if path not in known or not shape or not all(part.fits(shape[axis]) for part in known[path].values()):
            found[name] = value
            continue
        for group, part in known[path].items():
            found[f"{number}{slash}{group}{end}"] = part.of(value, axis)
    return found, {theirs: ours for theirs, ours in names.items() if split_ending(ours)[0] not in known}


def fused_parts(config: Config) -> dict[str, dict[str, TensorPart]]:
    """Maps every known name of a fused layer to npformer's names for its parts, and their columns."""
    parts = {each: family_of(config).part(config, QKV, each) for each in QKV}
    attentions = fused_layers(config).items()
    known = {path: {f"{ours}.{each}": part for each, part in parts.items()} for path, ours in attentions}
    return known | fused_pairs(config)


def fused_pairs(config: Config) -> dict[str, dict[str, TensorPart]]:
    """Maps every name of a layer that computes gate and up together to npformer's names for both, and their columns."""
    known, prefix = dict[str, dict[str, TensorPart]](), family_of(config).prefix
    for name, source in sources(config).items():
        if source.part is not None and len(source.part.widths) == 2:
            theirs, ours = split_ending(source.names[0])[0], split_ending(name)[0]
            for path in (theirs, theirs.removeprefix(prefix)):
                known.setdefault(path, {})[ours] = source.part
    return known


def fused_layers(config: Config) -> dict[str, str]:
    """Maps every known name of a fused layer to npformer's name for its attention."""
    prefix, known, places = family_of(config).prefix, dict[str, str](), sources(config)
    for i in range(config.n_layers):
        ours = f"layers.{i}.attention"
        path = module_path(config, f"{ours}.query")
        if path is None and (source := places.get(f"{ours}.query.weight")):
            path = split_ending(source.names[0])[0]
        theirs = (path or f"{ours}.query").rpartition(".")[0]
        for parent in (ours, theirs, theirs.removeprefix(prefix)):
            known |= {f"{parent}.{each}": ours for each in FUSED}
    for name, source in places.items():
        if source.part is not None and len(source.part.widths) == len(QKV):  # a single tensor in the family's own files
            theirs, ours = split_ending(source.names[0])[0], split_ending(name)[0].rpartition(".")[0]
            known |= dict.fromkeys((theirs, theirs.removeprefix(prefix)), ours)
    return known


def split_ending(name: str) -> tuple[str, str]:
    """Splits a name into the layer's name and ".weight", ".bias" or "" at its end."""
    end = next((each for each in ENDS if name.endswith(each)), "")
    return name.removesuffix(end), end.replace("_", ".")
