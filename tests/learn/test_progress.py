"""Finding the learner's file, progress that cannot be stored, and resetting a function."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.learn import checking, progress, reset, start
from npformer.learn.checking import learners_file
from npformer.learn.template import FILE, empty, template
from tests.learn.test_check import PLAIN, written

LINEAR = "def linear(x, weight, bias=0.0):\n    return x @ weight + bias"


@pytest.mark.parametrize(
    "place", ["course", "course/my_transformer.py", "course/my_transformer", "course.my_transformer", "course/"]
)
def test_the_file_is_found_by_its_folder_its_path_and_its_module(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start("course")
    assert learners_file(place) == (tmp_path / "course" / FILE).resolve()


def test_the_folder_below_is_suggested(tmp_path: Path) -> None:
    start(tmp_path / "course")
    with pytest.raises(NpformerError, match=f"{FILE}: no such file; name its folder: .*course"):
        learners_file(tmp_path)


def test_start_writes_to_an_existing_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["learn", "start"]) == 0
    assert sorted(os.listdir()) == [FILE, "notes.txt"]
    Path(FILE).write_text("# my work\n")
    assert main(["learn", "start", "."]) == 1
    assert f"{FILE}: already exists" in capsys.readouterr().err
    assert Path(FILE).read_text() == "# my work\n"
    assert main(["learn", "start", "notes.txt"]) == 1


def test_check_takes_the_file_as_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []
    monkeypatch.chdir(tmp_path)
    start("course")
    monkeypatch.setattr(checking, "examine", lambda path, *rest: places.append(path) or npformer.learn.Report("", ()))
    for arguments in (
        ["course"],
        ["course/my_transformer"],
        ["--folder", "course"],
        ["my_transformer.py", "--folder", "course"],
    ):
        assert main(["learn", "check", *arguments]) == 0
    assert places == [tmp_path.resolve() / "course" / FILE] * 4


def damaged(folder: Path) -> None:
    (folder / "progress.json").write_text("{")


def of_something_else(folder: Path) -> None:
    (folder / "progress.json").write_text('{"hints": 3}')


def a_folder(folder: Path) -> None:
    (folder / "progress.json").mkdir()


def a_link_to_nothing(folder: Path) -> None:
    (folder / "progress.json").symlink_to(folder / "nowhere" / "file")


@pytest.mark.parametrize("damage", [damaged, of_something_else, a_folder, a_link_to_nothing])
def test_progress_that_cannot_be_stored_loses_no_report(
    damage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "course", {"linear": LINEAR})
    damage(folder)
    report = npformer.learn.check(folder, chapter=1, limit=100.0)
    assert report.passed_names == ["linear"]
    assert "Your progress is not stored: " in " ".join(str(report).split())
    assert len(npformer.learn.hint("linear", folder)) == 3  # all hints: the number shown so far cannot be stored
    assert main(["learn", "check", str(folder), "--chapter", "1", "--json", "--limit", "100"]) == 3
    assert json.loads(capsys.readouterr().out)["passed"] == 1


def test_a_folder_that_cannot_be_written_loses_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(progress, "written_whole", refuse)
    assert progress.checked(tmp_path, ["linear"])[1].startswith("Your progress is not stored: ")
    assert progress.hinted(tmp_path, "linear", 3)[0] == 3


def test_json_writes_nothing_to_the_folder(tmp_path: Path) -> None:
    folder = written(tmp_path / "course", {"linear": LINEAR})
    for form in ("--json", "--gradescope"):
        main(["learn", "check", str(folder), "--chapter", "1", form, "--limit", "100"])
    assert os.listdir(folder) == [FILE]


# --- reset ------------------------------------------------------------------------------------------------------------


def test_reset_empties_a_function_and_keeps_its_code(tmp_path: Path) -> None:
    folder = written(tmp_path / "course", {"linear": f"@my_decorator\n{LINEAR}"})
    before = (folder / FILE).read_text()
    copy = reset("linear", folder)
    assert (copy.name, copy.read_text()) == ("my_transformer.linear.1.py", f"@my_decorator\n{LINEAR}\n")
    assert (folder / FILE).read_text() == template()
    (folder / FILE).write_text(before)
    assert reset("linear", folder).name == "my_transformer.linear.2.py"


def test_reset_of_a_function_that_is_not_python(tmp_path: Path) -> None:
    folder = written(tmp_path / "course", {"gelu": "def gelu(x:\n    return x"})
    assert reset("gelu", folder).read_text() == "def gelu(x:\n    return x\n"
    assert (folder / FILE).read_text() == template()


def test_reset_removes_second_definitions_and_keeps_line_ends(tmp_path: Path) -> None:
    folder = written(tmp_path / "course", {}, PLAIN + "\n\nlinear = 3\n")
    (folder / FILE).write_bytes((folder / FILE).read_bytes().replace(b"\n", b"\r\n"))
    assert "linear = 3" in reset("linear", folder).read_text()
    data = (folder / FILE).read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n")
    assert b"linear = 3" not in data
    names: dict[str, Any] = {}
    exec(data, names)
    with pytest.raises(NotImplementedError):
        names["linear"](1, 2, 3)


def test_reset_adds_a_missing_function_and_what_the_course_gives_with_it(tmp_path: Path) -> None:
    folder = written(tmp_path / "course", {}, "import math\n\nimport numpy as np\n")
    assert reset("linear", folder) == (folder / FILE).resolve()
    text = (folder / FILE).read_text()
    assert "erf = np.vectorize(" in text
    assert text.endswith(f"\n\n\n{empty('linear')}\n")
    assert main(["learn", "reset", "gelu", "--folder", str(folder)]) == 0
    assert (folder / FILE).read_text().count("erf = ") == 1


def test_reset_of_an_unknown_function(tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match="the course has no function 'lienar'"):
        reset("lienar", tmp_path / "course")
