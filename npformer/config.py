"""The sizes and options of a model: `Config`. `families/` creates one from a checkpoint's config.json."""

from __future__ import annotations

from dataclasses import dataclass

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
POOLED_HEADS = ("sequence-classification", "next-sentence", "multiple-choice")  # they read one row of each text
REREADING_HEADS = ("sequence-classification", "question-answering")  # a decoder can have these too, as in BART
#: causal-lm: the next word at each token; translation: an encoder-decoder that projects to the vocabulary.
HEADS = (*ENCODER_HEADS, "causal-lm", "translation")
LABELLED = ("sequence-classification", "token-classification")

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")

#: Position tables: learned; the 2017 paper's sinusoids; Marian's, with all sines before all cosines; no table, if only
#: attention uses relative positions.
POSITIONS = ("learned", "sinusoidal", "sinusoidal-halves", "none")

POOLINGS = ("first", "mean", "last")

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")

MOST = 2**31 - 1  # maximum of any size, far above any real model; `limits.py` limits files


@dataclass(frozen=True)
class Decoder:
    """The decoder stack of an encoder-decoder, with the encoder's width; or a decoder-only stack."""

    n_layers: int = 0  # 0: no decoder
    n_heads: int = 1
    d_ffn: int = 1
    vocab_size: int = 0  # 0: no token table, the input is vectors
    start_id: int = 0  # the token before a target's first
    end_ids: tuple[int, ...] = ()  # the tokens that end a target

    def __post_init__(self) -> None:
        checks.whole("decoder.n_layers", self.n_layers, 0, MOST)
        for name in ("n_heads", "d_ffn"):
            checks.whole(f"decoder.{name}", getattr(self, name), 1, MOST)
        checks.whole("decoder.vocab_size", self.vocab_size, 0, MOST)

    def __repr__(self) -> str:
        return checks.brief(self)

    def __bool__(self) -> bool:
        return self.n_layers > 0


