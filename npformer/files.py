"""Files are read within limits, and written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from npformer.errors import NpformerError
from npformer.limits import LIMITS, Limits


def open_file(path: str | Path) -> BinaryIO:
    """Opens a file of a model's folder to read its bytes.

    Raises NpformerError, which names the file, if it cannot be opened or is not a regular file: reading from a pipe
    could wait for ever, and reading from a device never ends.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise NpformerError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # asked of the opened file, which no one can exchange
        os.close(descriptor)
        raise NpformerError(f"{path}: not a regular file")
    return open(descriptor, "rb")


def read_bytes(path: str | Path, limit: str, limits: Limits = LIMITS) -> bytes:
    """Reads a whole file, if it has no more bytes than the limit of this name."""
    with open_file(path) as file:
        limits.check(limit, os.fstat(file.fileno()).st_size, path)
        try:
            return file.read()
        except OSError as error:
            raise NpformerError(f"{path}: {error.strerror or error}") from None


def read_json(path: Path, limits: Limits = LIMITS, limit: str = "json") -> dict[str, Any]:
    """Reads a JSON file that holds an object, if it has no more bytes than the limit of this name."""
    try:
        data = json.loads(read_bytes(path, limit, limits).decode("utf-8"))
    except NpformerError:
        raise
    except (ValueError, RecursionError) as error:
        raise NpformerError(f"{path}: not JSON: {error!s:.200}") from None
    if not isinstance(data, dict):
        raise NpformerError(f"{path}: expected a JSON object, got a {type(data).__name__}")
    return data


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a file to write in a folder beside `path`, and renames it to `path` if the block succeeds; else removes it.

    Raises NpformerError, which names `path`, if it cannot be written. A folder, a pipe or a device is not replaced.
    """
    path = Path(path)
    if not path.name or (os.path.exists(path) and not os.path.isfile(path)):
        raise NpformerError(f"{path}: cannot be written: it names no file")
    # A folder, because some writers depend on a file's suffix, and some write other files beside it.
    folder = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        folder.mkdir()
        yield folder / path.name
        os.replace(folder / path.name, path)
    except OSError as error:
        raise NpformerError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_folder(dst: Path) -> Iterator[Path]:
    """Makes a folder to fill, which gets its name at the end; after a failure nothing of it is left."""
    if os.path.lexists(dst):
        raise NpformerError(f"{dst}: exists already; give the name of a new folder")
    partial = dst.with_name(f".{dst.name}.{os.urandom(4).hex()}.partial")
    try:
        partial.mkdir()
        yield partial
        os.rename(partial, dst)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise NpformerError(f"{dst}: cannot be written: {error.strerror or error}{where}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
