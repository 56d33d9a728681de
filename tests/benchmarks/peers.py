"""Compares npformer with other engines: `python -m tests.benchmarks.peers [--json FILE] [--quick]`.

Every engine gets the same weights and texts. The peers get their fastest setup: texts sorted by length, in batches of
1, 4, 8 or 32. All engines must return the same logits. Needs the dependency groups `oracle` and `bench`. `models.py`
opens the engines, `measure.py` races them, and `table.py` formats the table.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.threads import available_cores, single_blas_thread
from tests.benchmarks import measure, sizes, table
from tests.benchmarks.models import Contender, Engines, folders


@dataclass(frozen=True)
class Effort:
    """How much to measure: rounds of turns, seconds per turn, number of texts of mixed length."""

    rounds: int
    seconds: float
    mixed: int


FULL = Effort(rounds=4, seconds=0.5, mixed=256)
QUICK = Effort(rounds=2, seconds=0.1, mixed=32)
APART = 1e-4  # engines round float32 sums differently; a wrong mask or activation changes logits by 1e-2 or more


def measure_row(engines: Engines, work: str, lengths: list[int], effort: Effort, pool: Any) -> dict[str, Any]:
    """Races the engines on one row of the table; every engine's logits must agree with npformer's."""
    model = engines.npformer
    ids = sizes.random_ids(lengths, model.config.vocab_size)
    expected = np.stack([each["logits"] for each in model.run([Text(each) for each in ids])])
    apart: dict[str, float] = {}

    def check(runner: measure.Runner, answer: Any) -> None:
        if isinstance(runner, Contender):
            difference = float(np.abs(answer - expected).max())
            if not difference <= APART * max(1, np.abs(expected).max()):
                raise SystemExit(f"{work}: {runner.engine} ({runner.setup}) computes something else, by {difference}")
            apart[runner.engine] = max(difference, apart.get(runner.engine, 0))

    reading = measure.Reading(model, pool)
    floors = [measure.BareProducts(model, lengths, own, pool) for own in (False, True)]
    raced = measure.race([*engines.contenders(ids), *floors, reading], effort.rounds, effort.seconds, check)
    return {
        "work": work,
        "texts": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "operations": measure.work(model.config, lengths),
        "weight_bytes": reading.bytes,
        "bytes_per_second": reading.bytes / raced[reading.engine]["seconds"],
        "logits_apart": apart,
        "engines": raced,
    }


def measure_all(effort: Effort) -> dict[str, Any]:
    """Measures every row for both models, and prints each row when it is done."""
    result: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "effort": vars(effort), "models": {}}
    threads = available_cores()
    # NumPy's BLAS stays on one thread throughout, because its idle threads would spin during the peers' turns.
    with (
        single_blas_thread(),
        ThreadPoolExecutor(threads) as pool,
        tempfile.TemporaryDirectory(prefix="npformer-peers-") as folder,
    ):
        result["machine"] = measure.machine()
        print(measure.described(result["machine"]), flush=True)
        for name, path in folders(Path(folder)).items():
            print(f"\n{name}\n", flush=True)
            engines = Engines(path, threads)
            found = []
            for work, lengths in sizes.rows(effort.mixed).items():
                found.append(measure_row(engines, work, lengths, effort, pool))
                print(table.progress(found[-1]), flush=True)
            result["models"][name] = found
            print(f"\n{table.peers_table(found)}\n{table.notes(found)}", flush=True)
    return result


def main() -> None:
    """Measures and prints all figures, and writes the JSON file if requested."""
    arguments = measure.parser("peers", __doc__, "a few turns only: a look, not a measurement").parse_args()
    result = measure_all(QUICK if arguments.quick else FULL)
    measure.save(result, arguments.json)


if __name__ == "__main__":
    main()
