"""The form in which a task is declared: its names, the models it takes, its command with its options, and its route.

A declaration is data, which the pipeline, the command line, datasets and the service read. Nothing large is imported
here: `npformer --help` and the completion by Tab read all declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from npformer.text.inputs import LONG

if TYPE_CHECKING:
    from npformer.config import Config


class Option(NamedTuple):
    """An option of a command: the arguments of `add_argument`, and the task setting that it controls, if any."""

    flags: tuple[str, ...]
    how: dict[str, Any]
    sets: str = ""


def option(usage: str, what: str, sets: str = "", **how: Any) -> Option:
    """Makes an option from its usage, "-k --top-k K"; without a value it is a switch.

    `what` is its help, `sets` the task setting it controls; `how` is passed to `add_argument`.
    """
    flags = tuple(word for word in usage.split() if word.startswith("-"))
    value = usage.split()[len(flags) :]
    if value:
        how["metavar"] = value[0]
    elif "choices" not in how:
        how.setdefault("action", "store_true")
    if sets:
        how = {"default": None, **how, "dest": sets}  # None leaves the setting to the task
    return Option(flags, {**how, "help": what}, sets)


def whole(text: str) -> int:
    """Parses a whole number of at least 1, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"expected a whole number above 0, got {text!r:.40}")
    return number


def comma_separated(text: str) -> list[str]:
    """Splits names at commas."""
    return text.split(",")


STRIDE = option("--stride N", "tokens shared by neighbouring windows of a long text", "stride", type=whole)
LONG_TEXTS = option("--long", "how to handle long texts (truncate; window with --stride)", "long", choices=LONG)


def long_or_error(what: str) -> Option:
    """The option --long of a task that reads each text as a whole."""
    how: dict[str, Any] = {"choices": ("error", "truncate"), "default": "error"}
    return option("--long", f"how to handle {what}", "long", **how)


class Command(NamedTuple):
    """A command that runs a task on each text.

    `reads` says what it is given: texts; texts, each alone or with a second one; questions with a context; a query and
    the texts to rank for it; or prompts. It decides the command's arguments and the columns that a dataset needs.
    """

    name: str
    summary: str  # its line in `npformer --help`
    description: str
    epilog: str
    options: tuple[Option, ...] = ()
    long: tuple[Option, ...] = (LONG_TEXTS, STRIDE)
    reads: Literal["text", "pair", "question", "query", "prompt"] = "text"
    array: bool = False  # whether --output writes the answers as one array, FILE.npy


class Form(NamedTuple):
    """The form of a task's answers, which datasets and the command line read.

    A type is str, int, float, np.floating for numbers in the model's dtype, (np.floating, D) for vectors, a dict of
    types, or a list with the type of its elements.
    """

    fields: Mapping[str, Any] = MappingProxyType({})  # the values of an answer by their names -> their types
    several: str = ""  # the name of a list of such answers, for tasks that give lists
    line: str = ""  # shows an answer: a format of its fields
    layout: Literal["below", "beside", "alone", "whole"] = "below"  # where its lines stand, seen from the text


class Declaration(NamedTuple):
    """A task: where its class is, which models it takes, and where it can be used."""

    place: str  # its module in this folder and its class there
    head: str  # of its models; "base": any encoder
    models: str  # a name for such models
    example: str = ""  # a model to try
    aliases: tuple[str, ...] = ()  # other names: Transformers' own, and that of the command
    default: str = ""  # the model that comes with npformer
    n_labels: int = 0  # that a model has to have; 0: any number
    label: str = ""  # how one of the model's labels has to begin
    command: Command | None = None
    route: str = ""  # of the service

    @property
    def wanted(self) -> str:
        """The kind of model to look for."""
        return f"{self.models}, for example {self.example}" if self.example else self.models

    @property
    def summary(self) -> str:
        """A line about the task, for the page of routes."""
        return self.command.summary.capitalize() if self.command else ""

    def fits(self, config: Config) -> bool:
        """Whether a model with this config can do the task."""
        has_head = not config.decoder if self.head == "base" else config.head == self.head
        labels = [label for label in config.labels if label.lower().startswith(self.label)]
        return has_head and (bool(labels) or not self.label) and self.n_labels in (0, len(labels))
