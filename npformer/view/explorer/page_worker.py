"""Runs a changed page in a separate process, with limits of time and memory.

The parent writes the program as a pickle to the standard input of `python -m npformer.view.explorer.page_worker`. The
process executes a text that a user has changed, so its output is read as JSON and plain numbers, never as a pickle.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.view.explorer.page_program import PageProgram
from npformer.view.explorer.recorder import Recording, TooLong, record

SECONDS = 20  # seconds of processor time
PATIENCE = 60  # seconds of elapsed time
MEMORY = 3_000_000_000  # maximum bytes that the process may allocate in addition to the weights
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_apart(program: PageProgram) -> tuple[dict[str, np.ndarray], Recording]:
    """Runs a page in another process; returns its answers and the recording of its lines. Raises NpformerError."""
    given = pickle.dumps(tuple(program), protocol=pickle.HIGHEST_PROTOCOL)
    root = str(Path(__file__).parents[3])  # on PYTHONPATH, so that the process imports the same npformer
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "npformer.view.explorer.page_worker"]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": paths}
    try:
        done = subprocess.run(command, input=given, capture_output=True, env=environment, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise NpformerError(f"the changed page did not finish within {PATIENCE} s") from None
    if done.returncode < 0 or not done.stdout:
        raise NpformerError(f"the changed page needs more than {SECONDS} s or {MEMORY / 1e9:g} GB")
    return _read(done.stdout)


def main() -> None:
    """Reads a program, runs it within the limits, and writes the result."""
    program = PageProgram(*pickle.load(sys.stdin.buffer))
    _limit()
    try:
        answers, recording = record(program)
        _write({name: np.asarray(each) for name, each in answers.items()}, recording)
    except MemoryError:
        _fail(f"the changed page needs more than {MEMORY / 1e9:g} GB")
    except TooLong:
        _fail("the changed page runs too many lines")
    except Exception as error:  # the changed line may raise anything
        _fail(f"line {_line(error)}: {type(error).__name__}: {error!s:.300}")


def _line(error: Exception) -> int:
    """Returns the number of the page's last line in a traceback."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<page>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _limit() -> None:
    with suppress(ImportError, ValueError, OSError):  # Windows has no resource limits; PATIENCE still applies
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for what, most in (
            (resource.RLIMIT_CPU, SECONDS),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_AS, used + MEMORY),
        ):
            resource.setrlimit(what, (most, most))


def _fail(reason: str) -> None:
    sys.stdout.buffer.write(json.dumps({"error": reason}).encode() + b"\n")


def _write(answers: dict[str, np.ndarray], recording: Recording) -> None:
    """Writes a line of JSON, then all recorded numbers as float32, and the answers as float64."""
    values = [{name: each for name, each in value.items() if name != "data"} for value in recording.values]
    head = {
        "answers": {name: list(each.shape) for name, each in answers.items()},
        "frames": recording.frames, "steps": recording.steps, "values": values,
    }  # fmt: skip
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n")
    for value in recording.values:
        sys.stdout.buffer.write(np.ascontiguousarray(value["data"], "<f4").tobytes())
    for each in answers.values():
        sys.stdout.buffer.write(np.ascontiguousarray(each, "<f8").tobytes())


def _read(output: bytes) -> tuple[dict[str, np.ndarray], Recording]:
    line, _, numbers = output.partition(b"\n")
    head: dict[str, Any] = json.loads(line)
    if "error" in head:
        raise NpformerError(str(head["error"]))
    at = 0
    for value in head["values"]:
        shape = [len(each) for each in value["picked"]]
        value["data"] = np.frombuffer(numbers, "<f4", int(np.prod(shape)), at).reshape(shape)
        at += value["data"].nbytes
    answers = {}
    for name, shape in head["answers"].items():
        answers[name] = np.frombuffer(numbers, "<f8", int(np.prod(shape)), at).reshape(shape)
        at += answers[name].nbytes
    return answers, Recording(head["frames"], head["steps"], head["values"])


if __name__ == "__main__":
    main()
