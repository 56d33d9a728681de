"""Locks that tell whether another run is alive: on a folder that a run uses, and on files that are being written.

They are the operating system's, and end with the process that holds them, however it ends. So a lock of a dead run is
free at once. A file with a process's number could not tell: the number is given to other processes in time, and means
nothing on another host or in another container. NFS has the same locks between its hosts: Linux asks its server for
them, if the file is open for writing, as it is here. On a file system that has no locks, nothing is locked: a run that
is refused for ever because of a dead one would be worse than two at once.
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


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Makes the folder if it is not there, and locks it for one run at a time.

    Raises NpformerError, which says who has it, if another run does; or if it cannot be made.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _take(path)
    except BlockingIOError:
        raise NpformerError(
            f"{folder}: in use by {_owner(path)}; wait until it has ended, or give another folder"
        ) from None
    except OSError as error:
        raise NpformerError(f"{folder}: cannot be used: {error.strerror or error}") from None
    owner = f"process {os.getpid()} on {_host()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
    try:
        with contextlib.suppress(OSError):  # a full disk: then nobody learns who has the folder
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 1, os.SEEK_SET)  # on Windows nobody else reads the locked byte, the first
            os.write(descriptor, owner.encode())
        yield
    finally:
        _release(path, descriptor)


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Makes a folder beside `target` to write it in, and removes it at the end; first clears what dead runs left.

    Only its owner can look into it, as it may stand in the system's temporary folder.

    Its lock, a file beside it, is there before the folder and after it: a kill at any moment leaves it, free.
    """
    from shutil import rmtree  # which takes long to import

    clear_partial(target.parent, target.name)
    while True:
        lock = target.with_name(f".{_short(target.name)}.{os.urandom(4).hex()}.lock")
        with contextlib.suppress(BlockingIOError):  # another run, which clears, was faster than we to lock our file
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
    """Removes the folders in which runs that are dead were writing the file `name`, by default any file."""
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(_short(name))}\.[0-9a-f]{{8}}\.lock", re.DOTALL)
    with contextlib.suppress(OSError):  # what cannot be listed is said by the writing that follows
        for each in filter(pattern.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):  # a run has it; or there are no locks here, and it may be alive
                _clear(folder / each)


def _clear(lock: Path) -> None:
    from shutil import rmtree

    descriptor = os.open(lock, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    try:
        _lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    rmtree(lock.with_suffix(".partial"), ignore_errors=True)
    _release(lock, descriptor)


def _short(name: str) -> str:
    """The beginning of a file's name: a file system takes 255 bytes, and more comes after it."""
    return name[:50]


def _take(path: Path) -> int:
    """Opens and locks a file, which is made if it is not there. Closing the descriptor unlocks it.

    Raises BlockingIOError if it is locked already.
    """
    for more in reversed(range(100)):  # not for ever: some file systems number a file anew each time
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
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
        os.close(descriptor)  # its last owner removed the file between our opening and locking it
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def _release(path: Path, descriptor: int) -> None:
    """Removes a locked file and unlocks it. In this order: nobody locks a file that is about to go."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    os.close(descriptor)
    if os.name == "nt":  # which removes no open file
        with contextlib.suppress(OSError):
            os.unlink(path)


def _lock(descriptor: int) -> None:
    """Raises BlockingIOError if another has locked the file, and OSError if its file system has no locks."""
    from filelock import lock_descriptor  # which takes long to import

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
