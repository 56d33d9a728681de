"""State dicts of torch's nn.Transformer, its encoder, decoder and layers, and nn.MultiheadAttention.

They may be bare, or part of one's own model with its embeddings and its head.

A small config.json beside them says what a state dict does not: `TransformerConfig.from_dict` lists its fields. Its
`modules` maps our groups to the names of one's own model. The tree is in `transformer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.checkpoint import transformer
from npformer.checkpoint.storage import Array
from npformer.checkpoint.transformer import Source
from npformer.checkpoint.tree import Tree
from npformer.transformer_config import TransformerConfig

#: The last part of one of our groups -> the name torch gives it inside of the module above it ("" for no module).
NAMES = {
    "attention": "self_attn",
    "attention_norm": "norm1",
    "cross_attention": "multihead_attn",
    "cross_attention_norm": "norm2",
    "ffn": "",
    "ffn.hidden": "linear1",
    "ffn.output": "linear2",
    "attention.output": "out_proj",
    "cross_attention.output": "out_proj",
    "output": "out_proj",
    "embeddings": "",
    "embeddings.token": "embedding",
    "embeddings.position": "positions",
    "head": "",
    "head.output": "head",
}
THIRDS = {"query": 0, "key": 1, "value": 2}


def to_tree(flat: Mapping[str, Array], config: TransformerConfig, dtype: Any) -> Tree:
    """A state dict's tensors as our tree: in_proj split, linear weights transposed, all in `dtype`, all read-only."""
    return transformer.read(flat, sources(config), config, dtype)


def to_torch(tree: Tree, config: TransformerConfig) -> dict[str, Array]:
    """Our tree as a state dict: the inverse of `to_tree`."""
    return transformer.write(tree, sources(config), config)


def sources(config: TransformerConfig) -> dict[str, Source]:
    """Our name of every array -> where it is."""
    own = dict(config.modules)
    found = {}
    for ours, each in transformer.parameters(config).items():
        *path, last = each.group.split(".")
        pattern = ".".join("*" if part.isdigit() else part for part in [*path, last])
        n = next((part for part in path if part.isdigit()), "")
        if last in THIRDS and pattern not in own:
            name, third = (
                _join(module(".".join(pattern.split(".")[:-1]), config), f"in_proj_{each.name}"),
                THIRDS[last],
            )
            found[ours] = Source((name.replace("*", n),), third, each.transposed)
        else:
            name = module(pattern, config).replace("*", n)
            names = (_join(name, each.name), name) if last == "position" else (_join(name, each.name),)
            found[ours] = Source(names, transposed=each.transposed)
    return found


def module(group: str, config: TransformerConfig) -> str:
    """The module that one of our groups, or what holds several, is in the state dict; `*` is a layer's number.

    >>> module("encoder.layers.*.attention", TransformerConfig(...))
    'encoder.layers.*.self_attn'
    """
    own = dict(config.modules)
    if group in own or not group:
        return own.get(group, "")
    parent, _, last = group.rpartition(".")
    if last == "ffn_norm":
        is_decoder = "decoder" in group or "Decoder" in config.torch_class
        return _join(module(parent, config), "norm3" if is_decoder else "norm2")
    above = parent.rpartition(".")[2]
    return _join(module(parent, config), NAMES.get(f"{above}.{last}", NAMES.get(last, last)))


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
