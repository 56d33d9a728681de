"""Completes commands, options and models on Tab, in bash, zsh and fish. Needs the extra `completion`.

`npformer --print-completion SHELL` prints the script of a shell. To enable completion, add a line to the shell's
startup file: `source <(npformer --print-completion SHELL)` for bash and zsh, or `npformer --print-completion fish |
source`. On Tab, the script starts `npformer` with the typed line in COMP_LINE, and `answer` writes possible
completions.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

from npformer.common.checks import one_of
from npformer.common.extras import lacks

SHELLS = ("bash", "zsh", "fish")
MODELS = ("model", "models", "source")  # arguments that complete to the names of bundled models


def script(shell: str) -> str:
    """Returns the script that enables completion in a shell."""
    one_of("--print-completion", shell, SHELLS)
    try:
        import argcomplete
    except ImportError:
        raise lacks("completion", "argcomplete", "completion") from None
    return argcomplete.shellcode(["npformer"], shell=shell)


def answer(commands: Mapping[str, str], find: Callable[[str], Any]) -> None:
    """Writes the possible completions of the line that the user is typing, and exits."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()[1:]
    argcomplete.autocomplete(whole_parser(words, commands, find), always_complete_options=False)


def whole_parser(words: list[str], commands: Mapping[str, str], find: Callable[[str], Any]) -> argparse.ArgumentParser:
    """Returns a parser of all commands, with the options of the typed command.

    commands: name -> summary. find: function that returns the command with a name.
    """
    from npformer.loading import bundled

    parser = argparse.ArgumentParser(prog="npformer", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--print-completion", choices=SHELLS, help="print the completion script for a shell")
    added = parser.add_subparsers()
    parsers = {name: added.add_parser(name, help=summary, allow_abbrev=False) for name, summary in commands.items()}
    if words and words[0] in commands:
        command = find(words[0])
        command.add_arguments(parsers[words[0]])
        command.narrow(parsers[words[0]], words[1:])
        for each in parsers[words[0]]._actions:
            if each.dest in MODELS:
                each.completer = lambda **_: sorted(bundled())  # type: ignore[attr-defined]
    return parser
