"""Reads the texts of a command, which are its arguments, or the lines of files and of standard input.

Lines that are not UTF-8 are reported; all other lines are still read.
"""

from __future__ import annotations

import errno
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from npformer.cli.process import complain
from npformer.common.errors import NpformerError
from npformer.common.files import LINE, lines_of, named
from npformer.common.progress import shown
from npformer.text.inputs import Pair


@dataclass
class InputLine:
    """A text and its origin, or the reason why the text could not be read."""

    where: str
    text: str = ""
    error: str = ""


def paired(text: str, pair: str | None) -> str | Pair:
    """Returns the text or, with --pair, a Pair of texts. Raises NpformerError for text that is not UTF-8."""
    given = {"TEXT": text} if pair is None else {"TEXT": text, "--pair": pair}
    read = [_decoded(where, argument.encode(errors="surrogateescape")) for where, argument in given.items()]
    for line in read:
        if line.error:
            raise NpformerError(f"{line.where}: {line.error}")
    return read[0].text if pair is None else Pair(read[0].text, read[1].text)


def lines(args: Namespace) -> Iterator[InputLine]:
    """Yields texts from arguments and then from files, in order. Without either, reads standard input.

    Raises NpformerError before the first text if a file cannot be read.
    """
    for name in args.file:
        if name != "-":
            _check_readable(name)
    for number, text in enumerate(args.texts, 1):
        yield _decoded(f"argument {number}", text.encode(errors="surrogateescape"))
    for name in args.file or ([] if args.texts else ["-"]):
        yield from _stdin_lines() if name == "-" else _file_lines(name)


def check_files(args: Namespace) -> None:
    """Raises NpformerError if a file of texts cannot be read. Called for a query's files, before a model is loaded."""
    for name in args.file:
        try:
            if name != "-":
                _check_readable(name)
        except NpformerError as error:
            form = "after the query, give files with one text per line, or texts on stdin"
            raise NpformerError(f"{error}; {form}") from None


def count(args: Namespace) -> int | None:
    """Returns the number of texts, if these are arguments and lines of regular files; otherwise None."""
    if not all(os.path.isfile(name) for name in args.file) or not (args.texts or args.file):
        return None
    return len(args.texts) + sum(_count_lines(name) for name in args.file)


def interactive(args: Namespace) -> bool:
    """Returns whether texts are typed on a terminal, where each answer must be shown at once."""
    return ("-" in args.file or not (args.texts or args.file)) and sys.stdin.isatty()


def read_file(name: str) -> str:
    """Reads a whole file, which may be a pipe, as one text."""
    try:
        with named(name), open(name, encoding="utf-8-sig") as file:
            text = file.read(LINE + 1)
    except UnicodeDecodeError as error:
        raise NpformerError(f"{name}: not UTF-8 (byte {error.start})") from None
    if len(text) > LINE:
        raise NpformerError(f"{name}: more than {LINE} characters; give a shorter text")
    return text


def plain(text: str, width: int | None = None) -> str:
    """Makes a text safe to print on one line: replaces control characters and truncates it to the terminal's width.

    `width`: columns taken by the rest of the line; None disables truncation.
    """
    text = "".join(each if each.isprintable() else " " for each in text)
    if width is not None and sys.stdout.isatty():
        from shutil import get_terminal_size

        room = max(get_terminal_size().columns - width, 20)
        text = text if len(text) <= room else text[: room - 1] + "…"
    return text


def printable(text: str) -> str:
    """Makes a text of several lines safe to print: replaces control characters except line breaks and tabs."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


def _stdin_lines() -> Iterator[InputLine]:
    if sys.stdin.isatty():
        shown()
        complain("one text per line; Ctrl-D to finish")
    with named("stdin"):
        yield from _lines("stdin", sys.stdin.buffer)


def _check_readable(name: str) -> None:
    with named(name):
        if os.path.isdir(name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(name, os.R_OK):
            os.stat(name)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _file_lines(name: str) -> Iterator[InputLine]:
    with named(name), open(name, "rb") as file:
        yield from _lines(name, file)


def _lines(name: str, file: BinaryIO | Any) -> Iterator[InputLine]:
    for number, line in lines_of(file, name):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield _decoded(f"{name}:{number}", line.removesuffix(b"\n").removesuffix(b"\r"))


def _decoded(where: str, data: bytes) -> InputLine:
    try:
        return InputLine(where, data.decode())
    except UnicodeDecodeError as error:
        return InputLine(where, error=f"not UTF-8 (byte {error.start})")


def _count_lines(name: str) -> int:
    try:
        with open(name, "rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    except OSError:
        return 0  # the error is reported later, when the file is read
