"""Files that crash, hang, flood or stop their process: each check ends with a verdict of limited length."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer.learn import running, worker
from npformer.learn.checking import _Check
from npformer.learn.judge import PASSED, WRONG, Verdict, judge
from npformer.learn.running import COMPUTED, HALTED, OVER, WAITED, Ended, Time, _told, _watched
from tests.learn.test_check import EXERCISES, problems, signatures, written

check = partial(npformer.learn.check, limit=100.0)
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
LINEAR = "def linear(x, weight, bias=0.0):\n    return x @ weight + bias"


@POSIX
def test_a_stopped_process_is_ended_with_a_verdict(tmp_path: Path) -> None:
    stop = "def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):\n    import os, signal\n"
    stop += (
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n    os.kill(os.getpid(), signal.SIGSTOP)"
    )
    report = check(written(tmp_path, {"layer_norm": stop, "linear": LINEAR}), chapter=1)
    assert problems(report) == {"layer_norm": "Its process was stopped by a signal and did not continue."}
    assert report.passed_names == ["linear"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@POSIX
def test_a_function_that_waits_is_ended_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SHORTEST", 0.2)
    wait = "def embed(ids, positions, eps, token, position, norm):\n    import threading\n    threading.Event().wait()"
    found = problems(npformer.learn.check(written(tmp_path, {"embed": wait}), chapter=1, limit=0.05))
    assert "although it used hardly any processor time. It was at line " in found["embed"]
    assert "`threading.Event().wait()`" in found["embed"]


@POSIX
def test_copies_of_the_process_end_with_it(tmp_path: Path) -> None:
    """The copy, made by fork, loops forever. It is killed when the process ends."""
    fork = "def embed(ids, positions, eps, token, position, norm):\n    import os\n    while os.fork() == 0:\n"
    fork += "        while True:\n            pass\n    return layer_norm(token['weight'][ids] + position['weight'][positions], **norm, eps=eps)"
    report = check(written(tmp_path, {"embed": fork, "linear": LINEAR}), chapter=1)
    assert report.passed_names == ["linear", "embed"]


def test_a_copy_of_the_process_tells_nothing(tmp_path: Path) -> None:
    """The copy, made by fork, also continues with the next functions, but its verdicts do not count."""
    body = "    import os\n    os.fork()\n    return x @ weight + bias"
    if not hasattr(os, "fork"):
        pytest.skip("Windows has no fork")
    report = check(written(tmp_path, {"linear": f"def linear(x, weight, bias=0.0):\n{body}"}), chapter=1)
    assert report.passed_names == ["linear"]
    assert problems(report) == {}


@pytest.mark.parametrize("error", ["ValueError('x' * 10_000_000)", "type('E' * 10**6, (Exception,), {})()", "Mute()"])
def test_the_words_of_an_exception_are_bounded(error: str, tmp_path: Path) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def gelu(x: Any) -> Any:
        raise eval(error, {"Mute": Mute, "__builtins__": __builtins__})

    verdict = judge(EXERCISES["gelu"], gelu, signatures()["gelu"], "").with_cause()
    assert verdict.kind == "exception"
    assert 5 < len(verdict.problem) < 1000


def test_an_exception_does_not_control_the_terminal() -> None:
    def gelu(x: Any) -> Any:
        raise ValueError("\x1b[2J")

    assert judge(EXERCISES["gelu"], gelu, signatures()["gelu"], "").verdict.problem == "It raises ValueError: \\x1b[2J"


@POSIX
def test_a_flood_of_output_leaves_room_for_other_functions(tmp_path: Path) -> None:
    functions = {
        "gelu": "def gelu(x):\n    print('\\n' * 20_000_000)\n    return x",
        "linear": "def linear(x, weight, bias=0.0):\n    print('short', flush=True)\n    return x @ weight + bias",
    }
    report = check(written(tmp_path, functions), chapter=1)
    assert report.passed_names == ["linear"]
    assert problems(report)["gelu"].endswith("OSError: [Errno 27] File too large. The output is limited to 16 MB.")
    assert len(str(report).splitlines()) < 40


def test_processor_time_is_limited_not_the_time_on_a_clock(tmp_path: Path) -> None:
    if not hasattr(signal, "setitimer"):
        pytest.skip("Windows does not limit processor time")
    with open(tmp_path / "stack", "w") as stack, worker._limited(100.0, stack):
        assert 0 < signal.getitimer(signal.ITIMER_PROF)[0] <= 101
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


class Process:
    """A process that does not end, and may be stopped."""

    pid, signals = 0, 0

    def send_signal(self, number: int) -> None:
        self.signals += 1


@pytest.mark.parametrize(
    ("stopped", "left", "why", "looks"),
    [(False, 1e9, WAITED, 80 / 0.05), (True, 1e9, HALTED, 20), (False, 3.0, OVER, 3 / 0.05)],
)
def test_the_watch_counts_how_often_it_looks(
    stopped: bool, left: float, why: str, looks: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent counts its polls instead of reading a clock, which goes on while the machine is suspended."""
    seen: list[int] = []
    monkeypatch.setattr(running, "RUN_LIMIT", 20.0)
    monkeypatch.setattr(running, "computed", lambda pid: 0.0)
    monkeypatch.setattr(running, "ended_in", lambda process: bool(seen.append(1)))
    monkeypatch.setattr(running, "is_stopped", lambda pid: stopped)
    monkeypatch.setattr(running, "_where", lambda process: None)
    assert _watched(Process(), tmp_path / "results", 5.0, Time(left)) == why  # type: ignore[arg-type]
    assert abs(len(seen) - looks) <= 1


