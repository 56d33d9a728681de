"""Direct logit attribution: a logit as a sum over embeddings, heads, feed-forward networks, words and biases.

The head of a model reads one row of the last layer, that of token p. This row is what the embeddings, each layer's
attention and each layer's FFN have written to it, one added to the other. Everything after such an addition is linear
in it once three things are held at the values that they have on this text: the mean and the standard deviation of each
layer norm, and in the head's activation the factor act(h) / h. A logit w . f + b is therefore pulled back, step by
step, to the places where it was written:

    logit = u . f + b              u the column of the head's weight W; with `against`, a difference of two columns
    f = act(h) = h * g             u <- u * g,  g = act(h) / h held               (pooler, head of masked words)
    h = x W + b                    u <- W u,    the bias adds u . b
    y = (x - E[x]) s * gamma + beta, s = 1 / sqrt(Var[x] + eps) held
                                   u <- s (gamma u - E[gamma u]),  the bias adds u . beta
    x = r + A + b_O, A = sum over heads h of sum over tokens j of W_h[p, j] V_h[j] W_O_h
                                   head h adds u . A_h, of it token j adds W_h[p, j] V_h[j] W_O_h u; the bias u . b_O
    x = r + FFN                    the FFN adds u . (FFN - b_2), the bias u . b_2

and the walk goes on with r, down to the embeddings. In a decoder's layer (BART) attention to the source stands between
the two and is taken apart like attention; all that the encoder adds is in its heads. In a post-norm layer (BERT) each
addition is followed by a norm, so what a layer writes passes the norms of all later layers; in a pre-norm layer (GPT)
only the last norm follows. The sum is the logit, to rounding. `heads.py`, `encoder_layers.py` and
`decoder_layers.py` have the forward.

Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits", has the decomposition, nostalgebraist, 2020,
"interpreting GPT: the logit lens", the lens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npformer.base_model import check_model
from npformer.common.errors import NpformerError
from npformer.functions import layer_norm
from npformer.interpret.effects import Effects
from npformer.interpret.metric import Logit, label_name, logits_asked
from npformer.interpret.study_inputs import row_read
from npformer.interpret.traces import Trace, trace
from npformer.model import Model
from npformer.runtime.packing import Text
from npformer.transformer import POOLED_HEADS, answer, embedded


@dataclass(frozen=True, eq=False, repr=False)
class LogitAttribution:
    """The result of `logit_attribution`: the parts of a logit, which add up to it.

    `embeddings` has the part of each table, `heads` (n_layers, n_heads, T) that of each head by the token it reads,
    `ffn` (n_layers,) that of each feed-forward network, `biases` that of each bias by the name of its stage. `lens`
    (n_layers + 1, C) has the logits that the head gives for the row after the embeddings and after each layer.
    Where a decoder reads a text again, the layers are the decoder's, after the heads of its self-attention come those
    that attend to the encoder's output, and the first token is the one that the decoder starts with: `position` is a
    place in `tokens`, whose row tells of the token after it.
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
    lens_logit: np.ndarray  # (n_layers + 1,) of these the number that is explained
    lens_labels: tuple[str, ...]  # the label or word with the largest logit after the embeddings and each layer
    source_heads: int = 0  # of the heads, the last so many, which attend to the encoder's output

    @property
    def words(self) -> np.ndarray:
        """What each token adds in each part, (n_layers + 1, T): the embeddings, then the layers, without biases.

        A token adds to a layer what the heads read from it, and token `position` also the FFN.
        """
        rows = np.concatenate([np.zeros((1, len(self.tokens))), self.heads.sum(axis=1)])
        rows[:, self.position] += [sum(self.embeddings.values()), *self.ffn]
        return rows

    @property
    def accumulated(self) -> np.ndarray:
        """The sum of the parts up to the embeddings and up to each layer, with their biases, (n_layers + 1,)."""
        return np.cumsum(self.words.sum(axis=1) + self._biases_of_layers())

    @property
    def total(self) -> float:
        """The sum of all parts and biases, which is the logit but for rounding."""
        return float(self.words.sum() + sum(self.biases.values()))

    def _biases_of_layers(self) -> np.ndarray:
        sums = np.zeros(len(self.ffn) + 1)
        for name, value in self.biases.items():
            kind, _, rest = name.removeprefix("decoder.").partition(".")
            if kind in ("embeddings", "layers"):
                sums[0 if kind == "embeddings" else 1 + int(rest.partition(".")[0])] += value
        return sums

    def by_layer(self) -> Effects:
        """The table of embeddings and layers: each head, the FFN, biases, their sum, the sum so far, and the lens."""
        count, heads = self.heads.shape[:2]
        biases = self._biases_of_layers()
        values = np.full((count + 2, heads + 5), np.nan)
        values[1:-1, :heads] = self.heads.sum(axis=-1)
        values[1:-1, heads] = self.ffn
        values[:-1, heads + 1] = biases
        values[:-1, heads + 2] = self.words.sum(axis=1) + biases
        values[:-1, heads + 3] = self.accumulated
        values[:-1, heads + 4] = self.lens_logit
        after = sum(self.biases.values()) - biases.sum()
        values[-1, heads + 1 :] = [after, after, self.total, self.logit]
        rows = ("embeddings", *(f"layer {i}" for i in range(count)), "model head")
        own = heads - self.source_heads
        names = (*(f"head {i}" for i in range(own)), *(f"source {i}" for i in range(self.source_heads)))
        columns = (*names, "FFN", "biases", "sum", "so far", "lens")
        return Effects(values, rows, columns, f"{self.what}: what each part adds", ("sum", "so far", "lens"))

    def by_word(self) -> Effects:
        """The table of tokens: what the embeddings and each layer read from it, and their sum."""
        columns = ("embed", *(f"layer {i}" for i in range(len(self.ffn))), "sum")
        values = np.concatenate([self.words, self.words.sum(axis=0, keepdims=True)]).T
        return Effects(values, self.tokens, columns, f"{self.what}: what each word adds, without biases", ("sum",))

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
    """Takes a logit apart into what the embeddings, each head, each FFN and each word add to it.

    The parts add up to the logit. They are exact for layer norms whose means and deviations are held (a later norm
    scales what an earlier layer wrote), and for a held factor act(h) / h in the head.
    `interpret/direct_attribution.py` has the formula. Inside `npformer.edit` the edited forward is explained; an edit
    of a sum, a norm or a context, which no part computes, shows as a difference between `total` and `logit`.

    Parameters
    ----------
    model : Model with a head
    text : str, Pair or token ids
    label : str or int, optional
        The label or word to explain; by default the model's answer. For spans "start" (the default) or "end".
    position : int, optional
        For a head on tokens, the token whose logit is meant; by default the masked word, if there is one, and for
        causal-lm the last token, after which the next word comes.
    against : str or int, optional
        Another label, whose logit is subtracted: with two labels the difference is the log-odds.

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
    """
    check_model("logit_attribution", model, Model)
    recorded = trace(model, text)
    if isinstance(recorded.ids, list):
        raise NpformerError("logit_attribution: expected one text; call it for each of several")
    config = model.config
    names = ("start_logits", "end_logits") if config.head == "question-answering" else ("logits",)
    answers = {name: recorded[name] for name in names if name in recorded}
    asked: dict[str, Any] = {"text": _Ids(recorded.ids), "caller": "logit_attribution"}
    if config.convolution:
        raise NpformerError("logit_attribution: unsupported: a convolution beside the first layer")
    if config.head in POOLED_HEADS and config.pooling == "mean":
        raise NpformerError("logit_attribution: unsupported: a head that reads the mean of all rows")
    label = "start" if config.head == "question-answering" and label is None else label
    wanted = logits_asked(model, label, position, answers, **asked)
    if len(wanted) != 1:  # a head on tokens
        raise NpformerError(
            f"logit_attribution: position: expected the token to explain, one of {len(wanted)}, got none"
        )
    (logit,) = wanted
    subtracted = logits_asked(model, against, position, answers, **asked) if against is not None else []
    if logit in subtracted:
        raise NpformerError(f"logit_attribution: against={against!r}: expected another label than the one to explain")
    return _Walk(model, recorded, logit, subtracted, answers).result()


