"""Every task answers like transformers.pipeline (sentence-embedding like sentence-transformers) on tiny BERTs and
DistilBERTs. The golden files contain the answers, and golden/make_tasks.py contains the calls.

Scores may differ by 1e-5 of their size, because both sides compute two layers and a softmax in float32, in different
orders. Everything else (characters, words and the order of the answers) is equal.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from npformer.tasks import pipeline
from tests.golden.make_tasks import same, write_folder

pytestmark = pytest.mark.numbers

DATA = Path(__file__).parents[1] / "golden" / "tasks"
CASES = [
    (path.stem, number, case)
    for path in sorted(DATA.glob("*.json"))
    if path.stem != "tokenizer_ids"
    for number, case in enumerate(json.loads(path.read_text()))
]


@pytest.fixture(scope="module")
def pipeline_of(tmp_path_factory):
    """Returns a function that finds a case's pipeline; cases with the same settings share one pipeline."""
    pipelines = {}

    def find(task, case):
        settings = json.dumps([task, case["model"], case["arguments"] if "pooling" in case["arguments"] else {}])
        if settings not in pipelines:
            pipelines[settings] = pipeline(task, write_folder(tmp_path_factory.mktemp("models") / "model", case))
        return pipelines[settings]

    return find


@pytest.mark.parametrize(("task", "case"), [pytest.param(t, c, id=f"{t}-{n}") for t, n, c in CASES])
def test_pipelines_answer_like_transformers(task, case, pipeline_of):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = pipeline_of(task, case)
        arguments = {} if task == "sentence-embedding" else case["arguments"]
        arguments = {name: value for name, value in arguments.items() if name != "truncation"}
        answer = pipe(case["inputs"], **arguments)
    if isinstance(answer, np.ndarray):
        answer = answer.tolist()
    assert same(answer, case["result"]), (answer, case["result"])
