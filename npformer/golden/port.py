"""A port to try: the model's own forward with a change, and each stage made from what the other program gave.

`Forward` runs a `Port` once. Each stage is computed from the other program's earlier stages, which take the place of
ours as soon as ours are noted; so one run says of every stage what it should be, given their inputs to it.
`mistakes/` makes the ports, `diagnose.py` tries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.config import Config
from npformer.errors import NpformerError
from npformer.golden.budget import jitter
from npformer.golden.graph import parents
from npformer.golden.rounded import Rounded, unrounded
from npformer.interpret.parts import TextParts, is_input
from npformer.interpret.trace import post_process
from npformer.masks import window_mask
from npformer.model import Model
from npformer.runtime.packing import Text
from npformer.tap import listen
from npformer.transformer import POOLED_HEADS, packed

Rule = Callable[[np.ndarray, "At"], np.ndarray]  # (our array of a text's stage, its place) -> what the port has


@dataclass(frozen=True)
class Port:
    """A forward pass to change: its config, weights, texts and rules, and what there is to explain."""

    config: Config
    weights: Mapping[str, np.ndarray]  # flat
    texts: list[Text]
    stage: str  # the stage to explain
    theirs: list[np.ndarray]  # the other program's values of it
    span: frozenset[str]  # the stages that are computed between theirs and it
    width: int  # tokens of a text in the other program's batch, padding included
    lengths: tuple[int, ...]  # of the golden file's texts
    rightly: list[np.ndarray] = field(default_factory=list)  # the stage as it should be, given their inputs
    known: tuple[str, ...] = ()  # all stages of the model, in firing order
    rules: tuple[tuple[str, Rule], ...] = ()
    touched: frozenset[str] = frozenset()  # patterns of the stages where the changes are made
    dtype: str = "float32"  # the precision whose budget the port is held to
    hides: bool = False  # texts are padded, and padding is hidden by a mask

    def ruling(self, rules: Mapping[str, Rule]) -> Port:
        """Returns the port with rules for the stages that match these patterns."""
        return replace(self, rules=(*self.rules, *rules.items()), touched=self.touched | set(rules))

    def weighing(self, changes: Mapping[str, np.ndarray]) -> Port:
        """Returns the port with other weights."""
        stages = {stage for name in changes for stage in made_by(name.rpartition(".")[0])}
        return replace(self, weights={**self.weights, **changes}, touched=self.touched | stages)

    def rounding(self, rounded: Callable[[np.ndarray], np.ndarray], names: Iterable[str]) -> Port:
        """Returns the port with these weights rounded."""
        names = frozenset(names)
        stages = {stage for name in names for stage in made_by(name.rpartition(".")[0])}
        return replace(self, weights=Rounded(self.weights, rounded, names), touched=self.touched | stages)

    def reading(self, texts: list[Text]) -> Port:
        """Returns the port on other texts."""
        return replace(self, texts=texts, touched=self.touched | {"embeddings.*"})

    def with_config(self, *touched: str, **fields: Any) -> Port:
        return replace(self, config=replace(self.config, **fields), touched=self.touched | set(touched))

    @property
    def matters(self) -> bool:
        """Whether the changes are made where the stage in question is computed."""
        return any(fnmatchcase(stage, pattern) for pattern in self.touched for stage in self.span)

    @property
    def groups(self) -> list[str]:
        """The groups of weights that the stage in question depends on directly."""
        groups = dict.fromkeys(name.rpartition(".")[0] for name in self.weights)
        return [group for group in groups if self.span.intersection(made_by(group))]

    @property
    def from_ids(self) -> bool:
        """Whether the stage is computed from the token ids and not from their stages."""
        return "embeddings.token" in self.span or self.stage == "embeddings.token"


def made_by(group: str) -> tuple[str, ...]:
    """Returns the stages that are the output of a group of weights."""
    return ("logits", "start_logits", "end_logits") if group == "head.output" else (group,)


Ways = Iterator[tuple[str, Port]]  # the ways to make a mistake: a description of each, and the port


class Mistake(NamedTuple):
    name: str
    explanation: str
    ways: Callable[[Port], Ways]
    reorders: bool = False  # with it, a stage's name no longer means what it means in the golden file


class At:
    """A stage of one text: what a rule may read beside the array itself."""

    def __init__(self, run: _Run, text: int, name: str) -> None:
        self._run, self.text, self.name = run, text, name
        parts = name.split(".")
        self.layer = int(parts[1]) if parts[0] == "layers" else -1
        self._here = f"layers.{self.layer}." if self.layer >= 0 else ""

    def __call__(self, name: str) -> np.ndarray:
        """Returns an earlier stage: of the same layer if the layer has one of this name."""
        kept = self._run.kept
        found = kept.get((self._here + name, self.text))
        found = kept.get((name, self.text)) if found is None else found
        return self._run.given_array(name, self.text) if found is None else found

    @property
    def source(self) -> np.ndarray:
        """The stage that this one is computed from; for a head on whole texts, the row that it reads."""
        array = self(self._run.parents[self.name][0])
        of_texts = self._run.port.config.head in POOLED_HEADS
        pools = self.name in ("pooler", "pooled") or (self.name == "logits" and of_texts)
        return array[self.row] if pools and array.ndim == 2 else array

    @property
    def row(self) -> int:
        """The row that a head on texts reads, the first or the last that is not padding."""
        port = self._run.port
        return int(packed(port.config, [port.texts[self.text]]).read[0])

    @property
    def scores(self) -> np.ndarray:
        """The scores of attention as the softmax gets them, with what is hidden far below all others."""
        return self.causal(self.uncovered)

    @property
    def uncovered(self) -> np.ndarray:
        """The scores without a causal mask."""
        scores, config = self("attention.scores"), self._run.port.config
        if config.is_local(self.layer):
            scores = np.where(window_mask(scores.shape[-1], config.window), scores, -np.inf)
        return np.where(self.is_token(scores), scores, -1e9) if self._run.port.hides else scores

    def causal(self, scores: np.ndarray) -> np.ndarray:
        """Hides later tokens, if the model has a causal mask."""
        seen = np.tri(scores.shape[-1], dtype=bool) if self._run.port.config.causal else True
        return np.where(seen, scores, -1e9)

    def is_token(self, scores: np.ndarray, left: bool = False) -> np.ndarray:
        """Tells which keys are tokens of the text, and not padding, (T,)."""
        place, length = np.arange(scores.shape[-1]), self._run.port.lengths[self.text]
        return place >= scores.shape[-1] - length if left else place < length

    @property
    def unchanged_input(self) -> np.ndarray:
        """The layer's input before any rule."""
        return self(self._run.parents[f"{self._here}input"][0])

    @property
    def last(self) -> np.ndarray:
        """The encoder's last layer, (T, D)."""
        return self(self._run.parents["pooler"][0])

    @property
    def n_real(self) -> int:
        """The text's tokens, without padding that the port adds."""
        return self._run.port.lengths[self.text]

    def weight(self, group: str, part: str = "weight") -> np.ndarray | None:
        """Returns a weight or bias of the layer, or of the model; None if it has none."""
        names = (f"{self._here}{group}.{part}", f"{group}.{part}")
        return next((self._run.weight(name) for name in names if name in self._run.port.weights), None)

    def linear(self, x: np.ndarray, group: str) -> np.ndarray:
        """x W + b with the weights of a group."""
        bias = self.weight(group, "bias")
        y: np.ndarray = x @ self.weight(group)
        return y if bias is None else y + bias

    def affine(self, z: np.ndarray, norm: str = "") -> np.ndarray:
        """z * weight + bias with those of a norm: the stage itself unless named."""
        weight, bias = (self.weight(norm or self.name, part) for part in ("weight", "bias"))
        return z * weight if bias is None else z * weight + bias

    def layer_weights(self) -> Any:
        """Returns the layer's weights as `encoder_layer` takes them."""
        here = {
            name.removeprefix(self._here): self._run.weight(name)
            for name in self._run.port.weights
            if name.startswith(self._here)
        }
        return layout.unflatten(here)

    @staticmethod
    def unheard(function: Callable[[], np.ndarray]) -> np.ndarray:
        """Calls a function whose stages no listener hears."""
        return Context().run(function)


