"""Measures start-up: `python -m tests.benchmarks.start [--json FILE] [--quick]`.

Whole processes are timed in turns: an import, and the first answer of the command and of a pipeline, compared with
importing NumPy and with a transformers pipeline (if torch and transformers are installed). Then a model of
DistilBERT-base's size is loaded from npformer's own layout, which is mapped, and from torch's, which must be read and
transposed. The figures are the time of loading, the peak memory, and the memory that two processes share.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npformer.checkpoint.convert import convert
from npformer.loading import bundled
from tests.benchmarks import measure, sizes, table
from tests.benchmarks.sizes import BUNDLED, TEXT

LOAD = """
import json, sys, time
def peak():  # not ru_maxrss, which begins with what the parent process had
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
def seconds(action):
    global result
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start
def load():
    import npformer
    return npformer.load(sys.argv[1])
report = {"import": seconds(lambda: __import__("npformer")), "load": seconds(load)}
model = result
report["first answer"] = seconds(lambda: model([101] * 16))
report["peak with one text"] = peak()
model([[101] * 128] * 32)
report["peak with 32 x 128"] = peak()
report["later answers"] = min(seconds(lambda: model([101] * 16)) for _ in range(9))
report["peak with short texts"] = peak()  # their weights are kept in a second layout
print(json.dumps(report), flush=True)
"""
WAIT = "sys.stdin.read()\n"  # waits until the parent has read this process's page counts
TRANSFORMERS = """
import sys
from transformers import pipeline
print(pipeline("text-classification", model=sys.argv[1], device="cpu")(sys.argv[2]))
"""


@dataclass(frozen=True)
class Process:
    """A program that is timed as a whole."""

    engine: str
    arguments: tuple[str, ...]
    setup: str = ""

    def run(self) -> None:
        subprocess.run([sys.executable, *self.arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def processes(folder: Path) -> list[Process]:
    """Returns the programs to time; the one with transformers reads the bundled model in torch's layout."""
    answer = f"from npformer import pipeline; pipeline('text-classification')({TEXT!r})"
    found = [
        Process("python", ("-c", "pass")),
        Process("import numpy", ("-c", "import numpy")),
        Process("import npformer", ("-c", "import npformer")),
        Process("npformer pipeline, one text", ("-c", answer)),
        Process(f'npformer classify "{TEXT}"', ("-m", "npformer", "classify", TEXT)),
    ]
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        torch_folder = convert(bundled()[BUNDLED], folder / BUNDLED, to="torch", dtype="float32")
        found.append(Process("transformers pipeline, one text", ("-c", TRANSFORMERS, str(torch_folder), TEXT)))
    return found


def loading(folder: Path, rounds: int) -> dict[str, float]:
    """Returns the minimum of each figure that fresh processes report."""
    reports = []
    for _ in range(rounds):
        measure.settle()
        done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], check=True, capture_output=True)
        reports.append(json.loads(done.stdout))
    return {name: min(report[name] for report in reports) for name in reports[0]}


def together(folder: Path, count: int) -> list[dict[str, int]]:
    """Returns the total memory of `count` processes that use the same model at once, in bytes, from smaps_rollup."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD + WAIT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(count)
    ]
    try:
        for process in running:
            process.stdout.readline()
        return [_pages(process.pid) for process in running]
    finally:
        for process in running:
            process.communicate(b"")


def _pages(process: int) -> dict[str, int]:
    """Returns a process's memory in bytes: resident, proportional (shared pages divided by users), shared, own."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    kinds = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {
        "resident": kinds["Rss"],
        "proportional": kinds["Pss"],
        "shared": kinds["Shared_Clean"],
        "own": kinds["Private_Dirty"] + kinds["Shared_Dirty"],
    }


def main() -> None:
    """Measures and prints all figures, and writes the JSON file if requested."""
    arguments = measure.parser("start", __doc__, "fewer runs").parse_args()
    rounds = 3 if arguments.quick else 15

    result: dict[str, Any] = {"machine": measure.machine()}
    print(f"{measure.described(result['machine'])}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="npformer-start-") as name:
        folder = Path(name)
        raced = result["processes"] = measure.race(processes(folder), rounds, 0)
        numpy = raced["import numpy"]["seconds"]
        body = [
            [name, table.milliseconds(each["seconds"]), f"{(each['seconds'] - numpy) * 1e3:+.0f} ms"]
            for name, each in raced.items()
        ]
        print(table.markdown(["a whole process", "takes", "more than importing NumPy"], body) + "\n", flush=True)

        forms = {form: sizes.write_base(folder / form, form) for form in ("npformer", "torch")}
        result["loading"] = {form: loading(path, rounds) for form, path in forms.items()}
        print(table.markdown(["DistilBERT-base's size, from", *TIMES, *PEAKS], _loading_rows(result["loading"])) + "\n")

        result["together"] = {form: {n: together(path, n) for n in (1, 2)} for form, path in forms.items()}
        head = ["processes", "resident", "shared", "own", "proportional, all"]
        print(table.markdown(head, _together_rows(result["together"])))
    measure.save(result, arguments.json)


TIMES = ("import", "load", "first answer", "later answers")
PEAKS = ("peak with one text", "peak with 32 x 128", "peak with short texts")


def _loading_rows(found: dict[str, dict[str, float]]) -> list[list[str]]:
    return [
        [f"{form}'s layout", *(table.milliseconds(each[name]) for name in TIMES)]
        + [f"{each[name] / 1e6:.0f} MB" for name in PEAKS]
        for form, each in found.items()
    ]


def _together_rows(found: dict[str, dict[int, list[dict[str, int]]]]) -> list[list[str]]:
    return [
        [f"{count}, {form}'s layout"]
        + [f"{max(each[name] for each in pages) / 1e6:.0f} MB" for name in ("resident", "shared", "own")]
        + [f"{sum(each['proportional'] for each in pages) / 1e6:.0f} MB"]
        for form, by_count in found.items()
        for count, pages in by_count.items()
    ]


if __name__ == "__main__":
    main()
