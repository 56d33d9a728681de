"""`Family`, the base class of all families, and `Source`, the location of an array in a file."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import LABELLED, MOST, Config
from npformer.engine.descriptions.weight_group import Group
from npformer.engine.embeddings import Embeddings
from npformer.engine.layers.stack import Stack
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.norms.norm import Norm
from npformer.engine.parts import Parts
from npformer.families.building import embeddings_of, head_of, stack_of

#: Maps Hugging Face's names of activations to npformer's. If an activation has several names, the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

#: BERT's special tokens by role. Missing tokens are added to a vocabulary in this order.
SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


class UnknownClass(NpformerError):
    """config.json names a class that the family does not have, so the head is unknown."""


class TensorPart(NamedTuple):
    """The part of a tensor that stores one of several linear layers.

    The tensor is divided into blocks along the axis of its outputs. Each block contains some outputs of each layer in
    turn.
    """

    number: int  # index of the layer
    widths: tuple[int, ...]  # relative number of outputs of each layer
    blocks: int = 1

    def fits(self, size: int) -> bool:
        """Whether a tensor with this number of outputs can be split into the layers."""
        return size % (self.blocks * sum(self.widths)) == 0

    def of(self, tensor: Any, axis: int) -> Any:
        """Returns the outputs of this layer. With one block, the result is a view of the tensor."""
        rows = tensor.swapaxes(0, axis)
        unit, first = len(rows) // (self.blocks * sum(self.widths)), sum(self.widths[: self.number])
        # The sizes are explicit, because -1 is ambiguous for a tensor without columns.
        blocks = rows.reshape(self.blocks, len(rows) // self.blocks, *rows.shape[1:])
        own = blocks[:, first * unit : (first + self.widths[self.number]) * unit]
        return own.reshape(own.shape[0] * own.shape[1], *rows.shape[1:]).swapaxes(0, axis)

    def joined(self, layers: Sequence[Any], axis: int) -> Any:
        """The tensor that stores these layers. Inverse of `of`."""
        rows = [each.swapaxes(0, axis) for each in layers]
        split = [each.reshape(self.blocks, len(each) // self.blocks, *each.shape[1:]) for each in rows]
        blocks = np.concatenate(split, axis=1)
        return blocks.reshape(blocks.shape[0] * blocks.shape[1], *rows[0].shape[1:]).swapaxes(0, axis)

    @property
    def title(self) -> str:
        if self.blocks > 1 or len(set(self.widths)) > 1:
            return f"part {self.number + 1} of {len(self.widths)}"
        return f"{'half' if len(self.widths) == 2 else 'third'} {self.number + 1} of {len(self.widths)}"


class Source(NamedTuple):
    """The location of an array in a file. Linear weights in files are (out, in), as in torch, unless `in_out`."""

    names: tuple[str, ...]  # possible names of the tensor; the first one in the file is used
    part: TensorPart | None = None  # the part of the tensor, if it stores several linear layers
    in_out: bool = False  # linear weights are (in, out), as in GPT-2's Conv1D
    written: tuple[str, ...] = ()  # names in a new file; the first of `names` if empty
    leading: bool = False  # the tensor gets a leading axis of size 1 in a new file
    kernel: int = 0  # width of a convolution, whose tensor is (out, in, kernel); 0 means no convolution
    buffer: bool = False  # the tensor may have a leading axis of size 1, like a buffer of positions
    apart: tuple[str, ...] = ()  # names of tensors with only this array; the tensors in `names` may hold several arrays

    @property
    def title(self) -> str:
        return self.names[0] if self.part is None else f"{self.names[0]}, {self.part.title}"

    @property
    def alone(self) -> tuple[str, ...]:
        """The names of tensors that contain only this array."""
        return self.apart + (self.names if self.part is None else ())

    def to_linear(self, array: Any) -> Any:
        """Converts a linear weight from a file to (in, out), and a convolution to the stacked W_1, ..., W_K."""
        if self.in_out:
            return array
        if self.kernel and array.ndim == 3 and array.shape[-1] == self.kernel:
            return array.T.reshape(-1, len(array))
        return array.T

    def from_linear(self, array: Any) -> Any:
        """Inverse of `to_linear`."""
        if self.in_out:
            return array
        return array.reshape(self.kernel, -1, array.shape[1]).T if self.kernel else array.T

    def found_in(self, tensors: Container[str]) -> tuple[str, Source]:
        """Returns the name of the tensor with the array, and the source that locates the array in this tensor."""
        for name in self.apart:
            if name in tensors:
                return name, Source((name,))
        return next((name for name in self.names if name in tensors), self.names[0]), self


class PieceOrder(NamedTuple):
    """Differences between token ids and the order of pieces in a SentencePiece file, as in fairseq."""

    first: tuple[tuple[str, float], ...] = ()  # pieces before the pieces of the file, as (role or name, score)
    dropped: int = 0  # number of pieces at the beginning of the file that are replaced by `first`
    last: tuple[str, ...] = ()  # pieces after the pieces of the file
    sentinels: bool = False  # the last pieces are <extra_id_99> to <extra_id_0>; a config may change their number


AS_IN_THE_FILE = PieceOrder()
#: In `Family.stages`, the last stage of a layer. The config determines whether this stage is a sum or a norm.
LAYER_OUTPUT = "layers.*"


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """The properties of a family of checkpoints.

    A subclass reads and writes config.json, and locates each array. A subclass without new fields is not a dataclass,
    because a dataclass adds a millisecond to every start.
    """

    model_type: str
    architectures: Mapping[str, str]  # npformer's head of each class; the first class with a head is written
    constants: Mapping[str, Any] = field(default_factory=dict)  # fields of Config that are the same for all checkpoints
    prefix: str = ""  # prefix of the encoder's tensor names; optional in a model without a head
    stages: Mapping[str, str] = field(default_factory=dict)  # output stage (or LAYER_OUTPUT) by module
    reads: frozenset[str] = frozenset()  # fields of `unsupported.py` that this family supports
    special_tokens: Mapping[str, str] = field(default_factory=lambda: SPECIAL_TOKENS)
    single: str = "cls $A sep"  # special tokens around a text; ":1" means token type 1
    pair: str = "cls $A sep $B:1 sep:1"  # special tokens around a pair
    mask_takes_space: bool = False  # the mask token includes the preceding space, unless a file overrides this
    pieces: PieceOrder = AS_IN_THE_FILE  # ids of the pieces of a SentencePiece file
    strict: bool = False  # unused tensors are an error
    unbiased: frozenset[str] = frozenset()  # heads that have no bias in the last layer
    ends_sources: bool = False  # sources end with the same token as targets
    writes: str = "translation"  # task of encoder-decoder models
    tokenizer_pieces: bool = False  # the tokenizer is read from SentencePiece files, not from tokenizer.json
    scales_queries: bool = False  # Transformers scales queries before it calls its attention function
    unheard: tuple[str, ...] = ()  # stages that differ from Transformers, although the attention weights are equal

    # --- config.json -------------------------------------------------------------------------------------------------

    def config(self, head: str, **fields: Any) -> Config:
        """Creates the `Config` of a model of this family."""
        return self.check(Config(self.model_type, head, **{**self.constants, **fields}))

    def check(self, config: Config) -> Config:
        """Checks that a `Config` is valid for this family, and returns it."""
        checks.one_of("head", config.head, self.all_heads)
        return config

    @property
    def all_heads(self) -> Collection[str]:
        """The heads that can be read, including heads without a separate class."""
        return dict.fromkeys(self.architectures.values())

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        """Creates a `Config` from the content of a config.json. head: the head to read; None means `head_of(data)`."""
        raise NotImplementedError

    def write_config(self, config: Config) -> dict[str, Any]:
        """The content of a config.json. Inverse of `read_config`."""
        raise NotImplementedError

    def architecture(self, config: Config) -> str:
        """The class in Transformers with only this head. Raises NpformerError if Transformers has no such class."""
        if config.head not in self.architectures.values():
            raise NpformerError(
                f"head: cannot be written, because Transformers has no class for {self.model_type} with only a "
                f"{config.head} head; keep the original checkpoint"
            )
        return first(self.architectures, config.head)

    def layer_count(self, data: Mapping[str, Any]) -> int:
        """The number of layers in a config.json, for a check before memory is allocated; 0 if the number is unknown."""
        return 0

    def head_of(self, data: Mapping[str, Any]) -> str:
        """The head of the class named in config.json. Raises UnknownClass if the family has no such class."""
        if (head := self.named_head(data)) is not None:
            return head
        expected, got = ", ".join(self.architectures), checks.shown(data["architectures"][0])
        raise UnknownClass(
            f"architectures: expected one of {expected}, got {got}; name the task, pipeline(task, ...), or the head, "
            f"load(..., head=...) with one of {', '.join(self.all_heads)}"
        )

    def named_head(self, data: Mapping[str, Any]) -> str | None:
        """The head of the class in config.json, "base" if config.json names no class, or None for an unknown class.

        The class may be from another framework, such as TFBertModel, because its weights have the same head.
        """
        architectures = data.get("architectures")
        if not architectures:
            return "base"
        if not isinstance(architectures, list):
            raise NpformerError(f"architectures: expected a list, got {checks.shown(architectures)}")
        name = str(architectures[0])
        return self.architectures.get(name) or self.architectures.get(re.sub("^(TF|Flax)", "", name))

    @property
    def mechanisms(self) -> tuple[type, ...]:
        """The classes of mechanisms in the attention of this family, except the causal mask."""
        local = self.constants.get("local")
        return tuple(
            type(each) for each in (*self.constants.get("mechanisms", ()), *(local.mechanisms if local else ()))
        )

    # --- the model ---------------------------------------------------------------------------------------------------

    def build(self, config: Config, head: str) -> Parts:
        """The parts of a model with this head."""
        groups, bias = self.head_groups(head), head not in self.unbiased
        answering = head_of(config, head, groups, self.norm(config), bias)
        return Parts(self.embeddings(config), self.stack(config), answering)

    def weights(self, config: Config, head: str) -> dict[str, Group]:
        """The groups of weights of a model with this head."""
        return self.build(config, head).groups(config.d_model)

    def norm(self, config: Config) -> Norm:
        """The norm that all parts use."""
        return LayerNorm(config.eps, config.bias)

    def embeddings(self, config: Config) -> Embeddings:
        """The embeddings of an encoder or of a decoder-only model."""
        return embeddings_of(config, self.norm(config), config.vocab_size)

    def stack(self, config: Config) -> Stack:
        """The stack of an encoder or of a decoder-only model. By default, the stack has the layers of BERT."""
        return stack_of(config, self.norm(config))

    def head_groups(self, head: str) -> Collection[str]:
        """The groups of weights of a head, including its pooler."""
        return () if head == "base" else ("head.output",)

    # --- weights -----------------------------------------------------------------------------------------------------

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        """Returns the source of each array in a file, by npformer's flat name. arrays: (group, name) by flat name."""
        raise NotImplementedError

    def part(self, config: Config, groups: Sequence[str], group: str) -> TensorPart:
        """The part of `group` in a tensor that stores several groups of a layer."""
        heads = {"query": config.n_heads, "key": config.kv_heads, "value": config.kv_heads}
        widths = [heads.get(each.rpartition(".")[2], 1) for each in groups]
        return TensorPart(groups.index(group), tuple(each // math.gcd(*widths) for each in widths))

    def in_layer(self, pattern: str, config: Config, layer: int) -> str:
        """Replaces `*` in a name with the number of a layer."""
        return pattern.replace("*", str(layer))

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        """Tensors that may be in a file but are not weights of the model. "module.*" means all tensors of a module."""
        return frozenset()

    def current(self, name: str, known: Container[str]) -> str:
        """The name that `sources` uses for a tensor. Files may add or omit the prefix."""
        return next(
            (each for each in (name, self.prefix + name, name.removeprefix(self.prefix)) if each in known), name
        )

    def optional(self, config: Config) -> frozenset[str]:
        """The groups and arrays that may be missing from a file. A group can only be missing as a whole."""
        return frozenset()

    # --- training ----------------------------------------------------------------------------------------------------

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        """Returns one of the given rates for each stage or pattern that had dropout in the original training."""
        raise NotImplementedError


def read_fields(fields: Mapping[str, tuple[str, Any]], data: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Reads fields of config.json.

    fields: for each of npformer's names, the name in config.json and the default (... if the field is required).
    """
    values = {}
    for ours, (theirs, default) in fields.items():
        if default is ... and theirs not in data:
            raise NpformerError(f"{theirs}: missing, but required in config.json of {kind} models")
        values[ours] = data.get(theirs, default)
    return values


def label_count(data: Mapping[str, Any]) -> int:
    """The number of labels in a config.json, for a check before memory is allocated."""
    id2label, count = data.get("id2label"), data.get("num_labels")
    return len(id2label) if isinstance(id2label, Mapping) else count if type(count) is int else 0


def read_labels(head: str, data: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of a classification head: the values of `id2label`, or LABEL_0 to LABEL_(num_labels - 1)."""
    if head not in LABELLED:
        return ()
    id2label = data.get("id2label")
    if id2label is None:
        count = checks.whole("num_labels", data.get("num_labels", 2), 1, MOST)
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(id2label, Mapping) or not id2label:
        raise NpformerError(f"id2label: expected an object with a label for each id, got {checks.shown(id2label)}")
    by_id = {str(i): label for i, label in id2label.items()}
    labels = tuple(by_id.get(str(i)) for i in range(len(by_id)))
    if None in labels:
        raise NpformerError(f"id2label: expected each id from 0 to {len(by_id) - 1} once, with a label")
    if not all(isinstance(label, str | int) for label in labels):
        raise NpformerError("id2label: expected strings as labels")
    return tuple(str(label) for label in labels)


def write_labels(config: Config) -> dict[str, Any]:
    """The labels as fields of config.json. Inverse of `read_labels`."""
    if not config.labels:
        return {}
    return {
        "id2label": {str(i): label for i, label in enumerate(config.labels)},
        "label2id": {label: i for i, label in enumerate(config.labels)},
    }


def read_ids(name: str, value: Any) -> tuple[int, ...]:
    """Converts one id, a list of ids or None to a tuple."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(checks.whole(name, each, 0, MOST) for each in ids)


def read_text_ids(data: Mapping[str, Any]) -> dict[str, Any]:
    """The start token, the end tokens of generated texts, and the padding token.

    Each of these tokens may be missing. An id without a row in the embedding table counts as missing. For example, a
    GPT2Config with a small vocabulary still has the ids of the large one, and Llama's first checkpoints have a padding
    token of -1.
    """
    start = _tokens("bos_token_id", data)
    return {"start_id": next(iter(start), None), "end_ids": _tokens("eos_token_id", data), "pad_id": read_padding(data)}


def read_padding(data: Mapping[str, Any]) -> int | None:
    """The padding token in config.json, if any."""
    return next(iter(_tokens("pad_token_id", data)), None)


def _tokens(name: str, data: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids in a field of config.json that have a row in the embedding table."""
    value, rows = data.get(name), data.get("vocab_size")
    several = value if isinstance(value, list) and name == "eos_token_id" else [] if value is None else [value]
    for each in several:
        if type(each) is not int:
            checks.whole(name, each, 0, MOST)
    return tuple(each for each in several if 0 <= each < (rows if type(rows) is int else MOST))


def write_text_ids(config: Config) -> dict[str, Any]:
    """The tokens as fields of config.json. Inverse of `read_text_ids`."""
    ends = list(config.end_ids)
    end = ends[0] if len(ends) == 1 else ends or None
    return {"bos_token_id": config.start_id, "eos_token_id": end, "pad_token_id": config.pad_id}


def read_activation(name: str, data: Mapping[str, Any], default: str = "gelu") -> str:
    """npformer's name for the activation in the field `name` of a config.json."""
    return ACTIVATIONS[checks.one_of(name, data.get(name, default), ACTIVATIONS)]


def reject_other(data: Mapping[str, Any], supported: Mapping[str, Any]) -> None:
    """Raises NpformerError for a setting with an unsupported value."""
    for name, value in supported.items():
        if data.get(name, value) != value:
            raise NpformerError(f"{name}: {checks.shown(data[name])} is not supported; supported: {value!r}")


def first(table: Mapping[str, str], value: str) -> str:
    """The first key with this value."""
    return next(key for key, each in table.items() if each == value)