def test_a_step_that_begins_gets_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, seen = tmp_path / "results", list[int]()

    def ended_in(process: object) -> bool:
        seen.append(1)
        if len(seen) % 300 == 0:  # 300 polls take 15 s, of the 20 s that each function may take
            with open(results, "a") as file:
                file.write('{"began": "gelu"}\n')
        return len(seen) == 3000

    monkeypatch.setattr(running, "ended_in", ended_in)
    monkeypatch.setattr(running, "is_stopped", lambda pid: False)
    assert _watched(Process(), results, 5.0, Time()) == ""  # type: ignore[arg-type]


def test_a_process_that_computes_slowly_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the process gets a tenth of a processor. Its own limit ends it, with the correct reason."""
    seen: list[int] = []
    monkeypatch.setattr(running, "ended_in", lambda process: bool(seen.append(1)) or len(seen) == 5000)
    monkeypatch.setattr(running, "is_stopped", lambda pid: False)
    monkeypatch.setattr(running, "computed", lambda pid: len(seen) * 0.005)
    assert _watched(Process(), tmp_path / "results", 5.0, Time()) == ""  # type: ignore[arg-type]


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="the system has no /proc")
def test_processor_time_is_read() -> None:
    before = running.computed(os.getpid())
    while running.computed(os.getpid()) < before + 0.02:
        sum(range(10_000))
    assert running.computed(0) == 0


def ended(*told: dict[str, Any], why: str = "") -> Ended:
    return Ended(told, 0, "", 0, why)


def test_a_verdict_is_never_replaced() -> None:
    """Neither a second verdict nor the end of a process replaces a function's verdict. Only a cause can be added."""
    made = _Check(Path("mine.py"), [1], 5.0, 0, Time())
    first, other = Verdict("gelu", WRONG, "numbers", "wrong"), Verdict("gelu", PASSED)
    made._take(ended({"began": "gelu"}, {"verdict": first.as_dict()}, {"verdict": other.as_dict()}))
    made._stopped(ended({"began": "gelu"}, why=COMPUTED))
    made._stopped(ended({"began": "searching gelu"}, why=COMPUTED))
    assert made.verdicts == {"gelu": first}
    found = Verdict("gelu", WRONG, "numbers", "wrong", "relu", "This is relu.")
    made._take(ended({"explained": found.as_dict()}))
    assert made.verdicts == {"gelu": found}


def test_results_that_the_file_wrote_are_left_out() -> None:
    made = _Check(Path("mine.py"), [1], 5.0, 0, Time())
    lines = [
        '{"began": 3}',
        "[1]",
        '{"began": "gelu"',
        "[" * 100_000,
        '{"verdict": {"name": "gelu"}}',
        '{"verdict": 1}',
    ]
    told = tuple(_told("\n".join([*lines, '{"began": "gelu"}'])))
    made._take(ended(*told))
    assert made.verdicts == {}
    assert ended(*told).began == "gelu"


def test_when_the_time_of_a_file_is_over_every_function_has_a_verdict() -> None:
    made = _Check(Path("mine.py"), [1], 5.0, 0, Time(40.0))
    made._take(ended({"began": "linear"}, {"verdict": Verdict("linear", PASSED).as_dict()}))
    assert made._stopped(ended({"began": "layer_norm"}, why=OVER))
    assert [each.kind for each in made.verdicts.values()] == ["", "time", "time", "time"]


def test_the_process_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    parents = iter([7, 7, 1])
    monkeypatch.setattr(worker.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(worker.os, "_exit", codes.append)
    with contextlib.suppress(StopIteration):
        worker._end_with(7)
    assert codes == [1]
