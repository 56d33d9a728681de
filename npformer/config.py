"""The sizes and options of a model: `Config`. `families/` creates one from a checkpoint's config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.common.other_libraries import CONFIG, Answering

ENCODER_HEADS = (
    "base",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "masked-lm",
    "next-sentence",
    "multiple-choice",
    "replaced-token",
)
POOLED_HEADS = ("sequence-classification", "next-sentence", "multiple-choice")  # heads for whole texts
REREADING_HEADS = ("sequence-classification", "question-answering")  # heads that a decoder can also have, as in BART
#: "causal-lm" predicts the next token at each position. "translation" is an encoder-decoder with vocabulary logits.
HEADS = (*ENCODER_HEADS, "causal-lm", "translation")
LABELLED = ("sequence-classification", "token-classification")

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")

#: Tables of positions. "sinusoidal" means the sinusoids of the 2017 paper. "sinusoidal-halves" means the sinusoids of
#: Marian, with all sines before all cosines. "none" is for models in which only attention uses positions.
TABLES = ("learned", "sinusoidal", "sinusoidal-halves", "none")

POOLINGS = ("first", "mean", "last")

#: Maps each dtype to the number of bits in its fraction.
ROUNDED = {"float32": 23, "float16": 10, "bfloat16": 7}

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")

MOST = 2**31 - 1  # maximum of every size, far above real models; `limits.py` has the limits for files


@dataclass(frozen=True)
class Decoder:
    """The decoder stack of an encoder-decoder, or a decoder without an encoder. Its width is d_model."""

    n_layers: int = 0  # 0 means no decoder
    n_heads: int = 1
    d_ffn: int = 1
    vocab_size: int = 0  # 0 means that the input consists of vectors, without a token table
    start_id: int = 0  # the token before the first token of a target
    end_ids: tuple[int, ...] = ()  # the tokens that end a target

    def __post_init__(self) -> None:
        checks.whole("decoder.n_layers", self.n_layers, 0, MOST)
        for name in ("n_heads", "d_ffn"):
            checks.whole(f"decoder.{name}", getattr(self, name), 1, MOST)
        for name in ("vocab_size", "start_id"):
            checks.whole(f"decoder.{name}", getattr(self, name), 0, MOST)

    def __repr__(self) -> str:
        return checks.brief(self)

    def __bool__(self) -> bool:
        return self.n_layers > 0


@dataclass(frozen=True)
class Positions:
    """The table of absolute positions."""

    table: str = "learned"  # one of TABLES
    first: int = 0  # row of the first token of a text
    skips_padding: bool = False  # padding tokens are not counted, and they use row `first - 1`
    skips_masked: bool = False  # tokens that the attention mask hides are not counted

    def __post_init__(self) -> None:
        checks.one_of("positions", self.table, TABLES)
        checks.whole("positions.first", self.first, 0, MOST)
        checks.boolean("positions.skips_padding", self.skips_padding)
        checks.boolean("positions.skips_masked", self.skips_masked)


@dataclass(frozen=True)
class Local:
    """Layers with their own attention mechanisms, such as a sliding window."""

    layers: tuple[int, ...]  # layers with these mechanisms, in ascending order
    mechanisms: tuple[Any, ...]

    def __post_init__(self) -> None:
        last = -1
        for number in self.layers:
            last = checks.whole("local.layers", number, last + 1, MOST)


@dataclass(frozen=True)
class Sharing:
    """Groups of layers that share weights, as in ALBERT (Lan et al., 2020, section 3.1)."""

    groups: int = 1
    layers: int = 1  # number of consecutive layers in a group, which have different weights

    def __post_init__(self) -> None:
        checks.whole("sharing.groups", self.groups, 1, MOST)
        checks.whole("sharing.layers", self.layers, 1, MOST)


@dataclass(frozen=True)
class InputConvolution:
    """A convolution of the embeddings. Its result is added to the output of the first layer."""

    width: int
    activation: str = "tanh"  # one of ACTIVATIONS

    def __post_init__(self) -> None:
        checks.whole("convolution.width", self.width, 1, MOST)
        checks.one_of("convolution.activation", self.activation, ACTIVATIONS)


@dataclass(frozen=True)
class Config(Answering):
    """The sizes and options of a model.

    Parameters
    ----------
    model_type : name of the family
    head : one of HEADS
    vocab_size : rows of the token table; 0 means that the input consists of vectors, without a table
    d_model : width of the layers
    n_heads : number of heads of the encoder, or of a model with one stack
    n_layers : number of layers of the encoder, or of a model with one stack
    d_ffn : number of hidden units of a feed-forward network
    max_length : maximum number of tokens of a text
    n_kv_heads : number of key and value heads, shared by the query heads; 0 means n_heads
    head_width : width of a head; 0 means d_model / n_heads
    n_token_types : rows of the token type table; 0 means no table
    d_embedding : width of the tables, which a projection widens to d_model; 0 means d_model, without a projection
    positions : `Positions`, the table of absolute positions
    mechanisms : how attention depends on positions: instances of the classes in `npformer.engine.mechanisms`
    local : `Local`, layers with their own mechanisms
    sharing : `Sharing`, groups of layers that share weights; None means that every layer has its own weights
    convolution : `InputConvolution` of the embeddings; None means no convolution
    scale_embedding : multiply token rows by sqrt(d_model)
    scale_output : multiply rows by 1 / sqrt(d_model) before the projection to the vocabulary
    score_scale : factor of the scores q k^T; 0 means 1 / sqrt(d_head)
    gated : the feed-forward networks are gated, computing act(gate) * up instead of act(hidden)
    scale_dtype : dtype to which sqrt(d_model) is rounded, one of ROUNDED; "" means no rounding
    activation : activation of the feed-forward network, one of ACTIVATIONS
    head_activation : activation of the layer before the norm of a head; "" means `activation`
    logit_cap : soft cap of the logits over the vocabulary; 0 means no cap
    eps : eps of the layer norms
    norm_first : norms are before the blocks (pre-norm), not after the blocks
    parallel : the blocks of a layer read the same rows, and their outputs are added together
    final_norm : an additional norm after the last layer
    bias : linear layers and norms have a bias; in Llama and similar families, this applies only to attention
    causal : a token attends only to itself and to earlier tokens
    pooling : the row that a head for whole texts reads: the first row, the last row that is not padding, or the mean of
        all rows
    pooler : activation of the pooler, the layer between the first row of a text and the head
    labels : names of the outputs of a classification head
    problem_type : one of PROBLEM_TYPES
    tied : the projection to the vocabulary is the transposed token table
    shared : encoder and decoder share one token table
    pad_id : the padding token
    padding_idx : a token whose row of the table is not trained
    start_id : the start token of a generative model
    end_ids : the tokens that end a generated text
    decoder : `Decoder`, the second stack
    torch_class : the torch module of the state dict, for model_type "transformer"
    modules : pairs (group, module in the state dict), for modules with names other than torch's

    Raises
    ------
    NpformerError
        A field has an invalid value, or has no effect without another field. The message names the field.

    Examples
    --------
    >>> npformer.load("distilbert-sst2").config.d_model
    384
    >>> npformer.Config("bert", "base", vocab_size=100, d_model=8, n_heads=2, n_layers=1, d_ffn=16, max_length=4).d_head
    4
    """

    lines = CONFIG
    model_type: str
    head: str
    vocab_size: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ffn: int
    max_length: int
    n_kv_heads: int = 0
    head_width: int = 0
    n_token_types: int = 0
    d_embedding: int = 0
    positions: Positions = Positions()
    mechanisms: tuple[Any, ...] = ()
    local: Local | None = None
    sharing: Sharing | None = None
    convolution: InputConvolution | None = None
    scale_embedding: bool = False
    scale_output: bool = False
    score_scale: float = 0.0
    gated: bool = False
    scale_dtype: str = ""
    activation: str = "gelu"
    head_activation: str = ""
    logit_cap: float = 0.0
    eps: float = 1e-12
    norm_first: bool = False
    parallel: bool = False
    final_norm: bool = False
    bias: bool = True
    causal: bool = False
    pooling: str = "first"
    pooler: str = "tanh"
    labels: tuple[str, ...] = ()
    problem_type: str | None = None
    tied: bool = True
    shared: bool = False
    pad_id: int | None = None
    padding_idx: int | None = None
    start_id: int | None = None
    end_ids: tuple[int, ...] = ()
    decoder: Decoder = Decoder()
    torch_class: str = ""
    modules: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        checks.one_of("head", self.head, HEADS)
        checks.one_of("activation", self.activation, ACTIVATIONS)
        checks.one_of("head_activation", self.head_activation or self.activation, ACTIVATIONS)
        checks.one_of("pooler", self.pooler, ACTIVATIONS)
        checks.one_of("pooling", self.pooling, POOLINGS)
        checks.one_of("problem_type", self.problem_type, PROBLEM_TYPES)
        for name in ("d_model", "n_heads", "d_ffn", "max_length"):
            checks.whole(name, getattr(self, name), 1, MOST)
        for name in ("vocab_size", "n_token_types", "d_embedding", "n_kv_heads", "head_width"):
            checks.whole(name, getattr(self, name), 0, MOST)
        checks.whole("n_layers", self.n_layers, 0, MOST)
        for name in ("pad_id", "padding_idx", "start_id"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), 0, MOST)
        if self.local and self.local.layers:
            checks.whole("local.layers", self.local.layers[-1], 0, self.n_layers - 1)
        if self.sharing:
            checks.whole("sharing.groups", self.sharing.groups, 1, self.n_layers)
            layers = checks.whole("sharing.layers", self.sharing.layers, 1, self.n_layers // self.sharing.groups)
            if self.n_layers % layers:
                raise NpformerError(f"n_layers: {self.n_layers} is not a multiple of sharing.layers {layers}")
        for field in fields(self):
            if field.type == "bool":
                checks.boolean(field.name, getattr(self, field.name))
        if self.score_scale:
            checks.positive("score_scale", self.score_scale)
        checks.one_of("scale_dtype", self.scale_dtype, ("", *ROUNDED) if self.scale_embedding else ("",))
        checks.positive("eps", self.eps)
        if self.logit_cap:
            checks.positive("logit_cap", self.logit_cap)
        if self.n_heads % self.kv_heads:
            raise NpformerError(f"n_kv_heads: {self.n_kv_heads} does not divide n_heads {self.n_heads}")
        for n_heads in (self.n_heads, self.decoder.n_heads) if not self.head_width else ():
            if self.d_model % n_heads:
                raise NpformerError(f"n_heads: {n_heads} does not divide d_model {self.d_model}")
        self._check_head()
        for each in chain(*self.layer_kinds):
            each.check(self)

    def __repr__(self) -> str:
        return checks.brief(self)

    def _check_head(self) -> None:
        if not isinstance(self.labels, tuple) or not all(isinstance(label, str) for label in self.labels):
            raise NpformerError(f"labels: expected a tuple of strings, got {self.labels!r:.60}")
        if bool(self.labels) != (self.head in LABELLED):
            raise NpformerError(
                f"labels: expected {'no labels' if self.labels else 'at least one label'} for a {self.head} head"
            )
        if self.head != "base" and not self.vocab_size:
            raise NpformerError(f"vocab_size: expected more than 0, because a {self.head} model has a token table")
        if self.head not in ("base", "translation", *REREADING_HEADS) and self.decoder:
            raise NpformerError(f"decoder: expected no layers for a {self.head} model, got {self.decoder.n_layers}")
        if self.head == "causal-lm" and not self.causal:
            raise NpformerError(
                "causal: expected True, because a causal-lm model predicts the next token from earlier tokens"
            )
        if self.head == "translation" and not (self.n_layers and self.decoder):
            raise NpformerError(
                "head: a translation model needs an encoder and a decoder of at least one layer each, "
                f"got n_layers {self.n_layers} and decoder.n_layers {self.decoder.n_layers}"
            )
        if self.head != "base" and self.decoder:
            named = (("start_id", [self.decoder.start_id]), ("end_ids", self.decoder.end_ids))
            for name, ids in (*named, ("pad_id", [] if self.pad_id is None else [self.pad_id])):
                for each in ids:
                    checks.whole(name, each, 0, self.decoder.vocab_size - 1)
        if self.shared and self.vocab_size != self.decoder.vocab_size:
            sizes = f"{self.vocab_size} and {self.decoder.vocab_size}"
            raise NpformerError(
                f"shared: expected equal vocab_size, because encoder and decoder share a table, got {sizes}"
            )

    @property
    def d_head(self) -> int:
        return self.head_width or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.n_kv_heads or self.n_heads

    @property
    def layer_kinds(self) -> list[tuple[Any, ...]]:
        """The mechanisms of each kind of layer: `mechanisms`, and the mechanisms of local layers, if any."""
        return [self.mechanisms, self.local.mechanisms] if self.local else [self.mechanisms]

    def mechanisms_of(self, layer: int) -> tuple[Any, ...]:
        """The mechanisms in the attention of a layer, without the causal mask."""
        return self.local.mechanisms if self.local and layer in self.local.layers else self.mechanisms

    @property
    def below_head(self) -> str:
        """The activation inside a head. The replaced-token head always uses the activation of the layers."""
        return (self.head != "replaced-token" and self.head_activation) or self.activation

    @property
    def table_width(self) -> int:
        """Width of the tables of tokens, positions and token types."""
        return self.d_embedding or self.d_model

    @property
    def token_scale(self) -> float:
        """The factor by which token embeddings are scaled."""
        if not self.scale_embedding:
            return 1.0
        root = math.sqrt(self.d_model)
        if not self.scale_dtype:
            return root
        unit = 2.0 ** (math.frexp(root)[1] - 1 - ROUNDED[self.scale_dtype])
        return round(root / unit) * unit

    def group_of(self, layer: int) -> tuple[int, int]:
        """Returns the group that contains the weights of a layer, and the index of the layer in that group.

        The layers form R = n_layers / sharing.layers runs. Run r uses group floor(r / (R / sharing.groups)). If R is
        not a multiple of sharing.groups, Transformers rounds in the same way. Lan et al., 2020, section 3.1.
        """
        sharing = self.sharing or Sharing()
        run, place = divmod(layer, sharing.layers)
        return int(run / (self.n_layers // sharing.layers / sharing.groups)), place

    @property
    def uncounted(self) -> int | None:
        """The token without a position, such as the padding token in RoBERTa; None if every token has a position."""
        return self.pad_id if self.positions.skips_padding else None

    @property
    def n_positions(self) -> int:
        """Rows of the position table."""
        return self.positions.first + self.max_length

    @property
    def reads_token_types(self) -> bool:
        """Whether the model has several token types."""
        return self.n_token_types > 1

    @property
    def scoring(self) -> str:
        """The function from logits to scores: "softmax", "sigmoid" or "none".

        "none" is for regression, and "sigmoid" for the replaced-token head and for text classifiers with a single label
        or with labels that do not exclude each other.
        """
        if self.head == "sequence-classification" and self.problem_type == "regression":
            return "none"
        several = self.problem_type == "multi_label_classification"
        one = self.head == "sequence-classification" and (several or len(self.labels) == 1)
        return "sigmoid" if one or self.head == "replaced-token" else "softmax"

    @property
    def n_outputs(self) -> int:
        """Width of the head's last linear layer; 0 for a model without a head."""
        return {
            "base": 0,
            "sequence-classification": len(self.labels),
            "token-classification": len(self.labels),
            "question-answering": 2,
            "masked-lm": self.vocab_size,
            "causal-lm": self.vocab_size,
            "next-sentence": 2,
            "multiple-choice": 1,
            "replaced-token": 1,
            "translation": self.decoder.vocab_size,
        }[self.head]
