"""token-classification: the label of each token, or entities made of neighbouring tokens.

A label B-X begins an entity of kind X, and I-X continues it (Ramshaw and Marcus, 1995).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from npformer.common.checks import one_of
from npformer.engine.output_heads.formulas import probabilities
from npformer.model import Model
from npformer.tasks.declaration import Form
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task
from npformer.text.inputs import Pair, as_text, as_texts
from npformer.text.tokenizer import special_token

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class TokenOptions(Options):
    """Options of `TokenClassification`."""

    aggregation_strategy: str = "none"
    ignore_labels: Sequence[str] = ("O",)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("aggregation_strategy", self.aggregation_strategy, STRATEGIES)
        as_texts(self.ignore_labels, "ignore_labels")


class Token(NamedTuple):
    """A token with its label scores, or a word if the strategy labels whole words."""

    text: str  # the token's string, or the characters of an unknown token
    scores: np.ndarray
    place: int
    start: int  # position in the text: characters start ... end - 1
    end: int
    goes_on: bool  # whether the token continues the word of the previous token

    @property
    def best(self) -> int:
        return int(self.scores.argmax())


class TokenClassification(Task):
    """Returns a list for each text: a dict for each token, or, with a strategy, a dict for each entity.

    A token has "entity", "score", "index", "word", "start" and "end". An entity has "entity_group", "score", "word",
    "start" and "end". "start" and "end" are character positions. If entities in
    neighbouring windows overlap, only the longest is returned, or the best-scoring one if they are equally long.

    Parameters
    ----------
    model : Model with a token-classification head
    aggregation_strategy : "none", "simple", "first", "average" or "max"
        "simple" joins neighbouring tokens of one kind into an entity. "first", "average" and "max" do so too, but first
        give all tokens of a word the same label: the label of the first token, the label with the highest mean score
        over the tokens, or the label of the token with the highest score.
    ignore_labels : list of str
        Labels, or kinds of entities, to leave out.
    **options : options common to all tasks; see `Options`

    References
    ----------
    Devlin et al., 2019, section 5.3; Ramshaw and Marcus, 1995, for the labels.

    Examples
    --------
    With a model from the hub::

        tag = npformer.pipeline("ner", "dslim/bert-base-NER", aggregation_strategy="simple")
        tag("My name is Sarah")[0]["entity_group"]
    """

    name = "token-classification"
    options_type = TokenOptions
    form = Form(several="entities")

    def __init__(self, model: Model, **options: Any) -> None:
        super().__init__(model, **options)
        tokenizer = model.tokenizer
        # a unigram model has no `unk_token`
        unknown = getattr(tokenizer.model, "unk_token", None) or special_token(model.folder, model.config, "unk_token")
        self._unknown = tokenizer.token_to_id(unknown)
        self._join = tokenizer.decoder.decode if tokenizer.decoder else " ".join
        self._has_prefix = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def columns(self) -> dict[str, Any]:
        tokens = self.options.aggregation_strategy == "none"
        kind = {"entity" if tokens else "entity_group": str, "score": np.floating}
        index = {"index": int} if tokens else {}
        return {self.form.several: [{**kind, **index, "word": str, "start": int, "end": int}]}

    def findings(self, text: str, answer: Any) -> list[str]:
        return [
            f"{each.get('entity_group', each.get('entity'))}  {each['score']:.4f}  {each['start']}-{each['end']}  "
            f"{text[each['start'] : each['end']]}"
            for each in answer
        ]

    def inputs(self, item: Any, options: TokenOptions) -> list[str | Pair]:
        return [as_text(item)]

    def answer(self, requests: list[Request], options: TokenOptions) -> list[Any]:
        logits = [output["logits"] for request in requests for output in request.outputs[0]]
        ends = np.cumsum([len(each) for each in logits])
        scores = iter(np.split(probabilities(np.concatenate(logits)), ends[:-1]))
        answers = []
        for request in requests:
            entities = []
            for first, piece in zip(request.encoded[0].starts, request.encoded[0].pieces, strict=True):
                tokens = self._tokens(request.item, piece, next(scores), first)
                entities += [each for each in self._entities(tokens, options) if not _ignored(each, options)]
            answers.append(_without_overlaps(entities) if len(request.encoded[0].pieces) > 1 else entities)
        return answers

    def _tokens(self, text: str, piece: Any, scores: np.ndarray, first: int) -> list[Token]:
        tokens, ids = [], piece.ids
        for i, (special, (start, end)) in enumerate(zip(piece.special_tokens_mask, piece.offsets, strict=True)):
            if special:
                continue
            # Not from piece.tokens, which has the characters of an unknown token, and the space before an added token.
            word, there = self.model.tokenizer.id_to_token(ids[i]), text[start:end]
            goes_on = (
                len(word) != len(there) if self._has_prefix else start > 0 and " " not in text[start - 1 : start + 1]
            )
            if ids[i] == self._unknown:
                word, goes_on = there, False
            tokens.append(Token(word, scores[i], first + i, start, end, goes_on))
        return tokens

    def _entities(self, tokens: list[Token], options: TokenOptions) -> list[dict[str, Any]]:
        labels = self.model.config.labels
        strategy = options.aggregation_strategy
        if strategy == "none":
            return [_labelled(token, labels) for token in tokens]
        if strategy != "simple":
            tokens = [self._word(word, strategy) for word in _words(tokens)]
        return [self._entity(group, labels) for group in _groups(tokens, labels)]

    def _word(self, tokens: list[Token], strategy: str) -> Token:
        """Joins the tokens of a word, and computes the scores of the word according to the strategy."""
        if strategy == "first":
            scores = tokens[0].scores
        elif strategy == "max":
            scores = max((token.scores for token in tokens), key=lambda scores: scores.max())
        else:
            scores = np.mean([token.scores for token in tokens], axis=0)
        text = self._join([token.text for token in tokens])
        return Token(text, scores, tokens[0].place, tokens[0].start, tokens[-1].end, goes_on=False)

    def _entity(self, tokens: list[Token], labels: Sequence[str]) -> dict[str, Any]:
        """Joins neighbouring tokens of one kind into an entity with their mean score."""
        return {
            "entity_group": labels[tokens[0].best].split("-", 1)[-1],
            "score": float(np.mean([token.scores.max() for token in tokens])),
            "word": self._join([token.text for token in tokens]),
            "start": tokens[0].start,
            "end": tokens[-1].end,
        }


def _labelled(token: Token, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "entity": labels[token.best],
        "score": float(token.scores[token.best]),
        "index": token.place,
        "word": token.text,
        "start": token.start,
        "end": token.end,
    }


def _words(tokens: list[Token]) -> list[list[Token]]:
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.goes_on:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _groups(tokens: list[Token], labels: Sequence[str]) -> list[list[Token]]:
    """Groups neighbouring tokens of one kind. A label that begins with B- starts a new group."""
    groups: list[list[Token]] = []
    last = ""
    for token in tokens:
        label = labels[token.best]
        kind = label[2:] if label.startswith(("B-", "I-")) else label
        if groups and kind == last and not label.startswith("B-"):
            groups[-1].append(token)
        else:
            groups.append([token])
        last = kind
    return groups


def _ignored(entity: dict[str, Any], options: TokenOptions) -> bool:
    return entity.get("entity", entity.get("entity_group")) in options.ignore_labels


def _without_overlaps(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keeps one of several overlapping entities: the longest or, if lengths are equal, the one with the best score."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda each: each["start"]):
        if kept and entity["start"] < kept[-1]["end"]:
            kept[-1] = max(kept[-1], entity, key=lambda each: (each["end"] - each["start"], each["score"]))
        else:
            kept.append(entity)
    return kept
