"""text-ranking: the relevance of each text to a query. A cross-encoder reads the query and the text together.

A reranker that is a causal language model reads both in a chat template (`logit_score.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npformer.checkpoint.modules import home
from npformer.checkpoint.read import CONFIG
from npformer.common.checks import one_of, shown
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.engine.output_heads.formulas import probabilities
from npformer.model import Model
from npformer.tasks.declaration import Form
from npformer.tasks.logit_score import RankingTemplate, of_folder, ranker
from npformer.tasks.prompted import PromptOptions
from npformer.tasks.sentence_folder import DESCRIPTION, NEWER, OLDER, cross_encoder_recipe
from npformer.tasks.sentence_transformers import Ranking
from npformer.tasks.task import InputError, Request, logits_of_texts
from npformer.text.inputs import Pair, as_text_or_pair

FUNCTIONS = {"Sigmoid": "sigmoid", "Identity": "none"}  # torch's module -> function_to_apply


@dataclass(frozen=True)
class RankingOptions(PromptOptions):
    """Options of `TextRanking`."""

    function_to_apply: str = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("function_to_apply", self.function_to_apply, tuple(FUNCTIONS.values()))


class TextRanking(Ranking):
    """Returns a dict with "score" for each pair of a query and a text. Higher scores mean better matches.

    The query and the text are given as a `Pair`, a tuple or list of two, or {"text": query, "text_pair": text}.

    Parameters
    ----------
    model : Model with a sequence-classification head and one label, or a causal language model whose folder has a
    LogitScore module and a chat template, such as Qwen3-Reranker
    function_to_apply : "sigmoid" or "none", optional
        Turns the logit into the score; by default the activation that sentence-transformers stored, else "sigmoid".
        sentence-transformers' `activation_fn`, torch's Sigmoid or Identity, is accepted too.
    prompt, prompt_name : str, optional
        The text to put before each query, or the name of one of the folder's prompts. In a chat template, this text
        becomes the system message, which contains the instruction.
    **options : options common to all tasks; see `Options`

    References
    ----------
    Nogueira and Cho, 2019, "Passage Re-ranking with BERT", section 2. sentence-transformers' `CrossEncoder.predict`.

    Examples
    --------
    With a model from the hub::

        rank = npformer.pipeline("text-ranking", "cross-encoder/ms-marco-MiniLM-L6-v2")
        rank(("Who lives in Berlin?", "Sarah lives in Berlin."))["score"]
        rank.rank("Who lives in Berlin?", ["Paul is from Rome.", "Sarah lives in Berlin."])[0]["corpus_id"]
    """

    name = "text-ranking"
    options_type = RankingOptions
    other_names: ClassVar[Mapping[str, str]] = {"activation_fn": "Any"}
    form = Form({"score": np.floating}, line="{score:.4f}", layout="beside")
    instead = "write task.rank(query, texts), or task([npformer.Pair(query, text), ...]) for the scores"

    def __init__(self, model: Model, **options: Any) -> None:
        score = of_folder(model)
        self.template = None if score is None else RankingTemplate(model, score)
        if score is not None:
            model = ranker(model, score)
        elif model.config.head == "causal-lm":
            raise NpformerError(
                f"{self.name}: a causal-lm model needs a LogitScore module in modules.json and a chat template, as "
                "saved by version 5.4 or newer of sentence-transformers; got no LogitScore module"
            )
        labels = model.config.labels
        if model.config.head == "sequence-classification" and len(labels) != 1:
            raise NpformerError(
                f"{self.name}: expected a model with one label, got {len(labels)}; "
                "pipeline('text-classification', model, top_k=None) scores each label"
            )
        self.recipe, activation = cross_encoder_recipe(model.folder)
        if options.get("activation_fn") is None and "function_to_apply" not in options:
            options["function_to_apply"] = stored_function(model, activation)
        super().__init__(model, **options)

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        kept = {name: value for name, value in given.items() if name != "activation_fn"}
        if given.get("activation_fn") is not None:
            if "function_to_apply" in given:
                raise NpformerError("activation_fn: conflicts with function_to_apply=; pass only one of the two")
            kept["function_to_apply"] = _function("activation_fn", given["activation_fn"])
        return super().settle(options, kept)

    def is_one(self, inputs: Any) -> bool:
        return _is_two_texts(inputs) or super().is_one(inputs)

    def inputs(self, item: Any, options: Any) -> list[str | Pair]:
        if isinstance(item, Mapping) and "query" in item:
            raise NpformerError(
                f"expected a pair of a query and a text, got {', '.join(map(str, item))}; {self.instead}"
            )
        item = Pair(*item) if _is_two_texts(item) else item
        found = as_text_or_pair(item)
        if not isinstance(item, Pair) and not (isinstance(item, Mapping) and item.get("text_pair") is not None):
            raise NpformerError("expected npformer.Pair(query, text), got one text")
        query, text = (found, "") if isinstance(found, str) else found  # an empty text is ranked too
        if self.template is not None:
            return [self.template.text(self.prompt(options), query, text)]
        return [Pair(self.cased(self.prompt(options) + query), self.cased(text))]

    def prepare(self, window: Sequence[Any], first: int, options: Any) -> list[Request | InputError]:
        if self.template is not None and options.long == "window":
            raise NpformerError("long: texts in a chat template are not read in windows; use 'truncate' or 'error'")
        requests = super().prepare(window, first, options)
        if self.template is not None:
            for each in requests:
                if isinstance(each, Request):
                    self.template.restore(each.encoded[0], self.prompt(options))
        return requests

    def answer(self, requests: list[Request], options: RankingOptions) -> list[Any]:
        scores = probabilities(logits_of_texts(requests)[:, 0], options.function_to_apply)
        return [{"score": float(score)} for score in scores]


def stored_function(model: Model, activation: Any) -> str:
    """Returns the function_to_apply for the activation that sentence-transformers stored, by default "sigmoid".

    `activation` from `cross_encoder_recipe` overrides the field that earlier versions store in config.json. Raises
    NpformerError for an activation other than Identity or Sigmoid.
    """
    if model.folder is None:
        return "sigmoid"
    path, where = home(model.folder) / DESCRIPTION, "activation_fn"
    if activation is None:
        path = model.folder / CONFIG
        older = read_json(path, model.limits, "config")
        where, activation = OLDER, older.get(OLDER)
        newer = older.get(NEWER)
        if isinstance(newer, dict) and "activation_fn" in newer:
            where, activation = f"{NEWER}.activation_fn", newer["activation_fn"]
    return "sigmoid" if activation is None else _function(f"{path}: {where}", activation)


def _function(where: str, activation: Any) -> str:
    """Returns the function_to_apply for a torch module, given as an instance, a class or a full name."""
    kind = activation if isinstance(activation, type) else type(activation)
    name = activation if isinstance(activation, str) else f"{kind.__module__}.{kind.__name__}"
    known = re.fullmatch(rf"torch\.nn\.(?:modules\.\w+\.)?({'|'.join(FUNCTIONS)})", name)
    if known is None:
        raise NpformerError(
            f"{where}: expected torch's Identity or Sigmoid, got {shown(activation)}; "
            "pass function_to_apply, 'sigmoid' or 'none'"
        )
    return FUNCTIONS[known[1]]


def _is_two_texts(item: Any) -> bool:
    """Returns whether an item is a list, tuple or array of two texts: a pair in sentence-transformers."""
    two = item.shape == (2,) if isinstance(item, np.ndarray) else isinstance(item, list | tuple) and len(item) == 2
    return two and all(isinstance(each, str) for each in item)
