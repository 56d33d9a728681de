"""Files are read within limits, and written whole or not at all."""

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

from npformer.common.checks import listed
from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits
from npformer.common.locks import partial_folder

LINE = 2**24  # most bytes of a line that is a text, or a row of a table


def open_file(path: str | Path) -> BinaryIO:
    """Opens a file of a model's folder to read its bytes.

    Raises NpformerError, which names the file, if it cannot be opened or is not a regular file: reading from a pipe
    could wait for ever, and reading from a device never ends. So does a link out of the folder: a stranger's could lead
    to any file of yours, whose content would then stand in a message or in a converted model.
    """
    if os.path.islink(path):
        _check_link(Path(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        what = None if getattr(error, "errno", None) == errno.ENXIO else getattr(error, "strerror", None) or error
        raise NpformerError(f"{path}: {what or 'not a regular file'}") from None  # ENXIO: a socket
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # asked of the opened file, which no one can exchange
        os.close(descriptor)
        raise NpformerError(f"{path}: not a regular file")
    return open(descriptor, "rb")


def as_given(path: str | Path) -> Path:
    """The path of a file that the user named: a link leads wherever they let it lead."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def _check_link(path: Path) -> None:
    """Checks that a link leads to a file beside it, or within the cache that all Hugging Face tools share.

    There the files of a model's snapshot, and of a folder in it, are links to `blobs` of the model and of all models.
    """
    home, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    homes = [home]
    for snapshot in (home, home.parent):
        if snapshot.parent.name == "snapshots":
            homes += [snapshot.parents[1] / "blobs", snapshot.parents[2] / "blobs"]
    if not any(target.is_relative_to(each) for each in homes):
        there = os.path.abspath(path.parent / os.readlink(path))
        raise NpformerError(
            f"{path}: a link out of the model's folder, to {there}, which is not followed; copy the folder with "
            f"the files themselves (cp -rL), or, if all of them are in {os.path.dirname(there)}, load that folder"
        )


def read_bytes(path: str | Path, limit: str, limits: Limits = LIMITS) -> bytes:
    """Reads a whole file, if it has no more bytes than the limit of this name."""
    with open_file(path) as file:
        limits.check(limit, os.fstat(file.fileno()).st_size, path)
        try:
            return file.read()
        except OSError as error:
            raise NpformerError(f"{path}: {error.strerror or error}") from None


def lines_of(file: Any, where: str | Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of an open file, with their numbers; a file without line ends is no list of texts or rows."""
    for number in itertools.count(1):
        line = file.readline(LINE + 1)
        if len(line) > LINE:
            raise NpformerError(f"{where}:{number}: a line of more than {LINE} bytes; expected one text or row")
        if not line:
            return
        yield number, line


def csv_rows(
    lines: Iterable[tuple[int, str]], where: str | Path, longest: int = LINE, **options: Any
) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of CSV, the columns' names first, with the line that each ends on; `longest` is of a cell.

    A blank line is a row where there is one column, and is skipped elsewhere.
    """
    import csv  # which takes long to import

    names: list[str] = []
    reader = csv.reader((line for _, line in lines), strict=True, **options)
    try:
        while True:
            first = reader.line_num + 1
            limit = csv.field_size_limit(longest)  # the whole process's, so for one row at a time
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
            message = f"a cell that never ends, or has more than {longest} characters; expected a closing quote"
            raise NpformerError(f"{where}:{first}: {message}") from None
        message = "a carriage return within a line" if "new-line" in said else said
        raise NpformerError(f"{where}:{reader.line_num}: {message}") from None


def read_text(path: Path, limits: Limits = LIMITS) -> str:
    """Reads a file in UTF-8, of no more bytes than a JSON file may have."""
    try:
        return read_bytes(path, "json", limits).decode()
    except UnicodeDecodeError as error:
        raise NpformerError(f"{path}: not UTF-8 (byte {error.start})") from None


def read_json(path: Path, limits: Limits = LIMITS, limit: str = "json") -> dict[str, Any]:
    """Reads a JSON file that holds an object, if it has no more bytes than the limit of this name."""
    try:
        data = json.loads(text := read_bytes(path, limit, limits).decode("utf-8"))
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(data, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which is no text
    except NpformerError:
        raise
    except (ValueError, RecursionError) as error:
        raise NpformerError(f"{path}: not JSON: {error!s:.200}") from None
    if not isinstance(data, dict):
        raise NpformerError(f"{path}: expected a JSON object, got a {type(data).__name__}")
    return data


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a file to write, whose content comes to `path` if the block succeeds; after a failure nothing has changed.

    A new file, and one in the place of another, is written in a folder beside it and renamed; it keeps the other's mode
    and owner, and a link to it stays. To a pipe or a device (a FIFO, /dev/stdout) the whole content is written at the
    end. Raises NpformerError, which names `path`, for a folder, a socket or a disk, and if it cannot be written.
    """
    path = Path(path)
    if not path.name:
        raise NpformerError(f"{path}: cannot be written: it names no file")
    try:
        with _written_to_stream(path) if is_stream(path) else _written_beside(path) as partial:
            yield partial
    except OSError as error:
        raise NpformerError(f"{path}: cannot be written: {error.strerror or error}") from None


def place_in_folder(path: Path) -> Path:
    """The path of a file that npformer itself names, to write it. Only users name pipes and devices to write to.

    Raises NpformerError if something else than a regular file is there.
    """
    if path.exists() and not path.is_file():
        raise NpformerError(f"{path}: cannot be written: not a regular file is there; remove it")
    return path


@contextmanager
def _written_beside(path: Path) -> Iterator[Path]:
    target = Path(os.path.realpath(path))
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    if old and not os.access(target.parent, os.W_OK):
        what = "takes no new file, and a file is written whole beside its place before it replaces another"
        raise PermissionError(f"its folder {target.parent} {what}")
    # A folder, because some writers depend on a file's suffix, and some write other files beside it.
    with partial_folder(target) as folder:
        partial = folder / path.name
        yield partial
        _flush_to_disk(partial)
        if old:
            if hasattr(os, "chown"):
                with contextlib.suppress(OSError):  # only root may leave a file to its owner
                    os.chown(partial, old.st_uid, old.st_gid)
            partial.chmod(stat.S_IMODE(old.st_mode))
        os.replace(partial, target)


@contextmanager
def _written_to_stream(path: Path) -> Iterator[Path]:
    from shutil import copyfileobj  # both take long to import
    from tempfile import gettempdir

    with partial_folder(Path(gettempdir(), f"npformer-{path.name}")) as folder:
        partial = folder / path.name
        yield partial
        number = _own_descriptor(path)
        opened = os.open(path, os.O_WRONLY) if number is None else os.dup(number)
        with open(opened, "wb") as stream, open(partial, "rb") as whole:
            copyfileobj(whole, stream)


def is_stream(path: Path) -> bool:
    """Tells whether a path is written to, and not replaced. Raises NpformerError for what is neither."""
    if _own_descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    except ValueError as error:  # a name with a null character
        raise NpformerError(f"{path!s:.200}: cannot be written: {error}") from None
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    if not stat.S_ISREG(mode):
        kinds = {stat.S_ISDIR: "a folder", stat.S_ISSOCK: "a socket", stat.S_ISBLK: "a disk"}
        kind = next((what for test, what in kinds.items() if test(mode)), "no file")
        raise NpformerError(f"{path}: cannot be written: it is {kind}; give the name of a file")
    return False


def _own_descriptor(path: Path) -> int | None:
    """The number of the open descriptor of this process that a path names, as /dev/stdout and /dev/fd/3 do."""
    for _ in range(40):
        folder = os.path.realpath(path.parent)
        if re.fullmatch(rf"/dev/fd|/proc/{os.getpid()}(/task/\d+)?/fd", folder) and path.name.isdecimal():
            return int(path.name)
        if not os.path.islink(path):
            return None
        path = Path(folder, os.readlink(path))
    return None


def _flush_to_disk(path: Path) -> None:
    """Some file systems report only here that the disk is full."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def new_folder(dst: Path) -> Iterator[Path]:
    """Makes a folder to fill, which gets its name at the end; after a failure nothing of it is left."""
    if os.path.lexists(dst):
        raise NpformerError(f"{dst}: exists already; give the name of a new folder")
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
