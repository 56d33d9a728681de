"""Print the maths of a model: its page of plain NumPy. With --standalone, print
one file with everything that the page uses, which runs without npformer."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from npformer.cli.arguments import add_options, loading, model_options
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.files import is_stream, written_whole
from npformer.loading import load
from npformer.pages.source import source
from npformer.pages.standalone import standalone_model

EPILOG = """examples:
  npformer page llama
  npformer page distilbert --standalone
  npformer page -m distilbert-sst2 --standalone -o model.py"""
TEXT = "I love ice cream"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a family, such as llama, or a page: formulas, gradients"
    )
    add_options(parser, model_options(required=False, note="instead of NAME"))
    parser.add_argument("--standalone", action="store_true", help="one file that needs only NumPy")
    output = "write the text to FILE; with -m and --standalone, also the weights, to FILE.npz"
    parser.add_argument("-o", "--output", metavar="FILE", help=output)


def run(args: argparse.Namespace) -> None:
    if args.name is not None and args.model is not None:
        raise NpformerError(f"page: expected a name or -m MODEL, got both, {shown(args.name)} and {shown(args.model)}")
    if args.name is None and args.model is None:
        raise NpformerError(
            "page: expected the name of a family or -m MODEL; `npformer page formulas` prints an example"
        )
    if args.model is None:
        _write(source(args.name, args.standalone), args.output)
        return
    model = load(args.model, **loading(args))
    if not args.standalone:
        _write(source(model), args.output)
        return
    if args.output is None:
        raise NpformerError("--output: expected a file such as -o model.py; the weights are written next to it")
    path, arrays = _files(args.output)
    ids, meaning = _ids(model)
    text, flat = standalone_model(model, ids, arrays.name)
    with written_whole(path) as program, written_whole(arrays) as weights:  # both files or neither
        program.write_text(text, encoding="utf-8")
        with weights.open("wb") as file:
            np.savez(file, **flat)  # type: ignore[arg-type]
    size = arrays.stat().st_size / 1e6
    print(f"{path}, {arrays}: {size:.1f} MB; python {shlex.quote(str(path))} prints the answers for {meaning}")


def _files(output: str) -> tuple[Path, Path]:
    """Returns the paths of a program and its weights."""
    path = Path(output)
    if not path.name or path.suffix.lower() == ".npz" or is_stream(path):
        raise NpformerError(
            f"--output: expected the name of a Python file, such as -o model.py, with the weights next to it, "
            f"got {shown(output)}"
        )
    return path, path.with_suffix(".npz")


def _ids(model: Any) -> tuple[list[int], str]:
    """Returns the token ids of TEXT, or the first ids if the model has no tokenizer, and a description of the ids."""
    try:
        found = model.tokenizer.encode(TEXT)
    except NpformerError:
        ids = list(range(min(6, model.config.vocab_size)))
        return ids, f"the ids {' '.join(map(str, ids))}"
    return [int(each) for each in getattr(found, "ids", found)], repr(TEXT)  # translators return lists of ids


def _write(text: str, path: str | Path | None) -> None:
    if path is None:
        print(text, end="")
        return
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
