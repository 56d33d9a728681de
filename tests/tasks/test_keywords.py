"""The types of `pipeline`: each task's class, and the keywords that the task takes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import jedi
import pytest

from npformer.generation.settings import NAMES
from npformer.tasks.catalogue import TASKS
from npformer.tasks.pipelines import class_of
from npformer.tasks.writing import WritingOptions
from tests.support.pipeline_types import FILE, own_keywords, shared_keywords, stub

#: Task -> aliases of its options, which `settle` translates.
OTHER_NAMES = {
    "text-ranking": {"activation_fn"},
    "text-generation": {"stop", "stop_sequence", "handle_long_generation", "tokenizer_encode_kwargs"},
}


@pytest.mark.parametrize("name", TASKS)
def test_the_keywords_of_a_task_are_its_options_under_all_of_their_names(name: str) -> None:
    kind = class_of(name)
    settings = set(NAMES) if issubclass(kind.options_type, WritingOptions) else set()
    options = {each.name for each in fields(kind.options_type)} - {"settings"}
    assert own_keywords(kind).keys() == options | settings | OTHER_NAMES.get(name, set())
    assert not own_keywords(kind).keys() & shared_keywords().keys()


def test_the_stub_is_made_from_the_declarations() -> None:
    assert FILE.read_text(encoding="utf-8") == stub(), "run python -m tests.support.pipeline_types"


@pytest.mark.slow
def test_mypy_knows_the_task_and_refuses_unknown_options(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from npformer import pipeline\n"
        "reveal_type(pipeline('text-classification', top_k=3, device='cpu'))\n"
        "reveal_type(pipeline('ner', './folder', aggregation_strategy='simple', offline=True))\n"
        "reveal_type(pipeline(model='./folder', num_beams=2, top_k=None, function_to_apply=None, to='fra'))\n"
        "pipeline('text-classification', topk=3)\n"
        "pipeline(model='./folder', topk=3)\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False, cwd=tmp_path)
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines()]
    assert lines[0] == 'note: Revealed type is "npformer.tasks.text_classification.TextClassification"', done
    assert lines[1] == 'note: Revealed type is "npformer.tasks.token_classification.TokenClassification"'
    assert lines[2] == 'note: Revealed type is "npformer.tasks.task.Task"'
    assert sum(each.startswith('error: Unexpected keyword argument "topk"') for each in lines) == 2


@pytest.mark.slow
def test_jedi_completes_the_results_of_a_task() -> None:
    script = jedi.Script("import npformer\nnpformer.pipeline('text-classification').")
    assert {"model", "options", "stream"} <= {each.name for each in script.complete(2, 41)}
