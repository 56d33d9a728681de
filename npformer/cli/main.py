"""The command `npformer`: finds a subcommand in `COMMANDS`, reads its arguments and ends without a traceback.

A subcommand that asks a task about texts is an entry of `task_commands.py`. Any other is a module in this folder with
EPILOG, `add_arguments(parser)` and `run(args)`, which returns an exit code or None for 0; it is imported when it is
asked for, so that `npformer classify` starts at once.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from npformer import __version__
from npformer.checks import nearest
from npformer.cli.process import (
    BAD_INPUT,
    INTERRUPTED,
    SIGNALLED,
    USAGE,
    complain,
    discard,
    interruptible,
    to_stderr,
)
from npformer.cli.task_commands import TASK_COMMANDS
from npformer.errors import NpformerError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

#: Subcommand -> what `npformer --help` says of it. Those that are no task's have a module here, of their name.
COMMANDS = {name: command.summary for name, command in TASK_COMMANDS.items()} | {
    "trace": "every stage on the way from a text to its label",
    "view": "attention and stages as a page, a picture or plain text",
    "golden": "golden values for ports, and where a port diverges",
    "finetune": "train a model on texts with labels",
    "train-translation": "train a model on sentences and their translations",
    "evaluate": "how well a model labels or translates texts",
    "convert": "rewrite a checkpoint so that it loads fastest, or back",
    "info": "this machine and installation, or a model",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's; the exit code.

    A user's mistake, a closed pipe, a full disk and Ctrl-C end it with a line or none, not with a traceback.
    """
    warnings.showwarning = lambda message, *_, **__: complain(message)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal's encoding lacks is no reason to stop
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except NpformerError as error:
        complain(error)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        discard(sys.stdout)
        return SIGNALLED + 13
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        if error.filename is None:
            discard(sys.stdout)
        return BAD_INPUT
    except MemoryError:
        complain("out of memory")
        return BAD_INPUT


def _run(given: list[str]) -> int:
    """What the first argument asks for: a subcommand, --version, or how all this is used."""
    if given and given[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if given and given[0] == "--version":
        print(f"npformer {__version__}")
        return 0
    if given and given[0] in COMMANDS:
        return _subcommand(given[0], given[1:])
    unknown = ""
    if given:
        near = nearest(given[0], COMMANDS)
        unknown = f"npformer: no command {given[0]!r}{f'; did you mean {near[0]}?' if near else ''}\n\n"
    to_stderr(unknown + _overview())
    return USAGE


class Command(NamedTuple):
    """A subcommand as a parser needs it."""

    description: str | None
    epilog: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int | None]


def find(name: str) -> Command:
    """One of COMMANDS."""
    if name in TASK_COMMANDS:
        task = TASK_COMMANDS[name]
        return Command(task.description, task.epilog, task.add_arguments, task.run)
    module = import_module(f"npformer.cli.{name.replace('-', '_')}")
    return Command(module.__doc__, module.EPILOG, module.add_arguments, module.run)


def _subcommand(name: str, arguments: list[str]) -> int:
    import argparse

    command = find(name)
    parser = argparse.ArgumentParser(
        prog=f"npformer {name}",
        description=command.description,
        epilog=command.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    # argparse's own print_help says nothing of a disk that is full
    parser.print_help = lambda file=None: print(parser.format_help(), end="", file=file)  # type: ignore[method-assign]
    try:
        args = parser.parse_intermixed_args(arguments)
    except SystemExit as end:  # --help or a wrong argument, of which argparse has told
        return int(end.code or 0)
    return interruptible(lambda: command.run(args) or 0)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: npformer COMMAND [OPTION ...] [TEXT ...]",
            "",
            "The Transformer in NumPy: text in, answer out.",
            "",
            *lines,
            "",
            "npformer COMMAND --help says what a command takes, npformer --version which\nversion this is.",
            "",
            "exit codes: 0 success; 1 bad input, or a text without an answer; 2 wrong usage;\n"
            "3 golden compare found a divergence",
        ]
    )
