"""Where each family of checkpoints keeps our groups of weights: one table a family.

A new family of encoders is a new entry of `FAMILIES` here and of `npformer.config.FAMILIES`. What a group holds, and
so what is transposed and which shape is expected, is the same in every family: `tree.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint import transformer
from npformer.checkpoint import tree as layout
from npformer.checkpoint.storage import Array
from npformer.config import Config
from npformer.errors import NpformerError
from npformer.transformer_config import TransformerConfig


class Family(NamedTuple):
    """Our group -> the module that holds it, named as in a checkpoint with a head; `*` is a layer's number."""

    prefix: str  # of the encoder's names; may be absent, and is where there is no head
    encoder: Mapping[str, str]
    heads: Mapping[str, Mapping[str, str]]
    twins: Mapping[str, str] = {}  # a parameter -> its name outside of its module
    optional: frozenset[str] = frozenset()  # groups of the base model that may be absent
    ignored: frozenset[str] = frozenset()  # buffers that are no weights


FAMILIES = {
    "distilbert": Family(
        prefix="distilbert.",
        encoder={
            "embeddings.token": "distilbert.embeddings.word_embeddings",
            "embeddings.position": "distilbert.embeddings.position_embeddings",
            "embeddings.norm": "distilbert.embeddings.LayerNorm",
            "layers.*.attention.query": "distilbert.transformer.layer.*.attention.q_lin",
            "layers.*.attention.key": "distilbert.transformer.layer.*.attention.k_lin",
            "layers.*.attention.value": "distilbert.transformer.layer.*.attention.v_lin",
            "layers.*.attention.output": "distilbert.transformer.layer.*.attention.out_lin",
            "layers.*.attention_norm": "distilbert.transformer.layer.*.sa_layer_norm",
            "layers.*.ffn.hidden": "distilbert.transformer.layer.*.ffn.lin1",
            "layers.*.ffn.output": "distilbert.transformer.layer.*.ffn.lin2",
            "layers.*.ffn_norm": "distilbert.transformer.layer.*.output_layer_norm",
        },
        heads={
            "base": {},
            "sequence-classification": {"pooler": "pre_classifier", "head.output": "classifier"},
            "token-classification": {"head.output": "classifier"},
            "question-answering": {"head.output": "qa_outputs"},
            "masked-lm": {
                "head.hidden": "vocab_transform",
                "head.norm": "vocab_layer_norm",
                "head.output": "vocab_projector",
            },
            "multiple-choice": {"pooler": "pre_classifier", "head.output": "classifier"},
        },
        ignored=frozenset({"distilbert.embeddings.position_ids"}),
    ),
    "bert": Family(
        prefix="bert.",
        encoder={
            "embeddings.token": "bert.embeddings.word_embeddings",
            "embeddings.position": "bert.embeddings.position_embeddings",
            "embeddings.segment": "bert.embeddings.token_type_embeddings",
            "embeddings.norm": "bert.embeddings.LayerNorm",
            "layers.*.attention.query": "bert.encoder.layer.*.attention.self.query",
            "layers.*.attention.key": "bert.encoder.layer.*.attention.self.key",
            "layers.*.attention.value": "bert.encoder.layer.*.attention.self.value",
            "layers.*.attention.output": "bert.encoder.layer.*.attention.output.dense",
            "layers.*.attention_norm": "bert.encoder.layer.*.attention.output.LayerNorm",
            "layers.*.ffn.hidden": "bert.encoder.layer.*.intermediate.dense",
            "layers.*.ffn.output": "bert.encoder.layer.*.output.dense",
            "layers.*.ffn_norm": "bert.encoder.layer.*.output.LayerNorm",
        },
        heads={
            "base": {"pooler": "bert.pooler.dense"},
            "sequence-classification": {"pooler": "bert.pooler.dense", "head.output": "classifier"},
            "token-classification": {"head.output": "classifier"},
            "question-answering": {"head.output": "qa_outputs"},
            "masked-lm": {
                "head.hidden": "cls.predictions.transform.dense",
                "head.norm": "cls.predictions.transform.LayerNorm",
                "head.output": "cls.predictions.decoder",
            },
            "next-sentence": {"pooler": "bert.pooler.dense", "head.output": "cls.seq_relationship"},
            "multiple-choice": {"pooler": "bert.pooler.dense", "head.output": "classifier"},
        },
        twins={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        optional=frozenset({"pooler"}),
        ignored=frozenset({"bert.embeddings.position_ids"}),
    ),
}


def module_path(config: Config, group: str) -> str | None:
    """The module of the Hugging Face model that holds one of our groups; None for what is no group of this model.

    >>> module_path(config, "layers.0.attention.query")
    'distilbert.transformer.layer.0.attention.q_lin'
    """
    if isinstance(config, TransformerConfig):
        source = _transformer(config).sources(config).get(f"{group}.weight")
        return source.names[0].removesuffix(".weight") if source and source.third is None else None
    module = _modules(config, config.head).get(group)
    return module and _as_written(module, config)


def to_tree(flat: Mapping[str, Array], config: Config, dtype: Any = np.float32) -> layout.Tree:
    """A Hugging Face checkpoint's tensors as our tree: linear weights transposed, all in `dtype`, all read-only.

    dtype None leaves each tensor in its own. The encoder's prefix may be there or not, and norms may have the old
    names gamma and beta. What the family uses for another head than this one's is passed over, so that the encoder
    or one head loads from a checkpoint that has more; any other name that is not needed is a warning.
    """
    if isinstance(config, TransformerConfig):
        return _transformer(config).to_tree(flat, config, dtype)
    known = _known(config)
    tensors: dict[str, Array] = {}
    unknown = []
    for stored_name, array in flat.items():
        name = _current(stored_name, config, known)
        if name in tensors:
            raise NpformerError(f"{stored_name!r:.200}: stored twice, by an old and a current name")
        if name not in known:
            unknown.append(stored_name)
        tensors[name] = array
    expected, sources = _parameters(config, config.head), _sources(config, config.head)
    twins = FAMILIES[config.model_type].twins
    found = {}
    for ours, name in sources.items():
        name = name if name in tensors else twins.get(name, name)
        if name in tensors:
            found[ours] = tensors[name].T if expected[ours].transposed else tensors[name]
    titles = {ours: _as_written(name, config) for ours, name in sources.items()}
    return layout.build(found, config, _needed(expected, found, config), dtype, unknown, titles)


def own_to_tree(flat: Mapping[str, Array], config: Config, dtype: Any = np.float32) -> layout.Tree:
    """A converted checkpoint's tensors, ours by name and layout, as our tree. In `dtype` already: without a copy."""
    if isinstance(config, TransformerConfig):
        return transformer.own_to_tree(flat, config, dtype)
    expected = _parameters(config, config.head)
    heads = FAMILIES[config.model_type].heads
    known = {name for head in heads for name in _parameters(config, head)}
    unknown = [name for name in flat if name not in known]
    return layout.build(flat, config, _needed(expected, flat, config), dtype, unknown)


def stored(tree: layout.Tree, config: Config) -> dict[str, Array]:
    """The flat arrays that a file of ours holds: all of the tree's but what is tied, which is stored once."""
    if isinstance(config, TransformerConfig):
        return transformer.stored(tree, config)
    return layout.stored(tree, config)


def to_torch(tree: layout.Tree, config: Config) -> dict[str, Array]:
    """Our tree as Hugging Face's tensors, by name and layout: the inverse of `to_tree`.

    Linear weights are transposed views. What is tied is stored once, as Hugging Face does in safetensors files.
    """
    if isinstance(config, TransformerConfig):
        return _transformer(config).to_torch(tree, config)
    twins = FAMILIES[config.model_type].twins
    expected, sources = _parameters(config, config.head), _sources(config, config.head)
    flat = {}
    for ours, array in layout.stored(tree, config).items():
        name = sources[ours]
        array = array.T if expected[ours].transposed else array
        if name in twins:
            flat[twins[name]] = array
        if name not in twins or not config.tied:
            flat[_as_written(name, config)] = array
    return flat


def _transformer(config: TransformerConfig) -> Any:
    """The table of a 2017 model's family."""
    from npformer.checkpoint import marian, torch_nn

    return marian if config.model_type == "marian" else torch_nn


@cache
def _modules(config: Config, head: str) -> dict[str, str]:
    """Our groups of the model with this head -> their modules, the encoder's with its prefix."""
    family = FAMILIES[config.model_type]
    return {
        group.replace("*", n): module.replace("*", n)
        for group, module in {**family.encoder, **family.heads[head]}.items()
        for n in layout.numbers(group, config)
    }


@cache
def _known(config: Config) -> frozenset[str]:
    """Every name that a checkpoint of this family and depth can have, whatever its head."""
    family = FAMILIES[config.model_type]
    names = {name for head in family.heads for name in _sources(config, head).values()}
    return frozenset(names | family.ignored | set(family.twins.values()))


def _parameters(config: Config, head: str) -> dict[str, layout.Parameter]:
    family = FAMILIES[config.model_type]
    return layout.parameters([*family.encoder, *family.heads[head]], config)


@cache
def _sources(config: Config, head: str) -> dict[str, str]:
    """Our name of every array of the model with this head -> theirs, the encoder's with its prefix."""
    modules = _modules(config, head)
    return {ours: f"{modules[each.group]}.{each.name}" for ours, each in _parameters(config, head).items()}


def _needed(
    expected: Mapping[str, layout.Parameter], found: Container[str], config: Config
) -> dict[str, layout.Parameter]:
    """What must be there: a base model's optional groups only where a part of them is."""
    optional = FAMILIES[config.model_type].optional if config.head == "base" else frozenset()
    present = {parameter.group for ours, parameter in expected.items() if ours in found}
    absent = optional - present
    return {ours: each for ours, each in expected.items() if each.group not in absent}


def _current(name: str, config: Config, known: Container[str]) -> str:
    """A stored name as the tables have it: with the prefix, and norms' weight and bias by today's names."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name if name in known else FAMILIES[config.model_type].prefix + name


def _as_written(name: str, config: Config) -> str:
    """Hugging Face's model without a head has no prefix."""
    return name.removeprefix(FAMILIES[config.model_type].prefix) if config.head == "base" else name
