"""text-ranking: how well each text answers a query, by a cross-encoder, which reads the two together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npformer.checkpoint.modules import home
from npformer.checkpoint.read import CONFIG
from npformer.checks import one_of, shown
from npformer.errors import NpformerError
from npformer.files import read_json
from npformer.model import Model
from npformer.tasks.options import Options
from npformer.tasks.sentence_folder import DESCRIPTION, cross_encoder_settings
from npformer.tasks.task import Request, Task, logits_of_texts, probabilities
from npformer.text.inputs import Pair, as_text_or_pair

FUNCTIONS = {"Sigmoid": "sigmoid", "Identity": "none"}  # torch's module -> function_to_apply
OLDER = "sbert_ce_default_activation_function"  # in config.json, before version 4 of sentence-transformers


@dataclass(frozen=True)
class RankingOptions(Options):
    """Options of `TextRanking`."""

    function_to_apply: str = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("function_to_apply", self.function_to_apply, tuple(FUNCTIONS.values()))


class TextRanking(Task):
    """Returns a dict with "score" for each `Pair` of a query and a text: the higher, the better the text fits.

    Parameters
    ----------
    model : Model with a sequence-classification head and one label
    function_to_apply : "sigmoid" or "none", optional
        Turns the logit into the score; by default the activation that sentence-transformers stored, else "sigmoid".
    **options : the options of every task, see `Options`

    A prompt that the checkpoint has as its default precedes each query.

    References
    ----------
    Nogueira and Cho, 2019, "Passage Re-ranking with BERT", section 2. sentence-transformers' `CrossEncoder.predict`.

    Examples
    --------
    With a model from the hub::

        rank = npformer.pipeline("text-ranking", "cross-encoder/ms-marco-MiniLM-L6-v2")
        rank(npformer.Pair("Who lives in Berlin?", "Sarah lives in Berlin."))["score"]
    """

    name = "text-ranking"
    head = "sequence-classification"
    options_type = RankingOptions

    def __init__(self, model: Model, **options: Any) -> None:
        labels = model.config.labels
        if model.config.head == self.head and len(labels) != 1:
            raise NpformerError(f"{self.name} takes a model with one label, this one has {len(labels)}")
        described = cross_encoder_settings(model.folder)
        if "function_to_apply" not in options:
            options["function_to_apply"] = stored_function(model, described)
        super().__init__(model, **options)
        self.prompt = described["prompts"][name] if (name := described.get("default_prompt_name")) else ""

    def inputs(self, item: Any, options: Any) -> list[str | Pair]:
        found = as_text_or_pair(item)
        if not isinstance(item, Pair) and not (isinstance(item, Mapping) and item.get("text_pair") is not None):
            raise NpformerError("expected a query and a text, got one text; give npformer.Pair(query, text)")
        query, text = (found, "") if isinstance(found, str) else found  # an empty text is still a second one
        return [Pair(self.prompt + query, text)]

    def answer(self, requests: list[Request], options: RankingOptions) -> list[Any]:
        scores = probabilities(logits_of_texts(requests)[:, 0], options.function_to_apply)
        return [{"score": float(score)} for score in scores]


def stored_function(model: Model, described: Mapping[str, Any]) -> str:
    """Returns the function_to_apply of the activation that sentence-transformers stored; "sigmoid" without one.

    described: as from `cross_encoder_settings`. Its activation precedes those of config.json, from earlier versions.
    Raises NpformerError for an activation other than Identity and Sigmoid.
    """
    if model.folder is None:
        return "sigmoid"
    path, where, stored = home(model.folder) / DESCRIPTION, "activation_fn", described.get("activation_fn")
    if stored is None:
        path = model.folder / CONFIG
        older = read_json(path, model.limits, "config")
        where, stored = OLDER, older.get(OLDER)
        newer = older.get("sentence_transformers")
        if isinstance(newer, dict) and "activation_fn" in newer:
            where, stored = "sentence_transformers.activation_fn", newer["activation_fn"]
    if stored is None:
        return "sigmoid"
    known = re.fullmatch(rf"torch\.nn\.(?:modules\.\w+\.)?({'|'.join(FUNCTIONS)})", str(stored))
    if known is None:
        raise NpformerError(
            f"{path}: {where}: expected torch's Identity or Sigmoid, got {shown(stored)}; "
            "give function_to_apply, 'sigmoid' or 'none'"
        )
    return FUNCTIONS[known[1]]
