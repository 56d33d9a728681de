"""Functions that read files within limits, and functions that write files atomically."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from npformer.common.checks import listed, shown
from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits
from npformer.common.locks import partial_folder

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LINE = 2**24  # maximum bytes of a line, such as a text or a row of a table


def open_file(path: str | Path) -> BinaryIO:
    """Opens a file in the folder of a model in binary mode.

    Raises an NpformerError that names the file if the file cannot be opened, is not a regular file, is a link to a file
    outside the folder, or is only a pointer, as in a clone without Git LFS. Reading from a pipe could block forever,
    and reading from a device never ends. A link in an untrusted folder could expose the content of any of your files in
    a message or in a converted model.
    """
    if os.path.islink(path):
        _check_link(Path(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        what = None if getattr(error, "errno", None) == errno.ENXIO else getattr(error, "strerror", None) or error
        raise NpformerError(f"{path}: {what or 'not a regular file'}") from None  # ENXIO: a socket
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # checks the open file, because the path could change meanwhile
        os.close(descriptor)
        raise NpformerError(f"{path}: not a regular file")
    with named(path):
        start = os.read(descriptor, len(LFS_POINTER))
    if start == LFS_POINTER:
        os.close(descriptor)
        raise NpformerError(f"{path}: a pointer of Git LFS instead of the file; get the file with `git lfs pull`")
    os.lseek(descriptor, 0, os.SEEK_SET)
    return open(descriptor, "rb")


def as_given(path: str | Path) -> Path:
    """Follows links in the path of a file that the user named."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def _check_link(path: Path) -> None:
    """Checks that a link points into its own folder, or stays within the cache that all Hugging Face tools share.

    In that cache, the files of a snapshot are links into the folder `blobs` of the model or of all models.
    """
    home, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    homes = [home]
    for snapshot in (home, home.parent):
        if snapshot.parent.name == "snapshots":
            homes += [snapshot.parents[1] / "blobs", snapshot.parents[2] / "blobs"]
    if not any(target.is_relative_to(each) for each in homes):
        there = os.path.abspath(path.parent / os.readlink(path))
        raise NpformerError(
            f"{path}: a link out of the model folder, to {there}, is not followed; copy the folder without "
            f"links (cp -rL), or load {os.path.dirname(there)} if it has all files"
        )


def read_bytes(path: str | Path, limit: str, limits: Limits = LIMITS) -> bytes:
    """Reads a whole file whose size is within the limit with the given name."""
    with open_file(path) as file:
        limits.check(limit, os.fstat(file.fileno()).st_size, path)
        with named(path):
            return file.read()


@contextmanager
def named(path: object) -> Iterator[None]:
    """Converts an OSError in the block to an NpformerError that names the file."""
    try:
        yield
    except OSError as error:
        raise NpformerError(f"{path}: {error.strerror or error}") from None


