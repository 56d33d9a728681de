"""Progress on stderr: a bar on a terminal, nothing in a pipe, a summary line, and a separate line for each message."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import Text, load, pipeline
from npformer.checkpoint import convert
from npformer.cli import convert as command
from npformer.cli.main import main
from npformer.cli.process import Escaping, complain
from npformer.common import progress
from npformer.engine.runtime import packing
from tests.support import tiny, writers


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Returns the final contents of the screen. A carriage return moves to the start of the line."""
        shown = []
        for line in self.getvalue().split("\n"):
            row = ""
            for text in line.split("\r"):
                row = text + row[len(text) :]
            shown.append(row.rstrip())
        return shown


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(progress, "DELAY", 0.05)
    monkeypatch.setattr(progress, "TICK", 0.01)
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def until(shown: Callable[[], object]) -> None:
    """Waits until the terminal shows something, even if the drawing thread is slow on a busy machine."""
    end = time.monotonic() + 120
    while not shown():
        assert time.monotonic() < end
        time.sleep(0.005)


def with_bar(terminal: Terminal, items: Iterable[int], total: int | None = 3) -> list[int]:
    with redirect_stderr(terminal):
        return list(progress.with_bar(items, total, "rows"))


def test_a_bar_shows_and_gives_way_to_a_line_of_summary(terminal: Terminal) -> None:
    def items() -> Iterator[int]:
        yield 0
        until(lambda: "] 1/3 rows" in terminal.getvalue())
        yield from (1, 2)

    assert with_bar(terminal, items()) == [0, 1, 2]
    pictures = terminal.getvalue().split("\r")
    assert any(re.match(r"\[######              \] 1/3 rows  \d+:\d\d", each) for each in pictures), pictures
    assert max(map(len, pictures)) < 80
    summary, rest = terminal.lines()
    assert re.fullmatch(r"3 rows in \d+:\d\d, [\d.]+ a second", summary)
    assert rest == ""


def test_a_bar_moves_before_the_first_item_is_done(terminal: Terminal) -> None:
    """The elapsed time shows that the command is working, even if the first texts take long."""

    def items() -> Iterator[int]:
        until(lambda: terminal.getvalue().count("] 0/1 rows") > 2)
        yield 0

    with_bar(terminal, items(), 1)
    assert terminal.lines()[0].startswith("1 row in ")


def test_quick_work_and_a_pipe_show_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 600.0)
    assert with_bar(terminal, range(3)) == [0, 1, 2]
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    assert with_bar(terminal, (time.sleep(0.05) or i for i in range(3))) == [0, 1, 2]
    assert terminal.getvalue() == ""


def test_a_message_meanwhile_has_its_own_line(terminal: Terminal) -> None:
    with redirect_stderr(terminal):
        for index in progress.with_bar(range(4), 4, "rows"):
            if index == 1:
                until(lambda: "] 1/4 rows" in terminal.getvalue())
                complain("a.txt:2: not UTF-8")
                until(lambda: "] 1/4 rows" in terminal.getvalue().partition("UTF-8")[2])
    assert terminal.lines()[0] == "npformer: a.txt:2: not UTF-8"
    assert terminal.lines()[1].startswith("4 rows in ")


def test_an_error_clears_the_bar_and_has_no_summary(terminal: Terminal) -> None:
    def broken() -> Iterator[int]:
        yield 1
        until(lambda: "1/3 texts" in terminal.getvalue())
        raise ValueError("broken")

    with redirect_stderr(terminal), pytest.raises(ValueError, match="broken"):
        list(progress.with_bar(broken(), 3))
    assert terminal.lines() == [""]


def test_a_resumed_run_counts_the_finished_items() -> None:
    assert (
        progress.picture(50, 100, "rows", 40, 5) == "[##########          ] 50/100 rows  0:05, 2.0 a second  0:25 left"
    )
    assert progress.picture(12_345, None, "texts", 0, 3700) == "12,345 texts  1:01:40, 3.3 a second"


