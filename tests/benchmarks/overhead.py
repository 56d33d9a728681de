"""Measures the overhead of the interpreter: `python -m tests.benchmarks.overhead [--quick] [--json FILE]`.

Models with almost no arithmetic show the cost of everything except products. Their work is a forward pass of six layers
for 8 tokens, a step of 30 layers, and a step of 12 layers. Passes of the engine and replays take turns. Models of real
width follow, in which products dominate. The table also shows the number of function calls in a pass (Python and C),
and the size of its programs in bytes.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from npformer.engine.replay.replays import PASSES, Replays
from npformer.families import FAMILIES
from npformer.model import Model
from tests.benchmarks import measure, table
from tests.support import tiny

STEPS = 48
LLAMA = {"n_kv_heads": 1, "n_heads": 4}


@dataclass(frozen=True)
class Work:
    """A model and its input."""

    name: str
    family: str
    sizes: dict[str, Any]
    tokens: int = 8
    steps: int = 0  # 0 for a forward pass

    def prepare(self) -> tuple[Model, Callable[[], Any]]:
        """Returns the model, and a function that runs it once."""
        head = "causal-lm" if self.steps else "base"
        config = FAMILIES[self.family].config(head, vocab_size=1000, max_length=512, **self.sizes)
        model = Model(config, tiny.weights(config))
        ids = np.arange(1, 1 + self.tokens)
        if not self.steps:
            return model, lambda: model([ids])
        count = {"max_new_tokens": self.steps, "min_new_tokens": self.steps}
        return model, lambda: model.generate(ids, **count)


WORKS = (
    Work("6 layers, width 24, 8 tokens", "distilbert", {"d_model": 24, "n_heads": 12, "n_layers": 6, "d_ffn": 48}),
    Work("6 layers, width 384, 8 tokens", "distilbert", {"d_model": 384, "n_heads": 12, "n_layers": 6, "d_ffn": 1536}),
    Work("6 layers, width 384, 32 tokens", "distilbert", {"d_model": 384, "n_heads": 12, "n_layers": 6, "d_ffn": 1536}, 32),
    Work("6 layers, width 768, 8 tokens", "distilbert", {"d_model": 768, "n_heads": 12, "n_layers": 6, "d_ffn": 3072}),
    Work("a step of 30 layers, width 24", "llama", {"d_model": 24, "n_layers": 30, "d_ffn": 48, **LLAMA}, steps=STEPS),
    Work("a step of 12 layers, width 24", "gpt2", {"d_model": 24, "n_heads": 4, "n_layers": 12, "d_ffn": 48}, steps=STEPS),
    Work(
        "a step of 30 layers, width 576",
        "llama",
        {"d_model": 576, "n_heads": 9, "n_kv_heads": 3, "n_layers": 30, "d_ffn": 1536},
        steps=STEPS,
    ),
)  # fmt: skip


@contextmanager
def as_written() -> Iterator[None]:
    """Turns replays off in the block, so that the engine's own code runs every pass."""
    with mock.patch.object(Replays, "run", lambda self, each: each()):
        yield


def calls(run: Callable[[], Any]) -> int:
    """Returns the number of calls of Python and C functions in a run."""
    profile = cProfile.Profile()
    profile.runcall(run)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def measured(work: Work, turns: int) -> dict[str, Any]:
    """Returns the minimum time of each variant in ms, its number of calls, and the size of the programs in bytes."""
    model, run = work.prepare()
    for _ in range(PASSES + 3):
        run()
    count = max(1, work.steps)
    written, replayed = [], []
    for _ in range(turns):
        with as_written():
            written.append(_seconds(run))
        replayed.append(_seconds(run))
    with as_written():
        written_calls = calls(run)
    programs = [each.program for each in model.replays._shapes.values() if each.program]
    return {
        "as written": 1000 * min(written) / count,
        "replayed": 1000 * min(replayed) / count,
        "calls as written": written_calls // count,
        "calls replayed": calls(run) // count,
        "bytes": sum(each.nbytes for each in programs),
    }


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    args = measure.parser("overhead", __doc__, "a few turns: a rough look, not a measurement").parse_args()
    found = {"machine": measure.machine(), "works": {}}
    for work in WORKS:
        turns = (3 if args.quick else 15) if work.steps else (20 if args.quick else 200)
        found["works"][work.name] = measured(work, turns)
    rows = [
        [
            name,
            f"{each['as written']:.2f}",
            f"{each['replayed']:.2f}",
            f"{each['replayed'] / each['as written']:.2f}",
            f"{each['calls as written']:,}",
            f"{each['calls replayed']:,}",
            f"{each['bytes'] / 1e6:.1f}",
        ]
        for name, each in found["works"].items()
    ]
    print(measure.described(found["machine"]))
    head = ["a pass", "as written, ms", "replayed, ms", "ratio", "calls", "calls replayed", "programs, MB"]
    print(table.markdown(head, rows))
    measure.save(found, args.json)


if __name__ == "__main__":
    main()
