"""`At`: the stages and weights that a rule of a port can read, in addition to the array that it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import replace

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.config import POOLED_HEADS, Config
from npformer.engine.activations import soft_cap
from npformer.engine.attention import repeat_heads
from npformer.engine.blocks import PackedTexts, Source
from npformer.engine.blocks.output_norm import NAME as OUTPUT_NORM
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Mechanism, SoftCap
from npformer.engine.mechanisms.head_norm import grouped
from npformer.engine.mechanisms.soft_cap import UNCAPPED_SCORES
from npformer.engine.norms.norm import Norm
from npformer.engine.runtime.packing import Text, pack
from npformer.families import family_of, parts_of
from npformer.golden.graph import CROSS, HEAD, head_width, heads_of, parents, parted, stacks
from npformer.golden.port import Port, group_of_normed
from npformer.golden.recomputed import alibi_of, bias_of
from npformer.interpret.study_inputs import row_read
from npformer.interpret.text_parts import Cut


class Arrays:
    """The arrays of one run of ports: computed stages, the other program's stages, and weights.

    Each row belongs to one text of one port: row i to text i // copies.
    """

    def __init__(
        self, port: Port, copies: int, given: Mapping[str, list[np.ndarray]], weight: Callable[[str], np.ndarray]
    ) -> None:
        self.port, self.copies, self.given, self.weight = port, copies, given, weight
        self.parents = parents(port.config, port.weights)
        self.kept: dict[tuple[str, int], np.ndarray] = {}
        self.whole: dict[str, list[tuple[int, Cut, np.ndarray]]] = {}  # not split into rows yet

    def kept_array(self, name: str, row: int) -> np.ndarray | None:
        """Returns a row's array of a stage, as later stages read it, or None before the stage is computed."""
        for first, cut, array in self.whole.pop(name, ()):
            self.kept |= {(name, i): piece for i, piece in enumerate(cut(array), first)}
        return self.kept.get((name, row))

    def given_array(self, name: str, row: int) -> np.ndarray | None:
        """Returns the other program's values of a stage for a row's text; None if that program has no such stage."""
        name = self.parents.get(name, ("",))[0] if name.endswith(".input") else name
        return self.given[name][row // self.copies] if name in self.given else None


class At:
    """One stage of one text, with access to the other arrays that a rule can read."""

    def __init__(self, run: Arrays, row: int, name: str) -> None:
        self._run, self._row, self.name = run, row, name
        self.text = row // run.copies
        stack, self.layer, self._rest = parted(name)
        self.stack = stack or list(stacks(run.port.config))[-1]  # output heads belong to the last stack
        self._here = f"{self.stack}layers.{self.layer}." if self.layer >= 0 else self.stack

    def __call__(self, name: str) -> np.ndarray:
        """Returns the earlier stage with this name from the same layer, or otherwise from the same stack or the model.

        In a decoder layer, if the reader is cross-attention or the FFN, "attention..." names cross-attention. If the
        reader is cross-attention, "input" names the rows after self-attention.
        """
        names = (self._here + self._led_to(name), self.stack + name, name)
        for read in (self._run.kept_array, self._run.given_array):
            for each in names:
                if (found := read(each, self._row)) is not None:
                    return found
        raise KeyError(name)

    def _led_to(self, name: str) -> str:
        if self.stack != "decoder." or self.layer < 0 or self._rest.startswith("attention"):
            return name
        if name == "input" and self.crosses:
            return "attention_residual" if self.config.norm_first else "attention_norm"
        return f"cross_{name}" if name.startswith("attention") else name

    @property
    def config(self) -> Config:
        return self._run.port.config

    @property
    def n_heads(self) -> int:
        """The number of attention heads in the stage's stack."""
        return heads_of(self.config, self.stack)

    @property
    def d_head(self) -> int:
        return head_width(self.config, self.stack)

    # --- inputs of the stage -----------------------------------------------------------------------------------------

    @property
    def source(self) -> np.ndarray:
        """The array from which the stage is computed: a single row for a head that classifies whole texts."""
        array = self(self._run.parents[self.name][0])
        of_texts = self.config.head in POOLED_HEADS
        pools = self.name in ("pooler", "pooled") or (self.name == "logits" and of_texts)
        return array[self.row] if pools and array.ndim == 2 else array

    def written(self, block: str) -> np.ndarray:
        """Returns the array that a block adds to the layer's rows: its output, or the norm of its output."""
        normed = f"{self._led_to(block)}.{OUTPUT_NORM}"
        return self(normed if self._here + normed in self._run.parents else f"{block}.output")

    @property
    def row(self) -> int:
        """The index of the row that the head reads for this text."""
        return row_read(self.config, self._run.port.texts[self.text])

    @property
    def last(self) -> np.ndarray:
        """The output of the stack that the head reads, (T, D)."""
        name = self.name
        while name.startswith(HEAD):
            name = self._run.parents[name][0]
        return self(name)

    @property
    def encoded(self) -> np.ndarray:
        """The encoder's output, which the decoder's layers read, (S, D)."""
        return self(self._run.parents[f"decoder.layers.0.{CROSS}.key"][0])

    @property
    def unchanged_input(self) -> np.ndarray:
        """The layer's input before any rule changed it."""
        return self(self._run.parents[f"{self._here}input"][0])

    # --- texts -------------------------------------------------------------------------------------------------------

    @property
    def read_text(self) -> Text:
        """The text from which the stage is computed; in the encoder of a translation model, the source."""
        port = self._run.port
        return (port.sources if port.sources and self.stack == "encoder." else port.texts)[self.text]

    @property
    def n_real(self) -> int:
        """The number of tokens of the stage's text, without the port's padding."""
        return self._length(self.stack == "encoder.")

    def _length(self, of_source: bool, text: int | None = None) -> int:
        port = self._run.port
        lengths = port.source_lengths if port.sources and of_source else port.lengths
        return lengths[self.text if text is None else text]

    # --- attention ---------------------------------------------------------------------------------------------------

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms of the layer's self-attention."""
        return self._layers.attentions[max(self.layer, 0)].mechanisms

    def heads(self, name: str) -> np.ndarray:
        """The heads of "query", "key" or "value" (H, T, K), with shared heads repeated."""
        return repeat_heads(self(f"attention.{name}_heads"), self.n_heads)

    @property
    def scale(self) -> float:
        """The factor that scales q k^T."""
        return float(self.config.score_scale or self.d_head**-0.5)

    def bias(self, scores: np.ndarray) -> np.ndarray | float:
        """The position biases that `scores` (H, T, T) contain, or 0 if there are none."""
        return 0.0 if self.crosses else bias_of(self, scores) + alibi_of(self, scores)

    def products(self, scores: np.ndarray) -> np.ndarray:
        """q k^T * scale: the scores before biases and the soft cap."""
        before = scores if self.cap is None else self(f"attention.{UNCAPPED_SCORES}")
        return np.asarray(before - self.bias(scores))

    def scored(self, products: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Computes the scores from q k^T * scale, with the layer's biases and soft cap."""
        added = np.asarray(products + self.bias(scores))
        return added if self.cap is None else soft_cap(added, self.cap)

    @property
    def cap(self) -> float | None:
        """The layer's soft cap on scores; None without a soft cap."""
        own = () if self.crosses else self.mechanisms
        return next((each.cap for each in own if isinstance(each, SoftCap)), None)

    @property
    def crosses(self) -> bool:
        """Whether the stage belongs to a decoder's attention to the source."""
        return self._rest.startswith(CROSS)

    @property
    def is_causal(self) -> bool:
        """Whether the stage belongs to attention with a causal mask."""
        return self.config.causal or (self.stack == "decoder." and not self.crosses)

    @property
    def scores(self) -> np.ndarray:
        """The scores as the softmax reads them, with masked scores far below all others."""
        return self.causal(self.uncovered)

    @property
    def uncovered(self) -> np.ndarray:
        """The scores with every mask except the causal one."""
        scores = self.near
        return np.where(self.is_token(scores), scores, -1e9) if self._run.port.hides else scores

    @property
    def near(self) -> np.ndarray:
        """The scores with only the masks of the layer's mechanisms, such as a window."""
        scores, config = self("attention.scores"), self.config
        places = np.arange(scores.shape[-1])[None]
        for mechanism in () if self.stack == "decoder." else config.mechanisms_of(self.layer):
            if (mask := mechanism.mask(places, places)) is not None:
                scores = np.where(mask[0, 0], scores, -np.inf)
        return scores

    def causal(self, scores: np.ndarray) -> np.ndarray:
        """Returns the scores with later tokens masked, if this attention is causal."""
        seen = np.tri(scores.shape[-1], dtype=bool) if self.is_causal else True
        return np.where(seen, scores, -1e9)

    def is_token(self, scores: np.ndarray, left: bool = False, text: int | None = None) -> np.ndarray:
        """True for keys that are tokens, False for padding, (T,). text: index of a text, by default this text."""
        place, length = np.arange(scores.shape[-1]), self._length(self.stack == "encoder." or self.crosses, text)
        return place >= scores.shape[-1] - length if left else place < length

    @property
    def grouped(self) -> Grouped:
        """The same stage for a norm of queries or keys: its `source` is split into groups of columns."""
        return Grouped(self._run, self._row, self.name)

    # --- weights -----------------------------------------------------------------------------------------------------

    def weight(self, group: str, part: str = "weight") -> np.ndarray | None:
        """Returns a weight or bias of the layer, the stack or the model; None if it does not exist."""
        group = "convolution" if group == "convolution.hidden" else group
        names = (f"{each}.{part}" for each in (self._here + self._led_to(group), self.stack + group, group))
        return next((self._run.weight(name) for name in names if name in self._run.port.weights), None)

    def own(self, part: str = "weight") -> np.ndarray:
        """Returns the stage's own weight or bias; KeyError if it has none."""
        if (found := self.weight(self.name, part)) is None:
            raise KeyError(f"{self.name}.{part}")
        return found

    def linear(self, x: np.ndarray, group: str) -> np.ndarray:
        """x W + b with the weights of a group."""
        bias = self.weight(group, "bias")
        y: np.ndarray = x @ self.weight(group)
        return y if bias is None else y + bias

    def affine(self, z: np.ndarray, norm: str = "") -> np.ndarray:
        """Applies the weight and bias of a norm, by default the stage's own norm, to normalized rows z."""
        weight, bias = (self.weight(norm or self.name, part) for part in ("weight", "bias"))
        assert weight is not None
        return self.norm.affine(z, weight, bias)

    @property
    def norm(self) -> Norm:
        """The kind of norm in the model's layers."""
        return family_of(self.config).norm(self.config)

    @property
    def _layers(self) -> Stack:
        """The layers of the stage's stack."""
        parts = parts_of(self.config)
        return parts.decoder[1] if parts.decoder and self.stack == "decoder." else parts.stack

    def layer_on(self, x: np.ndarray) -> np.ndarray:
        """The output of the stage's layer on rows x (T, D), without notifying the listeners of its stages."""
        alone = replace(self._layers, layers=(self._layers.layers[self.layer],), norm=None, after_first=None)
        groups, flat = alone.groups(self.config.d_model), {}
        for name in self._run.port.weights:
            stack, layer, rest = parted(name)
            own = rest if layer < 0 else f"layers.0.{rest}"
            if stack == self.stack and layer in (-1, self.layer) and own.rpartition(".")[0] in groups:
                flat[own] = self._run.weight(name)
        texts = PackedTexts(np.array([len(x)]), pack([Text(np.zeros(len(x), np.int64))]))
        if self.stack == "decoder.":
            texts = texts._replace(source=Source(self.encoded, np.array([len(self.encoded)])))
        return self.unheard(lambda: alone(x, texts, layout.unflatten(flat)))

    @staticmethod
    def unheard(function: Callable[[], np.ndarray]) -> np.ndarray:
        """Calls a function without notifying the listeners of its stages."""
        return Context().run(function)


class Grouped(At):
    """The stage of a norm of queries or keys, whose source is split into the groups of columns to normalize."""

    @property
    def source(self) -> np.ndarray:
        return self.split(super().source)

    def split(self, x: np.ndarray) -> np.ndarray:
        """Rows x as the groups of columns that the norm normalizes, such as heads: (T, H K) -> (T, H, K)."""
        return grouped(x, self.own())

    def weight(self, group: str, part: str = "weight") -> np.ndarray | None:
        return super().weight(group_of_normed(group), part)
