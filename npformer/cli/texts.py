"""Where a command's texts come from: its arguments, or the lines of files and of standard input.

A line that is no UTF-8 text is an answer of its own: it is named, and the others are still read.
"""

from __future__ import annotations

import errno
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from npformer.cli.process import complain
from npformer.errors import NpformerError
from npformer.text.inputs import Pair

LONGEST = 2**24  # bytes of a line: a file without line ends is no list of texts


@dataclass
class Line:
    """A text and where it stood, or why there is none."""

    where: str
    text: str = ""
    error: str = ""


def paired(text: str, pair: str | None) -> str | Pair:
    """What the model is to read: a text, or with --pair two. Raises NpformerError for what is not UTF-8."""
    given = {"TEXT": text} if pair is None else {"TEXT": text, "--pair": pair}
    read = [_decoded(where, argument.encode(errors="surrogateescape")) for where, argument in given.items()]
    for line in read:
        if line.error:
            raise NpformerError(f"{line.where}: {line.error}")
    return read[0].text if pair is None else Pair(read[0].text, read[1].text)


def lines(args: Namespace) -> Iterator[Line]:
    """The texts in the order given: arguments, then files; standard input where there are neither.

    Raises NpformerError for a file that cannot be read, before the first text.
    """
    for name in args.file:
        if name != "-":
            _check_readable(name)
    for number, text in enumerate(args.texts, 1):
        yield _decoded(f"argument {number}", text.encode(errors="surrogateescape"))
    for name in args.file or ([] if args.texts else ["-"]):
        yield from _stdin_lines() if name == "-" else _file_lines(name)


def count(args: Namespace) -> int | None:
    """How many texts there will be, where that can be known before they are read."""
    if not all(os.path.isfile(name) for name in args.file) or not (args.texts or args.file):
        return None
    return len(args.texts) + sum(_count_lines(name) for name in args.file)


def interactive(args: Namespace) -> bool:
    """Whether the texts are typed on a terminal, each waiting for its answer."""
    return ("-" in args.file or not (args.texts or args.file)) and sys.stdin.isatty()


def read_file(name: str) -> str:
    """A whole file as one text."""
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise NpformerError(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise NpformerError(f"{name}: not UTF-8 (byte {error.start})") from None


def plain(text: str, width: int | None = None) -> str:
    """A text in one line that cannot move a terminal's cursor, cut to the terminal where output goes to one.

    width: what stands beside it in the line; None: it is not cut.
    """
    text = "".join(each if each.isprintable() else " " for each in text)
    if width is not None and sys.stdout.isatty():
        from shutil import get_terminal_size

        room = max(get_terminal_size().columns - width, 20)
        text = text if len(text) <= room else text[: room - 1] + "…"
    return text


def _stdin_lines() -> Iterator[Line]:
    if sys.stdin.isatty():
        complain("one text a line; Ctrl-D ends")
    try:
        yield from _lines("stdin", sys.stdin.buffer)
    except OSError as error:
        raise NpformerError(f"stdin: {error.strerror or error}") from None


def _check_readable(name: str) -> None:
    try:
        if os.path.isdir(name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(name, os.R_OK):
            os.stat(name)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise NpformerError(f"{name}: {error.strerror or error}") from None


def _file_lines(name: str) -> Iterator[Line]:
    try:
        with open(name, "rb") as file:
            yield from _lines(name, file)
    except OSError as error:
        raise NpformerError(f"{name}: {error.strerror or error}") from None


def _lines(name: str, file: BinaryIO | Any) -> Iterator[Line]:
    number = 0
    while line := file.readline(LONGEST):
        number += 1
        if len(line) == LONGEST:
            raise NpformerError(f"{name}:{number}: a line of more than {LONGEST} bytes; expected one text a line")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield _decoded(f"{name}:{number}", line.removesuffix(b"\n").removesuffix(b"\r"))


def _decoded(where: str, data: bytes) -> Line:
    try:
        return Line(where, data.decode())
    except UnicodeDecodeError as error:
        return Line(where, error=f"not UTF-8 (byte {error.start})")


def _count_lines(name: str) -> int:
    try:
        with open(name, "rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    except OSError:
        return 0  # reading it will say why
