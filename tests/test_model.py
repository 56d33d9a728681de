"""A model's guarantees: the same bits in any batch, padding at no cost, all forms of input, and errors."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.common.errors import NpformerError
from npformer.engine import functions
from npformer.engine.runtime.output import Output
from npformer.engine.runtime.packing import Text
from npformer.engine.taps import listen
from npformer.families import distinct_encoders, encoders
from npformer.model import Model
from tests.support import tiny
from tests.support.bits import alike
from tests.support.check_family import check_bits, inputs, same
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

HEADS = [(family, head) for family, each in encoders().items() for head in dict.fromkeys(each.architectures.values())]
#: The first head of each family, and the first family of each head.
FEW = {each[part]: each for part in (0, 1) for each in reversed(HEADS)}.values()
#: Families with a part of attention that no other family has.
OWN_ATTENTION = ("bert", "modernbert", "deberta-v2", "gpt2", "llama")
DTYPES = ("float32", "float64")
THREADS = (1, 2, 3)
SIZES = {  # d_model, n_heads, d_ffn, max_length
    "8": (8, 2, 20, 600),
    "36": (36, 3, 50, 600),
    "96": (96, 4, 200, 600),
    "384": (384, 12, 1536, 200),
    "500": (500, 10, 1000, 600),  # a BLAS splits such products at columns that depend on its number of threads
    "768": (768, 12, 3072, 200),
}
LABELS = {"sequence-classification", "token-classification"}


@lru_cache(8)
def models(family: str, head: str, size: str = "36", dtype: str = "float32", n_labels: int = 3) -> list[Model]:
    """Returns one model for each number of threads, all with the same weights."""
    d_model, n_heads, d_ffn, max_length = SIZES[size]
    labels = tuple(f"L{i}" for i in range(n_labels)) if head in LABELS else ()
    fields: dict[str, Any] = {"d_model": d_model, "n_heads": n_heads, "d_ffn": d_ffn, "max_length": max_length}
    fields["n_layers"] = 1 if d_model > 96 else 2
    first = tiny.model(family, head, dtype=dtype, threads=1, labels=labels, **fields)
    return [Model(first.config, first.weights, threads=threads) for threads in THREADS]


# --- the same bits ---------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    model=st.sampled_from(HEADS),
    size=st.sampled_from(["8", "36", "96"]),
    dtype=st.sampled_from(DTYPES),
    n_labels=st.sampled_from([1, 2, 3, 17]),
    lengths=st.lists(st.one_of(st.integers(1, 12), st.integers(1, 300)), min_size=1, max_size=8),
    seed=st.integers(0, 999),
)
def test_a_text_has_the_same_bits_in_any_batch(
    model: tuple[str, str], size: str, dtype: str, n_labels: int, lengths: list[int], seed: int
) -> None:
    of_threads = models(*model, size, dtype, n_labels)
    check_bits(of_threads, inputs(of_threads[0], lengths, seed), seed)


@pytest.mark.slow
@settings(max_examples=4)
@given(lengths=st.lists(st.integers(1, 130), min_size=2, max_size=6), seed=st.integers(0, 999))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", ["384", "500", "768"])
def test_so_it_has_in_models_of_real_widths(size: str, dtype: str, lengths: list[int], seed: int) -> None:
    for name, head, some in (("distilbert", "sequence-classification", lengths), ("bert", "base", lengths[:3])):
        of_threads = models(name, head, size, dtype)
        check_bits(of_threads, inputs(of_threads[0], some, seed), seed)


@pytest.mark.slow
def test_so_it_has_among_a_thousand_texts() -> None:
    of_threads = models("distilbert", "sequence-classification", "8")
    texts = inputs(of_threads[0], np.random.default_rng(0).integers(1, 60, 1000).tolist())
    expected = of_threads[0].run(texts)
    for model in of_threads:
        assert all(same(*pair) for pair in zip(model.run(texts), expected, strict=True))
        assert all(same(*pair) for pair in zip(reversed(model.run(texts[::-1])), expected, strict=True))


@pytest.mark.parametrize(
    "family", slow_after(5, sorted(distinct_encoders(), key=lambda name: name not in OWN_ATTENTION))
)
def test_a_listener_changes_no_bit_of_a_wide_model(family: str) -> None:
    """A BLAS splits products with 500 columns at places that depend on its number of threads."""
    for model in models(family, "base", "500"):
        texts = inputs(model, [5, 5, 130, 1, 40])
        expected = model.run(texts)
        with listen(lambda name, array: array):
            assert all(same(*pair) for pair in zip(model.run(texts), expected, strict=True))


# --- no work for padding ---------------------------------------------------------------------------------------------


class Counter:
    """Counts the rows of products."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[tuple[int, ...], int] = {}
        self.lock = threading.Lock()
        products = functions.weight_products

        def counted_products(x: np.ndarray, *weights: np.ndarray) -> list[np.ndarray]:
            with self.lock:
                for weight in weights:
                    self.rows[weight.shape] = self.rows.get(weight.shape, 0) + len(x)
            return products(x, *weights)

        monkeypatch.setattr(functions, "weight_products", counted_products)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("lengths", [[7], [3, 9, 9, 1], [50, 2, 2, 500] * 3])
