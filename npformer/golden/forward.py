"""Runs ports on the other program's stages.

One run of a `Port` computes every stage from the other program's earlier stages: as soon as a stage is computed and
recorded, the other program's array replaces it. Thus one run gives the expected value of every stage for the other
program's actual inputs. `diagnose.py` compares these values with the other program's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.common.errors import NpformerError
from npformer.engine.taps import listen
from npformer.golden.at import Arrays, At
from npformer.golden.budget import jitter
from npformer.golden.graph import matches, parted, stacks
from npformer.golden.mistake import Rule
from npformer.golden.port import Port
from npformer.golden.rounded import unrounded
from npformer.interpret.text_parts import TextParts, is_input
from npformer.interpret.traces import post_process
from npformer.model import Model, Seq2Seq

SMALL = 1 << 16  # maximum numbers in a stage whose cast is kept; keeping larger casts would double the memory


class _Enough(Exception):
    """Raised to stop a forward pass once the requested stage has been computed."""


class Forward:
    """Runs ports on the other program's stages, casting each weight and each small stage only once."""

    def __init__(
        self, given: Mapping[str, list[np.ndarray]], weights: Mapping[str, np.ndarray], threads: int = 1
    ) -> None:
        """threads: number of runs of large models that `ways.py` computes at once."""
        self.given, self.threads = given, threads
        self._own = {id(array): array for array in weights.values()}
        self._own |= {id(array): array for each in given.values() for array in each if array.size <= SMALL}
        self._cast: dict[tuple[int, Any], np.ndarray] = {}

    def __call__(
        self, port: Port, until: str = "", dtype: Any = np.float64, seed: int | None = None
    ) -> dict[str, list[np.ndarray]]:
        """Returns the port's stages up to `until` ("" for all), one array per text."""
        run = Run(self, [port], until, dtype, None if seed is None else jitter(seed))
        run.run()
        if run.failed:
            raise run.failed[0]
        return run.made

    def together(self, ports: Sequence[Port], until: str) -> list[list[np.ndarray] | None]:
        """Runs ports that differ only in their rules together, up to the stage `until`.

        Returns the stage of each port; None for a port with an impossible rule, and for a port whose config lacks the
        stage, such as the rotated queries of a layer without rotation.
        """
        run = Run(self, ports, until, np.float64, None)
        run.run()
        lacking = range(len(ports)) if until not in run.made else run.failed
        return [None if i in lacking else run.made[until][i :: len(ports)] for i in range(len(ports))]

    def cast(self, array: np.ndarray, dtype: Any) -> np.ndarray:
        if id(array) not in self._own:  # a weight created by a mistake
            return array.astype(dtype, copy=False)
        key = (id(array), dtype)
        if key not in self._cast:
            self._cast[key] = array.astype(dtype, copy=False)
        return self._cast[key]


def corner_of(array: np.ndarray, part: np.ndarray, at_end: bool) -> tuple[slice, ...]:
    """The slices of a padded array that contain its part without padding, at the end or the start of each axis."""
    pairs = zip(array.shape, part.shape, strict=True)
    return tuple(slice(max(size - own, 0), size) if at_end else slice(own) for size, own in pairs)


