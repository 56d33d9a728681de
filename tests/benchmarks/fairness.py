"""Measures how long small requests to `npformer serve` wait while one large request is computed.

    python -m tests.benchmarks.fairness [--requests N] [--json FILE]

A client classifies one sentence after another, first alone, then while another client repeats a large request. Each
row shows the client's median and 99th percentile, and the ratio of this percentile to the one without a large request.
The client is alone both before and after each large request, so that other load on the machine affects both figures.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import measure, table
from tests.benchmarks.service import SENTENCE
from tests.support.service import Server

SMALL = ("/predict", {"inputs": SENTENCE, "model": "distilbert-sst2"})
LONG = " ".join([SENTENCE] * 10)
#: Large requests, near the limits of texts and tokens.
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "256 prompts, 245 tokens each": (
        "/v1/completions", {"model": "gpt2-austen", "prompt": ["She was"] * 256, "max_tokens": 245, "temperature": 0},
    ),
    "the same, with logprobs": (
        "/v1/completions",
        {"model": "gpt2-austen", "prompt": ["She was"] * 16, "n": 16, "max_tokens": 245, "logprobs": 5},
    ),
    "vectors of 256 texts": ("/embed", {"model": "distilbert-sst2", "inputs": [LONG] * 256}),
    "vectors of the tokens of 256 texts": ("/embed_all", {"model": "distilbert-sst2", "inputs": [LONG] * 256}),
    "labels of 256 pairs": ("/predict", {"model": "distilbert-sst2", "inputs": [[LONG]] * 256}),
}  # fmt: skip


def latencies(server: Server, count: int) -> list[float]:
    """Returns the times in milliseconds of small requests that are sent one after another."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        status, _, _ = server.post(*SMALL)
        assert status in (200, 504), status  # 504: the request was starved
        found.append(1e3 * (time.perf_counter() - start))
    return found


def beside(server: Server, count: int, path: str, body: dict[str, Any]) -> tuple[list[float], list[int]]:
    """Returns the times of small requests while a large request is repeated, and the large requests' statuses."""
    statuses: list[int] = []
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            statuses.append(server.post(path, body)[0])

    large = threading.Thread(target=repeat)
    large.start()
    try:
        time.sleep(1)  # by then the server has begun the first large request
        return latencies(server, count), statuses
    finally:
        over.set()
        large.join()


def race(requests: int) -> dict[str, Any]:
    """Returns the times of small requests, alone and during each kind of large request."""
    found: dict[str, Any] = {}
    with Server("distilbert-sst2", "gpt2-austen") as server:
        latencies(server, 30)
        for name, large in LARGE.items():
            before = latencies(server, requests // 2)
            among, statuses = beside(server, requests, *large)
            found[name] = {"alone": before + latencies(server, requests // 2), "beside": among, "statuses": statuses}
            print(shown({name: found[name]}), flush=True)
    return found


def shown(found: dict[str, Any]) -> str:
    rows = []
    for name, each in found.items():
        p50, p99 = ([np.percentile(each[way], at) for way in ("alone", "beside")] for at in (50, 99))
        rows.append(
            [name, *(f"{one:.0f} ms" for one in (p50[0], p99[0], p50[1], p99[1])), f"{p99[1] / p99[0]:.1f}"]
        )  # fmt: skip
    return table.markdown(["large request", "p50 alone", "p99 alone", "p50", "p99", "ratio of p99"], rows)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fairness", description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="small requests in each turn (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    arguments = parser.parse_args()
    machine = measure.machine()
    print(f"{measure.described(machine)}\n", flush=True)
    found = race(arguments.requests)
    print(shown(found))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "found": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
