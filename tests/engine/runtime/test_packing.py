"""Packing texts into rows, and dividing the rows into shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import SHARD, SMALL_SHARD, Text, pack, shards

pytestmark = pytest.mark.numbers

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=300)


def text(*ids: int, **fields: Any) -> Text:
    return Text(np.array(ids), **{name: np.array(values) for name, values in fields.items()})


# --- packing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ids": ["a"]}, r"Text: ids: expected an array of real numbers, got <U1"),
        ({"ids": np.ones(3)}, r"Text: ids: expected an array \(L,\) of whole numbers, got float64 \(3,\)"),
        ({"ids": np.ones((1, 3), int)}, r"got int64 \(1, 3\)"),
        (
            {"ids": np.arange(4), "token_type_ids": np.zeros(3, int)},
            "Text: token_type_ids: expected 4 values, one for each id, got 3",
        ),
        (
            {"ids": np.arange(4), "positions": np.arange(5)},
            "Text: positions: expected 4 values, one for each id, got 5",
        ),
    ],
)
def test_texts_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        Text(**fields)


def test_pack() -> None:
    batch = pack([text(5, 6, 7), text(8, token_type_ids=[1]), text(9, 9, token_type_ids=[0, 1], positions=[2, 4])])
    assert batch.ids.tolist() == [5, 6, 7, 8, 9, 9]
    assert batch.positions.tolist() == [0, 1, 2, 0, 2, 4]
    assert batch.token_type_ids.tolist() == [0, 0, 0, 1, 0, 1]
    assert batch.lengths.tolist() == [3, 1, 2]
    assert batch.read.tolist() == [0, 3, 4]


def test_the_last_token_that_is_not_padding_is_read() -> None:
    texts = [Text(np.array(ids)) for ids in ([4, 5, 6], [4, 0, 0], [0], [7])]
    assert pack(texts, last=True, padding=0).read.tolist() == [2, 3, 6, 7]
    assert pack(texts, last=True).read.tolist() == [2, 5, 6, 7]
    pieces = pack([Text(np.arange(1, 9))], last=True).pieces(3)
    assert [each.read.tolist() for each in pieces] == [[], [], [2]]


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
def test_shards_have_similar_sizes(lengths: list[int], threads: int) -> None:
    """No shard is much larger than an equal share, so no core waits long for another, and memory stays small."""
    sizes = [sum(lengths[index] for index in group) for group in shards(lengths, threads)]
    share = min(SHARD, max(sum(lengths) / threads, SMALL_SHARD * threads))
    assert max(sizes) <= share + max(lengths)


def test_few_tokens_are_one_shard() -> None:
    assert shards([6], 2) == [[0]]
    assert shards([6, 9, 9], 2) == [[1, 2, 0]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_has_a_shard(threads: int) -> None:
    assert len(shards([100] * 30, threads)) % threads == 0


def test_a_padded_batch_has_the_same_texts() -> None:
    """Every array of the batch has extra rows at its end, which the lengths do not count."""
    batch = pack([Text(np.array([5, 6, 7]), np.array([0, 1, 1])), Text(np.array([8]))])
    filled = batch.filled(12)
    assert filled.ids.tolist() == [5, 6, 7, 8] + [0] * 8
    assert (len(filled.positions), len(filled.token_type_ids)) == (12, 12)
    assert filled.lengths.tolist() == [3, 1]
    assert batch.filled(4).ids.tolist() == batch.ids.tolist()
