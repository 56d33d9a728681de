"""The causes of a wrong stage as differences of a line, and their printed form."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 4


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

    @property
    def difference(self) -> str:
        """The two lines, with the signs of a patch."""
        return f"- {self.before}\n+ {self.after}"


@dataclass(frozen=True)
class Causes:
    """The edits that give the values of the first wrong stage, the most plausible first."""

    stage: str  # "" if no stage is wrong
    causes: list[Cause]
    tried: int
    was_cut: bool  # the search ran out of time, so that other edits may fit, too

    @property
    def cause(self) -> Cause | None:
        """The cause, if it is the only edit that fits and all were tried."""
        return self.causes[0] if len(self.causes) == 1 and not self.was_cut else None

    def __str__(self) -> str:
        if not self.causes:
            lines = [f"no edit of the page gives your values ({self.tried} tried)"]
        else:
            head = "one of these edits of the page gives your values"
            if len(self.causes) == 1:
                head = "this edit of the page gives your values" if self.cause else "an edit that gives your values"
            lines = [f"{head}:"]
        for each in self.causes[:SHOWN]:
            lines.append(f"  {each.page}:{each.line}, {each.function}")
            lines += [f"    {line}" for line in each.difference.splitlines()]
        if len(self.causes) > SHOWN:
            lines.append(f"  and {len(self.causes) - SHOWN} more")
        if self.was_cut:
            lines.append("the search was cut short; other edits may fit, too")
        return "\n".join(lines)