def test_products_have_a_row_for_each_token(lengths: list[int], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A padded batch costs only its tokens: the rows of every product are the tokens of the texts."""
    model = models("distilbert", "token-classification", "36")[threads - 1]
    tokens, layers, (d, f) = sum(lengths), model.config.n_layers, (36, 50)
    ids = np.zeros((len(lengths), max(lengths)), int)
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    counter = Counter(monkeypatch)
    monkeypatch.setattr(model, "same_bits", False)  # with same_bits, some kernels need a few additional rows
    model(ids, mask)
    assert counter.rows == {
        (d, d): 4 * tokens * layers,
        (d, f): tokens * layers,
        (f, d): tokens * layers,
        (d, 3): tokens,
    }


@pytest.mark.parametrize("threads", THREADS)
def test_a_head_on_texts_needs_one_row_of_the_last_layer(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models("bert", "sequence-classification", "36")[threads - 1]
    lengths, (d, f) = [3, 9, 9, 1], (36, 50)
    counter = Counter(monkeypatch)
    monkeypatch.setattr(model, "same_bits", False)
    model.run(inputs(model, lengths))
    tokens, texts = sum(lengths), len(lengths)
    every, first = model.config.n_layers - 1, 1  # numbers of layers that compute all rows, and one row per text
    assert counter.rows == {
        (d, d): every * 4 * tokens + first * (2 * tokens + 2 * texts) + texts,  # keys, values; queries, output; pooler
        (d, f): every * tokens + first * texts,
        (f, d): every * tokens + first * texts,
        (d, 3): texts,
    }


# --- calling ---------------------------------------------------------------------------------------------------------

SHAPES = {  # shapes of the answers to three texts of seven tokens, with D = 36
    "base": {"last_hidden_state": (3, 7, 36)},
    "sequence-classification": {"logits": (3, 3)},
    "token-classification": {"logits": (3, 7, 3)},
    "question-answering": {"start_logits": (3, 7), "end_logits": (3, 7)},
    "masked-lm": {"logits": (3, 7, len(tiny.VOCABULARY))},
    "causal-lm": {"logits": (3, 7, len(tiny.VOCABULARY))},
    "next-sentence": {"logits": (3, 2)},
    "multiple-choice": {"logits": (3, 2)},
    "replaced-token": {"logits": (3, 7)},
}


@pytest.mark.parametrize(("family", "head", "dtype"), [(*each, DTYPES[i % 2]) for i, each in enumerate(HEADS)])
def test_answers_have_hugging_faces_names_and_shapes(family: str, head: str, dtype: str) -> None:
    model = models(family, head, "36", dtype)[1]
    ids = np.random.default_rng(0).integers(0, 100, (3, 2, 7) if head == "multiple-choice" else (3, 7))
    answer = model(ids)
    has_pooler = head == "base" and "pooler" in encoders()[family].heads[head]
    shapes = SHAPES[head] | ({"pooler_output": (3, 36)} if has_pooler else {})
    if (family, head) == ("opt", "base"):  # OPT's output is as wide as its table
        shapes = {"last_hidden_state": (3, 7, model.config.d_embedding)}
    assert {name: array.shape for name, array in answer.items()} == shapes
    assert {array.dtype for array in answer.values()} == {np.dtype(dtype)}
    assert isinstance(answer, Output)
    assert all(getattr(answer, name) is answer[name] for name in answer)
    with pytest.raises(AttributeError, match=f"attentions: .*its outputs are {next(iter(answer))}"):
        _ = answer.attentions


@pytest.mark.parametrize(
    ("family", "head"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] * (each not in FEW))
        for each in HEADS
        if each[1] != "multiple-choice"
    ],
)
def test_padded_ragged_and_single_are_one(family: str, head: str) -> None:
    model = models(family, head)[1]
    ragged = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
    padded = np.full((3, 5), 99)
    mask = np.zeros((3, 5), int)
    for row, ids in enumerate(ragged):
        padded[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    answer = model(padded, attention_mask=mask)
    assert same(answer, model(ragged))
    for row, ids in enumerate(ragged):
        for name, array in model(ids).items():
            assert array.shape[0] == 1
            whole = answer[name][row]
            per_token = whole.shape[:1] == (5,)
            assert alike(whole[: len(ids)] if per_token else whole, array[0])
            assert not per_token or not whole[len(ids) :].any()


def test_masked_tokens_have_no_effect() -> None:
    """Padding may be before, within or after the text; tokens keep their positions."""
    model = models("bert", "base")[0]
    mask = np.array([[0, 1, 1, 0, 1], [1, 1, 0, 1, 0]])
    ids = np.arange(10).reshape(2, 5)
    answer = model(ids, mask, np.ones_like(ids)).last_hidden_state
    ids[mask == 0] = 77
    assert np.array_equal(model(ids, mask, mask).last_hidden_state, answer)
    assert not answer[mask == 0].any()
    kept = np.flatnonzero(mask[0])
    expected = model.run([Text(ids[0][kept], np.ones(3, int), kept)])[0]["last_hidden_state"]
    assert alike(answer[0][kept], expected)


def test_segments() -> None:
    model, ids = models("bert", "next-sentence")[0], [5, 6, 7, 8]
    assert same(model(ids), model(ids, token_type_ids=[0, 0, 0, 0]))
    assert not same(model(ids), model(ids, token_type_ids=[0, 0, 1, 1]))


def test_distilbert_has_no_segments() -> None:
    model, ids = models("distilbert", "base")[0], [5, 6, 7, 8]
    assert same(model(ids), model(ids, token_type_ids=[0, 0, 0, 0]))
    with pytest.raises(NpformerError, match="token_type_ids: 1 of text 0"):
        model(ids, token_type_ids=[0, 0, 1, 1])


def test_choices_are_texts_side_by_side() -> None:
    model = models("bert", "multiple-choice")[0]
    ids = np.random.default_rng(0).integers(0, 100, (2, 3, 5))
    logits = model(ids).logits
    assert logits.shape == (2, 3)
    single = [model.run([Text(row)])[0]["logits"] for row in ids.reshape(-1, 5)]
    assert alike(logits.ravel(), np.concatenate(single))


def test_no_texts() -> None:
    assert models("bert", "base")[0].run([]) == []


def test_answers_are_the_callers_own() -> None:
    """A caller can write to the answers, which share no memory with the next run or with the weights."""
    model, text = models("bert", "base")[0], Text(np.arange(4))
    first = model.run([text])[0]
    expected = {name: array.copy() for name, array in first.items()}
    for array in first.values():
        array[...] = 0
    assert same(model.run([text])[0], expected)


def test_the_repr_describes_the_model() -> None:
    model = models("bert", "base", "96", "float64")[0]
    assert repr(model) == "<npformer.Model bert base: 2 layers, 4 heads, width 96, float64>"
    assert model.dtype == np.float64


# --- errors ----------------------------------------------------------------------------------------------------------

V = len(tiny.VOCABULARY)


@pytest.mark.parametrize(
    ("head", "given_", "words"),
    [
        ("base", ([V],), ["input_ids", str(V), f"0 ... {V - 1}"]),
        ("base", ([[1, 2], [3, -1]],), ["input_ids", "-1", "text 1"]),
        ("base", (np.ones((1, 601), int),), ["input_ids", "601", "600"]),
        (
            "base",
            ("I love ice cream",),
            ["input_ids", "token ids", "npformer.trace(", "npformer.pipeline(", ".tokenizer"],
        ),
        ("base", (["a", "b"],), ["input_ids", "token ids, got text"]),
        ("base", ([[1], []],), ["input_ids", "at least one"]),
        ("base", ([1, 2], None, [0, 2]), ["token_type_ids", "2", "0 ... 1"]),
        ("base", ([1, 2], [0, 0]), ["attention_mask", "all zeros"]),
        ("base", (np.ones((2, 2, 2), int),), ["input_ids", "(B, L)", "(2, 2, 2)"]),
        ("base", (np.ones((2, 2, 2, 2), int),), ["input_ids", "(B, L)", "(2, 2, 2, 2)"]),
        ("multiple-choice", (np.ones((2, 2), int),), ["input_ids", "(B, N, L)", "(2, 2)"]),
        ("multiple-choice", (np.ones((1, 2, 2, 2), int),), ["input_ids", "(B, N, L)", "(1, 2, 2, 2)"]),
        (
            "sequence-classification",
            ([[1, 2], [3, 4]], [[1, 1], [0, 1]]),
            ["attention_mask: text 1 masks its first token", "sequence-classification"],
        ),
    ],
)
def test_errors_name_the_argument_and_its_value(head: str, given_: tuple, words: list[str]) -> None:
    with pytest.raises(NpformerError) as caught:
        models("bert", head)[0](*given_)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (Text(np.zeros(0, int)), ["text 1", "no tokens"]),
        (Text(np.array([1]), positions=np.array([600])), ["position", "600", "text 1"]),
        (Text(np.array([1]), positions=np.array([-1])), ["position", "-1", "text 1"]),
        (Text(np.array([1]), token_type_ids=np.array([2])), ["token_type_ids", "2", "text 1"]),
    ],
)
def test_errors_name_the_text(text: Text, words: list[str]) -> None:
    with pytest.raises(NpformerError) as caught:
        models("bert", "base")[0].run([Text(np.array([1])), text])
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_model_without_a_folder_has_no_tokenizer() -> None:
    with pytest.raises(NpformerError, match="no tokenizer"):
        _ = models("bert", "base")[0].tokenizer


def test_a_model_is_made_of_a_config() -> None:
    with pytest.raises(NpformerError, match="model: config: expected a Config, got a dict"):
        Model({}, tiny.model().config)  # type: ignore[arg-type]