def head_results(model: Model, recorded: Trace) -> np.ndarray:
    """Stacks what each head of each layer writes to the stream, context_h W_O_h: (n_layers, H, T, D), without b_O."""
    if model.config.decoder:
        raise NpformerError("head_results: expected a model with one stack; this one has an encoder and a decoder")
    stacked = []
    for i, layer in enumerate(model.weights["layers"]):
        context = recorded[f"layers.{i}.attention.context"]
        output = layer["attention"]["output"]["weight"]
        stacked.append(context @ output.reshape(len(context), -1, output.shape[-1]))
    return np.stack(stacked)


@dataclass(frozen=True)
class _Ids:
    ids: np.ndarray


@dataclass
class _Walk:
    """Carries the direction `u` of a logit from the head down to the embeddings, and notes what it meets."""

    model: Model
    stages: Trace
    logit: Logit
    against: list[Logit]
    answers: Mapping[str, np.ndarray]
    biases: dict[str, float] = field(default_factory=dict)

    def result(self) -> LogitAttribution:
        config, stages, weights = self.model.config, self.stages, self.stack
        ids = stages.ids if stages.key_ids is None else stages.key_ids  # a decoder reads the text a token later
        self.row = row_read(config, Text(ids)) if config.head in POOLED_HEADS else self.logit.place[0]
        self.head()
        count, tokens = len(weights["layers"]), self.tokens()
        if "norm" in weights:
            self.norm(f"{self.at}norm", self.stream(count)[self.row], weights["norm"])
        of_source = config.decoder.n_heads if config.decoder else 0
        heads = np.zeros((count, of_source + (of_source or config.n_heads), len(tokens)))
        own, ffn = heads.shape[1] - of_source, np.zeros(count)
        for i in reversed(range(count)):
            layer, here = weights["layers"][i], f"{self.at}layers.{i}."
            self.after_block(f"{here}ffn", layer["ffn_norm"])
            ffn[i] = self.block(f"{here}ffn.output", layer["ffn"]["output"])
            if of_source:
                heads[i, own:, 1:] = self.attention(f"{here}cross_attention", layer)
            heads[i, :own, : len(stages.ids)] = self.attention(f"{here}attention", layer)
        embeddings = self.embeddings(weights["embeddings"])
        lens = np.stack([self.lens(i) for i in range(count + 1)])
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
            what, value, tokens, self.row, embeddings, heads, ffn, self.biases, lens, seen, labels, of_source
        )

    @property
    def at(self) -> str:
        """How the names begin of the stack that the head reads."""
        return "decoder." if self.model.config.decoder else ""

    @property
    def stack(self) -> Mapping[str, Any]:
        """The weights of the stack that the head reads."""
        weights: Mapping[str, Any] = self.model.weights["decoder"] if self.at else self.model.weights
        return weights

    def tokens(self) -> tuple[str, ...]:
        """The tokens that are read: those of the stack, and the last, which the encoder alone has read."""
        own = self.stages.tokens or list(map(str, range(len(self.stages.ids))))
        return (*own[:1], *(self.stages.key_tokens or ())) if self.at else tuple(own)

    # --- the way down ------------------------------------------------------------------------------------------------

    def head(self) -> None:
        """Starts at the logit: through the last linear layer, and the pooler or what is below it in the head."""
        config, weights, stages = self.model.config, self.model.weights, self.stages
        output = weights["head"]["output"]
        columns = {"start_logits": 0, "end_logits": 1}
        self.u: np.ndarray = np.zeros(output["weight"].shape[0])
        bias = 0.0
        for each, sign in [(self.logit, 1), *((each, -1) for each in self.against)]:
            column = columns.get(each.answer, each.place[-1] if output["weight"].shape[1] > 1 else 0)
            self.u += sign * output["weight"][:, column].astype(np.float64)
            bias += sign * float(output["bias"][column]) if "bias" in output else 0.0
        self.biases["logits"] = bias
        if config.head in POOLED_HEADS and "pooler" in weights:
            self.gate(stages["pooler"], stages["pooled"])
            self.linear("pooler", weights["pooler"])
        if "hidden" in weights["head"]:
            head, at = weights["head"], ... if config.head in POOLED_HEADS else self.row
            if "norm" in head:
                self.norm("head.norm", stages["head.activation"][at], head["norm"])
            self.gate(stages["head.hidden"][at], stages["head.activation"][at])
            self.linear("head.hidden", head["hidden"])

    def linear(self, name: str, layer: Mapping[str, np.ndarray]) -> None:
        """u . (x W + b) = (W u) . x + u . b."""
        if "bias" in layer:
            self.biases[name] = float(self.u @ layer["bias"])
        self.u = layer["weight"].astype(np.float64) @ self.u

    def gate(self, h: np.ndarray, activated: np.ndarray) -> None:
        """u . act(h) = (u act(h) / h) . h; where h is 0, so is act(h)."""
        h = h.astype(np.float64)
        self.u = self.u * np.divide(activated, h, out=np.zeros_like(h), where=h != 0)

    def norm(self, name: str, x: np.ndarray, layer: Mapping[str, np.ndarray]) -> None:
        """u . Normalize(x) = s (gamma u - E[gamma u]) . x + u . beta, with s = 1 / sqrt(Var[x] + eps) held."""
        if "bias" in layer:
            self.biases[name] = float(self.u @ layer["bias"])
        scaled = self.u * layer["weight"] if "weight" in layer else self.u
        deviation = np.sqrt(x.astype(np.float64).var() + self.model.config.eps)
        self.u = (scaled - scaled.mean()) / deviation

    def after_block(self, name: str, layer: Mapping[str, np.ndarray]) -> None:
        """Passes the norm that stands after a block's addition; a pre-norm layer has none there."""
        if not self.model.config.norm_first:
            self.norm(f"{name}_norm", self.stages[f"{name}_residual"][self.row], layer)

    def block(self, name: str, layer: Mapping[str, np.ndarray]) -> float:
        """Returns what a block writes to the row, less its bias, which is noted."""
        bias = float(self.u @ layer["bias"]) if "bias" in layer else 0.0
        self.biases[name] = bias
        return float(self.u @ self.stages[name][self.row]) - bias

    def attention(self, name: str, layer: Mapping[str, Any]) -> np.ndarray:
        """W_h[p, j] V_h[j] W_O_h u of each head h and token j, (H, T), after the norm and the bias of the block."""
        block = name.rpartition(".")[2]
        self.after_block(name, layer.get(f"{block}_norm", {}))
        self.block(f"{name}.output", layer[block]["output"])
        output = layer[block]["output"]["weight"]
        weights = self.stages[f"{name}.weights"][:, self.row]  # (H, T)
        values = self.stages[f"{name}.value_heads"]  # (H, T, K)
        directions = (output.astype(np.float64) @ self.u).reshape(len(values), -1, 1)  # W_O_h u, (H, K, 1)
        return weights * (values @ directions)[..., 0]

    def embeddings(self, tables: Mapping[str, Any]) -> dict[str, float]:
        """Passes the projection and the norm of the embeddings; returns the part of each table."""
        if "project" in tables:
            self.linear(f"{self.at}embeddings.project", tables["project"])
        if "norm" in tables:
            self.norm(f"{self.at}embeddings.norm", self.stages[f"{self.at}embeddings.sum"][self.row], tables["norm"])
        names = [name for name in ("token", "position", "segment") if f"{self.at}embeddings.{name}" in self.stages]
        return {name: float(self.u @ self.stages[f"{self.at}embeddings.{name}"][self.row]) for name in names}

    # --- the lens ----------------------------------------------------------------------------------------------------

    def stream(self, depth: int) -> np.ndarray:
        """The rows that layer `depth` reads, and after the last layer those that the last norm or the head reads."""
        if depth == 0:
            return self.stages[self.at + embedded(self.stack["embeddings"])]
        last = "ffn_residual" if self.model.config.norm_first else "ffn_norm"
        return self.stages[f"{self.at}layers.{depth - 1}.{last}"]

    def lens(self, depth: int) -> np.ndarray:
        """The logits that the head, with the last norm, gives for the stream before layer `depth`, at the row."""
        weights, config = self.model.weights, self.model.config
        rows = self.stream(depth)[self.row : self.row + 1]
        if "norm" in self.stack:
            rows = layer_norm(rows, **self.stack["norm"], eps=config.eps)
        return answer(weights, config, rows, rows)[self.logit.answer].reshape(-1)
