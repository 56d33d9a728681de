"""`learn grade` reads the files of a class, and gives each submission a row, whatever its file does."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.learn import Grade, grade, grading
from npformer.learn.chapters import CHAPTERS, EXERCISES
from npformer.learn.exercise import seeded
from npformer.learn.gradescope import gradescope
from npformer.learn.grading import submissions, table
from npformer.learn.judge import PASSED, judge
from npformer.learn.source import Loaded
from npformer.learn.template import FILE, signatures, template
from npformer.learn.worker import _judged_function
from tests.learn import loops
from tests.learn.test_check import PLAIN

ROOT = Path(__file__).parents[2]
RIGHT = "from npformer.plain.formulas import *\nfrom npformer.plain.distilbert import *\n"
ENDS_ITS_PARENT = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n"


def submitted(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_submissions_are_files_and_folders(tmp_path: Path) -> None:
    names = ("ada.py", f"bob/{FILE}", "cyd/deep/solution.py", "eve/one.py", "eve/two.py", "fay/notes.txt", "ada/x.py")
    found = submissions(submitted(tmp_path, dict.fromkeys((*names, ".git/x.py", "notes.txt"), "")))
    assert {each.name: each.problem for each in found} == {
        "ada": "",
        "ada.py": "",
        "bob": "",
        "cyd": "",
        "eve": f"It has 2 Python files; expected one file {FILE}.",
        "fay": f"It has 0 Python files; expected one file {FILE}.",
    }


def test_folders_without_submissions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match="no submission"):
        submissions(tmp_path)
    with pytest.raises(NpformerError, match="no such folder"):
        submissions(tmp_path / "nowhere")


def rows(text: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(io.StringIO(text))}


@pytest.mark.slow
def test_the_command_grades_a_class(tmp_path: Path) -> None:
    """Grades ten submissions, some of which are missing, unreadable or hostile."""
    slow = "def embed(ids, positions, eps, token, position, norm):\n    while True:\n        pass\n"
    files = {
        "ada.py": PLAIN,
        f"bob/{FILE}": template(),
        "=cyd/my_transformer.py": PLAIN,
        "dan/notes.txt": "",
        "eve.py": RIGHT,
        "fay.py": "def linear(x:\n    return x\n",
        "gus.py": slow,
        "hal.py": ENDS_ITS_PARENT if sys.platform != "win32" else "raise SystemExit\n",
        "ian.py": "x = 1\0",
        "jon/a.py": "print('x' * 10**6)\nraise ValueError('x' * 10**7)\n",
    }
    folder, table = submitted(tmp_path / "class", files), tmp_path / "grades.csv"
    before = sorted(folder.rglob("*"))
    options = ["--chapter", "1", "--csv", str(table), "--feedback", "--gradescope", "--seed", "7", "--limit", "2"]
    assert main(["learn", "grade", str(folder), *options, "--seconds", "600"]) == 0
    assert sorted(folder.rglob("*")) == before
    found = rows(table.read_text(encoding="utf-8"))
    passed = {name: row["passed"] for name, row in found.items()}
    assert passed == {
        "ada": "4", "bob": "0", "'=cyd": "4", "dan": "0", "eve": "4", "fay": "0", "gus": "0", "hal": "0", "ian": "0",
        "jon": "0",
    }  # fmt: skip
    assert found["eve"]["imports"] == "npformer.plain.distilbert npformer.plain.formulas"
    assert "linear: npformer.plain.formulas" in found["eve"]["foreign"]
    assert found["gus"]["embed"] == "wrong"
    assert "expected one file" in found["dan"]["problem"]
    assert "null bytes" in found["ian"]["problem"]
    assert len(found["jon"]["problem"]) < 1000
    reports = tmp_path / "grades"
    assert "4 of 4 functions passed." in (reports / "ada.txt").read_text(encoding="utf-8")
    assert "0 of 0 functions passed." in (reports / "dan.txt").read_text(encoding="utf-8")
    results = json.loads((reports / "ada.json").read_text(encoding="utf-8"))
    assert [each["score"] for each in results["tests"]] == [1, 1, 1, 1]
    assert json.loads((reports / "dan.json").read_text(encoding="utf-8"))["score"] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_file_that_ends_its_parent_does_not_end_the_grading(tmp_path: Path) -> None:
    files = {"ada.py": ENDS_ITS_PARENT, "bob.py": "def linear(x, weight, bias=0.0):\n    return x @ weight + bias\n"}
    first, second = grade(submitted(tmp_path, files), chapter=1, limit=100.0, seconds=600.0, jobs=1)
    assert first.problem == f"The check ended with exit code {-signal.SIGKILL}, perhaps because of the file."
    assert (second.passed, second.report["total"]) == (1, 4)


def test_a_stopped_grading_starts_no_other_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(grading, "_finished", lambda command, *rest: started.append(command[-1]) or 1)
    grades = grade(submitted(tmp_path, {f"{i}.py": "" for i in range(20)}), jobs=1)
    next(grades)
    grades.close()
    assert len(started) < 20


def test_an_interrupted_command_writes_the_grades_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> object:
        yield Grade("ada", problem="It has 0 Python files.")
        raise KeyboardInterrupt

    monkeypatch.setattr("npformer.cli.learn.learn.grade", interrupted)
    folder = submitted(tmp_path / "class", {"ada.py": "", "bob.py": ""})
    assert main(["learn", "grade", str(folder), "--csv", str(tmp_path / "grades.csv")]) == 130
    assert list(rows((tmp_path / "grades.csv").read_text(encoding="utf-8"))) == ["ada"]


def test_reports_need_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = submitted(tmp_path, {"ada.py": ""})
    assert main(["learn", "grade", str(folder), "--feedback"]) == 1
    assert "expected --csv FILE" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_a_cell_is_no_formula(value: str) -> None:
    [row] = csv.DictReader(io.StringIO(table([Grade(value)], 1)))
    assert row["name"] == f"'{value}"


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("Windows has no such pipes")
    os.mkfifo(tmp_path / "ada.py")
    [found] = grade(tmp_path, jobs=1)
    assert found.problem.endswith("not a regular file.")


def test_results_have_the_fields_of_gradescope() -> None:
    """The fields and their types follow Gradescope's "Output format"."""
    function = {
        "chapter": 1, "name": "gelu", "state": "wrong", "kind": "numbers", "problem": "The numbers are wrong.",
        "cause": "relu", "sentence": "This is relu.", "line": 0, "numbers": "x  1", "note": "",
    }  # fmt: skip
    passed = {**function, "name": "linear", "state": PASSED, "problem": "", "numbers": "", "sentence": ""}
    found = gradescope({"functions": [function, passed], "runs": [], "printed": "hello", "imports": ["math"]})
    assert [(each["status"], each["score"], each["max_score"]) for each in found["tests"]] == [
        ("failed", 0, 1),
        ("passed", 1, 1),
    ]
    assert found["tests"][0]["output"] == "The numbers are wrong.\nx  1\nThis is relu."
    assert found["output"] == "hello"
    assert "score" not in found
    assert gradescope({}, "It has no file.") == {
        "output": "It has no file.", "tests": [], "extra_data": {"imports": [], "foreign": {}}, "score": 0,
    }  # fmt: skip