def lines_of(file: Any, where: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yields the number and content of each line of an open file. Raises an error for lines of more than LINE bytes."""
    for number in itertools.count(1):
        line = file.readline(LINE + 1)
        if len(line) > LINE:
            raise NpformerError(f"{where}:{number}: expected at most {LINE} bytes in a line, got more")
        if not line:
            return
        yield number, line


def csv_rows(
    lines: Iterable[tuple[int, str]], where: str | Path, longest: int = LINE, **options: Any
) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, row) for each row of a CSV file, starting with the column names.

    number: the number of the row's last line in the file. A blank line is a row if the file has only one column, and is
    otherwise skipped. longest: maximum characters of a cell.
    """
    import csv  # slow to import

    names: list[str] = []
    reader = csv.reader((line for _, line in lines), strict=True, **options)
    try:
        while True:
            first = reader.line_num + 1
            limit = csv.field_size_limit(longest)  # this limit is global, so it is restored after each row
            try:
                values = next(reader, None)
            finally:
                csv.field_size_limit(limit)
            if values is None:
                return
            if not values and len(names) == 1:
                values = [""]
            if not values:
                continue
            names = names or values
            if len(values) != len(names):
                expected = f"{len(names)} columns ({listed(names):.200})"
                raise NpformerError(f"{where}:{first}: expected {expected}, got {len(values)}")
            yield reader.line_num, values
    except csv.Error as error:
        said = str(error)
        if "end of data" in said or "field limit" in said:
            message = f"expected a closing quote within {longest} characters, got a longer or unclosed cell"
            raise NpformerError(f"{where}:{first}: {message}") from None
        message = "a carriage return within a line" if "new-line" in said else said
        raise NpformerError(f"{where}:{reader.line_num}: {message}") from None


def read_text(path: Path, limits: Limits = LIMITS, limit: str = "json") -> str:
    """Reads a UTF-8 file whose size is within the limit with the given name."""
    try:
        return read_bytes(path, limit, limits).decode()
    except UnicodeDecodeError as error:
        raise NpformerError(f"{path}: not UTF-8 (byte {error.start})") from None


def read_json(path: Path, limits: Limits = LIMITS, limit: str = "json") -> dict[str, Any]:
    """Reads a JSON file that contains an object, and whose size is within the limit with the given name."""
    try:
        data = json.loads(text := read_bytes(path, limit, limits).decode("utf-8"))
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(data, ensure_ascii=False).encode()  # fails for lone surrogates, which are not valid text
    except NpformerError:
        raise
    except (ValueError, RecursionError) as error:
        raise NpformerError(f"{path}: not JSON: {error!s:.200}") from None
    if not isinstance(data, dict):
        raise NpformerError(f"{path}: expected a JSON object, got {shown(data)}")
    return data


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the path of a temporary file, which is moved to `path` only if the block succeeds.

    A regular file is written in a temporary folder next to `path` and then renamed. A file that replaces another file
    keeps the mode and owner, and symbolic links to it stay valid. For a stream (a FIFO, /dev/stdout), the whole content
    is written at the end. Raises an NpformerError that names `path` if `path` is a folder, a socket or a disk, or
    cannot be written.
    """
    path = Path(path)
    if not path.name:
        raise NpformerError(f"{path}: cannot be written: not the name of a file")
    try:
        with _written_to_stream(path) if is_stream(path) else _written_beside(path) as partial:
            yield partial
    except OSError as error:
        raise NpformerError(f"{path}: cannot be written: {error.strerror or error}") from None


def place_in_folder(path: Path) -> Path:
    """Returns the path of a file to write in a folder, for a file name that the user did not choose.

    Raises NpformerError if the path exists and is not a regular file, because only a user may choose a pipe or a
    device.
    """
    if path.exists() and not path.is_file():
        raise NpformerError(f"{path}: cannot be written: not a regular file; remove it")
    return path


@contextmanager
def _written_beside(path: Path) -> Iterator[Path]:
    target = Path(os.path.realpath(path))
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    if old and not os.access(target.parent, os.W_OK):
        reason = "is not writable, but the new file must be written there before it replaces the old one"
        raise PermissionError(f"its folder {target.parent} {reason}")
    # The temporary file has the same name in its own folder, because some writers depend on the suffix, and others
    # write several files.
    with partial_folder(target) as folder:
        partial = folder / path.name
        yield partial
        _flush_to_disk(partial)
        if old:
            if hasattr(os, "chown"):
                with contextlib.suppress(OSError):  # only root may change the owner
                    os.chown(partial, old.st_uid, old.st_gid)
            partial.chmod(stat.S_IMODE(old.st_mode))
        os.replace(partial, target)


@contextmanager
def _written_to_stream(path: Path) -> Iterator[Path]:
    from shutil import copyfileobj  # slow to import
    from tempfile import gettempdir

    with partial_folder(Path(gettempdir(), f"npformer-{path.name}")) as folder:
        partial = folder / path.name
        yield partial
        number = _own_descriptor(path)
        opened = os.open(path, os.O_WRONLY) if number is None else os.dup(number)
        with open(opened, "wb") as stream, open(partial, "rb") as whole:
            copyfileobj(whole, stream)


def is_stream(path: Path) -> bool:
    """Whether a path is a stream (a pipe, a device or an open descriptor), which is written to instead of replaced.

    Raises NpformerError if the path exists but is neither a stream nor a regular file.
    """
    if _own_descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    except ValueError as error:  # the name contains a null character
        raise NpformerError(f"{path!s:.200}: cannot be written: {error}") from None
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    if not stat.S_ISREG(mode):
        kinds = {stat.S_ISDIR: "a folder", stat.S_ISSOCK: "a socket", stat.S_ISBLK: "a disk"}
        kind = next((what for test, what in kinds.items() if test(mode)), "no file")
        raise NpformerError(f"{path}: cannot be written: it is {kind}; expected a file")
    return False


def _own_descriptor(path: Path) -> int | None:
    """The open descriptor of this process to which a path such as /dev/stdout or /dev/fd/3 refers, or None."""
    for _ in range(40):
        folder = os.path.realpath(path.parent)
        if re.fullmatch(rf"/dev/fd|/proc/{os.getpid()}(/task/\d+)?/fd", folder) and path.name.isdecimal():
            return int(path.name)
        if not os.path.islink(path):
            return None
        path = Path(folder, os.readlink(path))
    return None


def _flush_to_disk(path: Path) -> None:
    """Flushes a file to disk, because some file systems report a full disk only at that time."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def new_folder(dst: Path) -> Iterator[Path]:
    """Yields a temporary folder, which is renamed to `dst` if the block succeeds, and removed otherwise."""
    if os.path.lexists(dst):
        raise NpformerError(f"{dst}: already exists; expected a new folder")
    try:
        with partial_folder(dst) as beside:
            folder = beside / dst.name
            folder.mkdir()
            yield folder
            for each in folder.rglob("*"):
                if each.is_file():
                    _flush_to_disk(each)
            os.rename(folder, dst)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise NpformerError(f"{dst}: cannot be written: {error.strerror or error}{where}") from error
