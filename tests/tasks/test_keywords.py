"""The types of `pipeline`: each task's class, and the keywords that the task takes."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import jedi
import pytest

from npformer.generation.settings import NAMES
from npformer.tasks import pipelines
from npformer.tasks.catalogue import ALIASES, TASKS
from npformer.tasks.ignored_keywords import IGNORED
from npformer.tasks.options import Loading, Options
from npformer.tasks.pipelines import pipeline
from npformer.tasks.writing import WritingOptions

PIPELINES = ast.parse(inspect.getsource(pipelines))


def overloads() -> dict[str, tuple[str, str]]:
    """Task -> the class and the keywords that its overload names; "" for a task that is not known."""
    found = {}
    for node in PIPELINES.body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "overload" for each in node.decorator_list):
            task = node.args.args[0].annotation
            assert node.args.kwarg
            assert node.args.kwarg.annotation
            names = [each.value for each in ast.walk(task) if isinstance(each, ast.Constant) and each.value]  # type: ignore[arg-type]
            given = ast.unparse(node.args.kwarg.annotation).removeprefix("Unpack[").removesuffix("]")
            for name in names or [""]:
                found[str(name)] = (ast.unparse(node.returns), given)  # type: ignore[arg-type]
    return found


OVERLOADS = overloads()
#: Task -> other names of its options, which `settle` translates.
OTHER_NAMES = {
    "text-ranking": {"activation_fn"},
    "text-generation": {"stop", "stop_sequence", "handle_long_generation"},
}


def typed(keywords: Any) -> dict[str, str]:
    return {key: each.__forward_arg__ for key, each in keywords.__annotations__.items()}


def keywords_of(name: str) -> dict[str, str]:
    """The keywords named by the overload of a task, from the module of its class."""
    kind = pipelines.class_of(ALIASES.get(name, name))
    return typed(getattr(sys.modules[kind.__module__], OVERLOADS[name][1]))


def of(options: type[Options]) -> dict[str, Any]:
    return {each.name: each.type for each in fields(options) if each.name != "settings"}


def test_every_name_of_a_task_has_an_overload() -> None:
    assert sorted(OVERLOADS) == sorted(["", *TASKS, *ALIASES])


@pytest.mark.parametrize("name", [*TASKS, *ALIASES])
def test_an_overload_has_the_class_and_the_options_of_its_task(name: str) -> None:
    kind = pipelines.class_of(ALIASES.get(name, name))
    assert OVERLOADS[name][0] == kind.__name__
    found = {key: value for key, value in keywords_of(name).items() if key not in typed(Loading)}
    expected = of(kind.options_type)
    assert {key: found[key] for key in expected} == expected
    settings = set(NAMES) if issubclass(kind.options_type, WritingOptions) else set()
    assert found.keys() == expected.keys() | settings | OTHER_NAMES.get(kind.name, set())


def test_the_other_keywords_are_those_of_load_and_of_habits() -> None:
    named = inspect.signature(pipeline).parameters
    own = {key: each.annotation for key, each in named.items() if each.kind is each.KEYWORD_ONLY}
    found = typed(Loading)
    assert {key: found[key] for key in own} == own
    assert found.keys() == own.keys() | IGNORED.keys() | {"truncation", "show_progress_bar", "local_files_only"}


def test_a_task_that_is_not_known_takes_the_options_of_all() -> None:
    (every,) = (each for each in ast.walk(PIPELINES) if isinstance(each, ast.ClassDef) and each.name == "AnyKeywords")
    assert OVERLOADS[""] == ("Task", "AnyKeywords")
    assert {ast.unparse(each) for each in every.bases} == {OVERLOADS[name][1] for name in TASKS}


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


def test_jedi_completes_the_results_of_a_task() -> None:
    script = jedi.Script("import npformer\nnpformer.pipeline('text-classification').")
    assert {"model", "options", "stream"} <= {each.name for each in script.complete(2, 41)}
