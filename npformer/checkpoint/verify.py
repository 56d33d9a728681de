"""Holds files to their checksums: a whole folder for `npformer info --verify`, a bundled model at its first load.

Checksums come from three places: the metadata of safetensors files that npformer wrote (`safetensors.checksum`), and in
the cache of the Hugging Face hub the names of the files that its links lead to.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npformer.checkpoint.safetensors import check_sums, read_tensors
from npformer.common.errors import NpformerError
from npformer.common.files import open_file

UNKNOWN = "no checksum is stored"


class Verified(NamedTuple):
    """A file's name in its folder, its SHA-256 and what it was held to, or why it is damaged."""

    name: str
    sha256: str
    held_to: str
    damaged: bool = False


def verify(folder: Path) -> Iterator[Verified]:
    """Holds each file of a model's folder, and of the folders in it, to the checksum that is stored for it."""
    files = [path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern)) if not path.is_dir()]
    for path in files:
        name = path.relative_to(folder).as_posix()
        digest = ""
        try:
            digest = _digest(path)
            yield Verified(name, digest, _held_to(path, digest))
        except NpformerError as error:
            yield Verified(name, digest, str(error), damaged=True)


def _digest(path: Path, kind: str = "sha256", before: bytes = b"") -> str:
    import hashlib

    digest = hashlib.new(kind, before, usedforsecurity=False)
    with open_file(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _held_to(path: Path, sha256: str) -> str:
    """Says what a file was held to. Raises NpformerError if it is not what it should be.

    The hub's cache names a large file by its SHA-256, and a small one as git does, by the SHA-1 of a blob.
    """
    blob = Path(os.path.realpath(path))
    if "blobs" in blob.parts and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        found = sha256
        if len(blob.name) == 40:
            found = _digest(path, "sha1", b"blob %d\0" % blob.stat().st_size)
        if found != blob.name:
            raise NpformerError(f"{path}: damaged: not the file that the hub has; delete {blob}, load anew")
        return "as the hub has it"
    if path.suffix == ".safetensors" and check_sums(path, *read_tensors(path)):
        return "as its metadata says"
    return UNKNOWN


_checked: set[str] = set()


def verify_once(path: Path) -> None:
    """Holds a safetensors file to its checksum, unless that was done before, by this user or in this process.

    That it was done is remembered by an empty file in the user's cache, whose name has the file's number, size and time
    of change; where the cache cannot be written, each process checks anew (25 ms for 45 MB). Nothing is written beside
    the file, which may lie in an installed package.
    """
    try:
        found = os.stat(path)
    except OSError:  # said by what reads the folder
        return
    mark = f"{path.parent.name}-{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
    cache = os.path.expanduser(os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "npformer", "checked"))
    if mark in _checked or os.path.exists(os.path.join(cache, mark)):
        return
    check_sums(path, *read_tensors(path))
    _checked.add(mark)
    if os.path.isabs(cache):  # a user without a home has none
        with contextlib.suppress(OSError):
            os.makedirs(cache, exist_ok=True)
            Path(cache, mark).touch()
