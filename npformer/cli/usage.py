"""The parser of a subcommand, with errors that show the correct form of the arguments."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from npformer.cli.process import to_stderr
from npformer.common.checks import nearest
from npformer.common.progress import wrapped

REQUIRED = "the following arguments are required: "
UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors for missing, unknown and extra arguments state the expected arguments."""

    def error(self, message: str) -> NoReturn:
        if message.startswith(REQUIRED):
            message = f"expected {', '.join(self._missing(message.removeprefix(REQUIRED).split(', ')))}"
        elif message.startswith(UNKNOWN):
            message = self._unknown(message.removeprefix(UNKNOWN))
        self.print_usage()
        said = f"{self.prog}: error: {message}"
        to_stderr(wrapped(said, "  ") if sys.stderr.isatty() else said)
        raise SystemExit(2)

    def _missing(self, names: list[str]) -> list[str]:
        """Returns the required arguments with their choices. argparse's `names` include optional positional ones."""
        known = {"/".join(each.option_strings) or str(each.metavar or each.dest): each for each in self._actions}
        found = []
        for name in names:
            action = known.get(name)
            if action is None:  # the name belongs to a group of options
                found.append(name)
            elif action.option_strings:
                values = action.metavar if isinstance(action.metavar, tuple) else [action.metavar or ""]
                found.append(" ".join([name, *values]))
            elif action.nargs not in ("*", "?"):
                found.append(f"{name} ({', '.join(action.choices)})" if action.choices else name)
        return found

    def _unknown(self, given: str) -> str:
        if given.startswith("-"):
            name = given.split()[0].partition("=")[0]
            near = nearest(name, self._option_string_actions)
            return f"no option {name}{f'; did you mean {near[0]}?' if near else f'; {self.prog} --help lists them'}"
        taken = " ".join(str(each.metavar or each.dest) for each in self._get_positional_actions())
        quoted = "; put a text of several words in quotes" if "TEXT" in taken else ""
        return f"expected {f'only {taken}' if taken else 'only options'}, got {given!r:.80} too{quoted}"

    def _print_message(self, message: str, file: Any = None) -> None:
        to_stderr(message.rstrip("\n"))

    def print_help(self, file: Any = None) -> None:
        """Prints the help. argparse's own method ignores errors, such as a full disk."""
        print(self.format_help(), end="", file=file)
