"""`{commands}`: every command of `npformer`, from its argument parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from markdown import code, directive, table
from sphinx.application import Sphinx

from npformer.cli.main import COMMANDS, find


def commands() -> Iterable[str]:
    yield from table(("command", "result"), ([f"[`{name}`](#command-{name})", what] for name, what in COMMANDS.items()))
    for name in COMMANDS:
        yield from command(name)


def command(name: str) -> Iterable[str]:
    """Returns the description, usage, options and examples of one command."""
    found = find(name)
    parser = argparse.ArgumentParser(prog=f"npformer {name}", formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_arguments(parser)
    yield f"(command-{name})="
    yield f"## npformer {name}"
    yield from fenced(found.description or "")
    for group in parser._action_groups:
        yield from table(("argument", "meaning"), (row(parser, each) for each in group._group_actions if each.help))
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            for sub, nested in each.choices.items():
                yield f"**{name} {sub}**"
                yield ""
                yield from table(("argument", "meaning"), (row(nested, one) for one in nested._actions if one.help))
    yield from fenced(found.epilog)


def fenced(text: str) -> Iterable[str]:
    yield from ("```text", text.strip(), "```", "")


def row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str]:
    """Returns an argument as it is typed, and its help with the default."""
    formatter = parser._get_formatter()
    metavar = formatter._get_default_metavar_for_optional(action) if action.option_strings else action.dest
    value = formatter._format_args(action, metavar) if action.nargs != 0 else ""
    written = ", ".join(action.option_strings)
    help_text = formatter._expand_help(action)
    return code(f"{written} {value}".strip()), help_text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", directive(commands))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
