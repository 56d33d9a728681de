"""Progress on stderr: a bar on a terminal, nothing in a pipe, a summary line, and a separate line for each message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from npformer.cli.main import main
from npformer.cli.process import Escaping, complain
from npformer.common import progress
from tests.support import tiny


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The final contents of the screen. A carriage return moves to the start of the line."""
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


def slow(terminal: Terminal, count: int = 3, seconds: float = 0.1, total: int | None = 3) -> list[int]:
    with redirect_stderr(terminal):
        return list(progress.with_bar((time.sleep(seconds) or i for i in range(count)), total, "rows"))


def test_a_bar_shows_and_gives_way_to_a_line_of_summary(terminal: Terminal) -> None:
    assert slow(terminal) == [0, 1, 2]
    pictures = terminal.getvalue().split("\r")
    assert any("[######              ] 1/3 rows  0:0" in each for each in pictures), pictures
    assert max(map(len, pictures)) < 80
    summary, rest = terminal.lines()
    assert (summary[:13], summary[-8:], rest) == ("3 rows in 0:0", "a second", "")


def test_a_bar_moves_before_the_first_item_is_done(terminal: Terminal) -> None:
    """The elapsed time shows that the command is working, however long the first texts take."""
    slow(terminal, 1, 0.2, 1)
    assert terminal.getvalue().count("] 0/1 rows") > 2
    assert terminal.lines()[0].startswith("1 row in 0:0")


def test_quick_work_and_a_pipe_show_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(terminal, 3, 0)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    slow(terminal)
    assert terminal.getvalue() == ""


def test_a_message_meanwhile_has_its_own_line(terminal: Terminal) -> None:
    with redirect_stderr(terminal):
        for index in progress.with_bar(range(4), 4, "rows"):
            time.sleep(0.1)
            if index == 1:
                complain("a.txt:2: not UTF-8")
    assert terminal.lines()[0] == "npformer: a.txt:2: not UTF-8"
    assert terminal.lines()[1].startswith("4 rows in 0:0")


def test_an_error_clears_the_bar_and_has_no_summary(terminal: Terminal) -> None:
    def broken() -> Iterator[int]:
        yield 1
        time.sleep(0.1)
        raise ValueError("broken")

    with redirect_stderr(terminal), pytest.raises(ValueError, match="broken"):
        list(progress.with_bar(broken(), 3))
    assert "1/3 texts" in terminal.getvalue()
    assert terminal.lines() == [""]


def test_a_resumed_run_counts_the_finished_items() -> None:
    assert (
        progress.picture(50, 100, "rows", 40, 5) == "[##########          ] 50/100 rows  0:05, 2.0 a second  0:25 left"
    )
    assert progress.picture(12_345, None, "texts", 0, 3700) == "12,345 texts  1:01:40, 3.3 a second"


def test_work_of_unknown_length_and_a_stream_that_is_full(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(terminal, "write", full)
    assert slow(terminal, 4, 0.04, None) == [0, 1, 2, 3]


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
    assert terminal.lines()[-2].startswith("40 texts in 0:0")


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
    lines = [line for line in out.lines() if " in /" not in line]  # a long path is on its own line
    assert max(len(line) for line in lines if len(line.split()) > 1) <= int(columns)
    assert any(each.startswith("epoch 1/1 [##########] 1/1  0:0") for each in terminal.getvalue().split("\r"))
    assert terminal.lines()[-2] == "wrote v.npy: 1 vector of 32 numbers"


def test_a_silent_command_shows_how_long_it_has_worked_until_it_prints(terminal: Terminal) -> None:
    out = Terminal()
    with redirect_stderr(terminal), redirect_stdout(Escaping(out)), progress.waiting("npformer convert"):
        time.sleep(0.2)
        said = terminal.getvalue()
        print("done")
        assert terminal.lines() == [""]
        cleared = terminal.getvalue()
        time.sleep(0.1)
    assert "\rnpformer convert  0:0" in said
    assert terminal.getvalue() == cleared
    assert out.getvalue() == "done\n"


def test_a_bar_takes_the_place_of_the_time_that_a_command_has_worked(terminal: Terminal) -> None:
    with redirect_stderr(terminal), progress.waiting("npformer search"):
        time.sleep(0.15)
        list(progress.with_bar((time.sleep(0.1) or i for i in range(3)), 3))
    shown = [each.split()[0] for each in terminal.getvalue().split("\r") if each.strip()]
    assert shown[0] == "npformer"
    assert terminal.lines()[0].startswith("3 texts in 0:0")


def test_a_command_shows_that_it_works(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0.0)
    tiny.folder(tmp_path / "model")
    with redirect_stderr(terminal):
        assert main(["convert", str(tmp_path / "model"), str(tmp_path / "new")]) == 0
    assert "\rnpformer convert  0:0" in terminal.getvalue()
    assert terminal.lines() == [""]
