"""Writes the type stub of `pipeline` from the declarations of tasks: `python -m tests.support.pipeline_types`.

A task's class declares its options (`options_type`) and their aliases (`other_names`); the catalogue lists the names of
tasks.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import fields
from pathlib import Path

import npformer
from npformer.generation.settings import NAMES, Settings
from npformer.tasks.catalogue import ALIASES, TASKS
from npformer.tasks.ignored_keywords import IGNORED
from npformer.tasks.pipelines import class_of, pipeline
from npformer.tasks.task import Task
from npformer.tasks.writing import WritingOptions

FILE = Path(npformer.__file__).parent / "tasks" / "typed_pipeline.pyi"
HEAD = '''\
"""The types of `pipeline`: each task's class, and the keywords that the task takes.

A stub of `npformer.tasks.pipelines.pipeline` for type checkers and editors, made from the tasks' declarations by
`python -m tests.support.pipeline_types`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from npformer.common.limits import Limits
from npformer.model import Model, Seq2Seq
'''
OVERLOAD = """\
@overload
def pipeline(
    task: {task},
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    **options: Unpack[{keywords}],
) -> {kind}:{body}
"""
#: Other libraries' keywords that `pipeline` translates. `pipeline` ignores the keywords in IGNORED.
TRANSLATED = {
    "truncation": "bool | str | None",
    "show_progress_bar": "bool | None",
    "local_files_only": "bool | None",
}


def shared_keywords() -> dict[str, str]:
    """Returns the types of every task's keywords, by name: keywords of `load`, and of other libraries."""
    named = inspect.signature(pipeline).parameters
    own = {key: each.annotation for key, each in named.items() if each.kind is each.KEYWORD_ONLY}
    return own | TRANSLATED | dict.fromkeys(IGNORED, "Any")


def own_keywords(kind: type[Task]) -> dict[str, str]:
    """Returns the types of one task's keywords, by name: options, aliases, and any generation settings."""
    found = {each.name: str(each.type) for each in fields(kind.options_type) if each.name != "settings"}
    if issubclass(kind.options_type, WritingOptions):
        types = {each.name: str(each.type).removesuffix(" | None") for each in fields(Settings)}
        single = {name: f"{each} | None" for name, each in types.items() if "tuple" not in each}
        found = {name: single.get(name, "Any") for name in NAMES} | found
    return found | dict(kind.other_names)


def name_of(kind: type[Task]) -> str:
    return kind.options_type.__name__.replace("Options", "Keywords")


def typed_dict(name: str, base: str, what: str, keywords: dict[str, str]) -> str:
    lines = "".join(f"    {key}: {each}\n" for key, each in keywords.items())
    return f'\nclass {name}({base}, total=False):\n    """{what}"""\n\n{lines}'


def stub() -> str:
    """Returns the text of the stub."""
    kinds = {name: class_of(name) for name in TASKS}
    imported: dict[str, list[str]] = {"npformer.tasks.task": ["Task"]}
    for kind in kinds.values():
        imported.setdefault(kind.__module__, []).append(kind.__name__)
    parts = [f"from {module} import {', '.join(sorted(names))}\n" for module, names in sorted(imported.items())]
    parts.append(typed_dict("Loading", "TypedDict", "Keywords of every task.", shared_keywords()))
    every: dict[str, str] = {}
    for kind in {name_of(kind): kind for kind in kinds.values()}.values():
        own = own_keywords(kind)
        every |= {key: each if every.get(key, each) == each else "Any" for key, each in own.items()}
        parts.append(typed_dict(name_of(kind), "Loading", f"Keywords of `{kind.options_type.__name__}`.", own))
    parts.append(typed_dict("AnyKeywords", "Loading", "Keywords of all tasks, where the task is not known.", every))
    parts.append("\n")
    for name, kind in kinds.items():
        names = ", ".join(f'"{each}"' for each in (name, *(a for a, of in ALIASES.items() if of == name)))
        given = {"task": f"Literal[{names}]", "keywords": name_of(kind), "kind": kind.__name__}
        parts.append(OVERLOAD.format(**given, body=" ..."))
    # Python 3.13 removes the indentation of a docstring; older versions keep it
    described = inspect.getdoc(pipeline) or ""
    body = "\n" + textwrap.indent(f'"""{described}\n"""', "    ")
    given = {"task": "str | None = None", "keywords": "AnyKeywords", "kind": "Task"}
    parts.append(OVERLOAD.format(**given, body=body))
    return HEAD + "".join(parts)


if __name__ == "__main__":
    FILE.write_text(stub(), encoding="utf-8")
