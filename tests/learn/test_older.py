"""Files that were begun with an older version of the course: each problem says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer.learn import solution
from npformer.learn.chapters import EXERCISES
from npformer.learn.judge import judge
from npformer.learn.template import empty, signatures
from tests.learn.test_check import check, written

OLD = {
    "linear": "x, weight, bias",
    "layer_norm": "x, weight, bias, eps=1e-12",
    "encoder_layer": "x, n_heads, attention, attention_norm, ffn, ffn_norm",
}


@pytest.mark.parametrize("name", OLD)
def test_a_function_with_the_parameters_of_an_older_version_says_so(name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def {name}({OLD[name]}):\n    return x", names)
    verdict = judge(EXERCISES[name], names[name], signatures()[name], "").verdict
    assert verdict.kind == "signature"
    assert verdict.problem == (
        f"{name}({OLD[name]}) has the parameters of npformer 0.4; expected {name}{signatures()[name]}. Change them, or "
        f"`npformer learn reset {name}` writes the new form, and saves your code in another file."
    )


def test_a_file_of_an_older_version_can_be_continued(tmp_path: Path) -> None:
    """The file lacks the functions that were added to the course later, and its `sample` has different parameters."""
    old = "import math\n\nimport numpy as np\n\n\ndef linear(x, weight, bias):\n    return x @ weight + bias\n\n\n"
    old += "def sample(logits, temperature, top_p, u):\n    return 0\n"
    folder = written(tmp_path, {}, old)
    for name in EXERCISES:
        npformer.learn.reset(name, folder)
    text = (folder / "my_transformer.py").read_text(encoding="utf-8")
    for name in EXERCISES:
        text = text.replace(empty(name), solution(name))
    report = check(written(tmp_path, {}, text))
    assert report.ok, str(report)
