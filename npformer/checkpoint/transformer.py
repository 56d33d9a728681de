"""The weight tree of the 2017 models: which arrays a `TransformerConfig` asks for, read from and written to a file.

Where a family's file has them is a table of `Source`s: `marian.py`, and `torch_nn.py` for torch's own modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.storage import Array
from npformer.checkpoint.tree import Parameter, Tree
from npformer.encoder import sinusoidal_positions
from npformer.transformer_config import TransformerConfig

HEAD = "head.output"


class Source(NamedTuple):
    """Where a file has one of our arrays."""

    names: tuple[str, ...]  # of the tensor, the first that is there
    third: int | None = None  # which third of its rows, of query, key and value in one
    transposed: bool = False


def sides(config: TransformerConfig) -> list[str]:
    """The stacks of layers of a model: an encoder alone is the whole tree, as in `Model`, and so is a decoder."""
    if config.torch_class == "nn.Transformer":
        return ["encoder", "decoder"]
    return ["decoder" if "Decoder" in config.torch_class else "encoder"]


def prefix(config: TransformerConfig, side: str) -> str:
    """What the names of a stack's arrays begin with."""
    return f"{side}." if len(sides(config)) > 1 else ""


def parameters(config: TransformerConfig) -> dict[str, Parameter]:
    """Our flat name of every array -> what it is, in the order of the forward pass."""
    kinds = {}
    for group, inputs, outputs in groups(config):
        shape = (outputs,) if not inputs else (inputs, outputs)
        linear = bool(inputs) and "embeddings" not in group
        kinds[f"{group}.weight"] = Parameter(group, "weight", shape, linear)
        if group == HEAD or (config.bias and (linear or not inputs)):
            kinds[f"{group}.bias"] = Parameter(group, "bias", (outputs,), False)
    return kinds


def groups(config: TransformerConfig) -> Iterator[tuple[str, int, int]]:
    """Every group of the tree, with its width in (0: a norm) and its width out."""
    d = config.d_model
    if config.torch_class == "nn.MultiheadAttention":
        yield from _projections("", d)
        return
    for side in sides(config):
        start, is_decoder = prefix(config, side), side == "decoder"
        if vocabulary := config.target_vocab_size if is_decoder else config.vocab_size:
            yield f"{start}embeddings.token", vocabulary, d
            yield f"{start}embeddings.position", config.max_length, d
        for layer in layers(config, side):
            yield from _projections(f"{layer}attention.", d)
            yield f"{layer}attention_norm", 0, d
            if is_decoder:
                yield from _projections(f"{layer}cross_attention.", d)
                yield f"{layer}cross_attention_norm", 0, d
            width = config.d_decoder_ffn if is_decoder else config.d_ffn
            yield f"{layer}ffn.hidden", d, width
            yield f"{layer}ffn.output", width, d
            yield f"{layer}ffn_norm", 0, d
        if config.final_norm:
            yield f"{start}norm", 0, d
    if config.n_outputs:
        yield HEAD, d, config.n_outputs


def layers(config: TransformerConfig, side: str) -> list[str]:
    """What the names of each layer's arrays begin with; a single layer is the whole tree."""
    if config.torch_class.endswith("Layer"):
        return [""]
    count = config.n_decoder_layers if side == "decoder" else config.n_layers
    return [f"{prefix(config, side)}layers.{n}." for n in range(count)]


def _projections(start: str, width: int) -> Iterator[tuple[str, int, int]]:
    for name in ("query", "key", "value", "output"):
        yield f"{start}{name}", width, width


# --- reading ---------------------------------------------------------------------------------------------------------


def read(flat: Mapping[str, Array], sources: Mapping[str, Source], config: TransformerConfig, dtype: Any) -> Tree:
    """A file's tensors as our tree, by the family's table; a tensor that the table does not know is an error."""
    known = {name for source in sources.values() for name in source.names}
    found, titles = {}, {}
    for ours, source in sources.items():
        name = next((name for name in source.names if name in flat), source.names[0])
        titles[ours] = name if source.third is None else f"{name}, third {source.third + 1} of 3"
        if name in flat:
            found[ours] = _taken(flat[name], source)
    return build(found, config, dtype, [name for name in flat if name not in known], titles)


