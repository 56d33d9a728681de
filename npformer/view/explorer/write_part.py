"""The tab `Write`: the next words of a causal model, or the beams of a translator. Script: `assets/write.js`."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.generation import generate
from npformer.interpret.next_words import TEMPERATURES, next_words
from npformer.interpret.study_inputs import read_inputs
from npformer.text.words import piece_names
from npformer.view.answer_data import LEAST
from npformer.view.explorer.reading import room_to_write

WORDS = 100  # number of words that are listed and can be sampled
BEAMS = 5


def write_view(model: Any, given: Any, text: str) -> dict[str, Any]:
    """Returns the data of the tab. Raises NpformerError for a model that writes no text."""
    about = {"kind": "write", "heading": "Write", "subtitle": text, "title": f"Write: {text}", "arrays": {}}
    if model.config.head == "causal-lm":
        return about | _words(model, given)
    if model.config.head == "translation":
        return about | _beams(model, given)
    raise NpformerError("Write needs a model that writes: a causal model, or a translator.")


def _words(model: Any, given: Any) -> dict[str, Any]:
    """Returns the next words with logits, and a total for all others, for exact probabilities at any temperature."""
    room = room_to_write(model, given)
    config, found = model.config, next_words(model, given, WORDS)
    ids = read_inputs(model, given).inputs[0].ids.tolist()
    logits = model.run([read_inputs(model, given).inputs[0]])[0]["logits"][-1]
    order = np.argsort(-logits.astype(np.float64), kind="stable")[: len(found.words)].tolist()
    before = model.tokenizer.decode(ids)
    texts = [model.tokenizer.decode([*ids, each]) for each in order]
    size = 2 * config.n_layers * config.kv_heads * config.d_head * model.dtype.itemsize
    return {
        "notes": [
            "The logits are divided by the temperature; then top-k keeps the k largest,",
            "and top-p keeps the fewest words with a total probability of at least p.",
        ],
        "room": room, "words": found.words, "logits": found.logits.tolist(),
        "append": [_after(before, each, word) for each, word in zip(texts, found.words, strict=True)],
        "temperatures": TEMPERATURES, "others": np.maximum(found.others, LEAST).tolist(),
        "cache": {"tokens": len(ids), "token": size, "what": f"{config.n_layers} layers, {config.kv_heads} heads"},
    }  # fmt: skip


def _after(before: str, text: str, word: str) -> str:
    """Returns the text that a token appends to the preceding text."""
    return text[len(before) :] if text.startswith(before) else word


def _beams(model: Any, given: Any) -> dict[str, Any]:
    """Returns the beams, best first, with the probability of each token given the tokens before it."""
    ((source, _),) = read_inputs(model, given).inputs
    (hypotheses,) = generate(model, [source], output_scores=True, num_beams=BEAMS, num_return_sequences=BEAMS)
    beams = []
    for each in hypotheses:
        assert each.token_scores is not None
        beams.append({
            "tokens": list(piece_names(model.tokenizer.tokens(each.ids.tolist(), False))),
            "shares": np.exp(each.token_scores.astype(np.float64)).tolist(),
            "score": each.score, "text": model.tokenizer.decode(each.ids.tolist()),
        })  # fmt: skip
    notes = [f"A beam search with {BEAMS} beams.", "Scores are log probabilities, divided by the length."]
    return {"notes": notes, "beams": beams}
