"""Profiles the stages of a forward pass: `python -m tests.benchmarks.profile [--json FILE] [--quick]`.

While a model runs, clocks wrap the functions of each stage. A clock counts a function's own time, excluding the clocked
functions that it calls. Clocks run on the calling thread, so the figures are the milliseconds that a caller
waits; waiting for another thread is also a stage. A clock costs about a microsecond per call. The second table
shows the time per token at every length, and attention's share of it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any
from unittest import mock

from npformer.engine.runtime import runner as runner_module
from npformer.engine.runtime import threads as threads_module
from npformer.model import Model
from tests.benchmarks import measure, sizes, table

PRODUCTS, BIAS, GELU, NORM = "x @ W", "biases", "activation", "layer norm"
SCORES, SOFTMAX, HEADS = "attention: products", "attention: softmax", "attention: merging heads"
LAYER, TABLES, WAITING = "residuals and calls", "embeddings", "hand-over and waiting"
REST = "shards, packing, the answer"

#: The functions to wrap with clocks, each named in the module or class that calls it, and the stage of each.
CLOCKS = (
    ("npformer.engine.functions.weight_products", PRODUCTS),
    ("npformer.engine.multi_head.linears", BIAS),
    ("npformer.engine.multi_head.linear", BIAS),
    ("npformer.engine.blocks.ffn.linear", BIAS),
    ("npformer.engine.attention.inner_products", SCORES),
    ("npformer.engine.attention.row_products", SCORES),
    ("npformer.engine.attention.in_place", SOFTMAX),
    ("npformer.engine.packed_attention.all_gather", WAITING),
    ("npformer.engine.packed_attention.PackedAttention.__call__", HEADS),
    ("npformer.engine.activations.in_blocks", GELU),
    ("npformer.engine.norms.layernorm.layer_norm", NORM),
    ("npformer.engine.layers.layer.Layer.__call__", LAYER),
    ("npformer.engine.embeddings.Embeddings.__call__", TABLES),
)
ATTENTION = (SCORES, SOFTMAX, HEADS)
LENGTHS = (8, 16, 32, 64, 128, 256, 512)


class Clocks:
    """The time of each stage on the calling thread, excluding the stages that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._caller = threading.get_ident()
        self._open: list[list[Any]] = []  # (stage, seconds spent in stages that it called)

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that its own time is added to the time of a stage."""

        @functools.wraps(function)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._caller:
                return function(*args, **kwargs)
            self._open.append([stage, 0.0])
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - start
                inside = self._open.pop()[1]
                self.seconds[stage] += taken - inside
                if self._open:
                    self._open[-1][1] += taken

        return clocked

    def sharing(self, share: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `run_tasks`: waiting for threads is a stage, and tasks on this thread count for the current stage."""

        def shared(tasks: Sequence[Callable[[], Any]], threads: int) -> Any:
            if threading.get_ident() != self._caller:
                return share(tasks, threads)
            stage = self._open[-1][0]
            return self.timed(WAITING, share)([self.timed(stage, task) for task in tasks], threads)

        return shared


def profile(model: Model, lengths: list[int], seconds: float) -> dict[str, float]:
    """Calls the model repeatedly for `seconds`; returns each stage's seconds in the fastest call."""
    texts = sizes.random_texts(lengths)
    with ExitStack() as stack:
        clocks = Clocks()
        for name, stage in CLOCKS:
            stack.enter_context(mock.patch(name, clocks.timed(stage, resolve_name(name))))
        for module in (threads_module, runner_module):
            stack.enter_context(mock.patch.object(module, "run_tasks", clocks.sharing(module.run_tasks)))
        run = clocks.timed(REST, model.run)
        best: dict[str, float] = {}

        def call() -> None:
            nonlocal best
            clocks.seconds.clear()
            run(texts)
            if not best or sum(clocks.seconds.values()) < sum(best.values()):
                best = dict(clocks.seconds)

        for _ in range(3):  # a weight's panels are made at its third use
            call()
        best = {}
        measure.turn(call, seconds)
    return best


def stages_table(profiles: dict[str, dict[str, float]]) -> str:
    """Formats a table of stages and workloads, in milliseconds and as shares of the total."""
    whole = {work: sum(each.values()) for work, each in profiles.items()}
    order = (PRODUCTS, BIAS, *ATTENTION, GELU, NORM, LAYER, TABLES, WAITING, REST)

    def cell(seconds: float, work: str) -> str:
        return f"{table.milliseconds(seconds)} {seconds / whole[work]:4.0%}"

    body = [[stage, *(cell(each.get(stage, 0), work) for work, each in profiles.items())] for stage in order]
    total = ["total", *(cell(each, work) for work, each in whole.items())]
    return table.markdown(["stage", *profiles], [*body, total])


def growth(model: Model, seconds: float, tokens: int = 4096) -> list[dict[str, float]]:
    """Measures the time per token, and attention's share, on the same number of tokens in texts of every length."""
    found = []
    for length in LENGTHS:
        lengths = [length] * (tokens // length)
        stages = profile(model, lengths, seconds)
        whole, attention = sum(stages.values()), sum(stages.get(stage, 0) for stage in ATTENTION)
        operations = measure.work(model.config, lengths)
        found.append(
            {
                "length": length,
                "seconds_per_token": whole / tokens,
                "attention_per_token": attention / tokens,
                "attention_share": attention / whole,
                "operations_share": operations["attention"] / (operations["attention"] + operations["products"]),
            }
        )
    return found


def growth_table(found: list[dict[str, float]]) -> str:
    """Formats a table with one row for each length."""
    head = ["tokens in the text", "time per token", "attention's part", "share", "share of operations"]
    body = [
        [
            f"{each['length']:.0f}",
            f"{each['seconds_per_token'] * 1e6:.1f} us",
            f"{each['attention_per_token'] * 1e6:.1f} us",
            f"{each['attention_share']:.1%}",
            f"{each['operations_share']:.1%}",
        ]
        for each in found
    ]
    return table.markdown(head, body)


def main() -> None:
    """Profiles three rows of the table and every length, at DistilBERT-base's size."""
    arguments = measure.parser("profile", __doc__, "fewer calls").parse_args()
    seconds, mixed = (0.5, 64) if arguments.quick else (8.0, 256)

    model = sizes.base_model(threads_module.available_cores())
    machine = measure.machine()
    print(f"{measure.described(machine)}\n\nDistilBERT-base's size, {model.threads} threads\n", flush=True)
    rows = sizes.rows(mixed)
    chosen = (next(iter(rows)), "8 x 512 tokens", "one sentence of 16 tokens")
    profiles = {work: profile(model, rows[work], seconds) for work in chosen}
    print(f"{stages_table(profiles)}\n", flush=True)
    grown = growth(model, seconds)
    print(growth_table(grown))
    measure.save({"machine": machine, "profiles": profiles, "growth": grown}, arguments.json)


if __name__ == "__main__":
    main()
