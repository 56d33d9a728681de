"""Compares a generator of texts with a list of texts: `python -m tests.benchmarks.streaming [--json FILE] [--quick]`.

100,000 short texts go through `pipeline(generator)` while the memory of the process is measured. Then the throughput
of a generator and of a list of texts is measured in turns. The model is the bundled one, so only npformer is needed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npformer import pipeline
from tests.benchmarks import measure, table

# fmt: off
WORDS = (
    "a", "all", "and", "bad", "but", "cast", "dull", "each", "film", "for", "fun", "funny", "good", "great", "in", "is",
    "it", "its", "like", "long", "lovely", "made", "more", "movie", "never", "nice", "no", "not", "of", "on", "plot",
    "poor", "rather", "scene", "slow", "so", "some", "story", "than", "that", "the", "there", "this", "to", "too",
    "truly", "very", "warm", "was", "watch", "well", "with", "witty", "worth",
)
# fmt: on


def texts(count: int) -> Iterator[str]:
    """Yields texts of three to eighteen words, the same in every run."""
    chance = random.Random(0)
    for _ in range(count):
        yield " ".join(chance.choices(WORDS, k=chance.randint(3, 18)))


def resident() -> int:
    """Returns the process's resident memory in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) * 1024


def memory(task: Any, count: int, points: int = 20) -> dict[str, Any]:
    """Returns the resident memory after each twentieth of a stream, and the stream's seconds and number of tokens."""
    curve, tokens = [], 0
    start = time.perf_counter()
    for answered, answer in enumerate(task(texts(count)), 1):
        tokens += answer.n_tokens
        if answered % (count // points) == 0:
            curve.append({"answered": answered, "resident": resident()})
    return {"texts": count, "tokens": tokens, "seconds": time.perf_counter() - start, "curve": curve}


def throughput(task: Any, count: int, rounds: int) -> dict[str, float]:
    """Returns the minimum seconds for `count` texts from a generator and from a list, measured in turns."""

    def stream() -> None:
        for _ in task(texts(count)):
            pass

    made = list(texts(count))
    least = {"generator": float("inf"), "list": float("inf")}
    for _ in range(rounds):
        for name, run in (("generator", stream), ("list", lambda: task(made))):
            least[name] = min([least[name], *measure.turn(run, 0)[1]])
    return least


def main() -> None:
    """Measures and prints all figures, and writes the JSON file if requested."""
    arguments = measure.parser("streaming", __doc__, "a tenth of the texts").parse_args()
    count, compared, rounds = (10_000, 2_000, 3) if arguments.quick else (100_000, 10_000, 7)

    task, machine = pipeline("text-classification"), measure.machine()
    print(f"{measure.described(machine)}\n", flush=True)
    task(list(texts(2 * task.window)))  # pays all one-time costs
    before = resident()
    streamed = memory(task, count)
    rows = [[f"{each['answered']:,}", megabytes(each["resident"])] for each in streamed["curve"]]
    print(table.markdown(["answered", "resident"], [["0", megabytes(before)], *rows]))
    half = [each["resident"] for each in streamed["curve"][len(streamed["curve"]) // 2 :]]
    print(
        f"\n{count:,} texts, {streamed['tokens']:,} tokens in {streamed['seconds']:.1f} s: "
        f"{count / streamed['seconds']:.0f} texts/s, {streamed['tokens'] / streamed['seconds']:.0f} tokens/s\n"
        f"resident memory grew by {megabytes(max(half) - before)} in all, "
        f"and by {megabytes(half[-1] - half[0])} over the second half\n",
        flush=True,
    )
    compared_seconds = throughput(task, compared, rounds)
    ratio = compared_seconds["generator"] / compared_seconds["list"]
    print(
        f"{compared:,} texts: {compared_seconds['generator']:.2f} s from a generator, {compared_seconds['list']:.2f} s "
        f"from a list: {ratio:.3f} times as long"
    )
    measure.save(
        {"machine": machine, "before": before, "stream": streamed, "compared": compared_seconds}, arguments.json
    )


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
