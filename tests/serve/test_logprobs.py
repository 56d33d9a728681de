"""The texts that stand for tokens in lists of log probabilities."""

from __future__ import annotations

import numpy as np

from npformer.generation.logits import Best
from npformer.serve.logprobs import of_completion, scored
from tests.support import byte_fallback, byte_level


def test_texts_of_tokens_join_to_the_text() -> None:
    """Llama 2's decoder drops the space before the first token of a text, but not before other tokens."""
    tokenizer = byte_fallback.tokenizer()
    ids = [*(tokenizer.token_to_id(each) for each in ("▁the", "▁a", "a", "▁", "▁a")), *byte_fallback.of_bytes("\n")]
    likely = Best(np.array([ids, ids]).T, np.zeros((6, 2)))
    found = scored(tokenizer, likely, "length")
    assert [each.text for each in found] == ["the", " a", "a", " ", " a", "\n"]
    assert "".join(each.text for each in found) == tokenizer.decode(ids)
    assert [each.best[0][0] for each in found] == [each.text for each in found]
    assert of_completion(found, 0)["text_offset"] == [0, 3, 5, 6, 7, 9]
    later = scored(tokenizer, Best(likely.tokens[1:], likely.scores[1:]), None, begins=False)
    assert [each.text for each in later] == [" a", "a", " ", " a", "\n"]


def test_texts_of_byte_level_tokens() -> None:
    tokenizer = byte_level.tokenizer()
    ids = tokenizer.encode("yes é").ids
    likely = Best(np.array([ids]).T, np.zeros((len(ids), 1)))
    found = [each.text for each in scored(tokenizer, likely, None)]
    assert found == ["yes", " ", "\ufffd", "\ufffd", byte_level.END]


def test_the_most_likely_of_several_tokens_with_one_text_counts() -> None:
    """All incomplete characters have the same text, and so do all rows of a padded table without a token."""
    tokenizer = byte_level.tokenizer()
    first, second = tokenizer.encode("é").ids[:2]
    likely = Best(np.array([[first, first, second]]), np.array([[-0.25, -0.25, -2.0]]))
    assert of_completion(scored(tokenizer, likely, None), 0)["top_logprobs"] == [{"\ufffd": -0.25}]
