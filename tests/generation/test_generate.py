"""Generation: Transformers' tokens, the same bits with and without a cache, sampling, and invalid input."""

from __future__ import annotations

from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from npformer.common.errors import NpformerError
from npformer.engine.functions import log_softmax, softmax
from npformer.engine.runtime.packing import Text
from npformer.engine.taps import listen
from npformer.generation import Hypothesis, padded_targets
from npformer.generation.logits import Projection, top
from npformer.generation.processors import narrow
from npformer.generation.settings import Settings
from npformer.model import Seq2Seq
from tests.golden import seq2seq_cases as cases
from tests.support import torch_values
from tests.support.seq2seq_models import golden_model, random_model
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

DATA = Path(__file__).parents[1] / "golden" / "seq2seq"


@cache
def golden() -> dict[str, np.ndarray]:
    return {**load_file(DATA / "marian.safetensors"), **load_file(DATA / "bart.safetensors")}


def generated(model: Seq2Seq, case: str, sources: int = 0, **settings: Any) -> list[list[Hypothesis]]:
    forced = cases.model_config(case)["forced_eos_token_id"]  # Transformers reads this setting from config.json
    end = {"max_new_tokens": cases.MAX_NEW_TOKENS, "forced_eos_token_id": forced}
    return model.generate([source.tolist() for source in cases.sources(case, sources)], **{**end, **settings})


# --- against Transformers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases.GENERATORS)
def test_logits_of_models_that_generate(case: str) -> None:
    pairs = zip(cases.sources(case), cases.targets(case, cases.PAIRS), strict=False)
    texts = [(Text(source), Text(target)) for source, target in pairs]
    answers = {
        dtype: np.concatenate([answer["logits"] for answer in golden_model(case, dtype).run(texts)])
        for dtype in ("float32", "float64")
    }
    found = torch_values.below(golden(), case)
    torch32, truth, error = found["float32/logits"], found["float64/logits"], torch_values.errors_in(found)["logits"]
    assert torch_values.over_budget(answers["float32"], torch32, truth, error) == ""
    assert np.abs(answers["float64"] - truth).max() < 1e-12 * np.abs(truth).max()


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, marks=[pytest.mark.slow] * ((i + j) % 4 > 0))
        for i, case in enumerate(cases.GENERATORS)
        for j, name in enumerate(cases.SETTINGS)
    ],
)
def test_all_sources_token_for_token(case: str, name: str) -> None:
    """Every target of every source equals Transformers' target. The only exceptions would be near ties, for which
    Transformers itself finds another target in float64, but the golden models have none."""
    settings, expected = cases.SETTINGS[name], golden()[f"{case}/{name}/ids"]
    model = golden_model(case)
    found = generated(model, case, **settings)
    ids = padded_targets(
        [each for hypotheses in found for each in hypotheses], model.config.decoder.start_id, model.config.pad_id
    )
    assert (expected[:, ids.shape[1] :] == model.config.pad_id).all()
    same = (ids == expected[:, : ids.shape[1]]).all(axis=1).reshape(len(found), -1).all(axis=1)
    assert np.flatnonzero(~same & ~golden()[f"{case}/{name}/ties"]).tolist() == []
    if "num_beams" in settings:
        scores = np.array([each.score for hypotheses in found for each in hypotheses])
        # Scores are float32 sums of log probabilities, each from at most 300 logits.
        assert scores == pytest.approx(golden()[f"{case}/{name}/scores"].astype(float), rel=1e-5, abs=1e-4)


def test_the_golden_scores_have_no_ties() -> None:
    assert not any(array.any() for name, array in golden().items() if name.endswith("/ties"))


# --- the same bits ---------------------------------------------------------------------------------------------------

SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4},
    {"num_beams": 12, "max_new_tokens": 40},
    {"num_beams": 24, "max_new_tokens": 20},  # more keys than any BLAS adds in one block
]
LONG = {"max_new_tokens": 130, "suppress_tokens": [0], "no_repeat_ngram_size": 3}
RANDOM = np.random.default_rng(0)
SOURCES = [RANDOM.integers(1, 499, size=length).tolist() for length in (5, 33, 1, 70, 5)]


@pytest.mark.parametrize(("search", "dtype"), slow_after(2, zip(SEARCHES, cycle(["float32", "float64"]))))
def test_cached_keys_and_values_give_the_bits_of_whole_passes(search: dict[str, Any], dtype: str) -> None:
    """Log probabilities from steps equal those from one pass over each target, even beyond a block of BLAS."""
    model = random_model(dtype)
    for source, hypotheses in zip(
        SOURCES, model.generate(SOURCES, output_scores=True, **{**LONG, **search}), strict=True
    ):
        for each in hypotheses:
            target = np.concatenate([[model.config.decoder.start_id], each.ids[:-1]])
            logits = model.run([(Text(np.array(source)), Text(target))])[0]["logits"]
            if search:
                scores = log_softmax(logits)
            else:  # greedy search scores only the tokens that the settings allow
                scores = np.array([score_of(logits[i], target[: i + 1]) for i in range(len(target))])
            assert np.array_equal(scores[np.arange(len(each.ids)), each.ids], each.token_scores)


