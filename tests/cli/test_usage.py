"""Each command with missing, unknown or too many arguments: the error shows the correct usage within 80 columns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from npformer.cli.main import COMMANDS, main
from tests.support import tiny


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(list(map(str, arguments)))
    return code, capsys.readouterr().err


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("learn",), "npformer learn: error: expected action (start, check, hint, solution, reset, look, grade)"),
        (("golden",), "npformer golden: error: expected action (record, compare, suite, run)"),
        (("search",), "npformer search: error: expected QUERY"),
        (("trace",), "npformer trace: error: expected TEXT"),
        (("convert", "a"), "npformer convert: error: expected DST"),
        (("serve",), "npformer serve: error: expected MODEL"),
        (("rerank",), "npformer rerank: error: expected -m/--model MODEL"),
        (("zero-shot", "x"), "npformer zero-shot: error: expected -m/--model MODEL, -l/--labels A,B,..."),
        (("finetune",), "expected -m/--model MODEL, --train FILE, --dev FILE"),
        (("train-translation",), "expected --train SOURCE TARGET, --dev"),
        (
            ("trace", "I", "love", "ice"),
            "expected only TEXT, got 'love ice' too; put a text of several words in quotes",
        ),
        (("view", "I", "love"), "expected only TEXT, got 'love' too; put a text of several words in"),
        (("learn", "start", "a", "b"), "expected only action FOLDER or NAME, got 'b' too"),
        (("convert", "a", "b", "c"), "expected only SRC DST, got 'c' too\n"),
        (("evaluate", "x"), "npformer evaluate: error: expected only options, got 'x' too"),
        (("classify", "--jsom", "x"), "npformer classify: error: no option --jsom; did you mean --json?"),
        (("classify", "--xyz=3", "x"), "npformer classify: error: no option --xyz; npformer classify --help lists"),
    ],
)
def test_the_error_shows_the_right_form(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, errors = said(capsys, *arguments)
    assert code == 2
    assert errors.startswith(f"usage: npformer {arguments[0]} ")
    assert message in errors


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("arguments", [("--no-such-option",), ("one", "two", "three", "--no-such-option")])
def test_the_error_fits_80_columns(
    command: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, errors = said(capsys, command, *arguments)
    assert code == 2
    assert f"npformer {command}: error: " in errors
    assert max(map(len, errors.splitlines())) <= 80


@pytest.mark.parametrize("given", [["a", "b"], ["a"], ["."]])
@pytest.mark.parametrize("command", ["rerank", "search"])
def test_a_text_instead_of_a_file_shows_the_usage(
    command: str, given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other commands take texts as arguments, but `rerank` and `search` take a query and files."""
    monkeypatch.chdir(tmp_path)
    tiny.folder(Path("model"), "bert", "sequence-classification", labels=("SCORE",))
    code, errors = said(capsys, command, "-m", "model", "query", *given)
    assert code == 1
    reason = "Is a directory" if given == ["."] else "No such file or directory"
    assert (
        errors
        == f"npformer: {given[0]}: {reason}; after the query, give files with one text per line, or texts on stdin\n"
    )
