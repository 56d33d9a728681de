"""Dataset formats by file suffix, and shared helpers for checksums and for errors that name the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from npformer.common.errors import NpformerError

#: Suffix -> format. Feather is another name for Arrow's file format.
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}  # only for text formats; the other formats compress internally
DELIMITERS = {"csv": ",", "tsv": "\t"}
KNOWN = "csv, tsv and jsonl (also .gz and .zst), parquet, arrow and feather"


class Format(NamedTuple):
    """A format, and the compression of the whole file ("" if uncompressed)."""

    kind: str
    compression: str = ""


def format_of(path: Path) -> Format | None:
    """Returns the format for a suffix ("a.csv.gz" is csv in gzip), or None for an unknown suffix."""
    suffixes = [each.lower() for each in path.suffixes]
    compression = COMPRESSIONS.get(suffixes[-1], "") if suffixes else ""
    kind = FORMATS.get(suffixes[-2 if compression else -1]) if len(suffixes) > bool(compression) else None
    return None if kind is None or (compression and kind in ("parquet", "arrow")) else Format(kind, compression)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Converts pyarrow and operating system errors to an NpformerError that names the file."""
    try:
        yield
    except NpformerError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise NpformerError(f"{path}: {next(iter(said.splitlines()), type(error).__name__):.300}") from error


def checksum(path: Path) -> str:
    """Returns the sha256 of a file, or "" if it does not exist."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""
