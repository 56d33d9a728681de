"""Runs a port's program on the cases of a conformance suite and judges the files it writes.

    for verdict in npformer.golden.run_suite("suite", ["./port"]):
        print(verdict.case, verdict.kind, verdict.why)

The program is started once for each case, with three more arguments: the model's folder, the file of token ids, and the
path of the safetensors file to write. A crash or a timeout also yields a verdict.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npformer.checkpoint.archive import load_arrays
from npformer.checkpoint.read import load_folder
from npformer.common.errors import NpformerError
from npformer.golden.compare import Comparison, compare
from npformer.golden.diagnose import diagnose
from npformer.golden.diagnosis import Diagnosis
from npformer.golden.format import Golden, load
from npformer.golden.suite import INPUTS, read_suite
from npformer.golden.tiny import TINY_FILE
from npformer.model import Model, Seq2Seq

TIMEOUT = 60.0  # seconds for one case
TAIL = 4000  # bytes kept from the end of the program's output

PASS = "pass"
# The verdicts other than PASS, with their meanings.
FAULTS = {
    "diverges": "a stage or a weight is wrong",
    "incomplete": "all stages that it wrote are correct, but its answer is missing",
    "crash": "it exited with a nonzero code or was killed by a signal",
    "timeout": "it took longer than the timeout and was stopped",
    "no output": "it exited with code 0, but wrote no file",
    "unreadable": "its file is not a safetensors file, or has no stage of this case",
}

#: Dtype of a case's stored weights -> a hint for a port that fails without a known cause.
HINTS = {
    "float16": "the weights of this case are stored in float16: read two bytes per number and convert to float32",
    "bfloat16": "the weights of this case are stored in bfloat16, which NumPy does not have: "
    "(np.frombuffer(data, '<u2').astype('<u4') << 16).view('<f4') reads them",
}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one case."""

    case: str
    tests: str  # features that a passing port computes correctly
    kind: str
    why: str  # the reason, in one line
    details: str = ""  # the diagnosis, or the end of the program's output
    stage: str = ""  # the first stage that diverges
    causes: tuple[str, ...] = ()  # the names of the mistakes found
    compared: int = 0  # number of stages compared
    seconds: float = 0.0  # run time of the program

    @property
    def ok(self) -> bool:
        return self.kind == PASS


def run_suite(
    path: str | Path,
    command: Sequence[str],
    cases: list[str] | None = None,
    timeout: float = TIMEOUT,
    dtype: str | None = None,
) -> Iterator[Verdict]:
    """Runs a port's program on each case of a suite, and yields the verdicts one after another.

    Parameters
    ----------
    path : folder of the suite
    command : the program and its arguments; the model's folder, the file of ids and the output's path follow them
    cases : list of str, optional
        Names of cases, or patterns with `*`; by default all cases.
    timeout : seconds allowed for each case
    dtype : str, optional
        The precision of the port, as in `compare`.

    Returns
    -------
    iterator of Verdict

    Raises
    ------
    NpformerError
        If the suite or a case does not exist, or the program cannot be started.

    Examples
    --------
    >>> folder = npformer.golden.suite("suite", ["bert-masked-lm"])
    >>> [verdict] = run_suite(folder, ["false"])
    >>> verdict.kind, verdict.why
    ('crash', 'exit code 1; nothing printed')
    """
    entries = read_suite(path, cases)
    return (
        _hinted(_verdict(Path(path).resolve() / each["name"], command, timeout, dtype, each), each) for each in entries
    )


def _hinted(verdict: Verdict, entry: dict[str, Any]) -> Verdict:
    """Adds a hint about the dtype of the stored weights to a fault without a known cause."""
    hint = HINTS.get(str(entry.get("dtype")))
    return replace(verdict, why=f"{verdict.why}; {hint}") if hint and not (verdict.ok or verdict.causes) else verdict


