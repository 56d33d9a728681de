"""Reads the settings of a sentence-transformers folder, whose modules turn a text into a vector.

`sentence_embedding.py` and `sparse_embedding.py` apply an `EmbeddingRecipe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npformer.checkpoint.modules import ENCODERS, MODULES, Module, home, read_modules
from npformer.checkpoint.read import CONFIG
from npformer.common.checks import boolean, one_of, shown, whole
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.model import Model
from npformer.tasks.pooling import POOLINGS
from npformer.tasks.sentence_modules import KINDS, SentenceModule, read_steps
from npformer.tasks.vector_search import SIMILARITIES

#: Older form of the setting `pooling_mode`: flag -> the pooling that the flag turns on.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

DESCRIPTION = "config_sentence_transformers.json"
#: The field of config.json with a `CrossEncoder`'s activation: until sentence-transformers 3, and since version 4.
OLDER, NEWER = "sbert_ce_default_activation_function", "sentence_transformers"
PROMPTS = {"query": "", "document": ""}  # the default prompts, which a folder may override
#: X in sentence_X_config.json, the file of the encoder's settings. Since version 2.0, X is always "bert".
SETTINGS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


@dataclass(frozen=True)
class Splade:
    """The settings of a SpladePooling module, see `pooling.splade`."""

    strategy: str = "max"
    twice: bool = False


@dataclass(frozen=True)
class EmbeddingRecipe:
    """The settings of a sentence-transformers folder."""

    poolings: tuple[str, ...] = ("mean",)  # the vectors of several poolings are concatenated
    include_prompt: bool = True  # whether a prompt's tokens are pooled
    steps: tuple[SentenceModule, ...] = ()  # the modules after the pooling
    splade: Splade | None = None  # replaces the poolings
    max_length: int | None = None  # maximum tokens in a text
    lowercase: bool = False
    prompts: dict[str, str] = field(default_factory=lambda: dict(PROMPTS))
    default_prompt_name: str | None = None
    similarity: str | None = None  # one of SIMILARITIES, or None if the folder names no similarity
    truncate_dim: int | None = None
    max_active_dims: int | None = None  # maximum number of nonzero weights of a sparse vector


def recipe_of(model: Model) -> EmbeddingRecipe:
    """Returns the settings of a model's sentence-transformers folder, or the defaults."""
    return EmbeddingRecipe() if model.folder is None else read_recipe(home(model.folder), model.config.d_model)


def read_recipe(folder: Path, width: int) -> EmbeddingRecipe:
    """Reads modules.json and the files that modules.json names. `width` is the width of the encoder's vectors.

    Raises NpformerError, with the file and the field, for unsupported modules, settings or module orders, and for a
    malformed file.
    """
    if is_cross_encoder(folder):
        return EmbeddingRecipe()  # as in sentence-transformers, which uses the defaults for a `CrossEncoder`
    modules = read_modules(folder)
    described = _described(folder / DESCRIPTION)
    if not modules and not (folder / MODULES).exists():
        return EmbeddingRecipe(**described)
    if problem := _unsupported(folder, modules):
        raise NpformerError(problem)
    is_sparse = modules[1].kind == "SpladePooling"
    place = folder / modules[1].path / CONFIG
    pooling = _optional(place)
    more: dict[str, Any] = {}
    if is_sparse:
        more = {"poolings": (), "splade": _splade(place, pooling)}
    else:
        more = {"poolings": _poolings(place, pooling)}
        more["include_prompt"] = boolean(f"{place}: include_prompt", pooling.get("include_prompt", True))
        stored = pooling.get("embedding_dimension", pooling.get("word_embedding_dimension", width))
        if stored != width:
            raise NpformerError(f"{place}: embedding_dimension: expected {width}, the encoder's, got {shown(stored)}")
        more["steps"] = read_steps(folder, modules[2:], width * len(more["poolings"]))
    return EmbeddingRecipe(**described, **more, **_encoder_settings(folder / modules[0].path))


