"""Locks that show whether another run is alive, for folders in use and for files that are being written.

The operating system releases these locks when the process that holds them ends. A file with a process id would not
suffice, because ids are reused and have no meaning on another host or in another container. The locks work between
hosts on NFS, because the files are open for writing. On a file system without locks, nothing is locked: two runs at
once are better than a folder that stays blocked after a run has died.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npformer.common.errors import NpformerError

LOCK = ".in-use"
#: A lock is never a link, because writing the owner's name would then replace the content of the linked file.
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Creates the folder if it does not exist, and locks it while the block runs.

    Raises an NpformerError that names the other run if the lock is taken. Raises NpformerError if the folder cannot be
    created.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _take(path)
    except BlockingIOError:
        raise NpformerError(
            f"{folder}: in use by {_owner(path)}; wait until that run ends, or use another folder"
        ) from None
    except OSError as error:
        raise NpformerError(f"{folder}: cannot be used: {error.strerror or error}") from None
    owner = f"process {os.getpid()} on {_host()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    try:
        with contextlib.suppress(OSError):  # on a full disk, the owner is not recorded
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 1, os.SEEK_SET)  # on Windows no other process can read the locked first byte
            os.write(descriptor, owner.encode())
        yield
    finally:
        _release(path, descriptor)


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary folder next to `target`, for writing `target`. First removes the folders of dead runs.

    Only the user can read the temporary folder, because it may be in the temporary folder of the system.

    A lock file is created before the folder and removed after the folder. If the process is killed, the system releases
    the lock.
    """
    from shutil import rmtree  # slow to import

    clear_partial(target.parent, target.name)
    while True:
        lock = target.with_name(f".{_short(target.name)}.{os.urandom(4).hex()}.lock")
        with contextlib.suppress(BlockingIOError):  # another run locked the file in `clear_partial`
            descriptor = _take(lock)
            break
    folder = lock.with_suffix(".partial")
    try:
        folder.mkdir(0o700)
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)
        _release(lock, descriptor)


def clear_partial(folder: Path, name: str | None = None) -> None:
    """Removes the temporary folders of dead runs for the file `name`, or by default for any file."""
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(_short(name))}\.[0-9a-f]{{8}}\.lock", re.DOTALL)
    with contextlib.suppress(OSError):  # the next write reports the error
        for each in filter(pattern.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):  # the run is alive, or the file system has no locks
                _clear(folder / each)


def _clear(lock: Path) -> None:
    from shutil import rmtree

    descriptor = os.open(lock, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    try:
        _lock(descriptor)
        current = os.path.samestat(os.fstat(descriptor), os.stat(lock))
    except OSError:
        os.close(descriptor)
        raise
    if not current:  # another run removed this file after it was opened here, and created a new file with the same name
        os.close(descriptor)
        return
    rmtree(lock.with_suffix(".partial"), ignore_errors=True)
    _release(lock, descriptor)


def _short(name: str) -> str:
    """The beginning of a file name, so short that it and a suffix fit in the 255 bytes that file systems allow."""
    return name[:50]


def _take(path: Path) -> int:
    """Opens and locks a file, and creates it if necessary. Closing the descriptor unlocks the file.

    Raises BlockingIOError if the file is already locked.
    """
    for more in reversed(range(100)):  # bounded, because some file systems report a new inode for a file each time
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        try:
            try:
                _lock(descriptor)
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks
                return descriptor
            if not more or os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the last owner removed the file after it was opened here
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def _release(path: Path, descriptor: int) -> None:
    """Removes a locked file and then unlocks it, so that no other run locks a file that is about to be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    os.close(descriptor)
    if os.name == "nt":  # Windows cannot remove an open file
        with contextlib.suppress(OSError):
            os.unlink(path)


def _lock(descriptor: int) -> None:
    """Locks a file. Raises BlockingIOError if the file is already locked, and OSError if the system has no locks."""
    from filelock import lock_descriptor  # slow to import

    if not lock_descriptor(descriptor, blocking=False):
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))


def _owner(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(1)
            said = file.read(200).decode(errors="replace")
    except OSError:
        said = ""
    return said if said.isprintable() and said else "another run"


def _host() -> str:
    import platform

    return platform.node() or "this host"
