"""fill-mask: the words that a masked language model predicts for [MASK]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from npformer.base_model import expect_finite
from npformer.common.errors import NpformerError, warn
from npformer.engine.output_heads.formulas import probabilities
from npformer.engine.taps import listening
from npformer.model import Model
from npformer.tasks.declaration import Form
from npformer.tasks.feature_extraction import vectors
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task, without_head
from npformer.text.inputs import Pair, as_text, as_texts
from npformer.text.tokenizer import special_token

MASKS = 64  # number of masks scored at once over the whole vocabulary


@dataclass(frozen=True)
class FillOptions(Options):
    """Options of `FillMask`."""

    top_k: int = 5
    targets: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        targets = [self.targets] if isinstance(self.targets, str) else self.targets
        if targets is not None:
            object.__setattr__(self, "targets", tuple(as_texts(targets, "targets")))
            if not self.targets:
                raise NpformerError("targets: expected at least one word")


class FillMask(Task):
    """Returns the most likely words for a text's mask: dicts of "score", "token", "token_str", "sequence", best first.

    A text with several masks gives one list per mask. While one mask is filled, the others stay in the text. Unlike in
    transformers.pipeline, a list of one text gives a list of one answer.

    Parameters
    ----------
    model : Model with a masked-lm head
    top_k : int
        Number of words.
    targets : str or list of str, optional
        Score only these words. A word outside the vocabulary is replaced with its first token.
    **options : options common to all tasks; see `Options`

    References
    ----------
    Devlin et al., 2019, section 3.1.

    Examples
    --------
    With a model from the hub::

        fill = npformer.pipeline("fill-mask", "distilbert/distilbert-base-uncased")
        fill("I love [MASK] cream", top_k=1)[0]["token_str"]
    """

    name = "fill-mask"
    options_type = FillOptions
    form = Form(
        {"score": np.floating, "token": int, "token_str": str, "sequence": str},
        several="masks",
        line="{score:.4f}  {token_str}",
    )

    def __init__(self, model: Model, **options: Any) -> None:
        self._warned: set[str] = set()
        self._target_ids = lru_cache(16)(self._ids_of)  # a cache, because requests may have different targets
        super().__init__(model, **options)
        self.encoder_model = without_head(model)
        self.mask = special_token(model.folder, model.config, "mask_token")
        self.mask_id = model.tokenizer.token_to_id(self.mask)
        if self.mask_id is None or self.mask_id >= model.config.vocab_size:
            raise NpformerError(f"{self.name}: the tokenizer has no mask token {self.mask}")

    def settle(self, options: Any, given: Mapping[str, Any]) -> Any:
        settled: FillOptions = super().settle(options, given)
        self._target_ids(settled.targets)
        return settled

    def answers(self, items: Iterator[Any], options: FillOptions, quiet: bool = False) -> Iterator[Any]:
        """As in `Task`. Warns about words outside the vocabulary (see `targets`)."""
        for target in dict.fromkeys(options.targets or ()):
            if target not in self._warned and self.model.tokenizer.token_to_id(target) is None:
                self._warned.add(target)
                first = self.model.tokenizer.id_to_token(self._target_id(target))
                warn(f"targets: {target!r} is not a token of the vocabulary; using its first token {first!r}")
        return super().answers(items, options, quiet)

    def n_answer_tokens(self, request: Request, options: FillOptions) -> int:
        ids = np.concatenate([text.ids for text in request.encoded[0].texts])
        return int((ids == self.mask_id).sum()) * options.top_k * len(ids)

    def columns(self) -> dict[str, Any]:
        return {self.form.several: [[self.form.fields]]}

    def values(self, answer: Any) -> dict[str, Any]:
        return {self.form.several: answer if isinstance(answer[0], list) else [answer]}

    def findings(self, text: str, answer: Any) -> list[str]:
        masks = self.values(answer)[self.form.several]
        found = []
        for number, words in enumerate(masks, 1):
            found += [f"mask {number}"] if len(masks) > 1 else []
            found += super().findings(text, words)
        return found

    def runner(self) -> Model:
        """Returns the encoder, because `answer` runs the head only at masks; with a listener, the whole model."""
        return self.model if listening() else self.encoder_model

    def inputs(self, item: Any, options: FillOptions) -> list[str | Pair]:
        return [as_text(item)]

    def answer(self, requests: list[Request], options: FillOptions) -> list[Any]:
        texts = [self._masks(request) for request in requests]
        if listening():
            whole = probabilities(np.concatenate([states for _, _, states in texts]))
            masks_of_all = np.concatenate([ids for ids, _, _ in texts]) == self.mask_id
            words = self._words(whole[masks_of_all], options)
        else:
            rows = np.concatenate([states[places] for _, places, states in texts])
            batches = (rows[i : i + MASKS] for i in range(0, len(rows), MASKS))
            logits = (word_logits(self.model, batch, "mask") for batch in batches)
            words = (word for each in logits for word in self._words(probabilities(each), options))
        answers: list[Any] = []
        for ids, places, _ in texts:
            masks = [
                [self._filled(ids, place, *each, alone=len(places) == 1) for each in next(words)] for place in places
            ]
            if not masks:
                answers.append(NpformerError(f"no {self.mask} in the part of the text that the model read"))
            else:
                answers.append(masks[0] if len(masks) == 1 else masks)
        return answers

    def _masks(self, request: Request) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the ids (L,) of a text, the positions of its masks, and the model's output at each token (L, ...)."""
        pairs = zip(request.encoded[0].pieces, request.encoded[0].rows(), strict=True)
        ids = np.concatenate([np.array(piece.ids)[rows] for piece, rows in pairs])
        return ids, np.flatnonzero(ids == self.mask_id), vectors(request)

    def _words(self, scores: np.ndarray, options: FillOptions) -> Iterator[list[tuple[int, float]]]:
        """Yields the most likely tokens at each mask with their probabilities, given probabilities (M, V)."""
        targets = self._target_ids(options.targets)
        for row in scores if targets is None else scores[:, targets]:
            count = min(options.top_k, len(row))
            best = np.argpartition(-row, count - 1)[:count]
            best = best[np.lexsort((best, -row[best]))]
            yield [(int(each if targets is None else targets[each]), float(row[each])) for each in best]

    def _filled(self, ids: np.ndarray, place: int, token: int, score: float, alone: bool) -> dict[str, Any]:
        decode = self.model.tokenizer.decode
        filled = ids.tolist()
        filled[place] = token
        return {
            "score": score,
            "token": token,
            "token_str": decode([token], skip_special_tokens=False),
            "sequence": decode(filled, skip_special_tokens=alone),  # with several masks, the others stay in the text
        }

    def _ids_of(self, targets: tuple[str, ...] | None) -> np.ndarray | None:
        """Returns the ids of the target words."""
        return None if targets is None else np.unique([self._target_id(each) for each in targets])

    def _target_id(self, target: str) -> int:
        tokenizer = self.model.tokenizer
        token = tokenizer.token_to_id(target)
        if token is not None:
            return int(token)
        pieces = tokenizer.encode(target, add_special_tokens=False)
        if not pieces.ids:
            raise NpformerError(f"targets: {target!r:.80} has no token in the vocabulary")
        return int(pieces.ids[0])


def word_logits(model: Model, states: np.ndarray, of: str) -> np.ndarray:
    """Returns the masked-lm head's logits (T, V) for rows of the last layer (T, D). `of`: name of a row in an error."""
    with model.cores():
        logits = model.parts.head(states, states, model.weights)["logits"]
    expect_finite([{"logits": each} for each in logits], of)
    return logits