class _Enough(Exception):
    """Raised to stop a forward once the wanted stage has fired."""


class Forward:
    """Runs ports on the other program's stages. Weights are cast once, whatever the number of runs."""

    def __init__(self, given: Mapping[str, list[np.ndarray]], weights: Mapping[str, np.ndarray]) -> None:
        self.given = given
        self._own = {id(array): array for array in weights.values()}
        self._cast: dict[tuple[int, Any], np.ndarray] = {}

    def __call__(
        self, port: Port, until: str = "", dtype: Any = np.float64, seed: int | None = None
    ) -> dict[str, list[np.ndarray]]:
        """Returns each stage up to `until` (all of them: ""), one array for each text, as the port makes it."""
        run = _Run(self, port, until, dtype, None if seed is None else jitter(seed))
        run.run()
        return run.made

    def cast(self, array: np.ndarray, dtype: Any) -> np.ndarray:
        if id(array) not in self._own:  # a mistake's own
            return array.astype(dtype, copy=False)
        key = (id(array), dtype)
        if key not in self._cast:
            self._cast[key] = array.astype(dtype, copy=False)
        return self._cast[key]


class _Run:
    """One forward: a listener that applies the port's rules and puts their stages in place of ours."""

    def __init__(self, forward: Forward, port: Port, until: str, dtype: Any, noise: Any) -> None:
        self.port, self.given, self.until, self.noise = port, forward.given, until, noise
        self.parents = parents(port.config, port.weights)
        self.made: dict[str, list[np.ndarray]] = {}
        self.kept: dict[tuple[str, int], np.ndarray] = {}
        self._parts, self._forward, self._dtype = TextParts(), forward, dtype
        self._after = {made_from[0]: name for name, made_from in self.parents.items() if name.endswith(".input")}
        self.first, self._end = self._layers()  # of the layers that run

    def weight(self, name: str) -> np.ndarray:
        """Returns a weight of the port in the dtype of the run."""
        return self._forward.cast(self.port.weights[name], self._dtype)

    def _running(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the weights that the model runs with: those that do not matter to the stage in question unrounded."""
        port, all_matter = self.port, self._whole
        for name in port.weights:
            if name.startswith("layers.") and not self.first <= int(name.split(".")[1]) < self._end:
                continue
            if all_matter or port.span.intersection(made_by(name.rpartition(".")[0])):
                yield name, self.weight(name)
            else:
                yield name, self._forward.cast(unrounded(port.weights, name), self._dtype)

    @cached_property
    def _whole(self) -> bool:
        """Tells whether the stages from the ids on matter: all are asked for, or what stands in padding, only ours."""
        padded = any(len(text) != length for text, length in zip(self.port.texts, self.port.lengths, strict=True))
        return not self.until or padded

    def _layers(self) -> tuple[int, int]:
        """Returns the first layer that has to run and the end of the last: the others are given or not needed."""
        config = self.port.config
        count = config.n_layers
        numbers = [int(name.split(".")[1]) for name in self.port.span if name.startswith("layers.")]
        from_ids = not self.port.span or any(name.startswith("embeddings.") for name in self.port.span)
        first = 0 if from_ids or self._whole or config.local_layers else min(numbers, default=count)
        layer = self.until.split(".")
        return first, int(layer[1]) + 1 if layer[0] == "layers" else count

    def run(self) -> None:
        port, flat = self.port, {}
        for name, array in self._running():
            kind, _, rest = name.partition(".")
            number, _, rest = rest.partition(".") if kind == "layers" else ("", "", rest)
            flat[f"layers.{int(number) - self.first}.{rest}" if number else name] = array
        tree = layout.unflatten(flat)
        model = Model(port.config, {"layers": [], **tree}, threads=1)
        with suppress(_Enough), listen(self._hear), np.errstate(all="ignore"):
            post_process(port.config, model.run(port.texts))

    @cached_property
    def _embedded(self) -> str:
        return next(iter(self._after), "")

    @cached_property
    def _entry(self) -> str:
        """The stage, of theirs, that the first layer to run reads; or what follows the layers, if none runs."""
        end = "ffn_residual" if self.port.config.norm_first else "ffn_norm"
        return f"layers.{self.first - 1}.{end}"

    def given_array(self, name: str, text: int) -> np.ndarray:
        """Returns their array of a stage that has not been computed here."""
        name = self.parents[name][0] if name.endswith(".input") else name
        return self.given[name][text]

    def _hear(self, name: str, array: np.ndarray) -> np.ndarray:
        self._parts.hear(name, array)
        if is_input(name):
            return array
        first, cut, join = self._parts.split(name, array)
        if name.startswith("layers."):  # numbered from the first that runs
            _, number, rest = name.split(".", 2)
            name = f"layers.{int(number) + self.first}.{rest}"
        pieces = [self._stage(name, first + i, piece) for i, piece in enumerate(cut(array))]
        if name == self.until and len(self.made[name]) == len(self.port.texts):
            raise _Enough
        if name == self._embedded and self.first:
            name = self._entry
            pieces = [self._kept(name, first + i, piece) for i, piece in enumerate(pieces)]
        if (after := self._after.get(name)) is not None:
            for i, piece in enumerate(pieces, first):
                pieces[i - first] = self.kept[after, i] = self._ruled(after, i, piece)
        return join(pieces)

    def _stage(self, name: str, text: int, array: np.ndarray) -> np.ndarray:
        made = self._ruled(name, text, array)
        if self.noise is not None:
            made = self.noise(made)
        self.made.setdefault(name, []).append(made)
        return self._kept(name, text, made)

    def _ruled(self, name: str, text: int, array: np.ndarray) -> np.ndarray:
        for pattern, rule in self.port.rules:
            if fnmatchcase(name, pattern):
                try:
                    made = np.asarray(rule(array, At(self, text, name)))
                except (KeyError, IndexError, ValueError) as error:  # it reads what this model does not have
                    raise NpformerError(f"{name}: impossible with this model: {error}") from None
                if made.shape != array.shape:
                    raise NpformerError(f"{name}: the rule gives {made.shape} for {array.shape}")
                array = made.astype(array.dtype, copy=False)
        return array

    def _kept(self, name: str, text: int, made: np.ndarray) -> np.ndarray:
        """Puts their array in place of ours; padding that the port adds stays ours."""
        if (theirs := self.given.get(name)) is not None:
            corner = tuple(slice(size) for size in theirs[text].shape)
            made = made.copy()
            if made[corner].shape != theirs[text].shape:
                raise NpformerError(f"{name}: theirs is {theirs[text].shape}, the port's {made.shape}")
            made[corner] = theirs[text]
        self.kept[name, text] = made
        return made
