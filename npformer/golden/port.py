"""A simulated port: the correct model with changes. `mistakes/` makes such ports, and `forward.py` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.functions import softmax
from npformer.engine.runtime.packing import Text
from npformer.golden.graph import head_width, heads_of, matches, parted, stacks
from npformer.golden.mistake import Rule, Rules
from npformer.golden.recomputed import convolved
from npformer.golden.rounded import Rounded

HEAD_NORMS = ("attention.query_norm", "attention.key_norm")  # groups whose stages end with "_normed"
#: Last part of a group of weights for relative positions -> the stage that is computed with it.
TABLES = {
    "relative_bias": "attention.scores",
    **dict.fromkeys(
        ("distances", "distances_norm", "attention.distance_key", "attention.distance_query"),
        "attention.distance_scores",
    ),
}
FORMS: dict[str, Callable[[float], float]] = {
    "1 / sqrt({})": lambda n: n**-0.5,
    "sqrt({})": lambda n: n**0.5,
    "1 / {}": lambda n: 1 / n,
    "{}": lambda n: n,
    "1 / sqrt(2 {})": lambda n: (2 * n) ** -0.5,
    "1 / int(sqrt({}))": lambda n: 1 / int(n**0.5),
}


@dataclass(frozen=True)
class Port:
    """A simulated port: its config, weights, texts and rules, and the stage to explain."""

    config: Config
    weights: Mapping[str, np.ndarray]  # by flat name
    texts: list[Text]  # for a translation model, the decoder's input
    stage: str  # the stage to explain
    theirs: list[np.ndarray]  # the other program's values for the stage
    span: frozenset[str]  # the stages to compute, from the other program's stages up to this one
    widths: tuple[int, ...]  # tokens of each text in the other program, with padding
    lengths: tuple[int, ...]  # lengths of the golden file's texts
    rightly: list[np.ndarray] = field(default_factory=list)  # the correct stage, from the other program's inputs
    known: tuple[str, ...] = ()  # all stages of the model, in order of computation
    rules: tuple[tuple[str, Rule], ...] = ()
    touched: frozenset[str] = frozenset()  # patterns of the stages that change
    dtype: str = "float32"  # the precision that sets the budget
    possible: bool = True  # False if no model can have this config
    hides: bool = False  # the texts are padded, and a mask hides the padding
    sources: list[Text] = field(default_factory=list)  # for a translation model, the encoder's input
    source_widths: tuple[int, ...] = ()  # tokens of each source in the other program, with padding
    source_lengths: tuple[int, ...] = ()  # lengths of the golden file's sources
    given: Mapping[str, list[np.ndarray]] = field(default_factory=dict)  # the other program's stages
    truth: Mapping[str, list[np.ndarray]] = field(default_factory=dict)  # the golden file's stages
    budgets: Mapping[str, float] = field(default_factory=dict)  # stage -> its budget in the port's precision
    at_end: bool = False  # the texts are padded on the left, and the other program's stages exclude the padding
    reads: tuple[tuple[str, Rule], ...] = ()  # rules that change a stage only where later stages read it
    stored: Mapping[str, np.ndarray] = field(default_factory=dict)  # the weights without any mistake

    def ruling(self, rules: Rules) -> Port:
        """Returns a copy of the port with more rules, a dict from a stage pattern to a change."""
        return replace(self, rules=(*self.rules, *rules.items()), touched=self.touched | set(rules))

    def rereading(self, rules: Rules, *touched: str) -> Port:
        """Returns the port with rules that change stages only where the stages `touched` read them."""
        return replace(self, reads=(*self.reads, *rules.items()), touched=self.touched | set(touched))

    def weighing(self, changes: Mapping[str, np.ndarray]) -> Port:
        """Returns the port with some weights replaced."""
        stages = {stage for name in changes for stage in made_by(name.rpartition(".")[0])}
        return replace(self, weights={**self.weights, **changes}, touched=self.touched | stages)

    def regrouping(self, groups: Mapping[str, str]) -> Port:
        """Returns the port with groups of weights replaced by other groups, marked impossible if shapes differ."""
        pairs = ((f"{own}.{part}", f"{other}.{part}") for own, other in groups.items() for part in ("weight", "bias"))
        changes = {own: self.weights[other] for own, other in pairs if {own, other} <= self.weights.keys()}
        alike = all(array.shape == self.weights[own].shape for own, array in changes.items())
        return replace(self.weighing(changes), possible=self.possible and alike)

    def exchanging(self, *pairs: tuple[str, str]) -> Port:
        """Returns the port with the two groups of weights of each pair exchanged."""
        return self.regrouping(dict([*pairs, *(pair[::-1] for pair in pairs)]))

    def exchanging_in_layers(self, one: str, other: str) -> Port:
        """Returns the port with two groups of weights of each layer exchanged."""
        return self.exchanging(*((layer + one, layer + other) for layer in self.layers))

    def rounding(self, rounded: Callable[[np.ndarray], np.ndarray], names: Iterable[str]) -> Port:
        """Returns the port with these weights rounded."""
        names = frozenset(names)
        stages = {stage for name in names for stage in made_by(name.rpartition(".")[0])}
        return replace(self, weights=Rounded(self.weights, rounded, names), touched=self.touched | stages)

    def reading(self, change: Callable[[Text, int], Text]) -> Port:
        """Returns the port with texts and sources replaced by change(text, i)."""
        texts, sources = ([change(text, i) for i, text in enumerate(each)] for each in (self.texts, self.sources))
        return replace(self, texts=texts, sources=sources, touched=self.touched | {"embeddings.*"})

    def with_config(self, *touched: str, **fields: Any) -> Port:
        """Returns the port with changed fields of the config, marked impossible if the config rejects them."""
        try:
            config = replace(self.config, **fields)
        except NpformerError:
            return replace(self, possible=False)
        return replace(self, config=config, touched=self.touched | set(touched))

    def with_mechanism(self, kind: type[Any], *touched: str, local: bool = False, **fields: Any) -> Port:
        """Returns the port with changed fields of a mechanism, in all layers or only in local ones."""
        most, *near = (
            tuple(replace(each, **fields) if isinstance(each, kind) else each for each in of_layers)
            for of_layers in self.config.layer_kinds
        )
        changed: dict[str, Any] = {} if local else {"mechanisms": most}
        if self.config.local:
            changed["local"] = replace(self.config.local, mechanisms=near[0])
        return self.with_config(*touched, **changed)

    def with_heads(self, count: int, *touched: str) -> Port:
        """Returns the port with this number of heads in the stage's stack."""
        if self.stack == "decoder.":
            return self.with_config(*touched, decoder=replace(self.config.decoder, n_heads=count))
        return self.with_config(*touched, n_heads=count)

    @property
    def stack(self) -> str:
        """The stage's stack; for a stage of the head, the last stack."""
        return parted(self.stage)[0] or list(stacks(self.config))[-1]

    @property
    def depth(self) -> int:
        """The number of layers in the stage's stack."""
        return stacks(self.config)[self.stack]

    @property
    def n_heads(self) -> int:
        """The number of attention heads in the stage's stack."""
        return heads_of(self.config, self.stack)

    @property
    def d_head(self) -> int:
        return head_width(self.config, self.stack)

    @property
    def scale(self) -> float:
        """The factor of q k^T in the scores."""
        return float(self.config.score_scale or self.d_head**-0.5)

    @property
    def layers(self) -> list[str]:
        """The prefix of each layer's stages and weights, such as "layers.0."."""
        return [f"{stack}layers.{i}." for stack, count in stacks(self.config).items() for i in range(count)]

    def has(self, name: str) -> bool:
        """Returns whether any stack of the model has this weight."""
        return any(stack + name in self.weights for stack in stacks(self.config))

    # --- padding ---

    @property
    def width(self) -> int:
        """Tokens of the other program's widest text, with padding."""
        return max(self.widths, default=0)

    def is_padded(self, text: int) -> bool:
        """Returns whether the other program pads a text or its source."""
        if self.sources and self.source_lengths[text] < self.source_widths[text]:
            return True
        return self.lengths[text] < self.widths[text]

    @cached_property
    def has_padding(self) -> bool:
        return any(map(self.is_padded, range(len(self.texts))))

    def padded(self, left: bool = False) -> Port | None:
        """Returns the port with texts padded to the batch's length; None if that exceeds the model's maximum length."""
        pad, config = self.config.pad_id or 0, self.config
        if config.pooling == "last" and config.pad_id is None:  # an unused id marks padding for the head
            pad = next(i for i in range(config.vocab_size) if not any(i in text.ids for text in self.texts))
            config = replace(config, pad_id=pad)
        if max((*self.widths, *self.source_widths), default=0) > self.config.max_length:
            return None

        def filled(text: Text, width: int) -> Text:
            room = (width - len(text), 0) if left else (0, width - len(text))
            types = None if text.token_type_ids is None else np.pad(text.token_type_ids, room)
            return Text(np.pad(text.ids, room, constant_values=pad), types)

        touched = {"*.attention.scores", "*.attention.weights", *(["embeddings.*"] if left else [])}
        texts = list(map(filled, self.texts, self.widths))
        sources = list(map(filled, self.sources, self.source_widths))
        return replace(self, config=config, texts=texts, sources=sources, touched=self.touched | touched)

    @property
    def paddings(self) -> dict[str, Port]:
        """The padded ports, by description: padding has its own row of the position table or is counted like tokens."""
        if (padded := self.padded()) is None:
            return {}
        if self.config.uncounted is None:
            return {"": padded}

        def counted(text: Text, i: int) -> Text:
            return replace(text, positions=np.arange(len(text)))

        return {"": padded, "padding counted in positions": replace(padded.reading(counted), touched=padded.touched)}

    def in_a_batch(self) -> Port | None:
        """Returns the port with padded texts and a correct mask; None without padding or if the batch is too long."""
        padded = self.padded() if self.has_padding else None
        if padded is None:
            return None
        rules: dict[str, Rule] = {"*.attention.weights": lambda y, at: softmax(at.scores)}
        if self.config.convolution:
            rules["convolution.hidden"] = lambda y, at: convolved(
                at, at.source * (np.arange(len(y)) < at.n_real)[:, None]
            )
        return replace(padded.ruling(rules), hides=True)

    # --- the stage to explain ---

    @property
    def matters(self) -> bool:
        """Whether the changes are possible and can affect the stage to explain."""
        return self.possible and any(matches(stage, pattern) for pattern in self.touched for stage in self.span)

    def sizes(self, text: int) -> dict[str, int]:
        """Returns the sizes that may explain a constant in a text's stage, such as T, K and D."""
        own, across = parted(self.stage), "cross_attention" in self.stage
        of_source = bool(self.sources) and (own[0] == "encoder." or across)
        length, width = (self.source_lengths, self.source_widths) if of_source else (self.lengths, self.widths)
        of_stack = self.config.decoder if self.stack == "decoder." else self.config
        sizes = {"T": length[text], "K": self.d_head, "D": self.config.d_model, "H": self.n_heads}
        return {**sizes, "F": of_stack.d_ffn, "T with padding": width[text]}

    @property
    def factors(self) -> dict[str, Callable[[int], float]]:
        """Factors by name, such as "sqrt(K)", made from sizes that are not always 1. Each is a function of a text."""

        def of(size: str, form: str) -> Callable[[int], float]:
            return lambda text: FORMS[form](self.sizes(text)[size])

        texts = range(len(self.texts))
        sizes = [size for size in self.sizes(0) if any(self.sizes(text)[size] != 1 for text in texts)]
        return {
            form.format(size): of(size, form) for size in sizes for form in FORMS if size in "KD" or "int" not in form
        }

    def is_rule_for(self, base: Port) -> bool:
        """Returns whether the port differs from `base` only in rules, including one for the stage to explain."""
        same = self.config == base.config and self.weights is base.weights and self.reads == base.reads
        return same and any(matches(base.stage, pattern) for pattern in self.touched)

    def runs_with(self, other: Port) -> bool:
        """Returns whether the port differs from another only in rules, so that both can run together."""
        alike = (
            getattr(self, name) is getattr(other, name) for name in ("config", "weights", "texts", "sources", "span")
        )
        return (self.hides, self.at_end) == (other.hides, other.at_end) and all(alike)

    @property
    def groups(self) -> list[str]:
        """The groups of weights with which the stage to explain is computed."""
        groups = dict.fromkeys(name.rpartition(".")[0] for name in self.weights)
        return [group for group in groups if self.reads_weights(group)]

    def reads_weights(self, group: str) -> bool:
        """Returns whether the stage to explain is computed with a group of weights."""
        return any(matches(stage, pattern) for pattern in made_by(group) for stage in self.span)

    @property
    def between(self) -> tuple[str, ...]:
        """The stages that are computed between the other program's stages and the stage to explain."""
        return tuple(name for name in self.known if name in self.span and name != self.stage)

    @property
    def from_ids(self) -> bool:
        """Whether the stage is computed from token ids rather than from the other program's stages."""
        return any(parted(stage)[2] == "embeddings.token" for stage in (*self.span, self.stage))


def made_by(group: str) -> tuple[str, ...]:
    """Returns the stages computed with a group of weights, or patterns of stages for a table that all layers share."""
    stack, layer, rest = parted(group)
    if (stage := TABLES.get(rest)) is not None:
        return (f"{stack}layers.{'*' if layer < 0 else layer}.{stage}",)
    if group == "head.output":
        return ("logits", "start_logits", "end_logits", group)
    if group.endswith(HEAD_NORMS):
        return (f"{group}ed",)
    return ("convolution.hidden",) if group == "convolution" else (group,)


def group_of_normed(stage: str) -> str:
    """Returns the group of weights of a norm's stage: "attention.query_norm" for "attention.query_normed"."""
    return stage.removesuffix("ed") if stage.endswith("_normed") else stage


def with_padding(widths: Sequence[int], lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Returns each text's length with padding, or the length of the longest text if the arrays have no padding."""
    if any(width > length for width, length in zip(widths, lengths, strict=True)):
        return tuple(map(max, widths, lengths))
    return (max(lengths, default=0),) * len(lengths)