def test_work_of_unknown_length_and_a_stream_that_is_full(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def full(text: str) -> int:
        drawn.append(text)
        raise OSError(28, "No space left on device")

    def items() -> Iterator[int]:
        yield from range(3)
        until(lambda: drawn)
        yield 3

    monkeypatch.setattr(terminal, "write", full)
    assert with_bar(terminal, items(), None) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("command", "head"),
    [
        (["search", "ice", "texts.txt"], "base"),
        (["classify", "-f", "texts.txt"], "sequence-classification"),
        (["rerank", "ice", "texts.txt"], "sequence-classification"),
        (["evaluate", "--data", "data.tsv"], "sequence-classification"),
    ],
)
def test_commands_that_read_many_texts_show_one(
    command: list[str], head: str, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.chdir(tmp_path)
    labels = {"labels": ("SCORE",)} if command[0] == "rerank" else {}
    tiny.folder(Path("model"), "bert", head, **labels)
    Path("texts.txt").write_text("ice\nmusic\n" * 20)
    Path("data.tsv").write_text("label\ttext\n" + "0\tice\n1\tmusic\n" * 20)
    with redirect_stderr(terminal):
        assert main([*command, "-m", "model"]) == 0
    assert re.match(r"40 texts in \d+:\d\d", terminal.lines()[-2])


@pytest.mark.parametrize("columns", ["80", "60"])
def test_the_bar_fits_the_terminal(
    columns: str, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    tiny.folder(Path("model"), "bert", "base")
    Path("d.tsv").write_text("label\ttext\nyes\tice\nno\tmusic\n")
    out = Terminal()
    train = ["finetune", "-m", "model", "--train", "d.tsv", "--dev", "d.tsv", "-o", "out", "--epochs", "1"]
    with redirect_stderr(terminal), redirect_stdout(out):
        assert main(["info"]) == 0
        assert main(["info", "--verify", "./model"]) == 0
        assert main(train) == 0
        assert main(["embed", "-m", "model", "ice", "-o", "v.npy"]) == 0
    lines = [line for line in out.lines() if " in /" not in line]  # a long path is on a separate line
    assert max(len(line) for line in lines if len(line.split()) > 1) <= int(columns)
    assert any(re.match(r"epoch 1/1 \[##########\] 1/1  \d+:\d\d", each) for each in terminal.getvalue().split("\r"))
    assert terminal.lines()[-2] == "wrote v.npy: 1 vector of 32 numbers"


def test_a_silent_command_shows_how_long_it_has_worked_until_it_prints(terminal: Terminal) -> None:
    out = Terminal()
    with redirect_stderr(terminal), redirect_stdout(Escaping(out)), progress.waiting("npformer convert"):
        until(lambda: re.search(r"\rnpformer convert  \d+:\d\d", terminal.getvalue()))
        print("done")
        assert terminal.lines() == [""]
        cleared = terminal.getvalue()
        time.sleep(0.1)
    assert terminal.getvalue() == cleared
    assert out.getvalue() == "done\n"


def test_a_bar_takes_the_place_of_the_time_that_a_command_has_worked(terminal: Terminal) -> None:
    def items() -> Iterator[int]:
        yield from range(2)
        until(lambda: "] 2/3 texts" in terminal.getvalue())
        yield 2

    with redirect_stderr(terminal), progress.waiting("npformer search"):
        until(terminal.getvalue)
        list(progress.with_bar(items(), 3))
    shown = [each.split()[0] for each in terminal.getvalue().split("\r") if each.strip()]
    assert shown[0] == "npformer"
    assert terminal.lines()[0].startswith("3 texts in ")


def test_a_command_shows_that_it_works(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown_first(*given: Any, **options: Any) -> Path:
        until(lambda: re.search(r"\rnpformer convert  \d+:\d\d", terminal.getvalue()))
        return convert(*given, **options)

    monkeypatch.setattr(command, "convert", shown_first)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    tiny.folder(tmp_path / "model")
    with redirect_stderr(terminal):
        assert main(["convert", str(tmp_path / "model"), str(tmp_path / "new")]) == 0
    assert (tmp_path / "new").exists()
    assert terminal.lines() == [""]


# --- work for the next items -----------------------------------------------------------------------------------------


class Watched(progress.Count):
    """A count that records the work done after each report of progress."""

    def __init__(self) -> None:
        super().__init__(0)
        self.seen: list[float] = []

    def _ahead(self, items: float) -> None:
        super()._ahead(items)
        self.seen.append(self.work)


@pytest.mark.parametrize(
    ("name", "head"),
    [("text-classification", "sequence-classification"), ("zero-shot-classification", "sequence-classification")],
)
def test_texts_count_before_the_first_answer_of_their_window(
    name: str, head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model computes all texts of a window before the task yields the first answer."""
    monkeypatch.setattr(packing, "SHARD", 16)
    task = pipeline(name, tiny.folder(tmp_path / "model", "bert", head, labels=("ENTAILMENT", "no")), threads=2)
    options = {"candidate_labels": ["ice", "music"]} if name.startswith("zero") else {}
    count, texts = Watched(), [f"ice {'music ' * (i % 7)}" for i in range(40)]
    answers = progress.counted(task.answers(iter(texts), task.settle(task.options, options)), count)
    next(answers)
    assert len(set(count.seen)) > 8
    assert count.seen == sorted(count.seen)
    assert count.work == pytest.approx(40)
    assert len(list(answers)) == 39
    assert (count.finished, count.begun, count.work) == (40, pytest.approx(0, abs=1e-6), pytest.approx(40))


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True, "seed": 0}])
def test_generated_tokens_count_before_their_texts_are_finished(options: dict[str, Any], tmp_path: Path) -> None:
    task = pipeline("text-generation", writers.folder(tmp_path / "model"), do_sample=False, max_new_tokens=12)
    count = Watched()
    settled = task.settle(task.options, options)
    answers = progress.counted(task.answers(iter(["I live in", "Paris"]), settled), count)
    next(answers)
    assert len(set(count.seen)) >= 12
    assert count.seen == sorted(count.seen)
    assert count.work == pytest.approx(2)
    assert len(list(answers)) == 1
    assert count.work == pytest.approx(2)


def test_a_model_that_the_caller_runs_between_two_items_does_not_count(tmp_path: Path) -> None:
    model, count = load(tiny.folder(tmp_path / "model", "bert", "base")), Watched()
    for _ in progress.counted(range(3), count):
        model.run([Text(np.array([2, 5, 6, 3]))])
        assert count.seen == []
    assert count.work == 3


def test_the_estimated_time_falls_while_the_count_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 windows of 1,000 texts take 10 seconds each, and progress is drawn each second. In an earlier version, the
    estimated time rose by the duration of one window."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    count, left = progress.Count(0), []
    for second in range(1, 301):
        now[0] = float(second)
        if second % 10 == 0:
            count(1000)
        drawn = progress.picture(int(count.work), 30_000, "texts", 0, count.seconds(), count.at, count.pause)
        if found := re.search(r"(\d+):(\d\d) left", drawn):
            left.append(60 * int(found[1]) + int(found[2]))
    assert left == list(range(290, -1, -1))


def test_a_pause_longer_than_expected_does_not_reach_zero() -> None:
    """2 of 4 items took 20 s, and the third takes 90 s instead of 10. The estimate stays at the last item's time."""
    assert progress.picture(2, 4, "texts", 0, 110, 20, 10).endswith("0:10 left")
