"""The rooms of the reference, and the public names that each describes. It is independent of Sphinx, for the tests."""

from __future__ import annotations

import inspect
from importlib import import_module

import npformer
from npformer.engine import mechanisms

#: Room -> the modules that define its names.
ROOMS = {
    "maths": "plain.formulas plain.rotary plain.llama plain.transformer "
    "engine.functions engine.masks engine.embeddings",
    "models": "loading model config text.inputs engine.runtime.packing "
    "common.limits common.errors generation.likelihood",
    "tasks": "tasks.pipelines tasks.vector_search",
    "inside": "interpret.traces interpret.edits interpret.patching interpret.direct_attribution engine.taps",
}
MODULES = ("plain", "golden", "training", "view", "learn", "dataset", "serve")
#: Room -> classes and functions that users call by their full names.
FURTHER = {
    "mechanisms": ("npformer.engine.mechanisms", " ".join(each for each in mechanisms.__all__ if each != "Mechanism")),
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


def rooms(without: str = "") -> dict[str, list[str]]:
    """Returns the full names in each room. Raises LookupError for a public name without a room.

    without: a public module that cannot be imported, because its extra is not installed.
    """
    defined = {name: names.split() for name, names in npformer._NAMES.items()}
    found = {
        room: [f"npformer.{name}" for module in modules.split() for name in defined.pop(module)]
        for room, modules in ROOMS.items()
    }
    modules = {name for name in npformer.__all__ if inspect.ismodule(getattr(npformer, name))}
    left = {name for names in defined.values() for name in names} | (modules - {*MODULES})
    if left:
        raise LookupError(f"docs/_ext/rooms.py: add these names to a room: {', '.join(sorted(left))}")
    for module in (each for each in MODULES if each != without):
        found[module] = [f"npformer.{module}.{name}" for name in import_module(f"npformer.{module}").__all__]
    return found | {room: [f"{module}.{name}" for name in names.split()] for room, (module, names) in FURTHER.items()}
