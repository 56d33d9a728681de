"""The arguments of the commands in `tasks/catalogue.py`. Each command runs a task on texts.

`run_task.py` reads the texts, runs the task and writes the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from npformer.cli.arguments import JSON, PAIR, OneOf, add_options, dataset_options, model_options, text_options
from npformer.tasks.catalogue import TASKS
from npformer.tasks.declaration import Command, Option, option

if TYPE_CHECKING:
    from argparse import ArgumentParser

PAIR_COLUMN = option("--pair-column NAME", "with --input: the column of the second texts")
#: The kind of input of a command -> arguments.
READS: dict[str, tuple[Option | OneOf, ...]] = {
    "text": text_options(),
    "prompt": text_options("prompt"),
    "pair": (*text_options(), OneOf((PAIR, option("--pairs", "each text is a pair separated by a tab"), PAIR_COLUMN))),
    "question": (
        *text_options("question"),
        OneOf(
            (
                option("-c --context TEXT", "the text that contains the answers"),
                option("--context-file FILE", "a file with that text"),
                option("--context-column NAME", "with --input: the column of contexts"),
            ),
            required=True,
        ),
    ),
    "query": (
        Option(("query",), {"nargs": "?", "metavar": "QUERY", "help": "the query that the texts should answer"}),
        Option(("file",), {"nargs": "*", "metavar": "FILE", "help": "files with one text per line (default: stdin)"}),
        PAIR_COLUMN,
    ),
}


class TaskCommand(NamedTuple):
    """The command of a task, in the form that `main.py` runs."""

    task: str
    command: Command

    def add_arguments(self, parser: ArgumentParser) -> None:
        reads = self.command.reads
        model = model_options(TASKS[self.task].default, required=reads != "prompt")
        first, second, *more = READS[reads]
        add_options(parser, (first, second, *model, *more, *self.command.options, JSON, *self.command.long))
        add_options(parser, dataset_options(self.command.array))
        if reads == "query":
            parser.set_defaults(texts=[])  # texts come only from files


TASK_COMMANDS = {task.command.name: TaskCommand(name, task.command) for name, task in TASKS.items() if task.command}
