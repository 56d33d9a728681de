"""The declaration of a task: names, supported models, command and route.

A declaration is data, read by the pipeline, the command line, datasets and the service. Nothing large is imported here,
because `npformer --help` and Tab completion read all declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from npformer.text.inputs import LONG

if TYPE_CHECKING:
    from npformer.config import Config


class Option(NamedTuple):
    """An option of a command: the arguments of `add_argument`, and the task setting that the option changes, if any."""

    flags: tuple[str, ...]
    how: dict[str, Any]
    sets: str = ""


def option(usage: str, what: str, sets: str = "", **how: Any) -> Option:
    """Makes an option from its usage, such as "-k --top-k K". A usage without a value makes a switch.

    `what` is the help text, and `sets` is the task setting that the option changes. `how` is passed to `add_argument`.
    """
    flags = tuple(word for word in usage.split() if word.startswith("-"))
    value = usage.split()[len(flags) :]
    if value:
        how["metavar"] = value[0]
    elif "choices" not in how:
        how.setdefault("action", "store_true")
    if sets:
        how = {"default": None, **how, "dest": sets}  # if an option is None, the task's setting applies
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


def labels(text: str) -> list[str]:
    """Splits labels at commas, without the spaces around them, for argparse."""
    found = [each.strip() for each in text.split(",") if each.strip()]
    if not found:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"expected labels separated by commas, got {text!r:.40}")
    return found


STRIDE = option("--stride N", "tokens shared by neighbouring windows of a long text", "stride", type=whole)
LONG_TEXTS = option(
    "--long", "how to handle long texts (default: truncate; with --stride: window)", "long", choices=LONG
)


def long_or_error(what: str) -> Option:
    """Makes the option --long for a task that does not read texts in windows."""
    how: dict[str, Any] = {"choices": ("error", "truncate"), "default": "error"}
    return option("--long", f"how to handle {what}", "long", **how)


class Command(NamedTuple):
    """A command that runs a task on each text.

    `reads` is the kind of input: texts, texts or pairs, questions with a context, a query and the texts to rank, or
    prompts. The kind determines the command's arguments and the columns of a dataset.
    """

    name: str
    summary: str  # the command's line in `npformer --help`
    description: str
    epilog: str
    options: tuple[Option, ...] = ()
    long: tuple[Option, ...] = (LONG_TEXTS, STRIDE)
    reads: Literal["text", "pair", "question", "query", "prompt"] = "text"
    array: bool = False  # whether --output writes all answers as one array, FILE.npy


class Form(NamedTuple):
    """The form of a task's answers, for datasets and the command line.

    A type is str, int, float, np.floating for numbers in the model's dtype, (np.floating, D) for vectors, a dict of
    types, or a list that contains the type of its elements. A layout shows the lines of an answer below the text, next
    to the text, or without the text ("alone" and "whole"). Only "whole" preserves line breaks in an answer.
    """

    fields: Mapping[str, Any] = MappingProxyType({})  # name of a value in an answer -> its type
    several: str = ""  # name of the list of answers, for tasks that return lists
    line: str = ""  # format of a line of an answer, with names of fields
    layout: Literal["below", "beside", "alone", "whole"] = "below"  # position of the lines relative to the text


class Declaration(NamedTuple):
    """A task: class, supported models, command and route."""

    place: str  # name of a module in this folder, and of a class in it
    head: str  # head of the models; "base" allows any model except an encoder-decoder
    models: str  # description of the supported models
    example: str = ""  # an example of a model
    aliases: tuple[str, ...] = ()  # other names: Transformers' aliases, or the command's name
    default: str = ""  # the bundled model
    n_labels: int = 0  # required number of labels; 0 allows any number
    label: str = ""  # required prefix of one of the labels
    by_folder: bool = False  # True if the head is in a separate file, which config.json does not name
    command: Command | None = None
    route: str = ""  # path in the HTTP service

    @property
    def wanted(self) -> str:
        """Describes the kind of model that the task needs."""
        return f"{self.models}, for example {self.example}" if self.example else self.models

    @property
    def summary(self) -> str:
        """Returns a line about the task, for the page that lists the routes."""
        return self.command.summary.capitalize() if self.command else ""

    def fits(self, config: Config) -> bool:
        """Returns whether every model with this config supports the task."""
        has_head = not config.decoder if self.head == "base" else config.head == self.head
        labels = [label for label in config.labels if label.lower().startswith(self.label)]
        has_labels = (bool(labels) or not self.label) and self.n_labels in (0, len(labels))
        return has_head and has_labels and not self.by_folder
