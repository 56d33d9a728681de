"""The settings of a task in a model's config.json: `task_specific_params`, as Transformers 4 reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from npformer.base_model import BaseModel
from npformer.checkpoint.read import CONFIG
from npformer.common.errors import NpformerError
from npformer.common.files import read_json

TRANSLATION = re.compile(r"translation_(\w+)_to_(\w+)")  # names such as translation_en_to_de


class TaskSettings(NamedTuple):
    """The text to put before each source, and the generation settings."""

    prefix: str = ""
    settings: Mapping[str, Any] = {}


def task_settings(model: BaseModel, task: str, to: str | None = None) -> TaskSettings:
    """Reads the settings of a task, or of translation to a language.

    As in Transformers 4, task_specific_params[task] overrides generation_config.json and the config's prefix. T5 has
    entries such as translation_en_to_de. `to` is the last part of the name.
    """
    from npformer.generation.settings import NAMES, UNSUPPORTED  # not needed by classifiers

    data = _described(model)
    specific = data.get("task_specific_params") or {}
    own = specific.get(languages_of(data).get(to or "", task)) or {} if isinstance(specific, dict) else specific
    if not isinstance(own, dict):
        raise NpformerError(f"{_place(model)}: task_specific_params: expected an object with the settings of each task")
    prefix = own.get("prefix", data.get("prefix"))
    if not isinstance(prefix, str | None):
        raise NpformerError(f"{_place(model)}: prefix: expected a text, got {type(prefix).__name__}")
    return TaskSettings(prefix or "", {name: own[name] for name in own if name in NAMES or name in UNSUPPORTED})


def pairs_of(model: BaseModel) -> dict[str, str]:
    """Returns target language -> name of its settings, for each language with settings in a model's config.json."""
    return languages_of(_described(model))


def languages_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Returns target language -> name of its settings, for each language with settings in a config.json."""
    specific = data.get("task_specific_params")
    found = map(TRANSLATION.fullmatch, specific if isinstance(specific, dict) else {})
    return {each[2]: each[0] for each in found if each}


def _described(model: BaseModel) -> dict[str, Any]:
    if model.folder is None or not (model.folder / CONFIG).exists():
        return {}
    return read_json(model.folder / CONFIG, model.limits, "config")


def _place(model: BaseModel) -> str:
    return str(model.folder and model.folder / CONFIG)
