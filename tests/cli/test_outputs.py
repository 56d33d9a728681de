"""Every command that writes a file: to a device, pipe, link or stdout, to a full disk, and above a size limit.

Only regular files are replaced. A failure prints one line that names the output, and leaves no file behind.
"""

from __future__ import annotations

import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from npformer.cli import main as cli
from tests.common.test_files import own_device
from tests.support import tiny

TEXT = "it was so hot"
#: Command -> its arguments before -o, and the name of its output (a trace's name ends in .safetensors).
WRITERS = {
    "page": ["view", TEXT],
    "picture": ["view", TEXT, "--svg"],
    "trace": ["trace", TEXT],
    "golden": ["golden", "record", TEXT],
    "embed": ["embed", TEXT],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("models") / "model", "bert", "sequence-classification")


@pytest.fixture(scope="module", params=WRITERS)
def write(request: pytest.FixtureRequest, model: Path) -> Callable[[Path], int]:
    return lambda path: cli.main([*WRITERS[request.param], "-m", str(model), "-o", str(path)])


@pytest.fixture(scope="module")
def expected(write: Callable[[Path], int], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("expected") / "out.safetensors"
    assert write(path) == 0
    assert os.listdir(path.parent) == [path.name]
    return path.read_bytes()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_a_full_device_stays_and_is_reported(write, tmp_path, capsys):
    """The device is kept even if the user is root, who could replace it with a file."""
    device = own_device(tmp_path, "/dev/full")
    path = tmp_path / "out.safetensors"
    path.symlink_to(device)
    assert write(path) == 1
    assert error_of(capsys) == f"npformer: {path}: cannot be written: No space left on device"
    for each in (device, Path("/dev/full")):
        assert stat.S_ISCHR(os.stat(each).st_mode)
    assert path.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["full", "out.safetensors"]


def test_a_pipe_is_written_to(write, expected, tmp_path):
    path, read = tmp_path / "out.safetensors", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    assert write(path) == 0
    reader.join(300)
    assert read == [expected]
    assert path.is_fifo()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(write, expected, tmp_path, there):
    path, target = tmp_path / "out.safetensors", tmp_path / "folder" / "target"
    target.parent.mkdir()
    if there:
        target.write_bytes(b"old")
        target.chmod(0o640)
    path.symlink_to(target)
    assert write(path) == 0
    assert path.is_symlink()
    assert target.read_bytes() == expected
    assert not there or stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.listdir(target.parent) == ["target"]


def test_stdout_is_written_to(write, expected, tmp_path, capfdbinary):
    """The bytes of the file are appended to stdout. After them, `trace` also prints its table."""
    path = tmp_path / "out.safetensors"
    path.symlink_to("/dev/stdout")
    capfdbinary.readouterr()
    os.write(1, b"before")
    assert write(path) == 0
    out = capfdbinary.readouterr().out
    assert out.startswith(b"before" + expected)
    assert len(out) == len(b"before" + expected) or b"embeddings" in out[len(b"before" + expected) :]


@pytest.mark.parametrize("limit", [0, 2000])
def test_a_file_size_limit_keeps_the_existing_file(write, tmp_path, capsys, limit):
    """Under a file size limit, the same writes fail as on a full disk or over a quota."""
    path = tmp_path / "out.safetensors"
    path.write_bytes(b"old")
    with largest_file(limit):
        code = write(path)
    if code == 0:  # the vector of one text fits within the limit
        assert len(path.read_bytes()) <= limit
        return
    assert code == 1
    line = error_of(capsys)
    assert line.startswith(f"npformer: {path}: cannot be written: ")
    assert "File too large" in line
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


def test_a_folder_is_refused(write, tmp_path, capsys):
    (tmp_path / "out.safetensors").mkdir()
    assert write(tmp_path / "out.safetensors") == 1
    assert "cannot be written: it is a folder" in error_of(capsys)


# --- commands that write a folder ------------------------------------------------------------------------------------


def folder_writers(model: Path, data: Path) -> dict[str, list[str]]:
    pairs = [str(data / "a.txt"), str(data / "a.txt")]
    sizes = ["--vocabulary", "258", "--width", "16", "--heads", "2", "--ffn", "16", "--layers", "1"]
    labelled = str(data / "a.tsv")
    return {
        "convert": ["convert", str(model)],
        "tiny": ["golden", "record", "--tiny", "bert", "-o"],
        "finetune": ["finetune", "-m", str(model), "--train", labelled, "--dev", labelled, "--epochs", "1", "-o"],
        "translate": ["train-translation", "--train", *pairs, "--dev", *pairs, *sizes, "--epochs", "1", "-o"],
        "suite": ["golden", "suite", "--case", "bert-*"],
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "a.tsv").write_text("label\ttext\nwarm\tit was so hot\ncold\tit was an ice cream\n")
    (folder / "a.txt").write_text("it was so hot\nit was an ice cream\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convert", "tiny", "finetune", "translate", "suite"])
@pytest.mark.parametrize("limit", [0, 300, 20_000])
def test_a_limit_of_size_leaves_no_model(name, limit, model, data, tmp_path, capsys):
    command = [*folder_writers(model, data)[name], str(tmp_path / "out")]
    with largest_file(limit):
        assert cli.main(command) == 1
    assert "File too large" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out" / "config.json").exists()
    assert not list(tmp_path.rglob("*.partial"))
    assert not list(tmp_path.rglob("*.safetensors")) or name in ("finetune", "translate")
    assert cli.main(command) == 0  # succeeds once there is space again


@pytest.mark.parametrize("name", ["finetune", "translate"])
def test_a_folder_that_another_run_uses_is_refused(name, model, data, tmp_path, capsys):
    from npformer.common.locks import in_use

    command = [*folder_writers(model, data)[name], str(tmp_path / "out")]
    with in_use(tmp_path / "out" / "training"):
        assert cli.main(command) == 1
    said = f"npformer: {tmp_path}/out/training: in use by process {os.getpid()} on "
    assert error_of(capsys).startswith(said)
    assert os.listdir(tmp_path / "out" / "training") == []


# --- commands that also write a file ---------------------------------------------------------------------------------


def test_a_limit_of_size_leaves_no_verdicts(tmp_path, capsys):
    suite, verdicts = tmp_path / "suite", tmp_path / "verdicts.xml"
    assert cli.main(["golden", "suite", str(suite), "--case", "bert-base"]) == 0
    verdicts.write_text("old")
    with largest_file(0):
        assert cli.main(["golden", "run", "--junit", str(verdicts), str(suite), "--", "false"]) == 1
    assert "File too large" in capsys.readouterr().err.splitlines()[-1]
    assert verdicts.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["suite", "verdicts.xml"]


def test_a_search_that_cannot_store_its_vectors_still_answers(model, data, tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text((data / "a.txt").read_text())
    command = ["search", "hot", str(lines), "-m", str(model)]
    with largest_file(0):
        assert cli.main(command) == 0
    answered = capsys.readouterr()
    assert os.listdir(tmp_path) == ["lines.txt"]
    assert cli.main(command) == 0
    assert capsys.readouterr() == answered
    assert sorted(os.listdir(tmp_path)) == ["lines.txt", "lines.txt.vectors.safetensors"]
