"""sentence-embedding: one vector for each text, pooled from its tokens' vectors.

A sentence-transformers folder says in modules.json how to pool (Reimers and Gurevych, 2019). Without modules.json the
vector is the mean over tokens, as in sentence-transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checks import boolean, one_of, shown, whole
from npformer.errors import NpformerError
from npformer.files import read_json, read_text
from npformer.model import Model
from npformer.tasks.results import carrying
from npformer.tasks.task import Request, Task, without_head
from npformer.text.encoding import Encoder
from npformer.text.inputs import Pair, as_text


def _weighted_mean(x: np.ndarray) -> np.ndarray:
    """The mean of the rows with weights 1, 2, ... L, (L, D) -> (D,)."""
    weights = np.arange(1, len(x) + 1, dtype=x.dtype)
    mean: np.ndarray = (x * weights[:, None]).sum(axis=0) / weights.sum()
    return mean


#: How the tokens' vectors become one, (L, D) -> (D,), by sentence-transformers' names.
POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.sqrt(np.array(len(x), x.dtype)),
    "weightedmean": _weighted_mean,
    "lasttoken": lambda x: x[-1],
}

#: The older form of the same setting: flag -> the pooling that it turns on.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Recipe:
    """The settings of a sentence-transformers folder."""

    poolings: tuple[str, ...] = ("mean",)  # their vectors are concatenated
    normalize: bool = False
    max_length: int | None = None  # tokens
    lowercase: bool = False
    prompt: str = ""  # put before every text


class SentenceEmbedding(Task):
    """Returns a vector (D,) for a text, an array (N, D) for a list of N texts.

    The vector of a text read in windows is the mean over the windows, weighted by their numbers of tokens.

    Parameters
    ----------
    model : Model with any head; the head is left out
        If its folder is a sentence-transformers one, modules.json says how to pool and whether to normalise.
    **options : the options of every task, see `Options`

    References
    ----------
    Reimers and Gurevych, 2019, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks", section 3.

    Examples
    --------
    >>> embed = SentenceEmbedding(npformer.load("distilbert-sst2"))
    >>> embed(["I love ice cream", "not my music"]).shape
    (2, 384)
    """

    name = "sentence-embedding"
    head = "base"

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(without_head(model), **options)
        self.recipe = Recipe() if model.folder is None else read_recipe(_home(model.folder))
        self.encoder = Encoder(self.model, self.recipe.max_length)

    def inputs(self, item: Any, options: Any) -> list[str | Pair]:
        text = self.recipe.prompt + as_text(item)
        return [text.lower() if self.recipe.lowercase else text]

    def answer(self, requests: list[Request], options: Any) -> list[Any]:
        return [self._embedding(request) for request in requests]

    def collect(self, answers: list[Any]) -> Any:
        width = self.model.config.d_model * len(self.recipe.poolings)
        together = np.stack(answers) if answers else np.empty((0, width), self.model.dtype)
        n_tokens = np.array([each.n_tokens for each in answers], int)
        return carrying(together, n_tokens, np.array([each.truncated for each in answers], bool))

    def _embedding(self, request: Request) -> np.ndarray:
        windows = [output["last_hidden_state"] for output in request.outputs[0]]
        pooled = [np.concatenate([POOLINGS[mode](x) for mode in self.recipe.poolings]) for x in windows]
        vector = pooled[0] if len(pooled) == 1 else np.average(pooled, axis=0, weights=[len(x) for x in windows])
        if self.recipe.normalize:
            vector = vector / np.maximum(np.sqrt((vector * vector).sum()), 1e-12)
        return vector.astype(self.model.dtype)


def read_recipe(folder: Path) -> Recipe:
    """Reads modules.json and the files that it names: the encoder, its pooling, and whether to normalise.

    Raises NpformerError for another module (a dense layer, say), an unknown pooling, or a malformed file.
    """
    if not (folder / "modules.json").exists():
        return Recipe()
    modules = _modules(folder / "modules.json")
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise NpformerError(
            f"{folder}/modules.json: {', '.join(kinds):.200} is not supported; "
            "supported: Transformer, Pooling[, Normalize]"
        )
    pooling = _optional(folder / modules[1][1] / "config.json")
    settings = _optional(folder / modules[0][1] / "sentence_bert_config.json")
    length = settings.get("max_seq_length")
    if length is not None:
        whole(f"{folder}/sentence_bert_config.json: max_seq_length", length, 3)
    return Recipe(
        poolings=_poolings(folder / modules[1][1], pooling),
        normalize="Normalize" in kinds,
        max_length=length,
        lowercase=settings.get("do_lower_case") is True,
        prompt=_prompt(folder / "config_sentence_transformers.json", pooling),
    )


def _home(folder: Path) -> Path:
    """Returns the sentence-transformers folder that an encoder's folder is or lies in, else the folder itself."""
    inside = not (folder / "modules.json").exists() and (folder.parent / "modules.json").exists()
    return folder.parent if inside and encoder_folder(folder.parent) == folder else folder


def encoder_folder(folder: Path) -> Path:
    """Returns the folder of a sentence-transformers model's encoder: the folder itself, or its 0_Transformer."""
    if not (folder / "modules.json").exists():
        return folder
    return next((folder / path for kind, path in _modules(folder / "modules.json") if kind == "Transformer"), folder)


def _modules(path: Path) -> list[tuple[str, str]]:
    """Returns the kind and the folder of each module in modules.json."""
    text = read_text(path)
    try:
        modules = json.loads(text)
        found = [(str(each["type"]).rsplit(".", 1)[-1], str(each["path"])) for each in modules]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NpformerError(f"{path}: expected a list of modules, each with a type and a path") from None
    if not all(re.fullmatch(r"[\w-]{0,100}", each) for _, each in found):
        raise NpformerError(
            f"{path}: expected the modules in folders beside it, got {', '.join(shown(each) for _, each in found[:9])}"
        )
    linked = next((each for _, each in found if each and (path.parent / each).is_symlink()), None)
    if linked is not None:
        raise NpformerError(f"{path.parent / linked}: a link, which is not followed; put the folder itself there")
    return found


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