def _unsupported(folder: Path, modules: Sequence[Module]) -> str:
    """Returns the error message for modules that are not supported in this order, or ""."""
    kinds = [each.kind for each in modules]
    is_sparse = kinds[1:] == ["SpladePooling"]
    is_dense = kinds[1:2] == ["Pooling"] and set(kinds[2:]) <= set(KINDS)
    if kinds and kinds[0] in ENCODERS and (is_sparse or is_dense):
        return ""
    return (
        f"{folder / MODULES}: {', '.join(kinds) or 'no modules':.200} is not supported; supported: Transformer, "
        f"Pooling, then any of {', '.join(KINDS)}; or Transformer, SpladePooling"
    )


def unsupported_modules(folder: Path) -> str:
    """Returns the error message for a folder with modules that only sentence-transformers supports, or ""."""
    makes_vectors = (folder / MODULES).exists() and not is_cross_encoder(folder)
    return _unsupported(folder, read_modules(folder)) if makes_vectors else ""


def _encoder_settings(folder: Path) -> dict[str, Any]:
    paths = [folder / f"sentence_{each}_config.json" for each in SETTINGS]
    path = next((each for each in paths if each.exists()), paths[0])
    settings = _optional(path)
    length = settings.get("max_seq_length")
    if length is not None:
        whole(f"{path}: max_seq_length", length, 3)
    return {"max_length": length, "lowercase": settings.get("do_lower_case") is True}


def _described(path: Path) -> dict[str, Any]:
    """Reads config_sentence_transformers.json: prompts, the similarity, and the truncation of vectors."""
    described = _optional(path)
    prompts = described.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(each, str | None) for each in prompts.values()):
        raise NpformerError(f"{path}: prompts: expected texts by name, got {shown(prompts)}")
    prompts = PROMPTS | {name: prompt or "" for name, prompt in prompts.items()}
    default = described.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise NpformerError(f"{path}: default_prompt_name: {shown(default)} is not one of its prompts")
    for name in ("truncate_dim", "max_active_dims"):
        if described.get(name) is not None:
            whole(f"{path}: {name}", described[name], 1)
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity": one_of(
            f"{path}: similarity_fn_name", described.get("similarity_fn_name"), (*SIMILARITIES, None)
        ),
        "truncate_dim": described.get("truncate_dim"),
        "max_active_dims": described.get("max_active_dims"),
    }  # fmt: skip


def cross_encoder_recipe(folder: Path | None) -> tuple[EmbeddingRecipe, Any]:
    """Reads the settings of a saved `CrossEncoder`: prompts, maximum length, lower-casing, and the activation_fn.

    The activation_fn may be None. Returns the defaults for any other folder. `is_cross_encoder` recognizes a saved
    `CrossEncoder`.
    """
    if folder is None or not is_cross_encoder(home(folder)):
        return EmbeddingRecipe(), None
    path = home(folder) / DESCRIPTION
    recipe = EmbeddingRecipe(**_described(path), **_encoder_settings(folder))
    return recipe, _optional(path).get("activation_fn")


def is_cross_encoder(folder: Path) -> bool:
    """Returns whether a folder has the format of a `CrossEncoder` saved by sentence-transformers 6."""
    return (folder / MODULES).exists() and _optional(folder / DESCRIPTION).get("model_type") == "CrossEncoder"


def was_cross_encoder(described: Mapping[str, Any]) -> bool:
    """Returns whether a config.json has a field that older versions wrote for a `CrossEncoder`."""
    return OLDER in described or NEWER in described


def is_sparse(folder: Path) -> bool:
    """Returns whether a sentence-transformers folder is for sparse vectors."""
    return any(each.kind == "SpladePooling" for each in read_modules(folder))


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _poolings(path: Path, pooling: dict[str, Any]) -> tuple[str, ...]:
    flags = [mode for flag, mode in FLAGS.items() if boolean(f"{path}: {flag}", pooling.get(flag, False))]
    modes = pooling.get("pooling_mode") or flags or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) > len(POOLINGS):
        raise NpformerError(f"{path}: pooling_mode: expected a name or a list of names, got {shown(modes)}")
    return tuple(one_of(f"{path}: pooling_mode", mode, POOLINGS) for mode in modes)


def _splade(path: Path, pooling: dict[str, Any]) -> Splade:
    activation = pooling.get("activation_function", "relu")
    one_of(f"{path}: activation_function", activation, ("relu", "log1p_relu"))
    strategy = one_of(f"{path}: pooling_strategy", pooling.get("pooling_strategy", "max"), ("max", "sum"))
    return Splade(strategy, twice=activation == "log1p_relu")
