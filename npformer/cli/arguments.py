"""Options of the command line as data: those that several commands share, and what adds them to a parser.

Light, as `npformer --help` reads them all: what is heavy is imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from argparse import ArgumentParser, _ArgumentGroup


class Option(NamedTuple):
    """What `add_argument` is given, and the setting of a task that it gives, if it gives one."""

    flags: tuple[str, ...]
    how: dict[str, Any]
    sets: str = ""


class OneOf(NamedTuple):
    """Options that exclude each other."""

    options: tuple[Option, ...]
    required: bool = False


def option(usage: str, what: str, sets: str = "", **how: Any) -> Option:
    """An option. usage: its names and what stands for its value, "-k --top-k K"; without one it is a switch.

    what: its help. sets: the task's setting that it gives. how: more for `add_argument`.
    """
    flags = tuple(word for word in usage.split() if word.startswith("-"))
    value = usage.split()[len(flags) :]
    if value:
        how["metavar"] = value[0]
    elif "choices" not in how:
        how["action"] = "store_true"
    if sets:
        how = {"default": None, **how, "dest": sets}  # what is not given is left to the task
    return Option(flags, {**how, "help": what}, sets)


def add_options(parser: ArgumentParser | _ArgumentGroup, options: Sequence[Option | OneOf]) -> None:
    """Add the options to a parser, in their order."""
    for each in options:
        if isinstance(each, Option):
            parser.add_argument(*each.flags, **each.how)
        else:
            add_options(parser.add_mutually_exclusive_group(required=each.required), each.options)


def whole(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


whole.__name__ = "whole number above 0"  # argparse says "invalid ... value"


def comma_separated(text: str) -> list[str]:
    """Names with commas in between."""
    return text.split(",")


# --- which model, and how it is loaded -------------------------------------------------------------------------------

REVISION = option("--revision REV", "a branch, tag or commit of a model on the hub")
OFFLINE = option("--offline", "use no network, only what is in the cache")
THREADS = option("-j --threads N", "cores to use (default: all)", type=whole)
LOADING = (REVISION, OFFLINE, THREADS)


def model_options(default: str = "") -> tuple[Option, ...]:
    """--model, which is required where there is no default, and how it is loaded."""
    what = f"a bundled model, a folder or a Hugging Face id ({default or 'required'})"
    return option("-m --model MODEL", what, required=not default, default=default or None), *LOADING


# --- texts -----------------------------------------------------------------------------------------------------------

PAIR = option("--pair TEXT", "a second text, for models that read two together")


def text_options(what: str = "text") -> tuple[Option, ...]:
    """Texts as arguments or from files; `texts.lines` reads them."""
    arguments = {"nargs": "*", "metavar": what.upper(), "help": f"a {what}; without any, one a line from stdin"}
    files = option("-f --file FILE", f"read a {what} from each line (- is stdin)", action="append", default=[])
    return Option(("texts",), arguments), files


# --- answers ---------------------------------------------------------------------------------------------------------

JSON = option("--json", "write a JSON object a line, for programs")
STRIDE = option("--stride N", "tokens that two windows of a long text share", "stride", type=whole)
