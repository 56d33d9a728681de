"""`Generated`: a directive that shows Markdown that a function generates from the code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


class Generated(SphinxDirective):
    """Shows the lines of Markdown that `lines` returns for the directive's argument."""

    optional_arguments = 1
    final_argument_whitespace = True

    def lines(self, argument: str) -> Iterable[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the code may have changed
        lines = "\n".join(self.lines(*self.arguments)).splitlines()
        first = next((i for i, line in enumerate(lines) if line.startswith("#")), len(lines))
        # Sections attach themselves to the page, so content before them must be added first.
        for part in (lines[:first], lines[first:]):
            made = nodes.Element()
            self.state.nested_parse(StringList(part, source=self.get_location()), 0, made, match_titles=True)
            self.state_machine.node.extend(made.children)
        return []


def directive(make: Callable[..., Iterable[str]]) -> type[Generated]:
    """Returns a directive that shows the lines of Markdown that `make` returns."""
    return type(make.__name__, (Generated,), {"lines": staticmethod(make)})


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table; bars and line breaks in cells are escaped."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return ["", *(f"| {' | '.join(row)} |" for row in cells), ""]


def code(text: object) -> str:
    """Formats text as code, in as many backticks as it needs."""
    return f"`` {text} ``" if "`" in str(text) else f"`{text}`"