class Run(Arrays):
    """One forward pass: a listener that applies the ports' rules and replaces their stages with the other program's.

    The batch has a row for each text and port: the first text for every port, then the second text for every port, and
    so on.
    """

    def __init__(self, forward: Forward, ports: Sequence[Port], until: str, dtype: Any, noise: Any) -> None:
        port = ports[0]
        super().__init__(port, len(ports), forward.given, lambda name: forward.cast(port.weights[name], dtype))
        self.ports, self.until, self.noise = ports, until, noise
        self.failed: dict[int, NpformerError] = {}  # index of a port with an impossible rule -> the error
        self._patterns = {pattern for port in ports for pattern, _ in (*port.rules, *port.reads)}
        self._matched: dict[str, bool] = {}  # stage -> whether any of the patterns matches it
        self.made: dict[str, list[np.ndarray]] = {}
        self._parts, self._forward, self._dtype = TextParts(), forward, dtype
        self._after = {made_from[0]: name for name, made_from in self.parents.items() if name.endswith(".input")}
        self._ranges = {stack: self._layers(stack, count) for stack, count in stacks(port.config).items()}

    def _running(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the weights of the layers to run, rounded only if the requested stage depends on them."""
        port, all_matter = self.port, self._whole
        for name in port.weights:
            stack, layer, rest = parted(name)
            if layer >= 0:
                first, end = self._ranges[stack]
                if not first <= layer < end:
                    continue
            numbered = name if layer < 0 else f"{stack}layers.{layer - first}.{rest}"
            if all_matter or port.reads_weights(name.rpartition(".")[0]):
                yield numbered, self.weight(name)
            else:
                yield numbered, self._forward.cast(unrounded(port.weights, name), self._dtype)

    @cached_property
    def _whole(self) -> bool:
        """Whether to run the whole model: every stage is wanted, or the port has padding that the golden file lacks."""
        port = self.port
        texts, lengths = (*port.texts, *port.sources), (*port.lengths, *port.source_lengths)
        return not self.until or any(len(text) != length for text, length in zip(texts, lengths, strict=True))

    def _layers(self, stack: str, count: int) -> tuple[int, int]:
        """Returns the range of a stack's layers that must run. The results of all others are given or not needed."""
        config, inside = self.port.config, [parted(name) for name in self.port.span if name.startswith(stack)]
        numbers = [layer for _, layer, _ in inside if layer >= 0]
        from_ids = not self.port.span or any(rest.startswith("embeddings.") for _, _, rest in inside)
        in_place = config.local or config.convolution  # the layers of these models differ, so they cannot be renumbered
        first = 0 if from_ids or self._whole or in_place else min(numbers, default=count)
        its_stack, layer, _ = parted(self.until) if self.until else ("", -1, "")
        return first, layer + 1 if layer >= 0 and its_stack == stack else count

    def run(self) -> None:
        port, config = self.port, self.port.config
        flat = dict(self._running())
        tree = layout.unflatten(flat)
        for stack in stacks(config):
            within = tree[stack[:-1]] if stack else tree
            within.setdefault("layers", [])
        with suppress(_Enough), listen(self._hear), np.errstate(all="ignore"):
            texts, sources = ([text for text in each for _ in self.ports] for each in (port.texts, port.sources))
            if config.head == "translation":
                Seq2Seq(config, tree, threads=1).run(list(zip(sources, texts, strict=True)))
            else:
                post_process(config, Model(config, tree, threads=1).run(texts))

    @cached_property
    def _embedded(self) -> dict[str, str]:
        """Maps the last embedding stage of each stack that skips layers to the other program's stage that replaces it.

        The replacement is the input of the first layer that runs, or of the head if no layer runs.
        """
        end = "ffn_residual" if self.port.config.norm_first else "ffn_norm"
        return {
            self.parents[f"{stack}layers.0.input"][0]: f"{stack}layers.{first - 1}.{end}"
            for stack, (first, _) in self._ranges.items()
            if first
        }

    def _hear(self, name: str, array: np.ndarray) -> np.ndarray:
        self._parts.hear(name, array)
        if is_input(name):
            return array
        first, cut, join = self._parts.split(name, array)
        stack, layer, rest = parted(name)
        if layer >= 0:  # numbered from the first layer that runs
            name = f"{stack}layers.{layer + self._ranges[stack][0]}.{rest}"
        if self._untouched(name):
            self.whole.setdefault(name, []).append((first, cut, array))
            return array
        pieces = cut(array)
        unchanged = self._unchanged(name)
        if self.noise is None and not self._has_rules(name):  # fast path: most stages have no rules
            self.made.setdefault(name, []).extend(pieces)
            if not unchanged:
                pieces = [self._replaced(name, i, piece) for i, piece in enumerate(pieces, first)]
            self.kept |= {(name, i): piece for i, piece in enumerate(pieces, first)}
        else:
            pieces = [self._stage(name, i, piece) for i, piece in enumerate(pieces, first)]
        if name == self.until and len(self.made[name]) == len(self.port.texts) * len(self.ports):
            raise _Enough
        if name in self._embedded:
            name, unchanged = self._embedded[name], False
            pieces = [self._kept(name, first + i, piece) for i, piece in enumerate(pieces)]
        if (after := self._after.get(name)) is not None:
            if self._has_rules(after):
                unchanged = False
                for i, piece in enumerate(pieces, first):
                    pieces[i - first] = self._ruled(after, i, piece, self.ports[i % len(self.ports)].rules)
            self.kept |= {(after, i): piece for i, piece in enumerate(pieces, first)}
        return array if unchanged else join(pieces)

    def _unchanged(self, name: str) -> bool:
        """Whether no rule changes a stage, and no array of the other program replaces it."""
        return self.noise is None and name not in self.given and not self._has_rules(name)

    def _untouched(self, name: str) -> bool:
        """Whether a stage is neither changed nor requested, like most stages in most runs."""
        if self.until in ("", name) or name in self._embedded or name in self._after:
            return False
        return self._unchanged(name)

    def _has_rules(self, name: str) -> bool:
        if name not in self._matched:
            self._matched[name] = any(matches(name, pattern) for pattern in self._patterns)
        return self._matched[name]

    def _stage(self, name: str, row: int, array: np.ndarray) -> np.ndarray:
        made = self._ruled(name, row, array, self.ports[row % len(self.ports)].rules)
        if self.noise is not None:
            made = self.noise(made)
        self.made.setdefault(name, []).append(made)
        return self._kept(name, row, made)

    def _ruled(self, name: str, row: int, array: np.ndarray, rules: Iterable[tuple[str, Rule]]) -> np.ndarray:
        if not self._has_rules(name):
            return array
        number = row % len(self.ports)
        for pattern, rule in rules if number not in self.failed else ():
            if matches(name, pattern):
                try:
                    array = self._changed(name, row, array, rule)
                except NpformerError as error:
                    self.failed[number] = error
                    if len(self.failed) == len(self.ports):
                        raise _Enough from None
                    break
        return array

    def _changed(self, name: str, row: int, array: np.ndarray, rule: Rule) -> np.ndarray:
        try:
            made = np.asarray(rule(array, At(self, row, name)))
        except (KeyError, IndexError, ValueError) as error:  # the model lacks a stage or weight
            raise NpformerError(f"{name}: impossible with this model: {error}") from None
        if name == "logits" and self.port.config.head == "replaced-token" and made.ndim == 2:
            made = made[..., 0]  # the head's logits have a single column
        if made.shape != array.shape:
            raise NpformerError(f"{name}: expected an array of shape {array.shape} from the rule, got {made.shape}")
        return made.astype(array.dtype, copy=False)

    def _kept(self, name: str, row: int, made: np.ndarray) -> np.ndarray:
        """The array that later stages read: the other program's if it has one, changed by the rules in `reads`."""
        made = self._replaced(name, row, made)
        self.kept[name, row] = made = self._ruled(name, row, made, self.ports[row % len(self.ports)].reads)
        return made

    def _replaced(self, name: str, row: int, made: np.ndarray) -> np.ndarray:
        """Replaces the port's array with the other program's, except for padding that the port adds."""
        theirs = self.given_array(name, row)
        if theirs is None:
            return made
        if theirs.shape == made.shape:
            return self._forward.cast(theirs, made.dtype)
        corner = corner_of(made, theirs, self.port.at_end)
        made = made.copy()
        if made[corner].shape != theirs.shape:
            raise NpformerError(f"{name}: expected shape {made.shape} at most, got {theirs.shape}")
        made[corner] = theirs
        return made
