"""Only regular files in their folder are read; files are written completely or not at all, even through links."""

from __future__ import annotations

import csv
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from npformer.common.errors import NpformerError
from npformer.common.files import as_given, csv_rows, new_folder, open_file, read_json, read_text, written_whole

ROOT = Path(__file__).parents[2]


def write(path: Path | str, text: str = "new") -> None:
    with written_whole(path) as partial:
        partial.write_text(text)


def fail(path: Path) -> None:
    with written_whole(path) as partial:
        partial.write_text("half")
        raise ZeroDivisionError


# --- written to a file -----------------------------------------------------------------------------------------------


def test_a_file_is_complete_or_unchanged(tmp_path: Path) -> None:
    write(tmp_path / "a", "old")
    with pytest.raises(ZeroDivisionError):
        fail(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    write(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "there").write_text("old")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(Path("folder", "there"))
    (tmp_path / "dangling").symlink_to(Path("folder", "none"))
    (tmp_path / "loop").symlink_to("loop")
    for name, target in {"first": "there", "dangling": "none"}.items():
        write(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert not (tmp_path / "folder" / target).is_symlink()
        assert (tmp_path / "folder" / target).read_text() == "new"
    with pytest.raises(NpformerError, match="loop: cannot be written: Too many levels of symbolic links"):
        write(tmp_path / "loop")
    assert sorted(os.listdir(tmp_path / "folder")) == ["none", "there"]
    assert (tmp_path / "loop").is_symlink()


def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode
    for mode in (0o600, 0o664, 0o755, 0o444):
        (tmp_path / "new").chmod(mode)
        write(tmp_path / "new")
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == mode


def test_a_file_stays_its_owner_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    if os.getuid() == 0:
        os.chown(tmp_path / "a", 12345, 12346)
    before = (tmp_path / "a").stat()
    write(tmp_path / "a")
    after = (tmp_path / "a").stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


def test_a_folder_that_takes_no_new_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    with pytest.raises(NpformerError, match=rf"a: cannot be written: its folder {tmp_path} is not writable, but"):
        write(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"


def test_pipes_devices_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        (tmp_path / "link").symlink_to("socket")
        for name, kind in {"folder": "a folder", "socket": "a socket", "link": "a socket"}.items():
            with pytest.raises(NpformerError, match=f"{name}: cannot be written: it is {kind}; expected a file"):
                write(tmp_path / name)
    for name in ("", ".", "/"):
        with pytest.raises(NpformerError, match="cannot be written: not the name of a file"):
            write(name)
    with pytest.raises(NpformerError, match=r"cannot be written: .*embedded null"):
        write("a\0b")
    with pytest.raises(NpformerError, match="cannot be written: Not a directory"):
        write(tmp_path / "socket" / "a")
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "socket"]


def test_a_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sda").touch()
    monkeypatch.setattr(stat, "S_ISREG", lambda mode: False)  # some machines do not let tests create a device
    monkeypatch.setattr(stat, "S_ISBLK", lambda mode: True)
    with pytest.raises(NpformerError, match="sda: cannot be written: it is a disk"):
        write(tmp_path / "sda")


def test_the_longest_names(tmp_path: Path) -> None:
    for name in ("a" * 255, "ä" * 127, "𝄞" * 63):
        write(tmp_path / name)
        with new_folder(tmp_path / name[:-1]) as folder:
            (folder / "a").touch()
    assert len(os.listdir(tmp_path)) == 6


# --- written to a pipe or a device -----------------------------------------------------------------------------------


def test_a_fifo_gets_the_whole_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        read: list[bytes] = []
        reader = threading.Thread(target=lambda read=read: read.append((tmp_path / "fifo").read_bytes()))
        reader.start()
        write(tmp_path / name, "new" * 100_000)
        reader.join(300)
        assert read == [b"new" * 100_000]
    assert (tmp_path / "fifo").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["fifo", "link"]


def test_a_fifo_gets_nothing_of_a_failure(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ZeroDivisionError):  # raised without waiting for a reader
        fail(tmp_path / "fifo")
    assert (tmp_path / "fifo").is_fifo()


def test_a_closed_pipe_is_reported(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with pytest.raises(NpformerError, match=rf"/dev/fd/{theirs}: cannot be written: Broken pipe"):
        write(f"/dev/fd/{theirs}")
    os.close(theirs)


def test_an_open_descriptor_is_written_at_its_position(tmp_path: Path) -> None:
    """Output is appended to an open descriptor's file, as in `npformer view ... -o /dev/stdout >> page.html`."""
    (tmp_path / "a").write_text("before ")
    (tmp_path / "link").symlink_to("/dev/fd")
    inode = (tmp_path / "a").stat().st_ino
    with open(tmp_path / "a", "ab") as file:
        names = [f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}", f"{tmp_path}/link/{file.fileno()}"]
        for name in names:
            write(name, "new ")
    assert (tmp_path / "a").read_text() == "before new new new "
    assert (tmp_path / "a").stat().st_ino == inode
    with pytest.raises(NpformerError, match="cannot be written: Bad file descriptor"):
        write("/dev/fd/987654")


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    for name, error in {"/dev/null": "", "/dev/full": "No space left on device"}.items():
        device = own_device(tmp_path, name)
        if error:
            with pytest.raises(NpformerError, match=f"cannot be written: {error}"):
                write(device)
        else:
            write(device)
        assert stat.S_ISCHR(os.stat(device).st_mode)
        assert stat.S_ISCHR(os.stat(name).st_mode)


def own_device(folder: Path, name: str) -> Path:
    """Returns a new device, which failing tests may damage, or a link to the real device if none can be created."""
    path = folder / Path(name).name
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.stat(name).st_rdev)
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        path.unlink(missing_ok=True)
        path.symlink_to(name)
    return path


# --- files of a killed run -------------------------------------------------------------------------------------------

WRITER = """
import os, sys, time
from pathlib import Path
from npformer.common.files import new_folder, written_whole
with {how}(Path({path!r})) as partial:
    if partial.is_dir():
        partial = partial / "weights"
    partial.write_bytes(bytes(10000))
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["written_whole", "new_folder"])
def test_the_next_run_removes_a_killed_run_s_files_and_no_others(tmp_path: Path, how: str) -> None:
    code = WRITER.format(how=how, path=str(tmp_path / "result"))
    runs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env=dict(os.environ))
        for _ in range(2)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.read(5) == b"ready"
    os.mkdir(tmp_path / ".result.precious.lock")  # resembles npformer's temporary names, but must be kept
    assert len(os.listdir(tmp_path)) == 5
    runs[0].send_signal(signal.SIGKILL)
    runs[0].wait()
    for name in ("result", "other"):
        write(tmp_path / name)
        # the other run's two files, the outputs written so far, and the folder to keep
        assert len(os.listdir(tmp_path)) == 4 + (name == "other")
    runs[1].send_signal(signal.SIGKILL)
    runs[1].wait()
    for run in runs:
        run.stdout.close()  # type: ignore[union-attr]
    write(tmp_path / "other")
    assert len(os.listdir(tmp_path)) == 5  # the unfinished `other` is removed
    write(tmp_path / "result")
    assert sorted(os.listdir(tmp_path)) == [".result.precious.lock", "other", "result"]


def test_a_killed_run_s_output_for_a_pipe_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unfinished output is in a subfolder of the system's temporary folder that only its owner can open."""
    os.mkfifo(tmp_path / "fifo")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = WRITER.format(how="written_whole", path=str(tmp_path / "fifo"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env=dict(os.environ)) as run:
        assert run.stdout is not None
        assert run.stdout.read(5) == b"ready"
        (folder,) = temporary.glob(".npformer-fifo.*.partial")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        run.kill()
    with pytest.raises(ZeroDivisionError):  # raised without waiting for a reader of the pipe
        fail(tmp_path / "fifo")
    assert os.listdir(temporary) == []


MANY = """
import sys
from pathlib import Path
from npformer.common.files import written_whole
for i in range(150):
    with written_whole(sys.argv[1]) as partial:
        partial.write_text(sys.argv[2] * 1000)
    assert len(set(Path(sys.argv[1]).read_text())) == 1
"""


@pytest.mark.slow
def test_runs_that_write_one_file_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    """Processes remove the files of dead processes while other processes create and remove their own."""
    command = [sys.executable, "-c", MANY, str(tmp_path / "result")]
    runs = [subprocess.Popen([*command, letter], cwd=ROOT) for letter in "abc"]
    assert [run.wait(600) for run in runs] == [0, 0, 0]
    assert os.listdir(tmp_path) == ["result"]


# --- read ------------------------------------------------------------------------------------------------------------


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    for name in ("fifo", "folder", "socket", own_device(tmp_path, "/dev/zero").name):
        with pytest.raises(NpformerError, match=rf"{name}: (not a regular file|a link out of the model folder)"):
            open_file(tmp_path / name)
    with pytest.raises(NpformerError, match="none: No such file"):
        open_file(tmp_path / "none")


def test_a_link_is_followed_within_its_folder_and_where_a_user_named_it(tmp_path: Path) -> None:
    model, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    (model / "data").mkdir(parents=True)
    elsewhere.mkdir()
    for path in (model / "data" / "a", elsewhere / "a"):
        path.write_text(path.parent.name)
    (model / "inside").symlink_to(Path("data", "a"))
    (model / "outside").symlink_to(elsewhere / "a")
    (model / "through").symlink_to("outside")
    (tmp_path / "model-too").symlink_to(model)
    assert read_text(tmp_path / "model-too" / "inside") == "data"
    for name in ("outside", "through"):
        with pytest.raises(NpformerError, match=rf"{name}: a link out of the model folder, to .* is not followed"):
            read_text(model / name)
        assert read_text(as_given(model / name)) == "elsewhere"
    with pytest.raises(NpformerError, match=rf"\(cp -rL\), or load {elsewhere} if it has all files"):
        read_text(model / "outside")


def test_a_pointer_of_git_lfs_is_not_read_as_the_file(tmp_path: Path) -> None:
    """If a model is cloned without Git LFS, these three lines replace each large file."""
    pointer = tmp_path / "tokenizer.json"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(NpformerError, match=r"tokenizer\.json: a pointer of Git LFS .* `git lfs pull`"):
        read_json(pointer)
    pointer.write_text('{"version": "https://git-lfs.github.com/spec/v1"}')
    assert len(read_json(pointer)) == 1


def test_a_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\xff")
    with pytest.raises(NpformerError, match=r"a: not UTF-8 \(byte 1\)"):
        read_text(tmp_path / "a")


def test_rows_of_two_tables_can_be_read_alternately() -> None:
    """Each reader has a separate limit on a cell's length. The csv module's limit for other code does not change."""
    usual = csv.field_size_limit()
    long = csv_rows([(1, "a\n"), (2, "b" * 2 * usual)], "long", 3 * usual)
    short = csv_rows([(1, "a\n"), (2, "b" * 9)], "short", 8)
    assert next(long) == next(short) == (1, ["a"])
    assert csv.field_size_limit() == usual
    with pytest.raises(NpformerError, match="short:2: expected a closing quote within 8 characters"):
        next(short)
    assert next(long) == (2, ["b" * 2 * usual])
    assert csv.field_size_limit() == usual


def test_half_of_a_surrogate_pair_in_json_is_refused(tmp_path: Path) -> None:
    """A pair of surrogates is read as one character. A lone surrogate is refused, because it cannot be written back."""
    (tmp_path / "whole.json").write_text(r'{"a": "\ud83d\ude00"}')
    assert read_json(tmp_path / "whole.json") == {"a": "\U0001f600"}
    (tmp_path / "half.json").write_text(r'{"a": "\ud83d"}')
    with pytest.raises(NpformerError, match=r"half.json: not JSON: .*surrogate"):
        read_json(tmp_path / "half.json")