def test_a_submission_without_the_file_has_results_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "check", str(tmp_path), "--gradescope"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["score"], found["tests"]) == (0, [])
    assert "no such file" in found["output"]


# --- seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2026, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)]
)
def test_right_solutions_pass_with_any_seed(seed: int) -> None:
    with seeded(seed):
        for name, exercise in EXERCISES.items():
            for function in (exercise.right, getattr(loops, name)):
                verdict = judge(exercise, function, signatures()[name], "").verdict
                assert verdict.state == PASSED, verdict


def test_answers_that_are_copied_into_a_file_fail_with_a_seed() -> None:
    linear = EXERCISES["linear"]
    cases = {repr(args): linear.right(*args) for args in linear.cases()}
    module = ModuleType("mine")
    module.linear = lambda *args: cases.get(repr(args), args[0])  # type: ignore[attr-defined]
    found = [_judged_function(linear, Loaded(module), signatures()["linear"], "", seed).verdict for seed in (0, 5)]
    assert [each.state for each in found] == [PASSED, "wrong"]
    assert found[1].problem.startswith("With other numbers (seed 5): ")


def test_the_page_of_the_course_has_the_columns_of_the_table() -> None:
    page = (ROOT / "docs" / "learn" / "course.md").read_text(encoding="utf-8")
    columns = [name for name in Grade("").row([each.name for each in CHAPTERS[0].exercises]) if name not in EXERCISES]
    assert re.search(", ".join(f"`{name}`" for name in columns), " ".join(page.split()))
