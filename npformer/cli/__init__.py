"""The command `npformer`: finds a subcommand in `COMMANDS`, reads its arguments and ends without a traceback.

A subcommand is a module in this folder with `add_arguments(parser)` and `run(args)`, which returns an exit code or
None for 0. It is imported when it is asked for, so that `npformer classify` starts at once.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from npformer import __version__
from npformer.cli.process import INTERRUPTED, SIGNALLED, discard, interruptible
from npformer.errors import NpformerError

#: Subcommand -> its module in this folder, and what `npformer --help` says of it.
COMMANDS = {
    "classify": ("classify", "the label of each text"),
    "zero-shot": ("zero_shot", "which of your own labels fit each text"),
    "tag": ("tag", "the names, places, ... in each text"),
    "answer": ("answer", "answers to questions from a text"),
    "fill": ("fill", "the words that would stand for [MASK]"),
    "embed": ("embed", "a vector for each text"),
    "translate": ("translate", "each text in another language"),
    "trace": ("trace", "every stage on the way from a text to its label"),
    "view": ("view", "attention and stages as a page, a picture or plain text"),
    "golden": ("golden", "golden values for ports, and where a port diverges"),
    "finetune": ("finetune", "train a model on texts with labels"),
    "train-translation": ("train_translation", "train a model on sentences and their translations"),
    "evaluate": ("evaluate", "how well a model labels or translates texts"),
    "convert": ("convert", "rewrite a checkpoint so that it loads fastest, or back"),
    "info": ("info", "this machine and installation, or a model"),
}

BAD_INPUT, USAGE = 1, 2  # exit codes; 0 is success


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


def complain(message: object) -> None:
    """A line on stderr, as every message of the command; lost where stderr cannot be written."""
    _to_stderr(f"npformer: {message}")


def _to_stderr(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


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
        from difflib import get_close_matches

        near = get_close_matches(given[0], COMMANDS, n=1)
        unknown = f"npformer: no command {given[0]!r}{f'; did you mean {near[0]}?' if near else ''}\n\n"
    _to_stderr(unknown + _overview())
    return USAGE


def _subcommand(name: str, arguments: list[str]) -> int:
    import argparse

    command = import_module(f"npformer.cli.{COMMANDS[name][0]}")
    parser = argparse.ArgumentParser(
        prog=f"npformer {name}",
        description=command.__doc__,
        epilog=getattr(command, "EPILOG", None),
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
    lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: npformer COMMAND [OPTION ...] [TEXT ...]",
            "",
            "The Transformer in NumPy: text in, answer out.",
            "",
            *lines,
            "",
            "npformer COMMAND --help says what a command takes, npformer --version which\nversion this is.",
        ]
    )
