"""Checksums: `info --verify` checks a folder; a bundled model is checked once, and a cache records the check."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from npformer import loading
from npformer.checkpoint import convert
from npformer.checkpoint import verify as verifying
from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.checkpoint.verify import UNKNOWN, verify
from npformer.cli import main as cli
from npformer.common.errors import NpformerError
from npformer.loading import load
from tests.support import tiny

WEIGHTS = "npformer.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.folder(tmp_path / "theirs", "bert")
    return convert(tmp_path / "theirs", tmp_path / "ours")


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# --- a folder --------------------------------------------------------------------------------------------------------


def test_every_file_is_listed_with_its_sha256_and_its_reference(folder: Path) -> None:
    found = {each.name: each for each in verify(folder)}
    assert sorted(found) == ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
    for name, each in found.items():
        assert each.sha256 == hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert each.verdict == ("matches its metadata" if name == WEIGHTS else UNKNOWN)
        assert not each.damaged


def test_a_damaged_file_is_named_and_the_exit_code_is_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["info", "--verify", str(folder)]
    assert cli.main(command) == 0
    sound = capsys.readouterr().out
    assert sound.count("matches its metadata") == 1
    flip(folder / WEIGHTS)
    assert cli.main(command) == 1
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "damaged: its content does not match the sha256" in rows[f"{folder}/{WEIGHTS}"]
    assert len(rows) == 4
    (folder / WEIGHTS).write_bytes(b"torn")
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert cli.main([*command, "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert "not a valid safetensors file" in read[f"{folder}/{WEIGHTS}"]
    assert "not a regular file" in read[f"{folder}/config.json"]


def test_a_shard_that_was_not_copied_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The index of a layout that is not read, here torch's, may name files that nobody downloaded."""
    folder = tiny.folder(tmp_path / "model", "bert")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "a-00001-of-00002.bin"}}))
    assert cli.main(["info", "--verify", str(folder)]) == 0
    (folder / "model.safetensors").rename(folder / "a-00002-of-00002.safetensors")
    names = {"a": "a-00001-of-00002.safetensors", "b": "a-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    capsys.readouterr()
    assert cli.main(["info", "--verify", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert shown.count("missing") == 1
    assert f"{folder}/a-00001-of-00002.safetensors" in shown
    assert "missing, but named in model.safetensors.index.json" in shown
    (folder / "model.safetensors.index.json").write_text("[]")
    assert cli.main(["info", "--verify", str(folder)]) == 1
    assert "model.safetensors.index.json: expected a JSON object" in capsys.readouterr().out


def test_nothing_to_check_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["info", "--verify", str(tmp_path)]) == 1
    assert f"--verify: found no files in {tmp_path}" in capsys.readouterr().err
    monkeypatch.setattr(loading, "bundled", dict)
    assert cli.main(["info", "--verify"]) == 1
    assert "the package, which has no bundled model" in capsys.readouterr().err


def test_a_file_of_the_hub_s_cache_is_checked_against_its_name(tmp_path: Path) -> None:
    """The hub's cache names large files by their SHA-256, and small files by git's hash of their content."""
    blobs, snapshot = tmp_path / "models--a" / "blobs", tmp_path / "models--a" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    (snapshot / "1_Pooling").mkdir(parents=True)
    large, small = b"large" * 1000, b"small"
    names = {
        "vocab.txt": hashlib.sha256(large).hexdigest(),
        "1_Pooling/config.json": hashlib.sha1(b"blob 5\0" + small).hexdigest(),
    }
    for name, content in {"vocab.txt": large, "1_Pooling/config.json": small}.items():
        (blobs / names[name]).write_bytes(content)
        (snapshot / name).symlink_to(blobs / names[name])
    assert {each.name: each.verdict for each in verify(snapshot)} == dict.fromkeys(names, "matches the hub")
    for blob in blobs.iterdir():
        flip(blob)
    assert all(each.damaged and "differs from the file on the hub" in each.verdict for each in verify(snapshot))


def test_the_bundled_models_are_as_they_were_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--verify"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if WEIGHTS in line]
    assert rows
    assert all("matches its metadata" in row for row in rows)


def test_arrays_that_npformer_reads_back_are_checked(tmp_path: Path) -> None:
    """`load_arrays` checks traces, golden files and the state of a training run."""
    save_arrays(tmp_path / "a.safetensors", {"a": np.arange(3.0)}, {"by": "test"})
    arrays, metadata = load_arrays(tmp_path / "a.safetensors")
    assert (arrays["a"].tolist(), metadata["by"]) == ([0, 1, 2], "test")
    flip(tmp_path / "a.safetensors")
    with pytest.raises(NpformerError, match=r"a\.safetensors: damaged"):
        load_arrays(tmp_path / "a.safetensors")


# --- a bundled model -------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Makes `folder` a bundled model with an empty cache; returns a list that collects the checked files."""
    found: list[Path] = []
    check = verifying.check_sums
    monkeypatch.setattr(verifying, "check_sums", lambda path, *rest: [found.append(path), check(path, *rest)][1])
    monkeypatch.setattr(verifying, "_checked", set())
    monkeypatch.setattr(loading, "bundled", lambda: {"ours": folder})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


def test_a_bundled_model_is_checked_once(folder: Path, reads: list[Path], tmp_path: Path) -> None:
    before = sorted(os.listdir(folder))
    load("ours")
    assert reads == [folder / WEIGHTS]
    verifying._checked.clear()  # as in a new process
    load("ours")
    assert len(reads) == 1
    os.utime(folder / WEIGHTS, (1, 1))  # a different modification time may mean a different file
    load("ours")
    assert len(reads) == 2
    assert sorted(os.listdir(folder)) == before
    assert [path.stat().st_size for path in (tmp_path / "cache" / "npformer" / "checked").iterdir()] == [0, 0]


def test_a_folder_that_a_user_names_is_not_checked(folder: Path, reads: list[Path]) -> None:
    load(folder)
    assert reads == []


def test_a_damaged_bundled_model_is_refused_each_time(folder: Path, reads: list[Path]) -> None:
    flip(folder / WEIGHTS)
    for _ in range(2):
        with pytest.raises(NpformerError, match=rf"{WEIGHTS}: damaged: .* get a new copy"):
            load("ours")
    load(folder)


def test_a_cache_that_cannot_be_written(folder: Path, reads: list[Path], tmp_path: Path) -> None:
    """If the cache cannot be written, the check runs once in each process."""
    (tmp_path / "cache").write_text("in the way")
    for _ in range(2):
        load("ours")
    assert len(reads) == 1


def test_a_user_without_a_home(folder: Path, reads: list[Path], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    load("ours")
    assert len(reads) == 1
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]


def test_a_bundled_folder_without_our_weights(folder: Path, reads: list[Path]) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(NpformerError, match="no weights"):
        load("ours")
