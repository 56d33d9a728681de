"""The shape of the 2017 models: `TransformerConfig`, for torch's `nn.Transformer` modules and for Marian's checkpoints.

It is a `Config` with a decoder beside the encoder, and the choices that BERT does not have. Where the weights lie is
in `checkpoint/torch_nn.py` and `checkpoint/marian.py`; what is computed from both, in `model.py` and `seq2seq.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npformer import config as base
from npformer.config import ACTIVATIONS, Config
from npformer.errors import NpformerError

HEADS = ("base", "sequence-classification", "token-classification", "translation")

#: The torch classes whose state dict a checkpoint of model_type "transformer" may be, or may have inside of it.
TORCH_CLASSES = (
    "nn.Transformer",
    "nn.TransformerEncoder",
    "nn.TransformerDecoder",
    "nn.TransformerEncoderLayer",
    "nn.TransformerDecoderLayer",
    "nn.MultiheadAttention",
)

#: Position tables: the paper's; Marian's, all sines before all cosines; one that comes with the checkpoint.
POSITIONS = ("sinusoidal", "sinusoidal-halves", "learned")

_LABELLED = ("sequence-classification", "token-classification")
_SIZE = 2**31 - 1
_LAYERS = 10_000


@dataclass(frozen=True)
class TransformerConfig(Config):
    """What a 2017 model is. Fields that `Config` has too mean the same, and are the encoder's where there are two.

    vocab_size 0: bare layers without embeddings, which compute on rows and not on ids.
    """

    torch_class: str = "nn.Transformer"  # one of TORCH_CLASSES; Marian's is laid out like the first
    n_decoder_layers: int = 0
    n_decoder_heads: int = 1
    d_decoder_ffn: int = 1
    target_vocab_size: int = 0
    norm_first: bool = False  # the norms stand before the blocks, not after
    bias: bool = True  # the linear layers and the norms have one
    final_norm: bool = False  # another norm after the last layer
    positions: str = "sinusoidal"
    scale_embedding: bool = False  # token rows times sqrt(d_model)
    shared: bool = False  # source and target tokens have one table
    start_id: int = 0  # what the decoder is given first
    end_ids: tuple[int, ...] = ()  # what ends a target
    pad_id: int | None = None
    modules: tuple[tuple[str, str], ...] = ()  # our group -> the checkpoint's module, where its name is not torch's

    def __post_init__(self) -> None:
        base._one_of("model_type", self.model_type, base.TRANSFORMER_TYPES)
        base._one_of("head", self.head, HEADS)
        base._one_of("torch_class", self.torch_class, TORCH_CLASSES)
        base._one_of("positions", self.positions, POSITIONS)
        base._one_of("activation", self.activation, ACTIVATIONS.values())
        for name in ("d_model", "n_heads", "d_ffn", "max_length", "n_decoder_heads", "d_decoder_ffn"):
            base._whole(name, getattr(self, name), 1, _SIZE)
        for name in ("vocab_size", "target_vocab_size"):
            base._whole(name, getattr(self, name), 0, _SIZE)
        for name in ("n_layers", "n_decoder_layers"):
            base._whole(name, getattr(self, name), 0, _LAYERS)
        for name in ("norm_first", "bias", "final_norm", "scale_embedding", "shared", "tied"):
            base._boolean(name, getattr(self, name))
        base._positive("eps", self.eps)
        for n_heads in (self.n_heads, self.n_decoder_heads):
            if self.d_model % n_heads:
                raise NpformerError(f"{n_heads} heads do not divide the model's width of {self.d_model}")
        self._check_head()

    def _check_head(self) -> None:
        if bool(self.labels) != (self.head in _LABELLED):
            raise NpformerError(f"labels: a {self.head} head has {'none' if self.labels else 'at least one'}")
        if self.head != "base" and not self.vocab_size:
            raise NpformerError(f"vocab_size: a {self.head} model has a token table, so it must be above 0")
        if self.head in _LABELLED and self.n_decoder_layers:
            raise NpformerError(f"n_decoder_layers: a {self.head} model has no decoder, got {self.n_decoder_layers}")
        if self.head == "translation":
            if not self.n_layers or not self.n_decoder_layers or self.torch_class != "nn.Transformer":
                raise NpformerError(
                    f"a translation model has an encoder and a decoder, got {self.torch_class} with n_layers "
                    f"{self.n_layers} and n_decoder_layers {self.n_decoder_layers}"
                )
            for name, ids in (
                ("start_id", [self.start_id]),
                ("end_ids", self.end_ids),
                ("pad_id", [self.pad_id]),
            ):
                for each in ids:
                    if each is not None or name != "pad_id":
                        base._whole(name, each, 0, self.target_vocab_size - 1)
        if self.shared and self.vocab_size != self.target_vocab_size:
            raise NpformerError(
                f"one table for both languages has one size, got {self.vocab_size} and {self.target_vocab_size}"
            )

    @property
    def reads_ids(self) -> bool:
        """Whether it goes all the way from token ids: an encoder with its embeddings, or a translation model."""
        return self.head == "translation" or (self.torch_class == "nn.TransformerEncoder" and self.vocab_size > 0)

    @property
    def padding_idx(self) -> int | None:  # type: ignore[override]
        """The token whose row looking it up does not train: Marian's padding, which is its start token too.

        A projection that is tied to the table does train the row, in torch as well.
        """
        return self.pad_id if self.model_type == "marian" else None

    @property
    def n_outputs(self) -> int:
        return self.target_vocab_size if self.head == "translation" else len(self.labels)

    @property
    def architecture(self) -> str:
        return "MarianMTModel" if self.model_type == "marian" else self.torch_class

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], head: str | None = None) -> TransformerConfig:
        """Read the content of a config.json: Marian's, or our own, which `to_dict` writes.

        Ours must have model_type "transformer", d_model, n_heads and d_ffn. What else may be given, and what it is
        where it is not: architectures ["nn.Transformer"], n_layers 0, n_decoder_layers 0, n_decoder_heads n_heads,
        d_decoder_ffn d_ffn, vocab_size 0, target_vocab_size vocab_size, max_length 512, activation "relu", eps 1e-5,
        norm_first false, bias true, final_norm false, positions "sinusoidal", scale_embedding false,
        share_embeddings false, tie_word_embeddings false, decoder_start_token_id 0, eos_token_id null,
        pad_token_id null, head "base", id2label two labels, modules {}. Any other name is an error.
        """
        model_type = data.get("model_type")
        base._one_of("model_type", model_type, base.TRANSFORMER_TYPES)
        settings = _marian(data) if model_type == "marian" else _own(data)
        return cls(**{**settings, "head": head or settings["head"]})

    def to_dict(self) -> dict[str, Any]:
        """The content of a config.json that `from_dict` reads back; of a Marian model, one that Hugging Face reads."""
        if self.model_type == "marian":
            return {
                "model_type": "marian",
                "architectures": ["MarianMTModel"],
                **{theirs: getattr(self, ours) for ours, theirs in _MARIAN.items()},
                "activation_function": base._first(ACTIVATIONS, self.activation),
                "is_encoder_decoder": True,
                "eos_token_id": list(self.end_ids) if len(self.end_ids) != 1 else self.end_ids[0],
            }
        data: dict[str, Any] = {"model_type": "transformer", "architectures": [self.torch_class]}
        data |= {theirs: getattr(self, ours) for ours, (theirs, _) in _OWN.items()}
        data["eos_token_id"] = list(self.end_ids)
        data["modules"] = dict(self.modules)
        if self.labels:
            data["id2label"] = {str(i): label for i, label in enumerate(self.labels)}
        return data


#: Our field -> Marian's, of those that are read and written as they are.
_MARIAN = {
    "vocab_size": "vocab_size",
    "target_vocab_size": "decoder_vocab_size",
    "d_model": "d_model",
    "n_heads": "encoder_attention_heads",
    "n_layers": "encoder_layers",
    "d_ffn": "encoder_ffn_dim",
    "n_decoder_heads": "decoder_attention_heads",
    "n_decoder_layers": "decoder_layers",
    "d_decoder_ffn": "decoder_ffn_dim",
    "max_length": "max_position_embeddings",
    "scale_embedding": "scale_embedding",
    "shared": "share_encoder_decoder_embeddings",
    "tied": "tie_word_embeddings",
    "start_id": "decoder_start_token_id",
    "pad_id": "pad_token_id",
}

#: What Marian's config.json means where it does not say.
_MARIAN_DEFAULTS = {
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "decoder_start_token_id": 58100,
    "pad_token_id": 58100,
}

#: What older checkpoints also say, and what it always was.
_MARIAN_ALWAYS = {"normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True}


def _marian(data: Mapping[str, Any]) -> dict[str, Any]:
    architectures = data.get("architectures") or ["MarianMTModel"]
    if architectures != ["MarianMTModel"]:
        raise NpformerError(f"architectures: {architectures!r:.80} is not supported; supported: MarianMTModel")
    for name, value in _MARIAN_ALWAYS.items():
        if data.get(name, value) != value:
            raise NpformerError(f"{name}: {base._shown(data[name])} is not supported; supported: {value!r}")
    given = {**_MARIAN_DEFAULTS, **data}
    given["decoder_vocab_size"] = data.get("decoder_vocab_size") or data.get("vocab_size")
    for theirs in _MARIAN.values():
        if theirs not in given:
            raise NpformerError(f"no {theirs!r}; a marian config.json has one")
    activation = data.get("activation_function", "gelu")
    base._one_of("activation_function", activation, ACTIVATIONS)
    return {
        **{ours: given[theirs] for ours, theirs in _MARIAN.items()},
        "model_type": "marian",
        "head": "translation",
        "activation": ACTIVATIONS[activation],
        "eps": 1e-5,
        "positions": "sinusoidal-halves",
        "end_ids": _ids("eos_token_id", data.get("eos_token_id", 0)),
    }


#: Our field -> its name in our config.json, and its value where that does not say (... where it has to).
_OWN: dict[str, tuple[str, Any]] = {
    "d_model": ("d_model", ...),
    "n_heads": ("n_heads", ...),
    "d_ffn": ("d_ffn", ...),
    "n_layers": ("n_layers", 0),
    "n_decoder_layers": ("n_decoder_layers", 0),
    "n_decoder_heads": ("n_decoder_heads", None),
    "d_decoder_ffn": ("d_decoder_ffn", None),
    "vocab_size": ("vocab_size", 0),
    "target_vocab_size": ("target_vocab_size", None),
    "max_length": ("max_length", 512),
    "activation": ("activation", "relu"),
    "eps": ("eps", 1e-5),
    "norm_first": ("norm_first", False),
    "bias": ("bias", True),
    "final_norm": ("final_norm", False),
    "positions": ("positions", "sinusoidal"),
    "scale_embedding": ("scale_embedding", False),
    "shared": ("share_embeddings", False),
    "tied": ("tie_word_embeddings", False),
    "start_id": ("decoder_start_token_id", 0),
    "pad_id": ("pad_token_id", None),
    "head": ("head", "base"),
}
_OTHERS = ("model_type", "architectures", "eos_token_id", "id2label", "modules", "dtype")
_LIKE = {"n_decoder_heads": "n_heads", "d_decoder_ffn": "d_ffn", "target_vocab_size": "vocab_size"}


def _own(data: Mapping[str, Any]) -> dict[str, Any]:
    known = {theirs for theirs, _ in _OWN.values()}.union(_OTHERS)
    if odd := sorted(set(data) - known):
        fields = ", ".join(sorted(known))
        raise NpformerError(f"{odd[0]!r:.80}: no field of a transformer's config.json; those are {fields}")
    settings: dict[str, Any] = {}
    for ours, (theirs, default) in _OWN.items():
        if default is ... and theirs not in data:
            raise NpformerError(f"no {theirs!r}; a transformer's config.json has one")
        settings[ours] = data.get(theirs, default)
    for ours, like in _LIKE.items():
        settings[ours] = settings[like] if settings[ours] is None else settings[ours]
    architectures = data.get("architectures") or ["nn.Transformer"]
    modules = data.get("modules") or {}
    if not isinstance(modules, dict) or not all(isinstance(each, str) for each in modules.values()):
        raise NpformerError("modules: expected an object of our group: the checkpoint's module")
    settings |= {
        "model_type": "transformer",
        "torch_class": architectures[0] if isinstance(architectures, list) else architectures,
        "labels": base._labels(data) if settings["head"] in _LABELLED else (),
        "end_ids": _ids("eos_token_id", data.get("eos_token_id")),
        "modules": tuple(modules.items()),
    }
    return settings


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """One id, several, or none."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(base._whole(name, each, 0, _SIZE) for each in ids)
