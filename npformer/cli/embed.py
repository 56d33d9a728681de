"""Make a vector of each text, for comparing texts by what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.archive import written_whole
from npformer.cli import BAD_INPUT
from npformer.cli.answers import (
    add_answer_arguments,
    add_model_arguments,
    answered,
    make_task,
    plain,
    progress,
    write,
)
from npformer.cli.texts import Line, add_text_arguments
from npformer.tasks.task import Task

EPILOG = """example:
  npformer embed -m sentence-transformers/all-MiniLM-L6-v2 \\
      --file sentences.txt -o sentences.npy

Row i of the array is the vector of text i, or NaN for one that cannot be read."""

SHOWN = 6  # numbers of a vector that are shown
HEADER = 128  # bytes before a .npy file's numbers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE.npy", help="write an array, a row a text, for numpy.load")
    add_answer_arguments(parser)


def run(args: argparse.Namespace) -> int:
    task = make_task("sentence-embedding", args, long=args.long)
    if args.output is None:
        return write(task, args, _shown, lambda answer: {"embedding": answer.tolist()})
    return _write_array(task, args, Path(args.output))


def _shown(line: Line, answer: Any) -> str:
    numbers = " ".join(f"{each:.4f}" for each in answer[:SHOWN])
    return f"{plain(line.text, 0)}\n  {len(answer)} numbers: {numbers}{' ...' if len(answer) > SHOWN else ''}"


def _write_array(task: Task, args: argparse.Namespace, path: Path) -> int:
    """Row by row, so that memory does not grow with the texts; what goes in the header is known at the end."""
    code = rows = 0
    empty = task.collect([])[:0]
    with written_whole(path) as partial, open(partial, "wb") as file:
        file.write(bytes(HEADER))
        for _, answer in progress(answered(task, args), args):
            row = np.full(empty.shape[1], np.nan, empty.dtype) if answer is None else np.asarray(answer)
            code = BAD_INPUT if answer is None else code
            file.write(row.tobytes())
            rows += 1
        file.seek(0)
        file.write(_header(rows, empty))
    return code


def _header(rows: int, like: np.ndarray) -> bytes:
    """The head of a .npy file, version 1.0, filled up with spaces to HEADER bytes."""
    described = f"{{'descr': {like.dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {like.shape[1]}), }}"
    magic = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
    return magic + described.ljust(HEADER - 11).encode() + b"\n"
