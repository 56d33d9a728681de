"""Direct logit attribution: a logit as the sum of parts from embeddings, heads, feed-forward networks and biases.

The head of a model reads one row of the last layer, the row of token p. This row is the sum of everything that the
embeddings and each layer's attention and FFN have written to it. The rest of the model is a linear function of each
addend if three quantities are held constant at their values on this text: the mean and the standard deviation of each
layer norm, and the factor act(h) / h in the head's activation. A logit w . f + b is therefore pulled back, step by
step, to the addends:

    logit = u . f + b              u the column of the head's weight W; with `against`, a difference of two columns
    f = act(h) = h * g             u <- u * g,  g = act(h) / h held               (pooler, head of masked words)
    h = x W + b                    u <- W u,    the bias adds u . b
    y = (x - E[x]) s * gamma + beta, s = 1 / sqrt(Var[x] + eps) held
                                   u <- s (gamma u - E[gamma u]),  the bias adds u . beta
    x = r + A + b_O, A = sum over heads h of sum over tokens j of W_h[p, j] V_h[j] W_O_h
                                   head h adds u . A_h, of which token j adds W_h[p, j] V_h[j] W_O_h u; the bias u . b_O
    x = r + FFN                    the FFN adds u . (FFN - b_2), the bias u . b_2

and so on with r, down to the embeddings. Each part of a model implements its line as `pull`, next to its forward pass.
In a decoder layer (BART), cross-attention precedes the FFN and is split like attention; its heads
include everything that the encoder contributes. A convolution that is added to the first layer (DeBERTa) is split among
the embedding rows that it reads. In a post-norm layer (BERT), a norm follows each addition, so a layer's output goes
through the norms of all later layers. In a pre-norm layer (GPT), it goes only through the last norm. Except for
rounding, the parts add up to the logit.

Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits", describes the decomposition. nostalgebraist,
2020, "interpreting GPT: the logit lens", describes the lens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npformer.base_model import check_model
from npformer.common.errors import NpformerError
from npformer.config import POOLED_HEADS
from npformer.engine.blocks.output_norm import NAME as OUTPUT_NORM
from npformer.engine.direction import Direction
from npformer.engine.functions import log_softmax
from npformer.engine.output_heads.heads import Head
from npformer.engine.runtime.packing import Text
from npformer.engine.transformer import head_stack
from npformer.interpret.effects import Effects
from npformer.interpret.logit_lens import hidden_logits, streams
from npformer.interpret.metric import Logit, label_name, logits_asked
from npformer.interpret.study_inputs import row_read
from npformer.interpret.traces import Trace, trace
from npformer.model import Model


@dataclass(frozen=True, eq=False, repr=False)
class LogitAttribution:
    """The result of `logit_attribution`: parts that add up to a logit.

    `embeddings` has the part of each table, `heads` (n_layers, n_heads, T) the part of each head for each token that it
    reads, `ffn` (n_layers,) the part of each feed-forward network, `convolution` (T,) the part of each token in a
    convolution, and `biases` the part of each bias, by the name of its stage. `lens` (n_layers + 1, C) has the logits
    that the head computes from the row after the embeddings and after each layer. If the model has a decoder, the
    layers are the decoder's. Heads of self-attention precede heads of cross-attention, and the first token is
    the decoder's start token. `position` is the index in `tokens` of the row that the head reads.
    """

    what: str
    logit: float
    tokens: tuple[str, ...]
    position: int
    embeddings: dict[str, float]
    heads: np.ndarray
    ffn: np.ndarray
    biases: dict[str, float]
    lens: np.ndarray
    lens_logit: np.ndarray  # (n_layers + 1,) `lens` of the explained label
    lens_labels: tuple[str, ...]  # label or word with the largest logit in each row of `lens`
    source_heads: int = 0  # number of cross-attention heads, which come last
    convolution: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (0,) without a convolution

    @property
    def words(self) -> np.ndarray:
        """The contribution of each token through the embeddings and each layer, without biases, (n_layers + 1, T).

        The contribution of a layer's heads is split among the tokens that they read. The contribution of the FFN counts
        for token `position`. A convolution counts as part of the first layer.
        """
        rows = np.concatenate([np.zeros((1, len(self.tokens))), self.heads.sum(axis=1)])
        rows[:, self.position] += [sum(self.embeddings.values()), *self.ffn]
        if self.convolution.size:
            rows[1] += self.convolution
        return rows

    @property
    def accumulated(self) -> np.ndarray:
        """The running sum of parts and biases after the embeddings and after each layer, (n_layers + 1,)."""
        return np.cumsum(self.words.sum(axis=1) + self._biases_of_layers())

    @property
    def total(self) -> float:
        """The sum of all parts and biases: the logit, up to rounding."""
        return float(self.words.sum() + sum(self.biases.values()))

    def _biases_of_layers(self) -> np.ndarray:
        sums = np.zeros(len(self.ffn) + 1)
        for name, value in self.biases.items():
            kind, _, rest = name.removeprefix("decoder.").partition(".")
            if kind == "layers" or kind.startswith("convolution"):  # a convolution belongs to the first layer
                sums[1 + int(rest.partition(".")[0] if kind == "layers" else 0)] += value
            elif kind == "embeddings":
                sums[0] += value
        return sums

    def by_layer(self) -> Effects:
        """Returns the table by layer: the embeddings, each head, the FFN, biases, running sums, and the lens."""
        count, heads = self.heads.shape[:2]
        biases = self._biases_of_layers()
        values = np.full((count + 2, heads + 6), np.nan)
        values[0, 0] = sum(self.embeddings.values())
        values[1:-1, 1 : heads + 1] = self.heads.sum(axis=-1)
        values[1:-1, heads + 1] = self.ffn
        values[:-1, heads + 2] = biases
        values[:-1, heads + 3] = self.words.sum(axis=1) + biases
        values[:-1, heads + 4] = self.accumulated
        values[:-1, heads + 5] = self.lens_logit
        after = sum(self.biases.values()) - biases.sum()
        values[-1, heads + 2 :] = [after, after, self.total, self.logit]
        rows = ("embeddings", *(f"layer {i}" for i in range(count)), "model head")
        own = heads - self.source_heads
        names = (*(f"head {i}" for i in range(own)), *(f"source {i}" for i in range(self.source_heads)))
        columns = ["embed", *names, "FFN", "biases", "sum", "so far", "lens"]
        if self.convolution.size:
            columns.insert(heads + 2, "convolution")
            values = np.insert(values, heads + 2, [np.nan, self.convolution.sum(), *[np.nan] * count], axis=1)
        return Effects(values, rows, tuple(columns), f"{self.what}: each part's share", ("sum", "so far", "lens"))

    def by_word(self) -> Effects:
        """Returns the table by token: its contribution through the embeddings and through each layer, and the sum."""
        columns = ("embed", *(f"layer {i}" for i in range(len(self.ffn))), "sum")
        values = np.concatenate([self.words, self.words.sum(axis=0, keepdims=True)]).T
        return Effects(values, self.tokens, columns, f"{self.what}: each word's share, without biases", ("sum",))

    def __repr__(self) -> str:
        layers, heads, tokens = self.heads.shape
        parts = f"{layers} layers, {heads} heads, {tokens} tokens"
        return f"<npformer.LogitAttribution: {self.what}, {self.logit:z.4f}, of {parts}>"

    def __str__(self) -> str:
        sums = f"The parts sum to {self.total:z.4f}; {self.what} is {self.logit:z.4f}."
        return f"{self.by_layer()}\n\n{self.by_word()}\n\n{sums}"

    def _repr_html_(self) -> str:
        return self.by_layer()._repr_html_() + "\n" + self.by_word()._repr_html_()


def logit_attribution(
    model: Model,
    text: Any,
    label: str | int | None = None,
    *,
    position: int | None = None,
    against: str | int | None = None,
) -> LogitAttribution:
    """Decomposes a logit into the contributions of the embeddings, each head, each FFN and each word.

    The parts add up to the logit. They are exact contributions if the mean and deviation of layer norms, and the factor
    act(h) / h in the head, are held constant at their values on this text. A later norm scales the output of earlier
    layers. `interpret/direct_attribution.py` has the formula. Inside `npformer.edit`, the parts belong to the edited
    forward pass. An edit of a sum, a norm or a context causes a difference between `total` and `logit`, because the
    edit belongs to no part.

    Parameters
    ----------
    model : Model with a head, or Seq2Seq
    text : str, Pair or token ids; a translation model also takes a tuple of token ids (source, target)
    label : str or int, optional
        The label or word to explain; by default the model's answer. For spans, "start" (the default) or "end".
    position : int, optional
        For a head that computes a row for each token, the token whose logit is explained: by default the masked word,
        if there is one, and for causal-lm the last token, which precedes the predicted word. For a translation, the
        decoder input token just before the word to explain. By default, this is the least probable word, which is also
        the label.
    against : str or int, optional
        A second label, whose logit is subtracted. If the model has two labels, the difference is the log-odds.

    Returns
    -------
    LogitAttribution
        Arrays `heads`, `ffn`, `embeddings`, `biases`, `words`, `accumulated` and `lens`; tables `by_layer()` and
        `by_word()`, which are heat maps in a notebook.

    Raises
    ------
    NpformerError
        If the model has no logits, the label is unknown, or the position is missing or outside the text.

    References
    ----------
    Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits".

    Examples
    --------
    >>> found = logit_attribution(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> found.heads.shape, found.what
    ((6, 12, 6), 'the logit of POSITIVE')
    >>> bool(abs(found.total - found.logit) < 1e-4)
    True
    >>> by_layer, by_word = found.by_layer(), found.by_word()
    """
    check_model("logit_attribution", model)
    recorded = trace(model, text)
    if isinstance(recorded.ids, list):
        raise NpformerError("logit_attribution: expected one text; call it once per text")
    config = model.config
    names = ("start_logits", "end_logits") if config.head == "question-answering" else ("logits",)
    answers = {name: recorded[name] for name in names if name in recorded}
    asked: dict[str, Any] = {"text": Text(recorded.ids), "caller": "logit_attribution"}
    if config.head in POOLED_HEADS and config.pooling == "mean":
        raise NpformerError("logit_attribution: unsupported: a head that reads the mean of all rows")
    label = "start" if config.head == "question-answering" and label is None else label
    if config.head == "translation" and label is None and position is None:
        position, label = least_probable(recorded)
    wanted = logits_asked(model, label, position, answers, **asked)
    if len(wanted) != 1:  # the head has a row for each token
        raise NpformerError(
            f"logit_attribution: position: expected the number of the token to explain, one of {len(wanted)} tokens"
        )
    (logit,) = wanted
    subtracted = logits_asked(model, against, position, answers, **asked) if against is not None else []
    if logit in subtracted:
        raise NpformerError(f"logit_attribution: against={against!r}: expected a label other than the one to explain")
    given = text.places if isinstance(text, Text) else None
    places = np.arange(len(recorded.ids)) if given is None else given
    return _Walk(model, recorded, logit, subtracted, answers, places).result()


def least_probable(recorded: Trace) -> tuple[int, int | None]:
    """Returns the position before a translation's least probable word, and the word's id; (0, None) without words."""
    ids = np.asarray(recorded.ids)[1:]
    if not len(ids):
        return 0, None
    scores = log_softmax(recorded["logits"][: len(ids)].astype(np.float64))[np.arange(len(ids)), ids]
    return int(scores.argmin()), int(ids[scores.argmin()])


def head_results(model: Model, recorded: Trace) -> np.ndarray:
    """Returns the output of each head of each layer, context_h W_O_h without b_O: (n_layers, H, T, D).

    If attention's output has a norm (RMSNorm), its scale is held constant.
    """
    if model.config.decoder:
        raise NpformerError("head_results: expected a model with one stack; this one has an encoder and a decoder")
    stacked = []
    for i, layer in enumerate(model.weights["layers"]):
        context = recorded[f"layers.{i}.attention.context"]
        output = layer["attention"]["output"]["weight"]
        written = context @ output.reshape(len(context), -1, output.shape[-1])
        if OUTPUT_NORM in layer["attention"]:  # the norm's scale is kept constant
            before, after = (recorded[f"layers.{i}.attention.{name}"] for name in ("output", OUTPUT_NORM))
            written *= np.divide(after, before, out=np.zeros_like(after), where=before != 0)
        stacked.append(written)
    return np.stack(stacked)


@dataclass
class _Walk:
    """Pulls a logit of a model on a text back through the model's parts."""

    model: Model
    stages: Trace
    logit: Logit
    against: list[Logit]
    answers: Mapping[str, np.ndarray]
    places: np.ndarray

    def __post_init__(self) -> None:
        config, stages = self.model.config, self.stages
        ids = stages.ids if stages.key_ids is None else stages.key_ids  # a decoder reads tokens one position later
        self.row = row_read(config, Text(ids)) if config.head in POOLED_HEADS else self.logit.place[0]
        self.embeddings, self.stack, self.at, self.weights = head_stack(self.model.parts, self.model.weights)
        self.streams = streams(self.model)

    def result(self) -> LogitAttribution:
        config, tokens = self.model.config, self.tokens()
        direction = self.head()
        parts = self.stack.pull(direction, self.at, self.weights)
        embeddings = self.embeddings.pull(direction, self.at, self.weights)
        count, of_source = len(parts), config.decoder.n_heads if config.decoder else 0
        heads = np.zeros((count, of_source + (of_source or config.n_heads), len(tokens)))
        own = heads.shape[1] - of_source
        first_source = len(tokens) - len(self.stages.key_tokens or ())
        for i, part in enumerate(parts):
            heads[i, :own, : len(self.stages.ids)] = part["attention"]
            if of_source:
                heads[i, own:, first_source:] = part["cross_attention"]
        rows = np.stack([self.stages[name][self.row] for name in self.streams])
        lens = hidden_logits(self.model, rows, self.logit.answer)
        at = [each.place[-1] if lens.shape[1] > 1 else 0 for each in (self.logit, *self.against)]
        value = float(self.answers[self.logit.answer][self.logit.place])
        seen = lens[:, at[0]].astype(np.float64)
        for each, column in zip(self.against, at[1:], strict=True):
            value -= float(self.answers[each.answer][each.place])
            seen = seen - lens[:, column]
        what = " less ".join(each.what for each in (self.logit, *self.against))
        labels = (
            tuple(label_name(self.model, int(each.argmax()), len(each)) for each in lens) if lens.shape[1] > 1 else ()
        )
        return LogitAttribution(
            *(what, value, tokens, self.row, embeddings, heads, np.array([float(part["ffn"]) for part in parts])),
            *(direction.biases, lens, seen, labels, of_source),
            parts[0].get("convolution", np.zeros(0)),
        )

    def tokens(self) -> tuple[str, ...]:
        """Returns the tokens of the stack.

        If a decoder reads the text again, they are the start token and the tokens of the text. For a translation, they
        are the tokens of the decoder and of the source.
        """
        own = self.stages.tokens or list(map(str, range(len(self.stages.ids))))
        again = 1 if self.model.config.head != "translation" else None
        return (*own[:again], *(self.stages.key_tokens or ())) if self.at else tuple(own)

    def head(self) -> Direction:
        """Returns the logit's direction, pulled back through the head's layers to the row that the head reads."""
        weights = self.model.weights
        output = weights["head"]["output"]
        columns = {"start_logits": 0, "end_logits": 1}
        head = self.model.parts.head
        assert isinstance(head, Head)
        direction = Direction(np.zeros(len(output["weight"])), self.row, self.stages, self.streams[0], self.places)
        bias = 0.0
        for each, sign in [(self.logit, 1), *((each, -1) for each in self.against)]:
            column = columns.get(each.answer, each.place[-1] if output["weight"].shape[1] > 1 else 0)
            gain = sign * head.gain(self.stages, each.place)
            direction.u += gain * output["weight"][:, column].astype(np.float64)
            bias += gain * float(output["bias"][column]) if "bias" in output else 0.0
        direction.biases["logits"] = bias
        head.pull(direction, weights)
        return direction
