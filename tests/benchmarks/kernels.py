"""Tests and times each kernel that this CPU can run: `python -m tests.benchmarks.kernels [--quick] [NAME...]`.

OpenBLAS chooses a kernel when it is loaded, according to the CPU or OPENBLAS_CORETYPE, so each kernel is measured in a
separate process. This process runs the numerical tests (`pytest -m numbers`). Then the bundled model answers single
texts and a batch, alternately with `same_bits` on and off, on all threads of this machine.

Use the newest NumPy, because an old OpenBLAS is unreliable on newer CPUs. If a kernel crashes Python, the
table says so.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import npformer
from npformer.engine.runtime import products
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.threads import blas_libraries
from tests.benchmarks.table import markdown
from tests.support import kernels

ROOT = Path(__file__).parent.parent.parent
WORDS = (4, 10, 25, 60, 120)
TEXTS = 128
ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels, by default all that this CPU can run")
    parser.add_argument("--quick", action="store_true", help="leave out the tests")
    parser.add_argument("--here", action="store_true", help="measure in this process, print JSON (for child processes)")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measured()))
        return
    head = ["kernel", "tests", "float32", "float64", *(f"{words} words" for words in WORDS), f"{TEXTS} texts"]
    rows = []
    for name in args.names or kernels.of_this_machine():
        tests = "not run" if args.quick else tested(name)
        rows.append([name, tests, *cells(name)])
        print(markdown(head, rows[-1:]), flush=True)
    print(f"\nNumPy {np.__version__}; last columns: time with `same_bits` on, divided by time with it off\n")
    print(markdown(head, rows))


def tested(name: str) -> str:
    ran = python(name, "-m", "pytest", "-m", "numbers", "-p", "no:cacheprovider")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", ran.stdout)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return stopped(ran) or f"{counts.get('passed', 0)} passed" + (f", {failed} failed" if failed else "")


def cells(name: str) -> list[str]:
    ran = python(name, "-m", "tests.benchmarks.kernels", "--here")
    if stopped(ran):
        return [stopped(ran)] * 2 + ["-"] * (len(WORDS) + 1)
    ran.check_returncode()
    facts = json.loads(ran.stdout)
    return [*facts["bits"], *(f"{ratio:.2f}" for ratio in facts["cost"])]


def python(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = kernels.under(name) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def stopped(ran: subprocess.CompletedProcess) -> str:
    """Describes how a signal ended a process; "" if no signal did."""
    return f"Python stopped: {kernels.stop(ran)}" if ran.returncode < 0 else ""


def measured() -> dict[str, Any]:
    bits = [
        f"{'yes' if products.same_bits(np.dtype(dtype)) else 'no'}: {products.kernel(np.dtype(dtype)).means()}"
        for dtype in ("float32", "float64")
    ]
    return {"kernel": [each.get("architecture") for each in blas_libraries()], "bits": bits, "cost": costs()}


def costs() -> list[float]:
    """Returns time ratios, measured in turns in one process: `same_bits` on, divided by `same_bits` off."""
    model, random = npformer.load("distilbert-sst2"), np.random.default_rng(0)
    tokens = [*(int(words * 1.25) + 2 for words in WORDS)]

    def texts(lengths: list[int]) -> list[Text]:
        return [Text(np.r_[101, random.integers(1000, 30000, length - 2), 102]) for length in lengths]

    works = [*(texts([length]) for length in tokens), texts(random.integers(6, 80, TEXTS).tolist())]
    ratios = []
    for work in works:
        least = [np.inf, np.inf]
        for turn in range(2 * ROUNDS):
            model.same_bits = turn % 2 == 0
            start = time.perf_counter()
            for repeat in range(30 if len(work) == 1 else 3):
                before = time.perf_counter()
                model.run(work)
                if repeat:  # the first call only warms up
                    least[turn % 2] = min(least[turn % 2], time.perf_counter() - before)
                    if time.perf_counter() - start > 3:
                        break
        ratios.append(least[0] / least[1])
    return ratios


if __name__ == "__main__":
    main()