def own_to_tree(flat: Mapping[str, Array], config: TransformerConfig, dtype: Any) -> Tree:
    """A converted checkpoint's tensors, ours by name and layout, as our tree."""
    expected = parameters(config)
    return build(flat, config, dtype, [name for name in flat if name not in expected])


def _taken(array: Array, source: Source) -> Array:
    """The array that a source means in a tensor, as a view. A leading axis of 1 goes: buffers may have one."""
    if source.third is not None and array.ndim and len(array) % 3 == 0:
        size = len(array) // 3
        array = array[source.third * size : (source.third + 1) * size]
    elif source.third is None and array.ndim > 1 and len(array) == 1 and not source.transposed:
        array = array[0]
    return array.T if source.transposed else array


def build(
    found: Mapping[str, Array],
    config: TransformerConfig,
    dtype: Any,
    unknown: list[str],
    titles: Mapping[str, str] | None = None,
) -> Tree:
    """The tree of the arrays found, ours by name and layout; tied ones are one array, sinusoids are computed."""
    expected = parameters(config)
    tied = {name: table for name, table in ties(config).items() if _same(found, name, table)}
    computed = [name for name in expected if name.endswith("embeddings.position.weight") and name not in found]
    optional = {f"{HEAD}.bias"} - found.keys()
    if config.positions != "learned":
        optional |= set(computed)
    needed = {name: each for name, each in expected.items() if name not in optional and name not in tied}
    tree = layout.build({name: found[name] for name in needed if name in found}, config, needed, dtype, unknown, titles)
    flat = layout.flatten(tree)
    for name in optional & set(computed):
        flat[name] = positions(config, dtype)
    for name, table in tied.items():
        flat[name] = flat[table].T if expected[name].transposed else flat[table]
    return layout.unflatten({name: flat[name] for name in expected if name in flat})


def positions(config: TransformerConfig, dtype: Any) -> Array:
    """The sinusoidal table as checkpoints have it, in float32, whatever the model computes in."""
    table = sinusoidal_positions(config.max_length, config.d_model, halves=config.positions == "sinusoidal-halves")
    table = table.astype(dtype or np.float32, copy=False)
    table.flags.writeable = False
    return table


def ties(config: TransformerConfig) -> dict[str, str]:
    """Arrays that are another one, a table of tokens, which is stored once."""
    tied = {}
    if config.shared:
        tied["decoder.embeddings.token.weight"] = "encoder.embeddings.token.weight"
    if config.tied and config.head == "translation":
        tied[f"{HEAD}.weight"] = ("encoder" if config.shared else "decoder") + ".embeddings.token.weight"
    return tied


def _same(found: Mapping[str, Array], name: str, table: str) -> bool:
    """Whether a tied array is its table: absent, or the same numbers. Two different ones are both used."""
    if name not in found or table not in found:
        return name not in found
    array = found[name].T if name == f"{HEAD}.weight" else found[name]
    return array.shape == found[table].shape and bool((array == found[table]).all())


# --- writing ---------------------------------------------------------------------------------------------------------


def stored(tree: Tree, config: TransformerConfig) -> dict[str, Array]:
    """The flat arrays that a file holds: all of the tree's but tied and computed ones."""
    flat = layout.flatten(tree)
    dropped = {name for name, table in ties(config).items() if _same(flat, name, table)}
    if config.positions != "learned":
        dropped |= {name for name in flat if name.endswith("embeddings.position.weight")}
    return {name: array for name, array in flat.items() if name not in dropped}


def write(tree: Tree, sources: Mapping[str, Source], config: TransformerConfig) -> dict[str, Array]:
    """Our tree as a file's tensors, by the family's table: the inverse of `read`."""
    flat: dict[str, Array] = {}
    thirds: dict[str, dict[int, Array]] = {}
    for ours, array in stored(tree, config).items():
        source = sources[ours]
        array = array.T if source.transposed else array
        if source.third is None:
            flat[source.names[0]] = array
        else:
            thirds.setdefault(source.names[0], {})[source.third] = array
    return flat | {name: np.concatenate([parts[i] for i in range(3)]) for name, parts in thirds.items()}