def score_of(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    logits = logits.copy()
    logits[0] = -np.inf
    for i in range(len(ids) - 2):
        if len(ids) > 2 and ids[i : i + 2].tolist() == ids[-2:].tolist():
            logits[ids[i + 2]] = -np.inf
    return log_softmax(logits[None])[0]


@pytest.mark.parametrize("search", slow_after(1, [*SEARCHES[:2], {"do_sample": True, "seed": 3}]))
def test_alone_and_together_on_one_thread_and_on_two(search: dict[str, Any]) -> None:
    settings = {**LONG, "max_new_tokens": 20, "output_scores": True, **search}
    one, two = random_model(threads=1), random_model(threads=2)
    together = two.generate(SOURCES, **settings)
    for index, (source, there) in enumerate(zip(SOURCES, together, strict=True)):
        if "do_sample" in search and index:
            continue  # a sample depends on the source's index
        here = one.generate([source], **settings)[0]
        assert [each.ids.tolist() for each in here] == [each.ids.tolist() for each in there]
        assert all(np.array_equal(a.token_scores, b.token_scores) for a, b in zip(here, there, strict=True))
    again = one.generate(SOURCES, **settings)
    assert [[each.ids.tolist() for each in hypotheses] for hypotheses in again] == [
        [each.ids.tolist() for each in hypotheses] for hypotheses in together
    ]


def test_more_targets_than_are_generated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, case = golden_model("marian-small"), "marian-small"
    whole = [[each.ids.tolist() for each in found] for found in generated(model, case, 20, num_beams=4)]
    monkeypatch.setattr("npformer.generation.TOGETHER", 28)
    assert [[each.ids.tolist() for each in found] for found in generated(model, case, 20, num_beams=4)] == whole


# --- outputs besides the tokens --------------------------------------------------------------------------------------


def test_cross_attention_weights_match_the_steps() -> None:
    """The weights returned for the chosen target equal the rows recorded at each step, bit for bit."""
    model, source = random_model(), SOURCES[1]
    heard: list[np.ndarray] = []

    def hear(name: str, array: np.ndarray) -> np.ndarray:
        if name == "decoder.layers.1.cross_attention.weights" and array.shape[-2] == 1:
            heard.append(array[0, :, 0])
        return array

    with listen(hear):
        tapped = model.generate([source], max_new_tokens=9, suppress_tokens=[0])[0][0]
    found = model.generate([source], max_new_tokens=9, suppress_tokens=[0], output_attentions=True)[0][0]
    assert found.ids.tolist() == tapped.ids.tolist()
    assert [weights.shape for weights in found.cross_attentions] == [(2, 9, 33)] * 2
    assert np.array_equal(found.cross_attentions[1], np.stack(heard, axis=1))
    assert np.abs(found.cross_attentions[0].sum(axis=-1) - 1).max() < 1e-6


def test_an_edit_reaches_generation() -> None:
    """If an edit limits cross-attention to the first source token, the target does not depend on the other tokens."""
    model = random_model()

    def edit(name: str, array: np.ndarray) -> np.ndarray:
        if name.endswith("cross_attention.weights"):
            array = np.zeros_like(array)
            array[..., 0] = 1
        return array

    plain = model.generate([SOURCES[1]], max_new_tokens=6)[0][0]
    with listen(edit):
        edited = model.generate([SOURCES[1]], max_new_tokens=6, num_beams=3)[0][0]
    assert plain.ids.tolist() != edited.ids.tolist()
    assert edited.score is not None


def test_streamed_tokens_are_the_greedy_ones() -> None:
    model = golden_model("marian-large")
    for source in cases.sources("marian-large")[:2]:
        stream = model.stream(source.tolist(), max_new_tokens=12)
        first = next(stream)
        whole = model.generate([source.tolist()], max_new_tokens=12)[0][0].ids.tolist()
        assert [first, *stream] == whole
    sampled = list(model.stream(source.tolist(), do_sample=True, seed=5, max_new_tokens=12))
    assert sampled == model.generate([source.tolist()], do_sample=True, seed=5, max_new_tokens=12)[0][0].ids.tolist()
    with pytest.raises(NpformerError, match="stream: expected one beam and one sequence"):
        model.stream(source.tolist(), num_beams=2)


def test_scores_come_where_they_are_asked_for() -> None:
    model = golden_model("marian-small")
    greedy, beams = (model.generate([[5, 6, 0]], num_beams=n, max_new_tokens=6)[0][0] for n in (1, 3))
    assert (greedy.score, greedy.token_scores, beams.token_scores) == (None, None, None)
    scored = model.generate([[5, 6, 0]], num_beams=3, max_new_tokens=6, output_scores=True)[0][0]
    assert scored.score == beams.score
    assert scored.token_scores is not None
    assert scored.token_scores.sum() / len(scored.ids) == pytest.approx(beams.score, abs=1e-5)


def test_padded_returns_transformers_array() -> None:
    config = golden_model("marian-small").config
    table = padded_targets(
        [Hypothesis(np.array([5, 0])), Hypothesis(np.array([6, 7, 8, 0]))], config.decoder.start_id, config.pad_id
    )
    assert table.tolist() == [[119, 5, 0, 119, 119], [119, 6, 7, 8, 0]]


# --- calls with padded inputs ----------------------------------------------------------------------------------------


def test_a_padded_array_with_its_mask_is_a_ragged_list() -> None:
    model = golden_model("marian-small")
    sources, targets = cases.sources("marian-small", 4), cases.targets("marian-small", 4)
    arrays = []
    for texts in (sources, targets):
        width = max(map(len, texts)) + 1
        arrays.append(np.array([np.pad(text, (0, width - len(text)), constant_values=119) for text in texts]))
        arrays.append((np.arange(width) < np.array([len(text) for text in texts])[:, None]).astype(int))
    padded_answer = model(*arrays)
    ragged = model([text.tolist() for text in sources], decoder_input_ids=[text.tolist() for text in targets])
    mask = arrays[3].astype(bool)
    assert np.array_equal(padded_answer.logits[mask], ragged.logits[mask[:, : ragged.logits.shape[1]]])
    assert not padded_answer.logits[~mask].any()
    assert padded_answer.encoder_last_hidden_state.shape == (*arrays[1].shape, 32)


def test_labels_are_shifted_behind_the_start_token() -> None:
    model = golden_model("marian-small")
    shifted = model([[5, 6, 0]], decoder_input_ids=[[119, 7, 8]])
    assert np.array_equal(model([[5, 6, 0]], labels=[[7, 8, 0]]).logits, shifted.logits)
    assert np.array_equal(model([[5, 6, 0]], labels=np.array([[7, 8, 0, -100]])).logits, shifted.logits)
    assert np.array_equal(model([5, 6, 0], labels=[7, 8, 0]).logits, shifted.logits)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "labels: expected rows of token ids, got"),
        (5, "labels: expected rows of token ids"),
        ([["a"]], "labels: expected rows of token ids"),
        ([[-100, -100]], "labels: expected at least one id in each row, and -100 only after the last id"),
        ([[7, -100, 8]], "labels: expected at least one id in each row, and -100 only after the last id"),
        ([[7, 7000]], "labels: 7000 is outside 0 ... 119"),
        ([[7, -1]], "labels: -1 is outside 0 ... 119"),
        ([[7], [8]], "expected a target for each source"),
    ],
)
def test_labels_that_make_no_sense(labels: Any, message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        golden_model("marian-small")([[5, 6, 0]], labels=labels)


# --- sampling --------------------------------------------------------------------------------------------------------


def first_tokens(count: int, **settings: Any) -> np.ndarray:
    model = golden_model("marian-small")
    drawn = model.generate(
        [[5, 6, 0]], do_sample=True, seed=1, max_new_tokens=1, num_return_sequences=count, **settings
    )
    return np.array([each.ids[0] for each in drawn[0]])


def first_logits() -> np.ndarray:
    logits: np.ndarray = golden_model("marian-small")([[5, 6, 0]], decoder_input_ids=[[119]]).logits[0, 0]
    return logits


@pytest.mark.parametrize(
    "settings",
    [{"top_k": 0}, {"top_k": 7}, {"top_k": 0, "top_p": 0.6}, {"temperature": 2.5}, {"temperature": 0.3, "top_p": 0.9}],
)
def test_tokens_are_drawn_by_their_probability(settings: dict[str, Any]) -> None:
    """Each token's share of 1000 draws is close to its probability after temperature, top_k and top_p.

    The share may differ by 5 standard deviations plus 3 draws, an allowance for very rare tokens.
    """
    scores = first_logits().astype(np.float64)[None] / settings.get("temperature", 1)
    order = np.argsort(-scores[0])
    kept = order[: settings.get("top_k", 50) or len(order)]
    mass = softmax(scores[:, kept])[0].cumsum()
    kept = kept[: int(np.searchsorted(mass, settings.get("top_p", 2.0))) + 1]
    expected = np.zeros(120)
    expected[kept] = softmax(scores[:, kept])[0]
    tokens = first_tokens(1000, **settings)
    shares = np.bincount(tokens, minlength=120) / 1000
    assert set(np.flatnonzero(shares)) <= set(kept.tolist())
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / 1000) + 0.003).all()


