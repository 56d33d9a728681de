"""The command `npformer`: finds a subcommand in `COMMANDS`, parses its arguments and runs it, without tracebacks.

A subcommand that runs a task on texts is declared in `tasks/catalogue.py`. Any other subcommand is a module in this
folder with EPILOG, `add_arguments(parser)` and `run(args)`, which returns an exit code or None for 0. A module may have
`narrow(parser, arguments)`, which adapts the help to the arguments. Modules are imported only when needed, so that
`npformer --help` responds at once.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from npformer.cli.process import (
    BAD_INPUT,
    INTERRUPTED,
    SIGNALLED,
    USAGE,
    Escaping,
    complain,
    discard,
    interruptible,
    to_stderr,
)
from npformer.common.checks import nearest
from npformer.common.errors import NpformerError
from npformer.common.progress import waiting
from npformer.tasks.catalogue import TASKS
from npformer.version import __version__

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

#: Subcommand -> its line in `npformer --help`.
COMMANDS = {
    **{task.command.name: task.command.summary for task in TASKS.values() if task.command},
    "search": "the lines of files nearest to a query",
    "trace": "the stages from a text to its label",
    "page": "the maths of a model, on a page of plain NumPy",
    "learn": "write your own Transformer, and have it checked",
    "explore": "type a text and change the model, in a browser",
    "view": "attention and stages as a web page, SVG or plain text",
    "golden": "golden values for ports; find where a port diverges",
    "finetune": "train a model on labelled or plain texts",
    "train-translation": "train a translator on pairs of sentences",
    "evaluate": "the scores of a model on a file",
    "convert": "convert a checkpoint to npformer's format or to torch's",
    "serve": "serve models over HTTP",
    "info": "this installation, or a model",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, by default the arguments of the process, and returns the exit code.

    A user's mistake, a closed pipe, a full disk or Ctrl-C ends the command with a message or silently, never with a
    traceback.
    """
    warnings.showwarning = lambda message, *_, **__: complain(message)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the encoding lacks are escaped
    stdout = sys.stdout
    sys.stdout = Escaping(stdout)
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except NpformerError as error:
        complain(error)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        discard(stdout)
        return SIGNALLED + 13
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        if error.filename is None:
            discard(stdout)
        return BAD_INPUT
    except MemoryError:
        complain("out of memory")
        return BAD_INPUT
    finally:
        sys.stdout = stdout


def _run(given: list[str]) -> int:
    """Runs the subcommand that the first argument names, or prints the version, the help or a completion script."""
    if "_ARGCOMPLETE" in os.environ:  # set by a shell that requests completions
        from npformer.cli.completion import answer

        answer(COMMANDS, find)
    if not given:
        to_stderr(_overview())
        return USAGE
    name, *rest = given
    if name in COMMANDS:
        return _subcommand(name, rest)
    if name in ("-h", "--help"):
        print(_overview())
    elif name == "--version":
        print(f"npformer {__version__}")
    elif name == "--print-completion":
        from npformer.cli.completion import script

        print(script(rest[0] if rest else ""))
    else:
        near = nearest(name, COMMANDS)
        meant = f"; did you mean {near[0]}?" if near else ""
        complain(f"no command {name!r}{meant}\n  npformer --help lists the commands")
        return USAGE
    return 0


class Subcommand(NamedTuple):
    """A subcommand: help texts, arguments, and the function to run. `narrow` adapts the help to the arguments."""

    description: str | None
    epilog: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int | None]
    narrow: Callable[[ArgumentParser, Sequence[str]], None] = lambda parser, arguments: None


def find(name: str) -> Subcommand:
    """Returns the `Subcommand` for a name in COMMANDS."""
    from npformer.cli.task_commands import TASK_COMMANDS

    if task := TASK_COMMANDS.get(name):

        def answer(args: Namespace) -> int:
            from npformer.cli.run_task import answer_all  # imported here, because the parser does not need it

            return answer_all(task.task, task.command, args)

        return Subcommand(task.command.description, task.command.epilog, task.add_arguments, answer)
    module = import_module(f"npformer.cli.{name.replace('-', '_')}")
    narrow = filter(None, [getattr(module, "narrow", None)])
    return Subcommand(module.__doc__, module.EPILOG, module.add_arguments, module.run, *narrow)


def _subcommand(name: str, arguments: list[str]) -> int:
    import argparse

    from npformer.cli.usage import Parser

    command = find(name)
    parser = Parser(
        prog=f"npformer {name}",
        description=command.description,
        epilog=command.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    command.narrow(parser, arguments)
    try:
        args = parser.parse_intermixed_args(arguments)
    except SystemExit as end:  # raised by --help, and for a wrong argument that argparse has reported
        return int(end.code or 0)
    servers = ("explore", "serve")  # commands that run until they are stopped, and show their own progress
    with nullcontext() if name in servers else waiting(f"npformer {name}"):
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
            "npformer COMMAND --help describes a command;\nnpformer --version prints the version;\n"
            "source <(npformer --print-completion bash) enables Tab completion (also zsh).",
            "",
            "exit codes: 0 success; 1 bad input, or a text without an answer; 2 usage error;\n"
            "3 golden compare, golden run or learn check found a fault",
        ]
    )
