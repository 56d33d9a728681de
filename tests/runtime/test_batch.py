"""Packing and shards, and every form in which a caller may hand over token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.errors import NpformerError
from npformer.runtime.batch import SHARD, SMALL_SHARD, Text, as_padded, pack, shards

pytestmark = pytest.mark.numbers

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=300)


def text(*ids: int, **fields: Any) -> Text:
    return Text(np.array(ids), **{name: np.array(values) for name, values in fields.items()})


# --- packing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ids": [1, 2]}, r"Text: ids: expected an array of whole numbers, \(L,\), got list"),
        ({"ids": np.ones(3)}, r"Text: ids: expected an array of whole numbers, \(L,\), got float64 \(3,\)"),
        ({"ids": np.ones((1, 3), int)}, r"got int64 \(1, 3\)"),
        (
            {"ids": np.arange(4), "segments": np.zeros(3, int)},
            "Text: segments: expected 4 of them, one for each id, got 3",
        ),
        (
            {"ids": np.arange(4), "positions": np.arange(5)},
            "Text: positions: expected 4 of them, one for each id, got 5",
        ),
    ],
)
def test_texts_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        Text(**fields)


def test_pack() -> None:
    batch = pack([text(5, 6, 7), text(8, segments=[1]), text(9, 9, segments=[0, 1], positions=[2, 4])])
    assert batch.ids.tolist() == [5, 6, 7, 8, 9, 9]
    assert batch.positions.tolist() == [0, 1, 2, 0, 2, 4]
    assert batch.segments.tolist() == [0, 0, 0, 1, 0, 1]
    assert batch.lengths.tolist() == [3, 1, 2]
    assert batch.first.tolist() == [0, 3, 4]


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_split_undoes_pack(lengths: list[int]) -> None:
    texts = [Text(np.full(length, i)) for i, length in enumerate(lengths)]
    batch = pack(texts)
    for given_, found in zip(texts, batch.split(batch.ids), strict=True):
        assert np.array_equal(given_.ids, found)
    assert [part.shape for part in batch.split(np.zeros((sum(lengths), 2, 3)))] == [(n, 2, 3) for n in lengths]


# --- shards ----------------------------------------------------------------------------------------------------------


@given(lengths=LENGTHS, threads=st.integers(1, 5))
def test_shards_hold_every_text_once(lengths: list[int], threads: int) -> None:
    groups = shards(lengths, threads)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(groups)
    in_order = [lengths[index] for group in groups for index in group]
    assert in_order == sorted(lengths, reverse=True)


@given(lengths=LENGTHS, threads=st.integers(1, 5))
def test_shards_are_of_about_one_size(lengths: list[int], threads: int) -> None:
    """None holds much more than its share, so that no core waits long for another, and memory stays small."""
    sizes = [sum(lengths[index] for index in group) for group in shards(lengths, threads)]
    share = min(SHARD, max(sum(lengths) / threads, SMALL_SHARD * threads))
    assert max(sizes) <= share + max(lengths)


def test_few_tokens_are_one_shard() -> None:
    assert shards([6], 2) == [[0]]
    assert shards([6, 9, 9], 2) == [[1, 2, 0]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_has_a_shard(threads: int) -> None:
    assert len(shards([100] * 30, threads)) % threads == 0


# --- what a caller hands a model -------------------------------------------------------------------------------------


def shapes(*args: Any) -> tuple[list, list, list]:
    ids, mask, segments = as_padded(*args)
    assert ids.shape == mask.shape == segments.shape
    assert mask.dtype == bool
    return ids.tolist(), mask.astype(int).tolist(), segments.tolist()


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
        ((5,), ["input_ids", "()"]),
        (("text",), ["input_ids", "whole numbers"]),
        ((["a", "b"],), ["input_ids", "whole numbers"]),
        (([1.5, 2],), ["input_ids", "whole numbers", "float64"]),
        (([True, False],), ["input_ids", "whole numbers", "bool"]),
        (([1, None],), ["input_ids", "whole numbers"]),
        ((None,), ["input_ids", "whole numbers"]),
        (([2**80, 1],), ["input_ids", "whole numbers"]),
        (([[1, 2], 3],), ["input_ids", "whole numbers"]),
        (([[1, 2], ["a"]],), ["input_ids[1]", "whole numbers"]),
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
def test_errors_name_the_argument_and_what_came(given_: tuple, words: list[str]) -> None:
    with pytest.raises(NpformerError) as caught:
        as_padded(*given_, *[None] * (3 - len(given_)))
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_batch_that_is_filled_up_has_the_same_texts() -> None:
    """Rows of no text stand behind the texts' own; every column of the batch has them, the lengths do not count them."""
    batch = pack([Text(np.array([5, 6, 7]), np.array([0, 1, 1])), Text(np.array([8]))])
    filled = batch.filled(12)
    assert filled.ids.tolist() == [5, 6, 7, 8] + [0] * 8
    assert (len(filled.positions), len(filled.segments)) == (12, 12)
    assert filled.lengths.tolist() == [3, 1]
    assert batch.filled(4).ids.tolist() == batch.ids.tolist()
