"""Attention: masks as pictures, heads, torch's numbers, unusual shapes and errors, and attention on packed rows."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npformer
from npformer import causal_mask
from npformer.common.errors import NpformerError
from npformer.engine import attention
from npformer.engine.attention import combine_heads, split_heads
from npformer.engine.blocks import Attention, PackedTexts
from npformer.engine.functions import linear
from npformer.engine.masks import padding_mask
from npformer.engine.mechanisms import Causal, Window
from npformer.engine.runtime.packing import equal_runs
from npformer.engine.runtime.threads import single_blas_thread
from npformer.engine.taps import listen
from tests.support import tiny, torch_values
from tests.support.bits import alike
from tests.support.draw import normal
from tests.support.packed import self_attention

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

DTYPES = ("float32", "float64")
CALLS = [name for name, each in torch_values.calls().items() if each["function"] == "scaled_dot_product_attention"]


# --- masks -----------------------------------------------------------------------------------------------------------


def picture(mask: np.ndarray) -> list[str]:
    assert mask.dtype == bool
    return ["".join(str(int(each)) for each in row) for row in mask]


def test_causal_mask() -> None:
    assert picture(causal_mask(4)) == ["1000", "1100", "1110", "1111"]
    assert picture(causal_mask(1)) == ["1"]
    assert causal_mask(0).shape == (0, 0)


def test_causal_mask_of_the_last_queries() -> None:
    assert picture(causal_mask(2, 4)) == ["1110", "1111"]
    assert picture(causal_mask(1, 3)) == ["111"]


def test_padding_mask() -> None:
    mask = padding_mask(np.array([3, 1, 4, 0]))
    assert mask.shape == (4, 1, 1, 4)
    assert picture(mask[:, 0, 0]) == ["1110", "1000", "1111", "0000"]
    assert picture(padding_mask(np.array([1, 2]), width=3)[:, 0, 0]) == ["100", "110"]


# --- heads -----------------------------------------------------------------------------------------------------------


def test_heads_are_columns() -> None:
    x = np.arange(12).reshape(2, 6)  # two tokens, three heads of two columns
    heads = split_heads(x, 3)
    assert heads.tolist() == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]
    assert np.shares_memory(heads, x)


@given(
    lead=st.lists(st.integers(0, 3), max_size=3),
    length=st.integers(0, 5),
    n_heads=st.integers(1, 4),
    k=st.integers(1, 4),
)
def test_split_and_combine_are_inverses(lead: list[int], length: int, n_heads: int, k: int) -> None:
    x = normal(*lead, length, n_heads * k)
    heads = split_heads(x, n_heads)
    assert heads.shape == (*lead, n_heads, length, k)
    assert np.array_equal(combine_heads(heads), x)
    assert np.array_equal(split_heads(combine_heads(heads), n_heads), heads)


@pytest.mark.parametrize("n_heads", [0, -1, 5, 13])
def test_heads_divide_the_width(n_heads: int) -> None:
    with pytest.raises(NpformerError, match=rf"split_heads.*\(2, 12\).*{n_heads}"):
        split_heads(normal(2, 12), n_heads)


# --- scaled dot-product attention ------------------------------------------------------------------------------------


def scaled(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> np.ndarray:
    """Calls scaled dot-product attention with torch's arguments. Floats in the mask are added to the scores."""
    if is_causal:
        mask = np.tri(q.shape[-2], k.shape[-2], dtype=bool)
    add, added = None, mask
    if added is not None and added.dtype != bool:
        mask, add = added != -np.inf, lambda scores: scores + added.astype(scores.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return attention.scaled_dot_product_attention(q, k, v, scale, mask, add)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_torchs_numbers(name: str, dtype: str) -> None:
    arguments, torch32, truth = torch_values.call(name, dtype)
    ours = scaled(**arguments, **torch_values.calls()[name]["options"])
    assert torch_values.wrong(ours, torch32, truth) == ""


def textbook(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Computes softmax(q k^T / sqrt(K)) v in float64, one query at a time, without the masked keys."""
    shape = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, v = (np.broadcast_to(a, (*shape, *a.shape[-2:])).astype(np.float64) for a in (q, k, v))
    admitted = np.broadcast_to(True if mask is None else mask, (*shape, q.shape[-2], k.shape[-2]))
    y = np.zeros((*shape, q.shape[-2], v.shape[-1]))
    for place in np.ndindex(*shape, q.shape[-2]):
        lead, keys = place[:-1], np.flatnonzero(admitted[place])
        if keys.size:
            scores = k[lead][keys] @ q[place] / math.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            y[place] = weights @ v[lead][keys] / weights.sum()
    return y


@given(
    lead=st.lists(st.integers(1, 3), max_size=2),
    queries=st.integers(1, 40),
    keys=st.integers(1, 70),
    width=st.integers(1, 33),
    out=st.integers(1, 33),
    masked=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_textbooks_numbers(
    lead: list[int], queries: int, keys: int, width: int, out: int, masked: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    q, k, v = (random.standard_normal((*lead, *s)) for s in ((queries, width), (keys, width), (keys, out)))
    mask = random.random((*lead, queries, keys)) < 0.3 if masked else None
    expected = textbook(q, k, v, mask)
    assert np.abs(scaled(q, k, v, mask) - expected).max() < 1e-12
    narrow = scaled(*(a.astype(np.float32) for a in (q, k, v)), mask)
    assert narrow.dtype == np.float32
    assert np.abs(narrow - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("q", "k", "v", "mask"),
    [
        ((2, 3, 4, 8), (1, 1, 5, 8), (1, 1, 5, 6), None),
        ((4, 8), (2, 3, 5, 8), (2, 3, 5, 6), None),
        ((2, 3, 4, 8), (5, 8), (5, 6), (4, 5)),
        ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6), (2, 1, 1, 5)),
        ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6), (3, 4, 1)),
        ((2, 1, 4, 8), (1, 3, 5, 8), (3, 5, 6), (5,)),
    ],
)
def test_leading_axes_broadcast(q: tuple, k: tuple, v: tuple, mask: tuple | None) -> None:
    arrays = [normal(*shape, dtype="float64", seed=i) for i, shape in enumerate((q, k, v))]
    admitted = None if mask is None else np.random.default_rng(0).random(mask) < 0.5
    y = scaled(*arrays, admitted)
    expected = textbook(*arrays, admitted)
    assert y.shape == expected.shape
    assert np.abs(y - expected).max() < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_that_may_attend_to_nothing_gets_zeros(dtype: str) -> None:
    q, k, v = (normal(3, 8, dtype=dtype, seed=i) for i in range(3))
    admitted = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], bool)
    for mask in (admitted, np.where(admitted, 0, -np.inf).astype(dtype)):
        y = scaled(q, k, v, mask)
        assert not y[1].any()
        assert np.abs(y - textbook(q, k, v, admitted)).max() < 1e-6
    assert not scaled(q, k, v, np.zeros((1, 3), bool)).any()


def test_masked_keys_have_no_effect() -> None:
    """Even NaN has no effect, because masked values are left out of the sums."""
    q, k, v = (normal(2, 3, 5, 8, seed=i).copy() for i in range(3))
    mask = np.array([1, 1, 0, 1, 0], bool)
    expected = scaled(q, k, v, mask)
    k[..., ~mask, :] = np.nan
    v[..., ~mask, :] = 1e30
    assert np.array_equal(scaled(q, k, v, mask), expected)


def test_nan_in_is_nan_out() -> None:
    q, k, v = (normal(4, 8, seed=i).copy() for i in range(3))
    q[1, 2] = np.nan
    for mask in (None, np.tri(4, dtype=bool), np.zeros((4, 4), np.float32)):
        y = scaled(q, k, v, mask)
        assert np.isnan(y[1]).all()
        assert not np.isnan(y[[0, 2, 3]]).any()
    added = np.zeros((4, 4), np.float32)
    added[2, 0] = np.nan
    assert np.isnan(scaled(np.nan_to_num(q), k, v, added)[2]).all()


def test_dtype_in_is_dtype_out() -> None:
    for dtype in DTYPES:
        q = normal(3, 8, dtype=dtype)
        masks = [None, np.tri(3, dtype=bool), np.zeros((3, 3), "float32"), np.zeros((3, 3), "float64")]
        for mask in masks:
            for scale in (None, 0.5, np.float64(0.5)):
                assert scaled(q, q, q, mask, scale=scale).dtype == dtype


def test_inputs_are_never_written_to() -> None:
    q, k, v, added = (normal(2, 4, 4, seed=i) for i in range(4))
    for array in (q, k, v, added):
        array.flags.writeable = False
    for mask in (None, added, added > 0):
        assert not np.shares_memory(scaled(q, k, v, mask), v)


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((0, 3, 8), (0, 5, 8), (0, 5, 6)),
        ((2, 0, 8), (2, 5, 8), (2, 5, 6)),
        ((2, 3, 8), (2, 0, 8), (2, 0, 6)),
        ((2, 3, 8), (2, 5, 8), (2, 5, 0)),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_nothing_at_all(q: tuple, k: tuple, v: tuple, masked: bool) -> None:
    mask = np.ones((q[-2], k[-2]), bool) if masked else None
    y = scaled(normal(*q), normal(*k), normal(*v), mask)
    assert np.array_equal(y, np.zeros((q[0], q[1], v[-1]), np.float32))


# --- attention on packed rows ----------------------------------------------------------------------------------------


def projections(width: int, dtype: str) -> dict[str, dict[str, np.ndarray]]:
    names = ("query", "key", "value", "output")
    return {
        name: {"weight": normal(width, width, dtype=dtype, seed=i) / 4, "bias": normal(width, dtype=dtype, seed=i)}
        for i, name in enumerate(names)
    }


def test_equal_runs() -> None:
    runs = equal_runs(np.array([2, 2, 3, 1, 1]), np.array([4, 4, 4, 5, 6]))
    queries, keys, n_texts = zip(*runs, strict=True)
    assert [(each.start, each.stop) for each in queries] == [(0, 4), (4, 7), (7, 8), (8, 9)]
    assert [(each.start, each.stop) for each in keys] == [(0, 8), (8, 12), (12, 17), (17, 23)]
    assert n_texts == (2, 1, 1, 1)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_each_text_attends_to_itself(n_heads: int, is_causal: bool) -> None:
    lengths, weights = np.array([3, 3, 1, 7, 7, 7, 2]), projections(24, "float64")
    x = normal(lengths.sum(), 24, dtype="float64")
    y = self_attention(x, lengths, n_heads, is_causal=is_causal, **weights)
    for text, answer in zip(*(np.split(rows, np.cumsum(lengths)[:-1]) for rows in (x, y)), strict=True):
        q, k, v = (split_heads(linear(text, **weights[name]), n_heads) for name in ("query", "key", "value"))
        context = textbook(q, k, v, causal_mask(len(text)) if is_causal else None)
        assert np.abs(linear(combine_heads(context), **weights["output"]) - answer).max() < 1e-12


def test_attention_without_mechanisms_enters_no_function_for_them() -> None:
    entered, own = set(), ("multi_head.py", "packed_texts.py", "mechanism.py", "attention.py", "with_mechanisms.py")

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(own):
            entered.add(frame.f_code.co_qualname)

    model = tiny.model("distilbert", "sequence-classification", threads=1)
    text = npformer.Text(np.arange(5, 11))
    model.run([text])
    sys.setprofile(note)
    try:
        model.run([text])
    finally:
        sys.setprofile(None)
    packed = {"__call__", "_write", "_write.<locals>.work", "formula", "formula.<locals>.<lambda>", "scale_of"}
    grouped = {"kv_heads", "queries_of", "is_grouped", "_by_group"}  # used if query heads share a key head
    called = {"Attention.__call__", "PackedTexts.attend", "PackedTexts.whole", "multi_head_attention"}
    called |= {"_heads", "split_heads", "scaled_dot_product_attention"}
    assert entered == {f"PackedAttention.{each}" for each in packed} | grouped | called


def test_mechanisms_depend_on_places() -> None:
    """The window reaches one position to each side, and the text has a gap after its second token."""
    x, lengths, places = normal(4, 24, dtype="float64"), np.array([4]), np.array([0, 1, 5, 6])
    weights, block = projections(24, "float64"), Attention(2, (Window(1), Causal()))
    y = block(x, PackedTexts(lengths, places=(places, places)), **weights)
    apart = [self_attention(x[half], np.array([2]), 2, is_causal=True, **weights) for half in (slice(2), slice(2, 4))]
    assert np.abs(y - np.concatenate(apart)).max() < 1e-12


@given(
    lengths=st.lists(st.sampled_from([1, 2, 3, 17, 40]), min_size=1, max_size=6),
    width=st.sampled_from([8, 12, 24, 96]),
    dtype=st.sampled_from(DTYPES),
    is_causal=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_text_has_the_same_bits_in_any_batch(
    lengths: list[int], width: int, dtype: str, is_causal: bool, seed: int
) -> None:
    random, weights = np.random.default_rng(seed), projections(width, dtype)
    texts = [random.standard_normal((length, width)).astype(dtype) for length in lengths]
    alone = [self_attention(text, np.array([len(text)]), 4, is_causal=is_causal, **weights) for text in texts]
    order = random.permutation(len(texts))
    packed = np.concatenate([texts[i] for i in order])
    together = self_attention(packed, np.array(lengths)[order], 4, is_causal=is_causal, **weights)
    for i, answer in zip(order, np.split(together, np.cumsum(np.array(lengths)[order])[:-1]), strict=True):
        assert alike(answer, alone[i])


def test_a_listener_changes_no_bit() -> None:
    lengths, weights = np.array([30, 30, 30, 90]), projections(96, "float32")
    x = normal(lengths.sum(), 96)
    heard = []
    with listen(lambda name, array: heard.append(name) or array):
        listened = self_attention(x, lengths, 4, **weights)
    assert alike(listened, self_attention(x, lengths, 4, **weights))
    stages = ["query_heads", "key_heads", "value_heads", "scores", "weights", "context"]
    assert heard == ["query", "key", "value", *stages, *stages, "combined", "output"]


def test_a_mask_of_floats_adds_to_the_scores_of_a_long_text() -> None:
    """There are too many queries for one block. A 0 in a mask of floats lets the query attend to the key."""
    q, k, v = normal(1, 100, 8), normal(1, 100, 8), normal(1, 100, 8)
    admitted = np.tri(100, dtype=bool)
    added = np.where(admitted, 0, -np.inf).astype(q.dtype)
    expected = scaled(q, k, v, admitted)
    assert alike(scaled(q, k, v, added), expected)


@pytest.mark.parametrize("heads", [(2, 2), (6, 3)])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_queries_in_blocks_have_the_bits_of_one_pass(
    heads: tuple[int, int], window: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 queries need three blocks, the last one partly filled. A block skips the keys before its window."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, n, 150, 24)).astype(dtype) for n in (heads[0], heads[1], heads[1]))
    mask = np.tri(150, dtype=bool)
    if window:
        mask &= ~np.tri(150, k=-window, dtype=bool)
    with single_blas_thread():
        blocks = attention.masked_attention(q, k, v, mask)
        monkeypatch.setattr(attention, "QUERIES", 150)
        whole = attention.masked_attention(q, k, v, mask)
    np.testing.assert_array_equal(blocks, whole)
    admitted = np.where(mask, q @ k.repeat(heads[0] // heads[1], axis=1).mT, -np.inf)
    weights = np.exp(admitted - admitted.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.repeat(heads[0] // heads[1], axis=1)
    np.testing.assert_allclose(blocks, expected, atol=1e-5 if dtype == "float32" else 1e-13)  # 150 rounded terms
