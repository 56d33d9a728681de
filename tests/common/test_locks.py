"""A folder in use is refused with the owner's name, and the lock of a dead owner can be taken over."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from npformer.common import locks
from npformer.common.errors import NpformerError
from npformer.common.locks import LOCK, clear_partial, in_use

ROOT = Path(__file__).parents[2]
HOLDER = """
import time
from pathlib import Path
from npformer.common.locks import in_use
with in_use(Path({folder!r})):
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_one_run_s_at_a_time(tmp_path: Path) -> None:
    for _ in range(2):
        with in_use(tmp_path / "new" / "run"):
            said = (
                rf"run: in use by process {os.getpid()} on {re.escape(platform.node())} since \d{{4}}-\d\d-\d\d \d\d:"
            )
            with pytest.raises(NpformerError, match=said), in_use(tmp_path / "new" / "run"):
                pass
        assert os.listdir(tmp_path / "new" / "run") == []


def test_another_process_is_named_and_a_dead_one_s_lock_is_taken_over(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(folder=str(tmp_path))], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.read(5) == b"ready"
        with pytest.raises(NpformerError, match=f"in use by process {holder.pid} on "), in_use(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert os.listdir(tmp_path) == [LOCK]
    with in_use(tmp_path):
        assert (tmp_path / LOCK).read_text()[1:].startswith(f"process {os.getpid()} on ")
    assert os.listdir(tmp_path) == []


def test_control_characters_in_a_lock_are_escaped(tmp_path: Path) -> None:
    with in_use(tmp_path):
        (tmp_path / LOCK).write_text("process \x1b[31m")
        with pytest.raises(NpformerError, match="in use by another run; wait"), in_use(tmp_path):
            pass


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_something_else_in_the_lock_s_place_stops_nothing_for_ever(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        (tmp_path / LOCK).mkdir()
        with pytest.raises(NpformerError, match="cannot be used: Is a directory"), in_use(tmp_path):
            pass
    elif kind == "link":
        (tmp_path / "file").write_text("kept")
        (tmp_path / LOCK).symlink_to("file")
        with pytest.raises(NpformerError, match="cannot be used: Too many levels of symbolic links"), in_use(tmp_path):
            pass
        assert (tmp_path / "file").read_text() == "kept"
    else:
        os.mkfifo(tmp_path / LOCK)
        with in_use(tmp_path):
            pass


def test_a_file_system_without_locks_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with in_use(tmp_path), in_use(tmp_path):
        pass


def test_a_full_disk_stops_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with in_use(tmp_path), pytest.raises(NpformerError, match="in use by another run"), in_use(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NpformerError, match="run: cannot be used: Not a directory"), in_use(tmp_path / "file" / "run"):
        pass


RACE = """
import os, sys
from pathlib import Path
from npformer.common.errors import NpformerError
from npformer.common.locks import in_use
folder, mark, had = Path(sys.argv[1]), Path(sys.argv[1] + "-inside"), 0
while had < 100:
    try:
        with in_use(folder):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails if another is inside
            mark.unlink()
            had += 1
    except NpformerError:
        pass
"""


def test_two_owners_never_have_one_lock(tmp_path: Path) -> None:
    """A lock file is removed at the end, while other processes may be opening it or a new file with the same name."""
    runs = [subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path / "run")], cwd=ROOT) for _ in range(3)]
    assert [run.wait(600) for run in runs] == [0, 0, 0]


def test_a_lock_that_was_replaced_while_it_was_opened_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run opens a stale lock. Before the run locks it, the file is removed, and a new owner creates it again."""
    lock = tmp_path / ".result.00000000.lock"
    lock.touch()
    take = locks._lock

    def replaced_before(descriptor: int) -> None:
        lock.unlink()
        lock.touch()
        lock.with_suffix(".partial").mkdir()
        take(descriptor)

    monkeypatch.setattr(locks, "_lock", replaced_before)
    clear_partial(tmp_path, "result")
    assert sorted(os.listdir(tmp_path)) == [".result.00000000.lock", ".result.00000000.partial"]
