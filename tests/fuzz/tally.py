"""Counts the results of cases, and groups findings by origin."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import pool

LEAST = 0.05  # minimum share of a kind's cases that load, and minimum share that are refused
SOME = 200  # minimum number of cases for this rule


@dataclass
class Row:
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    largest: int = 0
    digest: int = 0  # sum of the cases' digests, so their order does not matter


@dataclass
class Finding:
    where: str
    what: list[str]
    kind: str
    number: int  # number of the first case with this finding
    count: int = 1
    alone: bool = True  # whether the case alone, in a new worker, has the same result


class Tally:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rows: dict[str, Row] = {}
        self.findings: dict[str, Finding] = {}

    def add(self, result: dict[str, Any]) -> None:
        """Counts the result of a case. A case of the valid corpus has a number below 0, and must load."""
        kind, number, outcome = result["kind"], result["number"], result["outcome"]
        row = self.rows.setdefault(kind, Row())
        if number < 0 and outcome == "refused":
            result = {**result, "where": f"valid {kind} refused", "what": [result["said"]]}
        if outcome == "finding" or (number < 0 and outcome == "refused"):
            found = self.findings.setdefault(result["where"], Finding(result["where"], result["what"], kind, number, 0))
            found.count += 1
        if number < 0:
            return
        row.counts[outcome] += 1
        row.slowest = max(row.slowest, result["seconds"])
        row.largest = max(row.largest, result["memory"])
        row.digest = (row.digest + int(result["digest"] or "0", 16)) % 2**64

    def confirm(self, place: Path) -> None:
        """Runs the first case of each of the first 40 findings alone, in a new worker."""
        for i, finding in enumerate(self.findings.values()):
            if finding.number >= 0 and i < 40:
                home = place / f"alone-{i}"
                home.mkdir()
                results = list(pool.Pool(home, 1).run([(finding.kind, self.seed, finding.number, 1)]))
                finding.alone = any(each["outcome"] == "finding" for each in results)

    def table(self) -> str:
        title = (
            f"{'kind':16}{'cases':>9}{'loaded':>9}{'refused':>9}{'findings':>10}{'slowest':>10}{'largest memory':>16}"
        )
        lines = [title]
        rows = dict(sorted(self.rows.items()))
        total = Row()
        for row in rows.values():
            total.counts += row.counts
            total.slowest, total.largest = max(total.slowest, row.slowest), max(total.largest, row.largest)
        for name, row in [*rows.items(), ("all", total)]:
            numbers = (
                f"{row.counts.total():>9}{row.counts['loaded']:>9}{row.counts['refused']:>9}{row.counts['finding']:>10}"
            )
            lines.append(f"{name:16}{numbers}{row.slowest:>8.2f} s{row.largest / 2**20:>13.1f} MB")
        listed = " ".join(f"{name}:{row.digest}" for name, row in rows.items())
        lines.append(f"the cases' digest: {hashlib.sha256(listed.encode()).hexdigest()[:16]}")
        return "\n".join(lines)

    def problems(self) -> list[str]:
        """Lists the findings, each with the command that reproduces it, and the kinds with ineffective mutators."""
        listed = []
        for each in sorted(self.findings.values(), key=lambda finding: -finding.count):
            again = f"python -m tests.fuzz {self.seed} 1 --kind {each.kind} --case {each.number}"
            alone = "" if each.alone else " (not alone: only after other cases)"
            what = "\n".join(each.what).replace("\n", "\n    ")
            listed.append(f"{each.count} x {each.where}{alone}\n  {again}\n    {what}")
        for name, row in self.rows.items():
            for outcome in ("loaded", "refused"):
                share = row.counts[outcome] / max(1, row.counts.total())
                if share < LEAST and row.counts.total() >= SOME:
                    listed.append(f"{name}: {share:.1%} of the cases are {outcome}, expected {LEAST:.0%}")
        return listed