def _verdict(folder: Path, command: Sequence[str], timeout: float, dtype: str | None, entry: dict[str, Any]) -> Verdict:
    named = {"case": entry["name"], "tests": str(entry.get("tests", ""))}
    reference = load(folder / TINY_FILE)
    with tempfile.TemporaryDirectory(prefix="npformer-") as work:
        output = Path(work) / "stages.safetensors"
        began = time.monotonic()
        code, said = _run([*command, str(folder), str(folder / INPUTS), str(output)], timeout)
        named["seconds"] = time.monotonic() - began
        if code != 0:
            return Verdict(**named, **_stopped(code, said, timeout))
        if not output.exists():
            return Verdict(**named, kind="no output", why="exit code 0, but no file", details=said)
        try:
            arrays, _ = load_arrays(output)
            comparison = compare(reference, arrays, dtype=dtype)
        except NpformerError as error:
            problem = str(error).replace(f"{output}: ", "")
            return Verdict(**named, kind="unreadable", why=problem, details=said)
        return Verdict(**named, **_judged(folder, reference, arrays, comparison))


def _run(command: list[str], timeout: float) -> tuple[int | None, str]:
    """Runs a program in its own process group; returns its exit code (None after a timeout) and the end of its output.

    The output goes to a file, because a pipe would stay open as long as any child process lives.
    """
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise NpformerError(f"{command[0]}: cannot be started: {reason}") from None
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout)
        finally:
            if code is None:
                _kill(process)
        said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL))
        return code, said.read().decode(errors="replace").strip()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a program and, except on Windows, the programs that it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _stopped(code: int | None, said: str, timeout: float) -> dict[str, Any]:
    last = said.splitlines()[-1].strip() if said else ""
    printed = f": {last:.200}" if last else "; nothing printed"
    if code is None:
        return {"kind": "timeout", "why": f"stopped after {timeout:g} s{printed}", "details": said}
    return {"kind": "crash", "why": f"{_ended(code)}{printed}", "details": said}


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _judged(folder: Path, reference: Golden, arrays: dict[str, Any], comparison: Comparison) -> dict[str, Any]:
    """Returns the verdict on a file that could be read."""
    compared = len(comparison.rows)
    if not comparison.ok or comparison.theirs.weights:
        config, tree = load_folder(folder)
        model = (Seq2Seq if config.head == "translation" else Model)(config, tree)
        diagnosis = diagnose(reference, arrays, model, comparison=comparison)
        if not comparison.ok or diagnosis.weights:
            return {
                "kind": "diverges",
                "why": why(comparison, diagnosis),
                "details": str(diagnosis),
                "stage": comparison.first.stage if comparison.first else "",
                "causes": tuple(dict.fromkeys(cause for each in (diagnosis, *diagnosis.then) for cause in each.causes)),
                "compared": compared,
            }
    stages = f"{compared} of {len(reference.stages)} stages" if comparison.missing else f"all {compared} stages"
    if absent := [name for name in reference.answers if name in comparison.missing]:
        told = f"no {' and no '.join(absent)}; {stages}, all correct"
        return {"kind": "incomplete", "why": told, "details": str(comparison), "compared": compared}
    return {"kind": PASS, "why": stages, "compared": compared}


def why(comparison: Comparison, diagnosis: Diagnosis | None) -> str:
    """Returns one line with the stages that diverge and their known causes."""
    first = comparison.first
    told = [f"{finding} ({finding.cause})" for finding in diagnosis.weights[:2]] if diagnosis else []
    if first is not None and (diagnosis is None or diagnosis.stage != first.stage or not diagnosis.fits):
        off = first.problem or f"off by {first.budgets:.3g} budgets"
        known = "; the fault is earlier" if diagnosis and diagnosis.stage and diagnosis.lies_earlier else ""
        told.append(f"{first.stage}: {off}{known}")
    for each in (diagnosis, *diagnosis.then) if diagnosis else ():
        certain = [str(fit) for fit in each.fits if fit.certain]
        if certain:
            told.append(f"{each.stage}: {' or '.join(certain[:2])}")
        elif each.fits:
            told.append(f"{each.stage}: no known mistake; closest: {each.fits[0]}")
    return "; ".join(told)
