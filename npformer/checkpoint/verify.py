"""Verifies the checksums of files, for `npformer info --verify` and when a bundled model is first loaded.

A safetensors file written by npformer has its checksum in the metadata (`safetensors.checksum`). In the Hugging Face
cache, each file is a link to a file whose name is its checksum.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from npformer.checkpoint.read import WEIGHTS, shards
from npformer.checkpoint.safetensors import check_sums, read_tensors
from npformer.common.errors import NpformerError
from npformer.common.files import open_file

UNKNOWN = "no checksum is stored"


class Verified(NamedTuple):
    """The result for one file."""

    name: str  # relative to the folder
    sha256: str
    verdict: str  # for example "matches the hub", or the error message
    damaged: bool = False


def verify(folder: Path) -> Iterator[Verified]:
    """Verifies the stored checksum of each file in a model's folder and in its subfolders.

    A shard that the index of the weights names but that is missing from the folder counts as damaged.
    """
    files = [path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern)) if not path.is_dir()]
    for path in files:
        name = path.relative_to(folder).as_posix()
        digest = ""
        try:
            digest = _digest(path)
            yield Verified(name, digest, _verdict(path, digest))
        except NpformerError as error:
            yield Verified(name, digest, str(error), damaged=True)
    yield from _missing(folder)


def _missing(folder: Path) -> Iterator[Verified]:
    """The shards that the index of the weights names but that are missing from the folder."""
    weights = next((name for name in WEIGHTS if (folder / name).exists()), "")
    try:
        for shard in shards(folder / weights) if weights.endswith(".index.json") else []:
            if not os.path.lexists(folder / shard):
                yield Verified(shard, "", f"missing, but named in {weights}", damaged=True)
    except NpformerError as error:
        yield Verified(weights, "", str(error), damaged=True)


def _digest(path: Path, kind: str = "sha256", before: bytes = b"") -> str:
    import hashlib

    digest = hashlib.new(kind, before, usedforsecurity=False)
    with open_file(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _verdict(path: Path, sha256: str) -> str:
    """Compares a file with its checksum. Raises NpformerError if they do not match.

    The cache of the hub names a large file by its SHA-256, and a small file by the SHA-1 of its git blob.
    """
    blob = Path(os.path.realpath(path))
    if "blobs" in blob.parts and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        found = sha256
        if len(blob.name) == 40:
            found = _digest(path, "sha1", b"blob %d\0" % blob.stat().st_size)
        if found != blob.name:
            raise NpformerError(f"{path}: damaged: differs from the file on the hub; delete {blob} and load again")
        return "matches the hub"
    if path.suffix == ".safetensors" and check_sums(path, *read_tensors(path)):
        return "matches its metadata"
    return UNKNOWN


_checked: set[str] = set()


def verify_once(path: Path) -> None:
    """Verifies the checksum of a safetensors file once for each user.

    An empty file in the user's cache records the check. The name of this file contains the inode, size and modification
    time of the checked file. If the cache is not writable, each process checks once (25 ms for 45 MB). Nothing is
    written next to the checked file, which may be in an installed package.
    """
    try:
        found = os.stat(path)
    except OSError:  # the code that reads the folder reports the error
        return
    mark = f"{path.parent.name}-{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
    cache = os.path.expanduser(os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "npformer", "checked"))
    if mark in _checked or os.path.exists(os.path.join(cache, mark)):
        return
    check_sums(path, *read_tensors(path))
    _checked.add(mark)
    if os.path.isabs(cache):  # the path is relative for a user without a home directory
        with contextlib.suppress(OSError):
            os.makedirs(cache, exist_ok=True)
            Path(cache, mark).touch()
