"""`npformer golden suite` and `golden run`, and the machine-readable formats of `golden compare`."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.cli.main import main
from tests.support.cli_runner import run

CASE = "distilbert-relu"
RIGHT = ("sh", "-c", "cp $1/golden.safetensors $3", "port")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite") / "suite"
    code, out, _ = run("golden", "suite", folder, "--case", "marian-*", "--case", CASE)
    assert code == 0
    assert f"{folder}: 5 cases, " in out
    assert main(["golden", "suite", str(folder)]) == 1  # already exists
    return folder


@pytest.mark.slow
def test_the_exit_code_is_0_only_if_all_cases_pass(suite: Path) -> None:
    code, out, _ = run("golden", "run", suite, "--case", "marian-*", "--case", CASE, "--", *RIGHT)
    assert code == 0
    assert out.splitlines()[0] == "distilbert-relu          pass (all 26 stages)"
    assert out.splitlines()[-1] == "5 of 5 cases pass"
    wrong = "case $1 in */marian-relu) exit 5;; esac; cp $1/golden.safetensors $3"
    code, out, _ = run("golden", "run", suite, "--case", "marian-*", "--", "sh", "-c", wrong, "port")
    assert code == 3
    assert "3 of 4 cases pass; crash 1" in out
    assert max(map(len, out.splitlines())) <= 80


def test_options_after_two_dashes_belong_to_the_program(suite: Path, tmp_path: Path) -> None:
    """npformer does not parse `-m` and `--case` after `--`."""
    (tmp_path / "port").write_text('#!/bin/sh\ntest "$1 $2" = "-m --case" && cp $3/golden.safetensors $5\n')
    (tmp_path / "port").chmod(0o755)
    assert run("golden", "run", suite, "--case", CASE, "--", "./port", "-m", "--case", cwd=tmp_path)[0] == 0


def test_formats_and_junit(suite: Path, tmp_path: Path) -> None:
    given = ("golden", "run", suite, "--case", CASE, "--junit", tmp_path / "j.xml", "--format")
    code, out, _ = run(*given, "json", "--", "sh", "-c", "exit 9")
    assert (code, json.loads(out)["cases"][0]["why"]) == (3, "exit code 9; nothing printed")
    (failed,) = ElementTree.parse(tmp_path / "j.xml").iter("error")
    assert failed.attrib["type"] == "crash"
    code, out, _ = run(*given, "github", "--timeout", "0.5", "--", "sleep", "9", "#")
    assert (code, out) == (3, "::error title=distilbert-relu%3A crash::exit code 1: " + out.partition("1: ")[2])
    code, out, _ = run(*given, "github", "--timeout", "0.5", "--", "sh", "-c", "sleep 9")
    assert (code, out) == (3, "::error title=distilbert-relu%3A timeout::stopped after 0.5 s; nothing printed\n")
    code, out, _ = run(*given, "github", "--", *RIGHT)
    assert (code, out) == (0, "::notice title=npformer golden run::1 of 1 case passes\n")
    assert not list(ElementTree.parse(tmp_path / "j.xml").iter("error"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["suite"], "golden suite: expected the name of one new folder"),
        (["suite", "a", "--case", "x"], "'x': no such case"),
        (["record", "no", "-o", "g", "--case", "x"], "--case is an option of golden suite and golden run"),
        (["run", "SUITE"], "expected a suite folder and a program"),
        (["run", "SUITE", "--case", "gpt-*", "--", "true"], "'gpt-*': no such case"),
        (["run", "SUITE", "--timeout", "0", "--", "true"], "--timeout"),
        (["run", "SUITE", "--torch", "m", "--", "true"], "--torch is an option of golden compare"),
        (["run", "SUITE", "--keep", "int8", "--", "true"], "--keep is an option of golden record and golden compare"),
        (["run", "SUITE", "-m", "m", "--", "true"], "--model is an option of golden record and golden compare"),
        (["run", "SUITE", "--", "./no-such-program"], "./no-such-program: cannot be started"),
        (["run", ".", "--", "true"], "suite.json: No such file"),
        (["run", "SUITE", "--junit", "/no/such/folder.xml", "--", "true"], "/no/such/folder.xml: cannot be written"),
        (["record", "no", "-o", "g", "--format", "json"], "--format is an option of golden compare and golden run"),
    ],
)
def test_wrong_arguments_are_bad_input(
    arguments: list[str], message: str, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["golden", *(str(suite) if each == "SUITE" else each for each in arguments)]) == 1
    assert message in capsys.readouterr().err


# --- golden compare --------------------------------------------------------------------------------------------------


@pytest.fixture
def stages(suite: Path, tmp_path: Path) -> Path:
    """Writes the stages of a port with a mistake: its scores are not scaled."""
    arrays, _ = load_arrays(suite / CASE / "golden.safetensors")
    made = {name: a * 2 if name.endswith("scores") else a for name, a in arrays.items() if "float64" not in name}
    save_arrays(tmp_path / "stages.safetensors", made, {})
    return tmp_path / "stages.safetensors"


def compare(suite: Path, theirs: Path, form: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["golden", "compare", str(suite / CASE / "golden.safetensors"), str(theirs), "--format", form])
    return code, capsys.readouterr().out


def test_compare_in_json(suite: Path, stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = compare(suite, stages, "json", capsys)
    told = json.loads(out)
    assert (code, told["ok"], told["first"], told["causes"]) == (
        3,
        False,
        "layers.0.attention.scores",
        ["unscaled scores"],
    )
    assert told["faults"][0]["fits"][0]["certain"] is True
    assert [row["stage"] for row in told["stages"] if row["diverges"]] == ["layers.0.attention.scores"]
    assert "cause: unscaled scores" in told["diagnosis"]
    arrays, _ = load_arrays(stages)
    arrays["0/logits"] = np.full(2, np.nan, np.float32)
    save_arrays(tmp_path / "nan.safetensors", arrays, {})
    code, out = compare(suite, tmp_path / "nan.safetensors", "json", capsys)
    (row,) = (row for row in json.loads(out)["stages"] if row["stage"] == "logits")
    assert (row["max_abs"], row["diverges"]) == (None, True)
    code, out = compare(suite, suite / CASE / "golden.safetensors", "json", capsys)
    assert (code, json.loads(out)["ok"], json.loads(out)["why"]) == (0, True, "")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_compare_shows_its_progress_on_a_terminal_and_clears_it(
    suite: Path, stages: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    code, out = compare(suite, stages, "text", capsys)
    assert (code, "cause: unscaled scores" in out, "\r" in out) == (3, True, False)
    assert "\rlayers.0.attention.scores: unscaled scores? " in shown.getvalue()
    assert shown.getvalue().endswith(" \r")
    elsewhere = StringIO()
    monkeypatch.setattr(sys, "stderr", elsewhere)
    compare(suite, stages, "text", capsys)
    assert elsewhere.getvalue() == ""


def test_compare_as_a_line_for_github(
    suite: Path, stages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = compare(suite, stages, "github", capsys)
    line = "::error title=layers.0.attention.scores diverges::layers.0.attention.scores: unscaled scores\n"
    assert (code, out) == (3, line)
    save_arrays(tmp_path / "w.safetensors", {"layers.0.ffn.hidden.bias": np.zeros(24, np.float32)}, {})
    code, out = compare(suite, tmp_path / "w.safetensors", "github", capsys)
    assert (code, out) == (3, "::error title=wrong weights::layers.0.ffn.hidden.bias: all zeros (missing bias)\n")
    code, out = compare(suite, suite / CASE / "golden.safetensors", "github", capsys)
    assert (code, out) == (0, "::notice title=npformer golden compare::no stage diverges; 26 compared\n")


@pytest.mark.parametrize(
    ("action", "own", "others"),
    [
        ("record", ["--tiny", "--model", "--allow"], ["--case", "--torch", "--format"]),
        ("compare", ["--torch", "--dtype", "--names", "--threads"], ["--case", "--tiny", "--junit"]),
        ("suite", ["--case"], ["--tiny", "--model", "--dtype", "--timeout", "--allow", "--keep"]),
        ("run", ["--case", "--junit", "--dtype"], ["--tiny", "--torch", "--model"]),
    ],
)
def test_the_help_of_an_action_shows_its_own_options(
    action: str, own: list[str], others: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["golden", action, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: npformer golden {action} [-h]")
    assert [each for each in own if each not in shown] == []
    assert [each for each in others if each in shown] == []
    assert f"  npformer golden {action} " in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["golden", "--help"]) == 0
    whole = capsys.readouterr().out
    assert [each for each in (*own, *others) if each not in whole] == []
