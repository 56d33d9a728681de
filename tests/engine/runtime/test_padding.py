"""Every form of token ids that a caller may pass, and the conversion from texts back to padded arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.padding import as_padded, check_texts, padded, unpadded

ENCODING = Tokenizer(WordLevel({"a": 0}, "a")).encode("a a")


def shapes(*args: Any) -> tuple[list, list, list]:
    ids, mask, token_types = as_padded(*args)
    assert ids.shape == mask.shape == token_types.shape
    assert mask.dtype == bool
    return ids.tolist(), mask.astype(int).tolist(), token_types.tolist()


@pytest.mark.parametrize("ids", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), np.array([1, 2, 3], np.uint8)])
def test_one_sequence(ids: Any) -> None:
    assert shapes(ids, None, None) == ([[1, 2, 3]], [[1, 1, 1]], [[0, 0, 0]])
    assert shapes(ids, [1, 0, 1], [0, 1, 1]) == ([[1, 2, 3]], [[1, 0, 1]], [[0, 1, 1]])


@pytest.mark.parametrize("mask", [[[1, 1], [1, 0]], np.array([[True, True], [True, False]]), [[1.0, 1.0], [1.0, 0.0]]])
def test_a_padded_array(mask: Any) -> None:
    assert shapes([[1, 2], [3, 0]], mask, None) == ([[1, 2], [3, 0]], [[1, 1], [1, 0]], [[0, 0], [0, 0]])


@pytest.mark.parametrize(
    "ids", [[[1, 2], [3]], [np.array([1, 2]), np.array([3])], ([1, 2], (3,)), [np.array([1, 2], np.int32), [3]]]
)
def test_a_ragged_list(ids: Any) -> None:
    assert shapes(ids, None, None) == ([[1, 2], [3, 0]], [[1, 1], [1, 0]], [[0, 0], [0, 0]])
    assert shapes(ids, None, [[0, 1], [1]]) == ([[1, 2], [3, 0]], [[1, 1], [1, 0]], [[0, 1], [1, 0]])


def test_choices() -> None:
    ids, mask, _ = as_padded(np.ones((2, 3, 4), int), None, None)
    assert ids.shape == mask.shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        (([],), ["input_ids"]),
        (([[]],), ["input_ids", "at least one"]),
        (([[1], []],), ["input_ids[1]", "at least one"]),
        ((5,), ["input_ids", "a single number"]),
        (("text",), ["input_ids", "got text"]),
        ((["a", "b"],), ["input_ids", "got text"]),
        (([1.5, 2],), ["input_ids", "whole numbers", "float64"]),
        (({"input_ids": [[1]]},), ["input_ids", "got dict", "model(**inputs)"]),
        ((ENCODING,), ["input_ids", "got Encoding", "model(encoding.ids, token_type_ids=encoding.type_ids)"]),
        (([ENCODING, ENCODING],), ["input_ids", "got Encoding"]),
        (([True, False],), ["input_ids", "whole numbers", "bool"]),
        (([1, None],), ["input_ids", "whole numbers"]),
        ((None,), ["input_ids", "whole numbers"]),
        (([2**80, 1],), ["input_ids", "whole numbers"]),
        (([[1, 2], 3],), ["input_ids", "whole numbers"]),
        (([[1, 2], ["a"]],), ["input_ids[1]", "got text"]),
        (([[[1, 2], [3]], [[4], [5]]],), ["input_ids", "whole numbers"]),
        (([[1, 2], [3, 4]], [1, 1]), ["attention_mask", "(2, 2)", "(2,)"]),
        (([[1, 2], [3, 4]], [[1, 1], [1]]), ["attention_mask"]),
        (([[1, 2], [3, 4]], [[1, 2], [1, 0]]), ["attention_mask", "zeros and ones"]),
        (([[1, 2], [3, 4]], [[1, np.nan], [1, 0]]), ["attention_mask", "zeros and ones"]),
        (([[1, 2], [3, 4]], [["1", "1"], ["1", "0"]]), ["attention_mask", "zeros and ones"]),
        (([[1, 2], [3, 4]], [[1, 1], [0, 0]]), ["attention_mask", "row 1", "all zeros"]),
        (([[[1, 2]], [[3, 4]]], [[[1, 1]], [[0, 0]]]), ["attention_mask", "row 1", "all zeros"]),
        (([1, 2], None, [0]), ["token_type_ids", "(2,)", "(1,)"]),
        (([1, 2], None, [0.0, 1.0]), ["token_type_ids", "whole numbers", "float64"]),
        (([[1, 2], [3]], [[1, 1], [1]]), ["attention_mask", "ragged"]),
        (([[1, 2], [3]], None, [[0, 0], [0, 0]]), ["token_type_ids[1]", "1", "(2,)"]),
        (([[1, 2], [3]], None, [[0, 0]]), ["token_type_ids", "2 sequences"]),
        (([[1, 2], [3]], None, 0), ["token_type_ids"]),
    ],
)
def test_errors_name_the_argument_and_its_value(given_: tuple, words: list[str]) -> None:
    with pytest.raises(NpformerError) as caught:
        as_padded(*given_, *[None] * (3 - len(given_)))
    assert [word for word in words if word not in str(caught.value)] == []


def test_texts_without_padding_and_back() -> None:
    ids, mask = np.array([[5, 6, 0], [0, 7, 8]]), np.array([[True, True, False], [False, True, True]])
    texts = unpadded(ids, mask, ids + 1)
    assert [text.ids.tolist() for text in texts] == [[5, 6], [7, 8]]
    assert [text.positions.tolist() for text in texts if text.positions is not None] == [[0, 1], [1, 2]]
    assert [text.token_type_ids.tolist() for text in texts if text.token_type_ids is not None] == [[6, 7], [8, 9]]
    assert [text.token_type_ids for text in unpadded(ids, mask)] == [None, None]
    assert np.array_equal(padded([text.ids for text in texts], mask), ids)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (Text(np.arange(0)), "ids: text 1 has no tokens"),
        (Text(np.arange(5)), "ids: expected at most 4 tokens, got 5 in text 1"),
        (Text(np.array([1, 9])), "ids: 9 of text 1 is outside the vocabulary, 0 ... 8"),
        (Text(np.array([-1])), "ids: -1 of text 1 is outside the vocabulary, 0 ... 8"),
        (Text(np.array([1]), np.array([2])), "token_type_ids: 2 of text 1 is outside the token types, 0 ... 1"),
        (Text(np.array([1]), None, np.array([4])), "position: 4 of text 1 is outside the model's positions, 0 ... 3"),
    ],
)
def test_ids_without_a_row_in_the_tables(text: Text, message: str) -> None:
    good = Text(np.array([0, 8]), np.array([0, 1]), np.array([3, 0]))
    check_texts([good], 4, 9, 2, "ids")
    with pytest.raises(NpformerError) as caught:
        check_texts([good, text], 4, 9, 2, "ids")
    assert str(caught.value) == message