def test_a_seed_repeats_the_draws_and_no_seed_does_not() -> None:
    model = golden_model("marian-small")
    settings = {"do_sample": True, "max_new_tokens": 16, "top_k": 0, "temperature": 3.0}
    a, b, c, d = (
        model.generate([[5, 6, 0], [5, 6, 0]], **settings, **seed)
        for seed in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {})
    )
    ids = [[each[0].ids.tolist() for each in found] for found in (a, b, c, d)]
    assert ids[0] == ids[1]
    assert len({tuple(each) for found in (ids[0], ids[2], ids[3]) for each in found}) == 6


@given(st.integers(0, 10), st.integers(1, 40), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_narrow_keeps_the_best(seed: int, top_k: int, top_p: float) -> None:
    scores = np.random.default_rng(seed).standard_normal((3, 30)).astype(np.float32)
    narrowed = scores.copy()
    narrow(narrowed, Settings(0, top_k=top_k, top_p=top_p))
    kept = narrowed > -np.inf
    assert (kept.sum(axis=1) >= 1).all()
    assert (kept.sum(axis=1) <= top_k).all()
    assert np.array_equal(narrowed[kept], scores[kept])
    for row, some in zip(scores, kept, strict=True):
        assert row[some].min() >= row[~some].max(initial=-np.inf)


# --- the widest product ----------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 3), st.sampled_from([5, 63, 64, 700, 5000]), st.integers(1, 12))
def test_top_is_the_start_of_the_sorted_row(seed: int, rows: int, width: int, k: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.standard_normal((rows, width)).astype(np.float32)
    scores[random.random(scores.shape) < 0.2] = -np.inf
    k = min(k, width)
    places, values = top(scores, k)
    assert np.array_equal(values, np.sort(scores, axis=1)[:, ::-1][:, :k])
    assert np.array_equal(np.take_along_axis(scores, places, axis=1), values)
    assert all(len(set(row.tolist())) == k for row in places)


@pytest.mark.usefixtures("one_blas_thread")
@pytest.mark.parametrize("columns", [5, 64, 133, 2048, 2053])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_projection_has_the_bits_of_linear(columns: int, dtype: str) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((columns, 512)).astype(dtype).T
    bias = random.standard_normal(columns).astype(dtype)
    x = random.standard_normal((80, 512)).astype(dtype)
    projection = Projection(weight, bias)
    whole = projection(x).copy()
    assert np.abs(whole - (x @ weight + bias)).max() < 1e-3
    for rows in (1, 2, 7, 34, 35, 80):
        assert np.array_equal(projection(x[:rows]), whole[:rows])


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], r"input_ids: expected at least one token, got shape \(0,\)"),
        ([[]], r"input_ids: expected at least one token, got shape \(1, 0\)"),
        ([[5, 6], []], r"input_ids\[1\]: expected at least one token, got shape \(0,\)"),
        ([[5] * 65], "input_ids: expected at most 64 tokens, got 65 in text 0"),
        ([[5, 0], [120]], "input_ids: 120 of text 1 is outside the vocabulary, 0 ... 119"),
        ([[-1]], "input_ids: -1 of text 0 is outside"),
        ([["a"]], "input_ids: expected token ids, got text"),
        ([[[5]]], r"input_ids: expected \(S,\) or \(B, S\), got \(1, 1, 1\)"),
    ],
)
def test_sources_that_make_no_sense(sources: Any, message: str) -> None:
    model = golden_model("marian-small")
    with pytest.raises(NpformerError, match=message):
        model.generate(sources)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"decoder_input_ids": [[119] * 65]}, "decoder_input_ids: expected at most 64 tokens, got 65 in text 0"),
        ({"decoder_input_ids": [[120]]}, "decoder_input_ids: 120 of text 0 is outside"),
        ({"decoder_input_ids": [[1], [2]]}, r"expected a target for each source, got \(2, 1\) for \(1, 2\)"),
        ({}, "labels: expected either decoder_input_ids or labels, got neither"),
        ({"labels": [[1]], "decoder_input_ids": [[1]]}, "expected either decoder_input_ids or labels, got both"),
        ({"labels": [[1]], "decoder_attention_mask": [[1]]}, "not used with labels"),
        ({"attention_mask": [[0, 0]], "labels": [[1]]}, "all zeros in row 0"),
    ],
)
def test_calls_that_make_no_sense(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        golden_model("marian-small")([[5, 0]], **given_)


def test_a_model_without_a_folder_has_no_tokenizer() -> None:
    with pytest.raises(NpformerError, match="created without a folder"):
        _ = golden_model("marian-small").tokenizer
