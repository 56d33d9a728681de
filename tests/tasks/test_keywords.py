"""The types of `pipeline`: each task's class, and the keywords that the task takes. user_program.py tests how mypy
understands them."""

from __future__ import annotations

from dataclasses import fields

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
def test_jedi_completes_the_results_of_a_task() -> None:
    script = jedi.Script("import npformer\nnpformer.pipeline('text-classification').")
    assert {"model", "options", "stream"} <= {each.name for each in script.complete(2, 41)}
