"""Command-line options as data: options shared by several commands, and a function that adds them to a parser.

`npformer --help` imports this module, so heavy imports are deferred until a command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from npformer.tasks.declaration import Option, option, whole

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _ArgumentGroup

    from npformer.common.limits import Limits


class OneOf(NamedTuple):
    """Mutually exclusive options."""

    options: tuple[Option, ...]
    required: bool = False


def add_options(parser: ArgumentParser | _ArgumentGroup, options: Sequence[Option | OneOf]) -> None:
    """Adds the options to a parser, in this order."""
    for each in options:
        if isinstance(each, Option):
            parser.add_argument(*each.flags, **each.how)
        else:
            add_options(parser.add_mutually_exclusive_group(required=each.required), each.options)


# --- which model, and how it is loaded -------------------------------------------------------------------------------

REVISION = option("--revision REV", "a branch, tag or commit of a model on the hub")
OFFLINE = option("--offline", "do not use the network; read only the cache")
THREADS = option("-j --threads N", "cores to use (default: all)", type=whole)
ALLOW = option("--allow NAME=NUMBER", "raise a limit named in an error", action="append", default=[])
KEEP = option(
    "--keep DTYPE",
    "dtype of weights in memory: float32, bfloat16, float16, int8, or stored, as in the file (default: float32)",
    default="float32",
)  # fmt: skip
LOADING = (REVISION, OFFLINE, THREADS, ALLOW, KEEP)


def limits(args: Namespace) -> Limits:
    """Returns the limits of untrusted files, some of which --allow raises."""
    from npformer.common.limits import Limits

    return Limits.parse(args.allow)


def loading(args: Namespace) -> dict[str, Any]:
    """Returns the arguments of `load` that the options in LOADING set."""
    names = ("revision", "offline", "threads", "keep")
    return {name: getattr(args, name) for name in names} | {"limits": limits(args)}


def model_options(default: str = "", required: bool = True, note: str = "required") -> tuple[Option, ...]:
    """Returns --model and the options for loading it. A default or required=False makes --model optional.

    The help of --model ends with the default or the note.
    """
    what = f"a bundled model, a folder or a Hugging Face id ({default or note})"
    return option("-m --model MODEL", what, required=required and not default, default=default or None), *LOADING


# --- texts -----------------------------------------------------------------------------------------------------------

PAIR = option("--pair TEXT", "a second text, for models that read two together")


def text_options(what: str = "text") -> tuple[Option, ...]:
    """Returns the options for texts as arguments or from files. `texts.lines` reads the texts."""
    arguments = {"nargs": "*", "metavar": what.upper(), "help": f"a {what} (default: each line of stdin)"}
    files = option("-f --file FILE", f"read one {what} per line (- for stdin)", action="append", default=[])
    return Option(("texts",), arguments), files


# --- whole datasets --------------------------------------------------------------------------------------------------

OUTPUT = option("-o --output OUT", "with --input: a file in one of the same formats, or a folder for Parquet parts")
ARRAY_OUTPUT = option("-o --output OUT", "FILE.npy, for numpy.load; with --input: the dataset with answers")


def dataset_options(array: bool = False) -> tuple[Option, ...]:
    """Returns the options for texts from the rows of a file or a folder of files. `dataset.py` handles these options.

    array: whether --output without --input writes a .npy file.
    """
    return (
        option("--input IN", "answer every row of a dataset: csv, tsv, jsonl, parquet, arrow, or a folder of them"),
        option("--column NAME", "with --input: the column of texts"),
        ARRAY_OUTPUT if array else OUTPUT,
        option("--limit N", "with --input: only the first N rows", type=whole),
        option("--prefix P", "with --input: prefix for the names of new columns"),
        option("--scheduler S", "with --input: run on Dask workers: tcp://host:8786, or local:N for N processes"),
    )


# --- answers ---------------------------------------------------------------------------------------------------------

JSON = option("--json", "write one JSON object per line, for programs")
