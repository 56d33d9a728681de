"""`{public-names} ROOM`: every public name of a room with its docstring.

A room is a page of the reference. Each public name of `npformer` is on one of these pages; `npformer.golden` and the
other public modules have pages of their own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from importlib import import_module

from markdown import directive
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

import npformer
from npformer import mechanisms

#: Room -> the modules that define its names.
ROOMS = {
    "maths": "plain.formulas plain.rotary plain.llama plain.transformer functions masks decoder_layers",
    "models": "loading model config text.inputs runtime.packing common.limits common.errors generation.likelihood",
    "tasks": "tasks.pipelines tasks.vector_search",
    "inside": "interpret.traces interpret.edits interpret.patching interpret.direct_attribution taps",
}
MODULES = ("plain", "golden", "training", "view", "learn", "dataset", "serve")
#: Room -> classes and functions that users call by their full names.
FURTHER = {
    "mechanisms": ("npformer.mechanisms", " ".join(each for each in mechanisms.__all__ if each != "Mechanism")),
    "rotations": ("npformer.mechanisms.rotary", "rotary_angles rotate"),
    "biases": ("npformer.mechanisms.relative_bias", "relative_buckets relative_bias"),
    "distances": ("npformer.mechanisms.disentangled", "log_buckets distance_rows distance_scores"),
    "lens": ("npformer.interpret.logit_lens", "logit_lens"),
    "effects": ("npformer.interpret.head_effects", "head_effects"),
    "sources": ("npformer.interpret.source_attribution", "by_source"),
    "answers": ("npformer.interpret.answer", "answer_of"),
    "sentence_transformers": ("npformer.tasks.sentence_transformers", "Encoding SparseEncoding Ranking"),
}
#: Names with their own page.
ELSEWHERE = {"Config": "config", "Limits": "limits", "ServiceLimits": "routes"}
#: Classes with methods that users call.
WITH_METHODS = (
    "Model",
    "Trace",
    "Golden",
    "View",
    "Trainer",
    "Adam",
    "Trainable",
    "Encoding",
    "SparseEncoding",
    "Ranking",
)

logger = logging.getLogger(__name__)


def rooms() -> dict[str, list[str]]:
    """The full names in each room. Raises ExtensionError for a public name without a room."""
    defined = {name: names.split() for name, names in npformer._NAMES.items()}
    found = {
        room: [f"npformer.{name}" for module in modules.split() for name in defined.pop(module)]
        for room, modules in ROOMS.items()
    }
    modules = {name for name in npformer.__all__ if inspect.ismodule(getattr(npformer, name))}
    left = {name for names in defined.values() for name in names} | (modules - {*MODULES})
    if left:
        raise ExtensionError(f"docs/_ext/public_names.py: add these names to a room: {', '.join(sorted(left))}")
    for module in MODULES:
        found[module] = [f"npformer.{module}.{name}" for name in import_module(f"npformer.{module}").__all__]
    return found | {room: [f"{module}.{name}" for name in names.split()] for room, (module, names) in FURTHER.items()}


def public_names(room: str) -> Iterable[str]:
    """Returns a list of the names of a room, then each name with its docstring."""
    names = [name for name in rooms()[room] if name.rpartition(".")[2] not in ELSEWHERE]
    shorts = [name.rpartition(".")[2] if room in FURTHER else name.removeprefix("npformer.") for name in names]
    if len(names) > 1:
        yield ", ".join(f"[`{short}`](#{name})" for short, name in zip(shorts, names, strict=True))
    yield ""
    for short, name in zip(shorts, names, strict=True):
        module, _, last = name.rpartition(".")
        found = getattr(import_module(module), last)
        yield f"## {short}"
        if room in FURTHER:
            yield f"`from {module} import {last}`"
            yield ""
        yield "```{eval-rst}"
        if inspect.isclass(found):
            yield f".. autoclass:: {name}"
            if last in WITH_METHODS:
                yield "   :members:"
        elif callable(found):
            yield f".. autofunction:: {name}"
        else:
            yield f".. data:: {name}"
            yield f"   :value: {found!r}"
        yield "```"
        yield ""


def escape(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Escapes asterisks, bars and underscores in formulas, but not in examples and code."""
    example = False
    for i, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            parts = re.split(r"(`[^`]*`)", line)
            lines[i] = "".join(
                part if i % 2 else re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", part) for i, part in enumerate(parts)
            )


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns about public names that no page describes."""
    for name in {name for names in rooms().values() for name in names} - set(env.domains["py"].objects):
        logger.warning("the reference lacks %s", name)


def setup(app: Sphinx) -> dict[str, bool]:
    rooms()
    app.connect("env-check-consistency", check)
    app.connect("autodoc-process-docstring", escape, priority=400)  # before numpydoc
    app.add_directive("public-names", directive(public_names))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
