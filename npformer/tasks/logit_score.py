"""Rerankers that are causal language models. The score is the logit of one token, or the difference between two logits.

sentence-transformers calls this module LogitScore; Qwen3-Reranker has it. The model reads a query and a text in its
chat template, and the logits of "yes" and "no" at the last token give the score. `ranker` makes a model with a single
label, which computes no other logits: x w_yes - x w_no = x (w_yes - w_no).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint.modules import encoder_folder, home, read_modules
from npformer.checkpoint.read import CONFIG
from npformer.common.checks import one_of, shown, whole
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.model import Model
from npformer.tasks.sentence_folder import SETTINGS
from npformer.text.chat_template import PairTemplate, pair_template
from npformer.text.encoding import Encoded

KIND = "LogitScore"


class LogitScore(NamedTuple):
    """The tokens that determine the score, and the form of the messages."""

    true_id: int
    false_id: int | None
    structured: bool
    variables: dict[str, Any]  # variables of the chat template


def is_logit_score(folder: Path) -> bool:
    """Returns whether a sentence-transformers folder has a LogitScore module."""
    return KIND in [each.kind for each in read_modules(folder)]


def read_logit_score(folder: Path) -> LogitScore:
    """Reads the settings of a folder with a LogitScore module. Raises NpformerError for invalid settings."""
    kinds = [each.kind for each in read_modules(folder)]
    if kinds != ["Transformer", KIND]:
        raise NpformerError(f"{folder}: expected the modules Transformer, {KIND}, got {', '.join(kinds):.200}")
    path = folder / read_modules(folder)[1].path / CONFIG
    described = read_json(path)
    one_of(f"{path}: module_input_name", described.get("module_input_name", "causal_logits"), ("causal_logits",))
    true_id = whole(f"{path}: true_token_id", described.get("true_token_id"), 0)
    false_id = described.get("false_token_id")
    if false_id is not None:
        whole(f"{path}: false_token_id", false_id, 0)
    path = encoder_folder(folder) / f"sentence_{SETTINGS[0]}_config.json"
    settings = read_json(path) if path.exists() else {}
    modalities, given = settings.get("modality_config") or {}, settings.get("processing_kwargs") or {}
    try:
        structured = modalities["message"]["format"] == "structured" if "message" in modalities else False
        variables = dict(given.get("chat_template") or {})
    except (TypeError, KeyError, AttributeError, ValueError):
        raise NpformerError(
            f"{path}: expected modality_config and processing_kwargs to be objects, "
            f"got {shown(modalities)} and {shown(given)}"
        ) from None
    return LogitScore(true_id, false_id, structured, variables)


def ranker(model: Model, score: LogitScore) -> Model:
    """Returns the model with the score as its only label: its output weight is (D, 1) instead of (D, V)."""
    if model.config.head != "causal-lm":
        raise NpformerError(f"{model.folder}: {KIND} needs a causal-lm model, got a {model.config.head} model")
    ids = [score.true_id] if score.false_id is None else [score.true_id, score.false_id]
    if max(ids) >= model.config.vocab_size:
        raise NpformerError(f"{KIND}: token id {max(ids)} is outside the vocabulary of {model.config.vocab_size}")
    rows = model.weights["head"]["output"]["weight"].T[np.array(ids)]
    column = rows[0] if score.false_id is None else rows[0] - rows[1]
    weights = {**model.weights, "head": {"output": {"weight": column[:, None].copy()}}}
    config = replace(
        model.config, head="sequence-classification", labels=("SCORE",), tied=False, padding_idx=None, problem_type=None
    )
    made = Model(config, weights, model.folder, model.threads, model.same_bits, model.limits)
    if not model.tokenizer.num_special_tokens_to_add(False):
        made.tokenizer = model.tokenizer
        return made
    from tokenizers import processors

    # The template already has all special tokens.
    made.tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


class RankingTemplate:
    """Renders pairs with a reranker's chat template, and restores the end of the template in truncated texts."""

    def __init__(self, model: Model, score: LogitScore) -> None:
        if model.folder is None:
            raise NpformerError(f"{KIND}: expected a model loaded from a folder with a chat template")
        self.tokenizer = model.tokenizer
        self._read = lru_cache(2)(
            lambda with_system: pair_template(Path(model.folder or ""), with_system, score.variables, score.structured)
        )

    def text(self, prompt: str, query: str, document: str) -> str:
        """Renders a query and a text, with the prompt as the system message."""
        template: PairTemplate = self._read(bool(prompt))
        return template(system=prompt, query=query, document=document)

    def restore(self, encoded: Encoded, prompt: str) -> None:
        """Replaces the last ids of a truncated text with the end of the template, as sentence-transformers does."""
        if not encoded.truncated:
            return
        ids, end = encoded.texts[0].ids, self._end_ids(prompt)
        kept = end[-len(ids) :]
        ids[len(ids) - len(kept) :] = kept

    def _end_ids(self, prompt: str) -> list[int]:
        """Returns the tokens with which the template ends every text: the common end of two different texts."""
        first, second = (self.tokenizer.encode(self.text(prompt, each, each)).ids for each in ("0", "1 2 3 4"))
        count = 0
        while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
            count += 1
        return list(first[len(first) - count :])


def of_folder(model: Model) -> LogitScore | None:
    """Returns the settings of the LogitScore module in a model's folder, or None without such a module."""
    if model.folder is None or not is_logit_score(home(model.folder)):
        return None
    return read_logit_score(home(model.folder))
