"""The command: `python -m tests.fuzz SEED CASES [--kind KIND ...] [--case N] [--workers N]`; see README.md here."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tests.fuzz import kinds, pool
from tests.fuzz.tally import Tally


def main(arguments: Sequence[str] | None = None, out: TextIO = sys.stdout) -> int:
    """Runs cases and prints a table. The exit code is 1 for findings, or if too few cases load or are refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("seed", type=int, help="any whole number: the same seed gives the same cases")
    parser.add_argument("cases", type=int, help="how many, over all kinds")
    parser.add_argument("--kind", action="append", metavar="KIND", help=f"of {', '.join(kinds.KINDS)} (all)")
    parser.add_argument("--case", type=int, metavar="N", help="run this case of --kind alone, and keep its folder")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="(%(default)s)")
    args = parser.parse_args(arguments)
    chosen = args.kind or kinds.available()
    if args.case is not None:
        return one(chosen[0], args.seed, args.case, out)
    started = time.monotonic()
    tally = Tally(args.seed)
    with pool.place() as place:
        run(tally, place, args.workers, shares(chosen, args.cases))
        tally.confirm(place)
    seconds = time.monotonic() - started
    print(tally.table(), file=out)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    computed = used.ru_utime + used.ru_stime
    rates = f"{args.cases / seconds:.0f} a second on {args.workers} workers, {args.cases / computed:.0f} a second of computing"
    print(f"{args.cases} cases in {seconds:.0f} s: {rates}", file=out)
    problems = tally.problems()
    print("\n".join(problems) or "no findings", file=out)
    return bool(problems)


def shares(chosen: Sequence[str], cases: int) -> dict[str, int]:
    """Returns the number of cases of each kind."""
    weights = {name: kinds.KINDS[name].share for name in chosen}
    total = sum(weights.values())
    counts = {name: cases * weight // total for name, weight in weights.items()}
    for name in list(counts)[: cases - sum(counts.values())]:
        counts[name] += 1
    return counts


def run(tally: Tally, place: Path, workers: int, counts: Mapping[str, int]) -> None:
    chunks = [chunk for kind, count in counts.items() for chunk in pool.chunks(kind, tally.seed, 0, count)]
    for result in pool.Pool(place, workers, list(counts)).run(chunks):
        tally.add(result)


def one(kind: str, seed: int, number: int, out: TextIO) -> int:
    """Runs one case, prints its result, and keeps its files for inspection."""
    from tests.fuzz import folder

    tally = Tally(seed)
    with pool.place() as place:
        for result in pool.Pool(place, 1).run([(kind, seed, number, 1)]):
            tally.add(result)
            print(f"{result['outcome']} in {result['seconds']:.2f} s and {result['memory'] / 2**20:.1f} MB", file=out)
            said = "\n".join([result["said"], *result["what"]]).strip()
            print(said.encode("utf-8", "backslashreplace").decode(), file=out)
    kept = Path(pool.tempfile.mkdtemp(prefix=f"fuzz-{kind}-{seed}-{number}-"))
    folder.write(kept, kinds.make(kind, seed, number).files)
    print(f"its files: {kept}", file=out)
    return bool(tally.findings)


if __name__ == "__main__":
    sys.exit(main())
