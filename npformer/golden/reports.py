"""Machine-readable comparisons and verdicts: JSON, JUnit XML and GitHub's annotations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from npformer.golden.compare import Comparison
from npformer.golden.conformance import Verdict, why
from npformer.golden.diagnosis import Diagnosis

FORMATS = ("text", "json", "github")

# --- golden compare --------------------------------------------------------------------------------------------------


def comparison_json(comparison: Comparison, diagnosis: Diagnosis | None, why_not: str = "") -> str:
    """Returns a comparison as a JSON object; numbers that are not finite are null."""
    rows = [asdict(row) | {"diverges": row.diverges} for row in comparison.rows]
    findings = diagnosis.weights if diagnosis else []
    told = {
        "ok": comparison.passes and not findings,
        "dtype": comparison.dtype,
        "first": comparison.first.stage if comparison.first else None,
        "why": why(comparison, diagnosis),
        "causes": diagnosis.causes if diagnosis else [],
        "weights": [each._asdict() for each in findings],
        "faults": [_fault(each) for each in (diagnosis, *diagnosis.then) if each.stage] if diagnosis else [],
        "diagnosis": str(diagnosis) if diagnosis else why_not,
        "missing": comparison.missing,
        "unanswered": comparison.unanswered,
        "unused": comparison.theirs.unused,
        "notes": comparison.theirs.notes,
        "stages": [{name: _finite(value) for name, value in row.items()} for row in rows],
    }
    return json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False)


def _fault(diagnosis: Diagnosis) -> dict[str, Any]:
    fits = [
        {"cause": fit.mistake.name, "way": fit.way, "certain": fit.certain, "explained": _finite(fit.explained)}
        for fit in diagnosis.fits
    ]
    told = {"stage": diagnosis.stage, "lies_earlier": diagnosis.lies_earlier, "where": diagnosis.where}
    edits = [asdict(each) for each in diagnosis.edits.causes] if diagnosis.edits else []
    told["export"] = list(diagnosis.between)
    return told | {"fits": fits, "edits": edits}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def comparison_github(comparison: Comparison, diagnosis: Diagnosis | None) -> str:
    """Returns a comparison as one line, a GitHub annotation."""
    if comparison.ok and not (diagnosis and diagnosis.weights):
        told = f"no stage diverges; {len(comparison.rows)} compared"
        if comparison.unanswered:
            return annotation("error", "incomplete", f"{told}; not compared: {', '.join(comparison.unanswered)}")
        return annotation("notice", "npformer golden compare", told)
    title = f"{comparison.first.stage} diverges" if comparison.first else "wrong weights"
    return annotation("error", title, why(comparison, diagnosis))


def annotation(level: str, title: str, message: str) -> str:
    """Returns a GitHub workflow command, `::error title=...::...`, with escaped separators."""
    escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    title = title.replace("%", "%25").replace(":", "%3A").replace(",", "%2C").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title={title}::{escaped}"


# --- golden run ------------------------------------------------------------------------------------------------------


def row(verdict: Verdict, width: int, columns: int = 80) -> str:
    """Returns a verdict as a table row, with a long reason on the lines below. width: width of the column of names."""
    reason = _printable(verdict.why)
    if verdict.ok:
        return f"{verdict.case:<{width}}  {verdict.kind} ({reason})"
    line = f"{verdict.case:<{width}}  {verdict.kind:<10}"
    if len(line) + 2 + len(reason) <= columns:
        return f"{line}  {reason}"
    return "\n".join([line.rstrip(), *wrap(reason, columns, initial_indent="    ", subsequent_indent="    ")])


def summary(verdicts: Sequence[Verdict]) -> str:
    """Returns the lines below the table: the totals, and details of the first failing case."""
    fault = next((verdict for verdict in verdicts if not verdict.ok), None)
    lines = ["", totals(verdicts)]
    if fault and fault.details:
        lines += ["", f"{fault.case}, which tests {fault.tests}:", _printable(fault.details)]
    return "\n".join(lines)


def totals(verdicts: Sequence[Verdict]) -> str:
    """Returns a line with the number of cases for each verdict."""
    kinds = [verdict.kind for verdict in verdicts if not verdict.ok]
    rest = ", ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
    passed = sum(verdict.ok for verdict in verdicts)
    cases = "1 case passes" if len(verdicts) == 1 else f"{len(verdicts)} cases pass"
    return f"{passed} of {cases}" + (f"; {rest}" if rest else "")


def verdicts_json(verdicts: Sequence[Verdict]) -> str:
    """Returns the verdicts as a JSON object."""
    passed = [verdict.ok for verdict in verdicts]
    entries = [{"ok": verdict.ok, **asdict(verdict)} for verdict in verdicts]
    told = {"ok": all(passed), "passed": sum(passed), "cases": entries}
    return json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False)


def verdicts_github(verdicts: Sequence[Verdict]) -> str:
    """Returns a line for each case that does not pass, or one line if all pass."""
    faults = [verdict for verdict in verdicts if not verdict.ok]
    lines = [annotation("error", f"{each.case}: {each.kind}", each.why) for each in faults]
    return "\n".join(lines or [annotation("notice", "npformer golden run", totals(verdicts))])


def junit(verdicts: Sequence[Verdict]) -> bytes:
    """Returns the verdicts as JUnit XML: divergences and missing answers are failures, all other faults errors."""
    from xml.etree import ElementTree as xml

    failures = [verdict for verdict in verdicts if verdict.kind in ("diverges", "incomplete")]
    counts = {
        "tests": str(len(verdicts)),
        "failures": str(len(failures)),
        "errors": str(sum(not verdict.ok for verdict in verdicts) - len(failures)),
        "time": f"{sum(verdict.seconds for verdict in verdicts):.3f}",
    }
    suites = xml.Element("testsuites", counts)
    suite = xml.SubElement(suites, "testsuite", {"name": "npformer golden run", **counts})
    for verdict in verdicts:
        named = {"classname": "npformer.golden", "name": verdict.case, "time": f"{verdict.seconds:.3f}"}
        case = xml.SubElement(suite, "testcase", named)
        if not verdict.ok:
            tag = "failure" if verdict in failures else "error"
            what = xml.SubElement(case, tag, {"type": verdict.kind, "message": _printable(verdict.why)})
            what.text = _printable(verdict.details)
    xml.indent(suites)
    return xml.tostring(suites, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Replaces characters that XML does not allow or that would move a terminal's cursor."""
    return re.sub("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
