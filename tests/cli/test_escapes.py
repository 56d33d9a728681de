"""Every command escapes a terminal's control sequences in labels, tokens, tensor names and file names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.cli.main import main
from npformer.common.errors import NpformerError, escaped
from tests.support import tiny

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\rGOOD\u202egnp"
LABELS = (HOSTILE, "fine\nruns  yes")
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a model with control sequences in its labels, words and folder name, and in a tensor's name."""
    path = tiny.folder(tmp_path_factory.mktemp("models") / "model\x1b[31m", labels=LABELS)
    tokenizer = path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace('"##ness"', json.dumps("ice\x1b[5m")))
    (file,) = path.glob("*.safetensors")
    arrays, metadata = read_tensors(file)
    write_tensors(
        file, {**{k: np.array(v) for k, v in arrays.items()}, "extra\x1b[7m": np.ones(2, np.float32)}, metadata
    )
    return path


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize(
    "command",
    [
        ["info", "MODEL"],
        ["info", "--verify", "MODEL"],
        ["classify", "-m", "MODEL", "ice\x1b[5m cream"],
        ["classify", "-m", "MODEL", "--top-k", "2", "ice"],
        ["trace", "-m", "MODEL", "ice\x1b[5m cream"],
        ["view", "-m", "MODEL", "ice\x1b[5m cream", "--kind", "attribution"],
        ["evaluate", "-m", "MODEL", "--data", "data.tsv"],
        ["classify", "-m", "MODEL", "-f", "absent\x1b[31m"],
        ["classify", "--option\x1b[31m", "ice"],
    ],
)
def test_no_command_sends_a_control_character_to_the_terminal(
    command: list[str],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.tsv").write_text("label\ttext\n0\tice\n1\tmusic\n")
    main([str(folder) if each == "MODEL" else each for each in command])
    said = capsys.readouterr()
    assert "\\u001b" in said.out + said.err
    assert not CONTROLS.search(said.out + said.err)
    if command[0] == "info":
        assert "fine\\nruns  yes" in said.out or "--verify" in command


@pytest.mark.filterwarnings("always")
def test_json_has_the_same_label_and_no_control_character(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["classify", "-m", str(folder), "--json", "--top-k", "2", "ice"])
    printed = capsys.readouterr().out
    assert not CONTROLS.search(printed)
    assert {each["label"] for each in json.loads(printed)["labels"]} == set(LABELS)


def test_errors_and_warnings_are_escaped_outside_of_the_command_too(folder: Path, tmp_path: Path) -> None:
    assert str(NpformerError(f"{HOSTILE}: not known")) == f"{escaped(HOSTILE)}: not known"
    assert escaped("tab\tline\nnaïve 我 😀 \u200d") == "tab\tline\nnaïve 我 😀 \u200d"
    from npformer import load

    with pytest.warns(UserWarning, match=r"extra\\u001b\[7m"):
        load(copytree(folder, tmp_path / "copy"))
