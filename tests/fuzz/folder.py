"""The files of a case: their content or a replacement for it, and a function that writes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.draw import Draw


@dataclass(frozen=True)
class Link:
    target: str


@dataclass(frozen=True)
class Sparse:
    """A sparse file of this many bytes: `head`, then zeros."""

    size: int
    head: bytes = b""


@dataclass(frozen=True)
class Folder:
    """A folder in the place of a file."""


@dataclass(frozen=True)
class Pipe:
    """A FIFO without a writer."""


Entry = bytes | Link | Sparse | Folder | Pipe
Files = Mapping[str, Entry]

OUTSIDE = "../outside"  # a second folder, which must stay unchanged


def write(folder: Path, files: Files) -> int:
    """Writes the files into an empty folder; returns their total size in bytes."""
    total = 0
    for name, entry in files.items():
        path = folder / name
        if "/" in name:
            path.parent.mkdir(parents=True, exist_ok=True)
        match entry:
            case bytes():
                path.write_bytes(entry)
                total += len(entry)
            case Link():
                os.symlink(entry.target, path)
            case Sparse():
                path.write_bytes(entry.head)
                os.truncate(path, entry.size)
                total += entry.size
            case Folder():
                path.mkdir()
            case Pipe():
                os.mkfifo(path)
    return total


def mutate(draw: Draw, files: dict[str, Entry]) -> None:
    """Removes or replaces one whole file of the folder."""
    name = draw.pick(sorted(files))
    other = draw.pick(sorted(files))
    entry = files[name]
    head = entry[:40] if isinstance(entry, bytes) else b""
    match draw.below(12):
        case 0 | 1:
            del files[name]
        case 2:
            files[name] = b""
        case 3:
            files[name] = Folder()
        case 4:
            files[name] = Pipe()
        case 5:
            files[name] = Link(
                draw.pick((name.rpartition("/")[2], "nowhere", "/dev/zero", "/dev/null", "/dev/full", ".", "..", "/"))
            )
        case 6:
            files[f"real.{name.rpartition('/')[2]}"], files[name] = entry, Link(f"real.{name}")
        case 7:
            files[name] = Link(f"{OUTSIDE}/{draw.pick(('victim', 'nowhere', name.rpartition('/')[2]))}")
        case 8:
            files[name] = Sparse(draw.pick((1, 4096, 10**6, 3 * 10**7, 2**40)), draw.pick((b"", head)))
        case 9:
            files[name] = files[other]
        case 10:
            files[
                draw.pick((name.upper(), f"{name}.bak", f".{name}", "model.bin", "npformer.safetensors", "vocab.txt"))
            ] = entry
        case _:
            files[name] = draw.pick(
                (b"{}", b"[]", b"null", b'""', b"\x00" * 64, b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf" + head)
            )
