"""What a family of checkpoints is: `Family`, all that is particular to it, and `Source`, where a file has an array."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from npformer import checks
from npformer.config import LABELLED, MOST_LABELS, Config
from npformer.errors import NpformerError

#: Hugging Face's names of the activations -> ours. The first name of each of ours is the one written back.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

#: The special tokens by role, as BERT has them, in the order in which those that a vocabulary lacks are added to it.
SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


class Source(NamedTuple):
    """Where a file has one of our arrays; a linear weight lies there as torch has it, (out, in)."""

    names: tuple[str, ...]  # of the tensor, the first that is there
    third: int | None = None  # which third of its rows, where query, key and value are one tensor
    written: tuple[str, ...] = ()  # its names in a new file, where they are not the first of `names`
    leading: bool = False  # a new file has it with a leading axis of 1

    @property
    def title(self) -> str:
        return self.names[0] if self.third is None else f"{self.names[0]}, third {self.third + 1} of 3"


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """A family: its config.json, the names of its weights, and what else sets it apart.

    A subclass says how config.json is read and written and where each array is.
    """

    model_type: str
    architectures: Mapping[str, str]  # class -> our head; the first class of a head is the one written back
    constants: Mapping[str, Any] = field(default_factory=dict)  # fields of Config that are the same for all of it
    prefix: str = ""  # of the encoder's names in a checkpoint; may be absent, and is where there is no head
    stages: Mapping[str, str] = field(default_factory=dict)  # a module that holds no weights -> our stage
    special_tokens: Mapping[str, str] = field(default_factory=lambda: SPECIAL_TOKENS)
    single: str = "cls $A sep"  # how a text stands between special tokens; :1 is token type 1
    pair: str = "cls $A sep $B:1 sep:1"  # and two texts
    strict: bool = False  # a tensor that the model does not need is an error
    ends_sources: bool = False  # a text to translate ends in the token that ends a target
    generation_in_config: bool = False  # older checkpoints' config.json says how targets are generated
    tokenizer_pieces: bool = False  # SentencePiece files stand for a tokenizer.json

    # --- config.json -------------------------------------------------------------------------------------------------

    def config(self, head: str, **fields: Any) -> Config:
        """A model of this family."""
        return self.check(Config(self.model_type, head, **{**self.constants, **fields}))

    def check(self, config: Config) -> Config:
        """`config`, which has a head that the family knows."""
        checks.one_of("head", config.head, self.architectures.values())
        return config

    def read_config(self, data: Mapping[str, Any], head: str | None) -> Config:
        """The content of a config.json; head: another one than `architectures` names."""
        raise NotImplementedError

    def write_config(self, config: Config) -> dict[str, Any]:
        """The inverse of read_config."""
        raise NotImplementedError

    def architecture(self, config: Config) -> str:
        """The class that has this head."""
        return first(self.architectures, config.head)

    def head_of(self, data: Mapping[str, Any]) -> str:
        """The head of the class that config.json names."""
        architectures = data.get("architectures")
        if not architectures:
            return "base"
        if not isinstance(architectures, list):
            raise NpformerError(f"architectures: expected a list, got {checks.shown(architectures)}")
        return self.architectures[checks.one_of("architectures", architectures[0], self.architectures)]

    # --- weights -----------------------------------------------------------------------------------------------------

    def groups(self, config: Config, head: str) -> list[str]:
        """The groups of weights that a model with this head has, in the order of the forward pass."""
        raise NotImplementedError

    def sources(self, config: Config, arrays: Mapping[str, tuple[str, str]], head: str) -> dict[str, Source]:
        """Our flat name of every array, given with its group and its own name -> where it is."""
        raise NotImplementedError

    def stored_elsewhere(self, config: Config) -> frozenset[str]:
        """Tensors of a file that are no weights of any model of ours."""
        return frozenset()

    def current(self, name: str, known: Container[str]) -> str:
        """A stored name as `sources` has it, where older files have another."""
        return name

    def optional(self, config: Config) -> frozenset[str]:
        """Groups that may be absent as a whole, and arrays that may be absent."""
        return frozenset()

    # --- training ----------------------------------------------------------------------------------------------------

    def dropout(self, config: Config, rate: float, attention: float, head: float | None) -> dict[str, float]:
        """Stage or pattern -> the share of its elements that the family's own training drops."""
        raise NotImplementedError


def read_labels(head: str, data: Mapping[str, Any]) -> tuple[str, ...]:
    """`id2label` as a tuple for a head that has labels; without it `num_labels`, or 2, numbered ones."""
    if head not in LABELLED:
        return ()
    id2label = data.get("id2label")
    if id2label is None:
        count = checks.whole("num_labels", data.get("num_labels", 2), 1, MOST_LABELS)
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(id2label, Mapping) or not id2label:
        raise NpformerError(f"id2label: expected an object of id: label, got {checks.shown(id2label)}")
    by_id = {str(i): label for i, label in id2label.items()}
    labels = tuple(by_id.get(str(i)) for i in range(len(by_id)))
    if None in labels:
        raise NpformerError(f"id2label: expected the ids 0 to {len(by_id) - 1}, each once, with a label")
    if not all(isinstance(label, str | int) for label in labels):
        raise NpformerError("id2label: expected labels that are strings")
    return tuple(str(label) for label in labels)


def write_labels(config: Config) -> dict[str, Any]:
    """The inverse of read_labels."""
    if not config.labels:
        return {}
    return {
        "id2label": {str(i): label for i, label in enumerate(config.labels)},
        "label2id": {label: i for i, label in enumerate(config.labels)},
    }


def read_activation(name: str, data: Mapping[str, Any], default: str = "gelu") -> str:
    """The field `name` of a config.json, an activation as Hugging Face names it, in our name."""
    return ACTIVATIONS[checks.one_of(name, data.get(name, default), ACTIVATIONS)]


def reject_other(data: Mapping[str, Any], supported: Mapping[str, Any]) -> None:
    """Raises NpformerError for a setting that changes what is computed, and of which one value is supported."""
    for name, value in supported.items():
        if data.get(name, value) != value:
            raise NpformerError(f"{name}: {checks.shown(data[name])} is not supported; supported: {value!r}")


def numbered(patterns: Mapping[str, str], count: int) -> Iterator[tuple[str, str]]:
    """The entries of a table, those with `*` once for each of `count` layers, its number in place of the star."""
    for ours, theirs in patterns.items():
        for n in map(str, range(count)) if "*" in ours else [""]:
            yield ours.replace("*", n), theirs.replace("*", n)


def first(table: Mapping[str, str], value: str) -> str:
    """The first key of a value."""
    return next(key for key, each in table.items() if each == value)
