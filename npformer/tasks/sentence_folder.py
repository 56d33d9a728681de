"""Reads the settings of a sentence-transformers folder: how its modules make a vector of a text.

`sentence_embedding.py` and `sparse_embedding.py` compute what a `Recipe` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npformer.checkpoint.modules import MODULES, read_modules
from npformer.checks import boolean, one_of, shown, whole
from npformer.errors import NpformerError
from npformer.files import read_json
from npformer.model import Model
from npformer.pooling import POOLINGS

#: The older form of the same setting: flag -> the pooling that it turns on.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

#: The modules of a folder, by the last part of their type: of a vector, and of the words' weights.
ENCODERS = ("Transformer", "MLMTransformer")
DENSE = ["Pooling", "Normalize"]


@dataclass(frozen=True)
class Splade:
    """The settings of a SpladePooling module, see `pooling.splade`."""

    strategy: str = "max"
    twice: bool = False


@dataclass(frozen=True)
class Recipe:
    """The settings of a sentence-transformers folder."""

    poolings: tuple[str, ...] = ("mean",)  # their vectors are concatenated
    normalize: bool = False
    splade: Splade | None = None  # in place of poolings
    max_length: int | None = None  # tokens
    lowercase: bool = False
    prompt: str = ""  # put before every text
    max_active_dims: int | None = None  # words with a weight at most, of a sparse vector


def recipe_of(model: Model) -> Recipe:
    """Returns the settings of the sentence-transformers folder that a model comes from, or the defaults."""
    return Recipe() if model.folder is None else read_recipe(_home(model.folder))


def read_recipe(folder: Path) -> Recipe:
    """Reads modules.json and the files that it names: the encoder, its pooling, and whether to normalise.

    Raises NpformerError for another module (a dense layer, say), an unknown pooling, or a malformed file.
    """
    if not (folder / MODULES).exists():
        return Recipe()
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:1] not in ([each] for each in ENCODERS) or kinds[1:] not in (["SpladePooling"], DENSE[:1], DENSE):
        raise NpformerError(
            f"{folder}/modules.json: {', '.join(kinds):.200} is not supported; "
            "supported: Transformer, Pooling[, Normalize], and Transformer, SpladePooling"
        )
    place = folder / modules[1][1]
    pooling = _optional(place / "config.json")
    sparse = kinds[1] == "SpladePooling"
    settings = _optional(folder / modules[0][1] / "sentence_bert_config.json")
    length = settings.get("max_seq_length")
    if length is not None:
        whole(f"{folder}/sentence_bert_config.json: max_seq_length", length, 3)
    described = folder / "config_sentence_transformers.json"
    most = _optional(described).get("max_active_dims") if sparse else None
    if most is not None:
        whole(f"{described}: max_active_dims", most, 1)
    return Recipe(
        poolings=() if sparse else _poolings(place, pooling),
        normalize="Normalize" in kinds,
        splade=_splade(place, pooling) if sparse else None,
        max_length=length,
        lowercase=settings.get("do_lower_case") is True,
        prompt=_prompt(described, pooling),
        max_active_dims=most,
    )


def _home(folder: Path) -> Path:
    """Returns the sentence-transformers folder that an encoder's folder is or lies in, else the folder itself."""
    inside = not (folder / MODULES).exists() and (folder.parent / MODULES).exists()
    return folder.parent if inside and encoder_folder(folder.parent) == folder else folder


def is_sparse(folder: Path) -> bool:
    """Tells whether a sentence-transformers folder makes sparse vectors."""
    return any(each.kind == "SpladePooling" for each in read_modules(folder))


def encoder_folder(folder: Path) -> Path:
    """Returns the folder of a sentence-transformers model's encoder: the folder itself, or its 0_Transformer."""
    return next((folder / path for kind, path in read_modules(folder) if kind in ENCODERS), folder)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _poolings(folder: Path, pooling: dict[str, Any]) -> tuple[str, ...]:
    where = f"{folder}/config.json"
    flags = [mode for flag, mode in FLAGS.items() if boolean(f"{where}: {flag}", pooling.get(flag, False))]
    modes = pooling.get("pooling_mode") or flags or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) > len(POOLINGS):
        raise NpformerError(f"{where}: pooling_mode: expected a name or a list of names, got {shown(modes)}")
    return tuple(one_of(f"{where}: pooling_mode", mode, POOLINGS) for mode in modes)


def _splade(folder: Path, pooling: dict[str, Any]) -> Splade:
    where = f"{folder}/config.json"
    activation = pooling.get("activation_function", "relu")
    one_of(f"{where}: activation_function", activation, ("relu", "log1p_relu"))
    strategy = one_of(f"{where}: pooling_strategy", pooling.get("pooling_strategy", "max"), ("max", "sum"))
    return Splade(strategy, twice=activation == "log1p_relu")


def _prompt(path: Path, pooling: dict[str, Any]) -> str:
    """Returns the model's default prompt, "" if it has none."""
    described = _optional(path)
    name = described.get("default_prompt_name")
    if name is None:
        return ""
    prompts = described.get("prompts")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        raise NpformerError(f"{path}: default_prompt_name: {shown(name)} is not one of its prompts")
    if prompt and pooling.get("include_prompt") is False:
        raise NpformerError(
            f"{path}: a prompt that takes no part in the pooling (include_prompt: false) is not supported"
        )
    return prompt
