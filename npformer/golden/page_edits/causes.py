"""The causes of a wrong stage, each a changed line of a page, and their printed form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from npformer.golden.page_edits.readings import FUNCTIONS

SHOWN = 4
FIRST_ROWS = "the first wrong row of each text"


@dataclass(frozen=True)
class Cause:
    """An edit of a page that gives the other program's values: where it is, and the line before and after."""

    page: str
    function: str
    line: int
    before: str
    after: str
    kind: str
    rank: int
    only: str = ""  # the function is edited only in calls with this part in their stage names; "" for all calls
    rows: str = ""  # the rows that the edit explains, if the other rows are correct
    second: tuple[Cause, ...] = ()  # another edit, without which this one explains only a part
    nearly: bool = False  # an edit that rounds, after which a few numbers are still off by one step
    explains_all: bool = False  # the edited page gives the other program's values of all later stages, too

    @property
    def difference(self) -> str:
        """The two lines in the form of a diff, with - and +."""
        return f"- {self.before}\n+ {self.after}"

    def __str__(self) -> str:
        where = f", only for {self.only}" * bool(self.only) + f", in {self.rows}" * bool(self.rows)
        lines = [
            f"{self.page}:{self.line}, {self.function}{where}",
            *(f"  {line}" for line in self.difference.split("\n")),
        ]
        for other in self.second:
            lines += ["and", *str(other).split("\n")]
        return "\n".join(lines)


def said_of(causes: Sequence[Cause]) -> list[str]:
    """Describes the functions that the edits call but the page does not define, one line for each function."""
    texts = " ".join(each.after for cause in causes for each in (cause, *cause.second))
    called = [name for name in FUNCTIONS if re.search(rf"\b{name}\(", texts)]
    return [f"  {name}: {_sentence(FUNCTIONS[name].__doc__ or '')}" for name in called]


def _sentence(docstring: str) -> str:
    first = " ".join(docstring.split("\n\n")[0].split())
    return first[:1].lower() + first[1:].rstrip(".")


@dataclass(frozen=True)
class Causes:
    """The edits that give the values of the first wrong stage, the most plausible first."""

    stage: str  # "" if no stage is wrong
    causes: list[Cause]
    tried: int
    was_cut: bool  # the search ran out of time, so other edits may fit too

    @property
    def cause(self) -> Cause | None:
        """The cause, if it is a single edit, the only one that fits, and the search was not cut short; else None."""
        alone = len(self.causes) == 1 and not self.was_cut and not self.causes[0].second
        alone = alone and self.causes[0].rows != FIRST_ROWS and not self.causes[0].nearly
        return self.causes[0] if alone else None

    @property
    def explain_all(self) -> bool:
        """Whether all these edits also give all later stages; then edits that give only the first one are left out."""
        return bool(self.causes) and all(each.explains_all for each in self.causes)

    def lines(self, is_known: bool = False) -> list[str]:
        """The printed lines. is_known: whether a known mistake also gives these values."""
        if not self.causes:
            return [f"no edit of the page gives your values ({self.tried} tried)", *self._cut()]
        if is_known and self.causes[0].rows == FIRST_ROWS:
            return []  # the known mistake explains all rows
        if is_known:
            lines = [f"  {line}" for line in str(self.causes[0]).splitlines()]
            return ["as an edit of the page:", *lines, *said_of(self.causes[:1])]
        head = f"one of these edits of the page gives your values, {SHOWN} of {len(self.causes)}:"
        if len(self.causes) <= SHOWN:
            head = head.partition(",")[0] + ":"
        if len(self.causes) == 1 and self.causes[0].second:
            count = "two" if len(self.causes[0].second) == 1 else "several"
            head = f"{count} edits of the page that give your values:"
        elif len(self.causes) == 1:
            head = "an edit that gives your values:" if self.was_cut else "this edit of the page gives your values:"
        if all(each.rows == FIRST_ROWS for each in self.causes):
            head = "an edit of the page that explains the first wrong row of each text, but not the later ones:"
        if all(each.nearly for each in self.causes):
            head = "an edit of the page that gives your values, apart from a few numbers:"
        shown = [f"  {line}" for each in self.causes[:SHOWN] for line in str(each).splitlines()]
        return [head, *shown, *said_of(self.causes[:SHOWN]), *self._cut()]

    def _cut(self) -> list[str]:
        return ["the search was cut short; other edits may fit, too"] if self.was_cut else []

    def __str__(self) -> str:
        return "\n".join(self.lines())