@dataclass(frozen=True)
class Config(Answering):
    """The sizes and options of a model.

    Parameters
    ----------
    model_type : name of the family
    head : one of HEADS
    vocab_size : rows of the token table; 0: no table, the input is vectors
    d_model, n_heads, n_layers, d_ffn : sizes of the encoder
    max_length : maximum number of tokens of a text
    n_token_types : rows of the token type table; 0: no table
    d_embedding : width of the tables if a projection follows; 0: d_model
    layer_groups : number of groups of layers that share weights; 0: every layer has its own weights
    group_layers : number of consecutive layers in a group, each with its own weights
    first_position : row of the position table for a text's first token
    skips_padding : the padding token is not counted in positions, and has the row before the first position's
    positions : one of POSITIONS
    relative_buckets : rows of the table of relative biases; 0: no table
    rotary_theta : base of the rotary embeddings; 0: no rotary embeddings
    local_layers : numbers of the layers that attend to a window of the text, in ascending order
    local_theta : base of the rotary embeddings in local layers
    window : number of tokens that a query in a local layer attends to, itself and half of the rest on each side
    n_distances : rows of the table of distances, for disentangled attention; 0: no table
    max_distance : start of the last bucket of distances; 0: each distance has its own row
    distance_forms : uses of that table in the scores: "key", content to distance, and "query", distance to content
    own_distances : layers project the table of distances with separate weights, not with those of query and key
    norm_distances : the table of distances has a norm
    convolution : width of a convolution of the embeddings, which is added to the first layer; 0: no convolution
    convolution_activation : one of ACTIVATIONS
    scale_embedding : multiply token rows by sqrt(d_model)
    activation : activation of the feed-forward network, one of ACTIVATIONS
    head_activation : activation of the layer below a head's norm; "": as in the feed-forward network
    eps : eps of the layer norms
    norm_first : norms before the blocks (pre-norm), not after them
    final_norm : an additional norm after the last layer
    bias : linear layers and norms have a bias
    causal : a token attends to itself and to earlier tokens only
    pooling : the row for a head on texts: the first, the last that is not padding, or the mean of all
    pooler : activation of the pooler, the layer between a text's first row and the head
    labels : names of the outputs of a classification head
    problem_type : one of PROBLEM_TYPES
    tied : the projection to the vocabulary is the transposed token table
    shared : encoder and decoder share one token table
    pad_id : the padding token
    padding_idx : a token with a table row that is not trained
    start_id : the start token of a generative model
    end_ids : the tokens that end a generated text
    decoder : `Decoder`, the second stack
    torch_class : the torch module of the state dict, for model_type "transformer"
    modules : pairs of a group and the state dict's module, if its name is not torch's

    Raises
    ------
    NpformerError
        A field has an invalid value, or has no effect without another field; the message names it.

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
    n_token_types: int = 0
    d_embedding: int = 0
    layer_groups: int = 0
    group_layers: int = 1
    first_position: int = 0
    skips_padding: bool = False
    positions: str = "learned"
    relative_buckets: int = 0
    rotary_theta: float = 0.0
    local_layers: tuple[int, ...] = ()
    local_theta: float = 0.0
    window: int = 0
    n_distances: int = 0
    max_distance: int = 0
    distance_forms: tuple[str, ...] = ("key", "query")
    own_distances: bool = False
    norm_distances: bool = False
    convolution: int = 0
    convolution_activation: str = "tanh"
    scale_embedding: bool = False
    activation: str = "gelu"
    head_activation: str = ""
    eps: float = 1e-12
    norm_first: bool = False
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
        checks.one_of("convolution_activation", self.convolution_activation, ACTIVATIONS)
        checks.one_of("pooling", self.pooling, POOLINGS)
        checks.one_of("positions", self.positions, POSITIONS)
        checks.one_of("problem_type", self.problem_type, PROBLEM_TYPES)
        for name in ("d_model", "n_heads", "d_ffn", "max_length"):
            checks.whole(name, getattr(self, name), 1, MOST)
        tables = ("vocab_size", "n_token_types", "d_embedding", "layer_groups", "first_position", "relative_buckets")
        for name in (*tables, "convolution", "window", "n_distances", "max_distance"):
            checks.whole(name, getattr(self, name), 0, MOST)
        checks.whole("n_layers", self.n_layers, 0, MOST)
        last = -1
        for number in self.local_layers:
            last = checks.whole("local_layers", number, last + 1, self.n_layers - 1)
        if self.layer_groups:
            checks.whole("layer_groups", self.layer_groups, 1, self.n_layers)
            checks.whole("group_layers", self.group_layers, 1, self.n_layers // self.layer_groups)
            if self.n_layers % self.group_layers:
                raise NpformerError(f"n_layers: {self.n_layers} is not a multiple of group_layers {self.group_layers}")
        if self.distance_forms not in ((), ("key",), ("query",), ("key", "query")):
            raise NpformerError(
                f"distance_forms: expected key, query, both or neither, got {self.distance_forms!r:.200}"
            )
        choices = ("norm_first", "bias", "causal", "final_norm", "scale_embedding", "shared", "tied")
        for name in (*choices, "own_distances", "norm_distances", "skips_padding"):
            checks.boolean(name, getattr(self, name))
        checks.positive("eps", self.eps)
        for name in ("rotary_theta", "local_theta"):
            if getattr(self, name) != 0:
                checks.positive(name, getattr(self, name))
        for n_heads in (self.n_heads, self.decoder.n_heads):
            if self.d_model % n_heads:
                raise NpformerError(f"n_heads: {n_heads} does not divide the model's width of {self.d_model}")
        self._check_windows()
        self._check_needed()
        self._check_head()

    def _check_windows(self) -> None:
        """Refuses fields of local layers that have no effect without another field."""
        if self.local_theta and not self.rotary_theta:
            raise NpformerError(f"local_theta={self.local_theta}: needs rotary_theta, the base for the other layers")
        if self.local_layers and self.rotary_theta and not self.local_theta:
            raise NpformerError(f"local_layers={self.local_layers}: needs local_theta if rotary_theta is given")
        if self.local_layers and not (self.window or self.rotary_theta):
            raise NpformerError(
                f"local_layers={self.local_layers}: needs window, the number of tokens that they attend to"
            )
        if self.window and not (self.local_layers or self.rotary_theta):
            raise NpformerError(f"window={self.window}: needs local_layers, the layers with a window")

    def _check_needed(self) -> None:
        """Refuses fields of an absent table or convolution."""
        of_distances = ("max_distance", "distance_forms", "own_distances", "norm_distances")
        needed = dict.fromkeys(of_distances, "n_distances") | {"convolution_activation": "convolution"}
        for name, other in needed.items():
            if not getattr(self, other) and (value := getattr(self, name)) != getattr(Config, name):
                raise NpformerError(f"{name}={value!r}: needs {other}")

    def __repr__(self) -> str:
        return checks.brief(self)

    def _check_head(self) -> None:
        if not isinstance(self.labels, tuple) or not all(isinstance(label, str) for label in self.labels):
            raise NpformerError("labels: expected a tuple of strings")
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
                "causal: expected True, because a causal-lm model predicts the next token from earlier ones"
            )
        if self.head == "translation" and not (self.n_layers and self.decoder):
            raise NpformerError("a translation model has an encoder and a decoder, each of at least one layer")
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
        return self.d_model // self.n_heads

    def is_local(self, layer: int) -> bool:
        """Whether a layer attends only to a window."""
        return layer in self.local_layers

    @property
    def below_head(self) -> str:
        """The activation between the layers of a head; the replaced-token head always uses that of the layers."""
        return (self.head != "replaced-token" and self.head_activation) or self.activation

    @property
    def table_width(self) -> int:
        """Width of the tables of tokens, positions and token types."""
        return self.d_embedding or self.d_model

    def group_of(self, layer: int) -> tuple[int, int]:
        """The group of a layer's weights, and the layer's index in it.

        Of R = n_layers / group_layers runs, run r belongs to group floor(r / (R / layer_groups)), as in Hugging Face if
        R is not a multiple of layer_groups. Lan et al., 2020, section 3.1.
        """
        run, place = divmod(layer, self.group_layers)
        return int(run / (self.n_layers // self.group_layers / self.layer_groups)), place

    @property
    def uncounted(self) -> int | None:
        """The token that is not counted in positions: RoBERTa's padding, with the row before the first position's."""
        return self.pad_id if self.skips_padding else None

    @property
    def n_positions(self) -> int:
        """Rows of the position table."""
        return self.first_position + self.max_length

    @property
    def reads_token_types(self) -> bool:
        """Whether the model distinguishes the tokens of two texts."""
        return self.n_token_types > 1

    @property
    def scoring(self) -> str:
        """The function from logits to scores: "none" for regression, "sigmoid" for independent labels or one label,
        else "softmax"."""
        if self.head == "sequence-classification" and self.problem_type == "regression":
            return "none"
        several = self.problem_type == "multi_label_classification"
        one = self.head == "sequence-classification" and (several or len(self.labels) == 1)
        return "sigmoid" if one or self.head == "replaced-token" else "softmax"

    @property
    def n_outputs(self) -> int:
        """Width of the head's last linear; 0 for a model without a head."""
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
