"""The results of a check in the format of Gradescope's autograder, `results.json`.

Gradescope, Autograder Specifications, "Output format".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.learn.judge import PASSED


def gradescope(report: Mapping[str, Any], problem: str = "") -> dict[str, Any]:
    """Returns results that give one point for each function that passes.

    report: a dict as returned by `Report.as_dict`. problem: the reason why there is no report, or "".
    """
    problem = problem or report.get("problem", "")
    runs = [run["text"] for run in report.get("runs", [])]
    result: dict[str, Any] = {
        "output": "\n".join(filter(None, [problem, *runs, report.get("printed", "")])),
        "tests": [_test(each) for each in report.get("functions", [])],
        "extra_data": {"imports": report.get("imports", []), "foreign": report.get("foreign", {})},
    }
    return result if result["tests"] else {**result, "score": 0}


def _test(function: Mapping[str, Any]) -> dict[str, Any]:
    passed = function["state"] == PASSED
    lines = [function["problem"], function["numbers"], function["sentence"], function["note"]]
    return {
        "name": function["name"],
        "number": str(function["chapter"]),
        "score": int(passed),
        "max_score": 1,
        "status": "passed" if passed else "failed",
        "output": "\n".join(dict.fromkeys(filter(None, lines))) or function["state"],
    }
