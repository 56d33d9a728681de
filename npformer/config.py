"""The dozen numbers and names that fix a model's shape: `Config`, read from and written to Hugging Face's config.json.

A family of models is a row of `FAMILIES`: how its config.json spells our fields. Where its weights lie is in
`npformer.checkpoint.families`; what is computed from both, in `npformer.model`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from npformer.errors import NpformerError

HEADS = (
    "base",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "masked-lm",
    "next-sentence",
    "multiple-choice",
)

#: Hugging Face's names of the activations -> ours. The first name of each of ours is the one written back.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")

# Far above any model, and far below what makes a loop or an allocation go on for ever.
_LIMITS = {"n_layers": 10_000, "n_labels": 1_000_000}
_LIMIT = 2**31 - 1


class Family(NamedTuple):
    """How one `model_type` spells our fields in config.json."""

    sizes: Mapping[str, str]  # our name -> theirs; all of them must be there
    activation: str  # their name; "gelu" where it is not given
    architectures: Mapping[str, str]  # class -> our head; the first class of a head is the one written back
    eps: str | None = None  # their name; None: not a setting, always 1e-12
    segments: str | None = None  # their name; None: no segment embedding


FAMILIES = {
    "distilbert": Family(
        sizes={
            "vocab_size": "vocab_size",
            "d_model": "dim",
            "n_heads": "n_heads",
            "n_layers": "n_layers",
            "d_ffn": "hidden_dim",
            "max_length": "max_position_embeddings",
        },
        activation="activation",
        architectures={
            "DistilBertModel": "base",
            "DistilBertForSequenceClassification": "sequence-classification",
            "DistilBertForTokenClassification": "token-classification",
            "DistilBertForQuestionAnswering": "question-answering",
            "DistilBertForMaskedLM": "masked-lm",
            "DistilBertForMultipleChoice": "multiple-choice",
        },
    ),
    "bert": Family(
        sizes={
            "vocab_size": "vocab_size",
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "d_ffn": "intermediate_size",
            "max_length": "max_position_embeddings",
        },
        activation="hidden_act",
        architectures={
            "BertModel": "base",
            "BertForSequenceClassification": "sequence-classification",
            "BertForTokenClassification": "token-classification",
            "BertForQuestionAnswering": "question-answering",
            "BertForMaskedLM": "masked-lm",
            "BertForPreTraining": "masked-lm",
            "BertForNextSentencePrediction": "next-sentence",
            "BertForMultipleChoice": "multiple-choice",
        },
        eps="layer_norm_eps",
        segments="type_vocab_size",
    ),
}

#: The model_types that are a `TransformerConfig`: Marian's checkpoints, and torch's own modules.
TRANSFORMER_TYPES = ("marian", "transformer")


@dataclass(frozen=True)
class Config:
    """What a model is: its family, its head, its sizes.

    Every way to make one checks it: a field that makes no sense is an `NpformerError` that names the field.
    """

    model_type: str  # a key of FAMILIES
    head: str  # one of HEADS
    vocab_size: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ffn: int
    max_length: int  # rows of the position table
    n_segments: int = 0  # rows of the segment table; 0: there is none
    activation: str = "gelu"
    eps: float = 1e-12  # of the layer norms
    labels: tuple[str, ...] = ()  # label of each output, for the two classification heads
    problem_type: str | None = None
    tied: bool = True  # the vocabulary projection is the token table, transposed

    norm_first = False  # BERT has none of these; the 2017 models' `TransformerConfig` does
    scale_embedding = False
    padding_idx: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        family = _family(self.model_type)
        _one_of("head", self.head, dict.fromkeys(family.architectures.values()))
        for name in family.sizes:
            _whole(name, getattr(self, name), 1, _LIMITS.get(name, _LIMIT))
        _whole("n_segments", self.n_segments, 1 if family.segments else 0, _LIMIT if family.segments else 0)
        if self.d_model % self.n_heads:
            raise NpformerError(f"{self.n_heads} heads do not divide the model's width of {self.d_model}")
        _one_of("activation", self.activation, ACTIVATIONS.values())
        _one_of("problem_type", self.problem_type, PROBLEM_TYPES)
        _boolean("tied", self.tied)
        _positive("eps", self.eps)
        if not isinstance(self.labels, tuple) or not all(isinstance(label, str) for label in self.labels):
            raise NpformerError("labels: expected a tuple of strings")
        if bool(self.labels) != (self.head in ("sequence-classification", "token-classification")):
            raise NpformerError(f"labels: a {self.head} head has {'none' if self.labels else 'at least one'}")

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def n_outputs(self) -> int:
        """Width of the head's last linear; 0 for a model without a head."""
        return {
            "base": 0,
            "sequence-classification": len(self.labels),
            "token-classification": len(self.labels),
            "question-answering": 2,
            "masked-lm": self.vocab_size,
            "next-sentence": 2,
            "multiple-choice": 1,
        }[self.head]

    @property
    def architecture(self) -> str:
        """Hugging Face's class for this family and head."""
        return _first(FAMILIES[self.model_type].architectures, self.head)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], head: str | None = None) -> Config:
        """Read the content of a Hugging Face config.json.

        `head` asks for another head than `architectures` names, for a checkpoint that carries several
        (BertForPreTraining, read here as its masked-word head, also has the one for the next sentence).
        Without `architectures` the head is "base".

        `tie_weights_` and `sinusoidal_pos_embds` need no field: Transformers ties by `tie_word_embeddings` alone,
        and a checkpoint stores its sinusoidal positions like learned ones.
        """
        _one_of("model_type", data.get("model_type"), (*FAMILIES, *TRANSFORMER_TYPES))
        if cls is Config and data["model_type"] in TRANSFORMER_TYPES:
            from npformer.transformer_config import TransformerConfig

            return TransformerConfig.from_dict(data, head)
        family = _family(data["model_type"])
        _reject_unsupported(data)
        sizes = {}
        for ours, theirs in family.sizes.items():
            if theirs not in data:
                raise NpformerError(f"no {theirs!r}; a {data['model_type']} config.json has one")
            sizes[ours] = _whole(theirs, data[theirs], 1, _LIMITS.get(ours, _LIMIT))
        activation = data.get(family.activation, "gelu")
        _one_of(family.activation, activation, ACTIVATIONS)
        head = head or _head(family, data)
        eps = _positive(family.eps, data.get(family.eps, 1e-12)) if family.eps else 1e-12
        segments = _whole(family.segments, data.get(family.segments, 2), 1, _LIMIT) if family.segments else 0
        return cls(
            model_type=data["model_type"],
            head=head,
            **sizes,
            n_segments=segments,
            activation=ACTIVATIONS[activation],
            eps=eps,
            labels=_labels(data) if head in ("sequence-classification", "token-classification") else (),
            problem_type=data.get("problem_type"),
            tied=_boolean("tie_word_embeddings", data.get("tie_word_embeddings", True)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The content of a config.json that Hugging Face reads, and `from_dict` reads back."""
        family = FAMILIES[self.model_type]
        data: dict[str, Any] = {"model_type": self.model_type, "architectures": [self.architecture]}
        data |= {theirs: getattr(self, ours) for ours, theirs in family.sizes.items()}
        data[family.activation] = _first(ACTIVATIONS, self.activation)
        data["tie_word_embeddings"] = self.tied
        if family.eps:
            data[family.eps] = self.eps
        if family.segments:
            data[family.segments] = self.n_segments
        if self.labels:
            data["id2label"] = {str(i): label for i, label in enumerate(self.labels)}
            data["label2id"] = {label: i for i, label in enumerate(self.labels)}
        if self.problem_type:
            data["problem_type"] = self.problem_type
        return data


def _family(model_type: object) -> Family:
    _one_of("model_type", model_type, FAMILIES)
    return FAMILIES[str(model_type)]


def _head(family: Family, data: Mapping[str, Any]) -> str:
    architectures = data.get("architectures")
    if not architectures:
        return "base"
    if not isinstance(architectures, list):
        raise NpformerError(f"architectures: expected a list, got {_shown(architectures)}")
    _one_of("architectures", architectures[0], family.architectures)
    return family.architectures[architectures[0]]


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    """`id2label` as a tuple; without it `num_labels` (2 where that is not given either) numbered ones."""
    id2label = data.get("id2label")
    if id2label is None:
        count = _whole("num_labels", data.get("num_labels", 2), 1, _LIMITS["n_labels"])
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(id2label, Mapping) or not id2label:
        raise NpformerError(f"id2label: expected an object of id: label, got {_shown(id2label)}")
    by_id = {str(i): label for i, label in id2label.items()}
    labels = tuple(by_id.get(str(i)) for i in range(len(by_id)))
    if None in labels:
        raise NpformerError(f"id2label: expected the ids 0 to {len(by_id) - 1}, each once, with a label")
    if not all(isinstance(label, str | int) for label in labels):
        raise NpformerError("id2label: expected labels that are strings")
    return tuple(str(label) for label in labels)


def _reject_unsupported(data: Mapping[str, Any]) -> None:
    """Settings that change what is computed and that only one value of is implemented."""
    supported = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
    for name, value in supported.items():
        if data.get(name, value) != value:
            raise NpformerError(f"{name}: {_shown(data[name])} is not supported; supported: {value!r}")
    if data.get("pruned_heads"):
        raise NpformerError("pruned_heads: a checkpoint with pruned attention heads is not supported")


def _whole(name: str, value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise NpformerError(f"{name}: expected a whole number from {low} to {high}, got {_shown(value)}")
    return value


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise NpformerError(f"{name}: expected a number above 0, got {_shown(value)}")
    return value


def _boolean(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise NpformerError(f"{name}: expected true or false, got {_shown(value)}")
    return value


def _one_of(name: str, value: object, supported: Any) -> None:
    if not isinstance(value, str | None) or value not in supported:
        names = ", ".join(str(each) for each in dict.fromkeys(supported))
        raise NpformerError(f"{name}: {_shown(value)} is not supported; supported: {names}")


def _first(table: Mapping[str, str], value: str) -> str:
    return next(key for key, each in table.items() if each == value)


def _shown(value: object) -> str:
    """A value in a message: what came may be a megabyte, or a number too long to print."""
    if isinstance(value, str | bool | float | None) or (isinstance(value, int) and abs(value) < 2**64):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    return f"a {type(value).__name__}"
