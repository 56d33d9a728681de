"""Texts after prompts: the same bits as in whole passes, alone and in a batch, sampling, and invalid input.
tests/oracle/test_prompts.py compares the tokens with Transformers' tokens."""

from __future__ import annotations

import tracemalloc
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from npformer import Config, Model, Text
from npformer.common.errors import NpformerError
from npformer.config import Local, Positions
from npformer.engine.functions import log_softmax
from npformer.engine.mechanisms import Rotary, SoftCap, Window
from npformer.engine.taps import listen
from npformer.families import FAMILIES
from npformer.generation import Stream, generate, state, stream
from npformer.generation.logits import Projection
from npformer.generation.processors import ban_repeated_ngrams
from npformer.generation.settings import Settings
from npformer.generation.state import Continued
from tests.support import tiny
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

START, END = 1, 0
DTYPES = ("float32", "float64")
CAPPED = (Rotary(100.0), SoftCap(0.5))
#: Families other than GPT-2: with BERT's layers, narrow tables, positions after the padding id, or only a decoder.
OF_FAMILY: dict[str, dict[str, Any]] = {
    "bert": {"n_token_types": 2},
    "electra": {"d_embedding": 48, "n_token_types": 2},
    "roberta": {"n_token_types": 1},
    "bart": {},
    "llama": {"n_heads": 4, "n_kv_heads": 2},
    "gemma2": {
        "n_heads": 6, "n_kv_heads": 2, "head_width": 64, "mechanisms": CAPPED, "logit_cap": 1.5, "score_scale": 0.2,
        "local": Local((0,), (*CAPPED, Window(40))),
    },
}  # fmt: skip


@cache
def model(dtype: str = "float32", threads: int = 2, family: str = "gpt2", **fields: Any) -> Model:
    """Returns a model of two layers with heads 64 wide, so its products resemble a large model's."""
    sizes = {"vocab_size": 300, "d_model": 128, "n_heads": 2, "n_layers": 2, "d_ffn": 192, "max_length": 256}
    sizes |= OF_FAMILY.get(family, {})
    config: Config = FAMILIES[family].config("causal-lm", **{**sizes, "start_id": START, "end_ids": (END,), **fields})
    return Model(config, tiny.weights(config, dtype=dtype), threads=threads)


RANDOM = np.random.default_rng(0)
PROMPTS = [Text(RANDOM.integers(2, 300, size=length)) for length in (5, 33, 1, 70, 16, 130, 5)]
LONG = {"max_new_tokens": 35, "suppress_tokens": [END], "output_scores": True}
SEARCHES: list[dict[str, Any]] = [
    {},
    {"num_beams": 4},
    {"num_beams": 12, "max_new_tokens": 25},
    {"num_beams": 32, "max_new_tokens": 18},  # more keys than any BLAS adds in one block
]


@pytest.mark.parametrize(
    ("search", "family", "dtype"),
    slow_after(3, [(each, "gpt2", DTYPES[i % 2]) for i, each in enumerate(SEARCHES)])
    + [
        case
        for name in OF_FAMILY
        for case in slow_after(1, [(each, name, dtype) for each, dtype in zip(SEARCHES, DTYPES, strict=False)])
    ],
)
def test_steps_after_ragged_prompts_have_the_bits_of_whole_passes(
    search: dict[str, Any], family: str, dtype: str
) -> None:
    """The steps of a batch of prompts and one pass over each whole text give the same log probabilities."""
    writes, reads = model(dtype, family=family), model(dtype, threads=1, family=family)
    for prompt, hypotheses in zip(PROMPTS, generate(writes, PROMPTS, **{**LONG, **search}), strict=True):
        for each in hypotheses[:3]:
            whole = Text(np.concatenate([prompt.ids, each.ids[:-1]]))
            logits = reads.run([whole])[0]["logits"][len(prompt) - 1 :]
            if not search:  # greedy search scores only the tokens that the settings allow
                logits[:, END] = -np.inf
            assert each.token_scores is not None
            assert np.array_equal(log_softmax(logits)[np.arange(len(each.ids)), each.ids], each.token_scores)


@pytest.mark.parametrize(
    ("family", "search"),
    slow_after(2, zip(["gpt2", *OF_FAMILY], cycle([{}, {"num_beams": 3, "num_return_sequences": 2}]))),
)
def test_a_prompt_alone_continues_as_in_a_batch(search: dict[str, Any], family: str) -> None:
    together = generate(model(family=family), PROMPTS, **{**LONG, **search})
    for prompt, there in zip(PROMPTS[:4], together, strict=False):
        [here] = generate(model(threads=1, family=family), [prompt], **{**LONG, **search})
        assert [each.ids.tolist() for each in here] == [each.ids.tolist() for each in there]
        assert all(np.array_equal(a.token_scores, b.token_scores) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("search", SEARCHES[:2])
def test_an_uncounted_token_has_its_own_position_anywhere_in_a_text(search: dict[str, Any]) -> None:
    """RoBERTa's padding token occurs in prompts and outputs. Positions equal those in one pass over the text."""
    pad, few = 8, range(2, 12)
    writer = model(
        "float64", family="roberta", pad_id=pad, padding_idx=pad, positions=Positions(first=pad + 1, skips_padding=True)
    )
    settings = {**LONG, **search, "max_new_tokens": 20, "num_return_sequences": search.get("num_beams")}
    others = [each for each in range(300) if each not in few]
    prompts = [Text(np.random.default_rng(length).integers(4, 9, length)) for length in range(2, 12)]
    found = generate(writer, prompts, **{**settings, "suppress_tokens": others})
    assert 0 < sum(pad in each.ids for texts in found for each in texts) < sum(map(len, found))
    for prompt, texts in zip(prompts, found, strict=True):
        for each in texts:
            whole = Text(np.concatenate([prompt.ids, each.ids[:-1]]))
            logits = writer.run([whole])[0]["logits"][len(prompt) - 1 :]
            if not search:
                logits[:, others] = -np.inf
            assert np.array_equal(log_softmax(logits)[np.arange(len(each.ids)), each.ids], each.token_scores)


def test_sampling_hangs_on_the_seed_and_the_place_alone() -> None:
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": 12, "num_return_sequences": 3}
    first, again = (generate(model(), PROMPTS, seed=5, **settings) for _ in range(2))
    assert [[each.ids.tolist() for each in texts] for texts in first] == [
        [each.ids.tolist() for each in texts] for texts in again
    ]
    [alone] = generate(model(threads=1), PROMPTS[:1], seed=5, **settings)
    assert [each.ids.tolist() for each in alone] == [each.ids.tolist() for each in first[0]]
    assert len({tuple(each.ids.tolist()) for each in alone}) == 3
    other = generate(model(), PROMPTS, seed=6, **settings)
    assert [each.ids.tolist() for each in other[0]] != [each.ids.tolist() for each in first[0]]


def test_a_shorter_prompt_may_end_although_no_token_may_repeat() -> None:
    """Padding before a prompt in the table of ids bans no token, not even the last one in the vocabulary."""
    settings: dict[str, Any] = {"no_repeat_ngram_size": 1, "max_new_tokens": 12, "output_scores": True}
    last = model(end_ids=(299,))
    [[alone]] = generate(last, PROMPTS[:1], **settings)
    [[among], *_] = generate(last, PROMPTS, **settings)
    assert np.array_equal(alone.ids, among.ids)
    assert np.array_equal(alone.token_scores, among.token_scores)
    rows = np.zeros((1, 300))
    ban_repeated_ngrams(np.array([[-1, -1, 5]]), rows, 1)
    assert np.flatnonzero(rows[0]).tolist() == [5]


def test_streaming_gives_the_generated_text_and_a_listener_changes_no_bit() -> None:
    [[expected]] = generate(model(), PROMPTS[1:2], max_new_tokens=20)
    assert list(stream(model(), PROMPTS[1], max_new_tokens=20)) == expected.ids.tolist()
    with listen(lambda name, array: array):
        [[heard]] = generate(model(), PROMPTS[1:2], max_new_tokens=20, output_scores=True)
    [[scored]] = generate(model(), PROMPTS[1:2], max_new_tokens=20, output_scores=True)
    assert np.array_equal(heard.ids, expected.ids)
    assert np.array_equal(heard.token_scores, scored.token_scores)


def test_padded_ids_and_their_mask_are_ragged_prompts() -> None:
    ids, mask = np.zeros((2, 6), int), np.zeros((2, 6), int)
    ids[0, 1:], mask[0, 1:], ids[1, 5:], mask[1, 5:] = PROMPTS[0].ids, 1, PROMPTS[2].ids, 1  # padded on the left
    found = model().generate(ids, mask, max_new_tokens=9)
    expected = generate(model(), [PROMPTS[0], PROMPTS[2]], max_new_tokens=9)
    assert [each.ids.tolist() for [each] in found] == [each.ids.tolist() for [each] in expected]
    assert list(model().stream(PROMPTS[0].ids, max_new_tokens=9)) == expected[0][0].ids.tolist()


def test_an_empty_prompt_is_the_start_token() -> None:
    empty = Text(np.zeros(0, int))
    [[found], [expected]] = generate(model(), [empty, Text(np.array([START]))], max_new_tokens=9)
    assert np.array_equal(found.ids, expected.ids)
    with pytest.raises(
        NpformerError,
        match=r"prompt 0: expected at least one token, because the model has no start token \(bos_token_id\)",
    ):
        generate(model(start_id=None), [empty])


def test_lengths_count_from_each_prompt() -> None:
    texts = [PROMPTS[0], PROMPTS[3]]
    assert [len(each.ids) for [each] in generate(model(), texts, max_length=75, suppress_tokens=[END])] == [70, 5]
    near = Text(RANDOM.integers(2, 300, size=250))
    assert [len(each.ids) for [each] in generate(model(), [near], suppress_tokens=[END])] == [6]
    assert [len(each.ids) for [each] in generate(model(), [near], max_new_tokens=7, suppress_tokens=[END])] == [7]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 253}, "max_new_tokens: expected a whole number from 1 to 252, got 253"),
        ({"max_length": 5}, "max_length: expected a whole number from 6 to 257, got 5"),
        ({"output_attentions": True}, "output_attentions: only an encoder-decoder has cross-attention"),
        ({"eos_token_id": 300}, "eos_token_id: expected a whole number from 0 to 299, got 300"),
    ],
)
def test_settings_that_are_impossible(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        generate(model(), PROMPTS[:1], **settings)


def test_prompts_that_are_impossible() -> None:
    with pytest.raises(NpformerError, match="input_ids: expected at most 256 tokens, got 257 in text 1"):
        generate(model(), [PROMPTS[0], Text(np.full(257, 5))])
    with pytest.raises(NpformerError, match="input_ids: 300 of text 0 is outside the vocabulary"):
        generate(model(), [Text(np.array([300]))])


def test_a_model_that_writes_no_texts() -> None:
    config = FAMILIES["gpt2"].config("base", **{name: getattr(model().config, name) for name in ("vocab_size", "d_model", "n_heads")},
                         n_layers=1, d_ffn=8, max_length=8)  # fmt: skip
    with pytest.raises(
        NpformerError, match="a base model cannot generate text; expected the head translation or causal-lm"
    ):
        Model(config, tiny.weights(config)).generate([3, 4])


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "roberta"])
def test_a_prompt_that_extends_an_earlier_text_computes_only_its_new_rows(family: str) -> None:
    """With any number of cached rows, the bits equal those of the whole prompt, including its keys and values."""
    writer, random = model(family=family), np.random.default_rng(3)
    first = Stream(writer, PROMPTS[3], max_new_tokens=13, suppress_tokens=[END])
    known = np.concatenate([PROMPTS[3].ids, list(first)])
    assert first.state.length == len(known) - 1
    for count, new in ((len(known) - 1, 70), (48, 1), (5, 20)):
        ids = np.concatenate([known[:count], random.integers(2, 300, new)])
        prompts = Text(ids), first.state.continued(ids, count)
        left_out = family == "gemma2" and count - 40 < 16  # needs rows that the window of 40 has dropped
        assert isinstance(prompts[1], Continued) is not left_out
        whole, continued = (Stream(writer, each, max_new_tokens=5, logprobs=2) for each in prompts)
        expected = list(whole)
        assert expected == list(continued)
        with listen(lambda name, array: array):  # with a listener, the whole prompt is computed
            assert expected == list(Stream(writer, prompts[1], max_new_tokens=5))
        for a, b in zip(whole.likely, continued.likely, strict=True):
            assert np.array_equal(a.scores, b.scores)
        for rows in zip(*(each.state.rows(each.state.length) for each in (whole, continued)), strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(*rows, strict=True))


@pytest.mark.parametrize("family", slow_after(3, ["gpt2", "gemma2", "roberta", "bert", "electra", "llama"]))
def test_a_long_prompt_in_blocks_of_rows_has_the_bits_of_one_pass(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, settings = model(family=family), {"max_new_tokens": 5, "logprobs": 2}
    whole = [Stream(writer, each, **settings) for each in PROMPTS]
    sizes, encode = [], state.encode

    def heard(weights: Any, parts: Any, batch: Any, *others: Any, **caches: Any) -> np.ndarray:
        sizes.append(len(batch.ids))
        return encode(weights, parts, batch, *others, **caches)

    monkeypatch.setattr(state, "encode", heard)
    for block in (16, 40):
        monkeypatch.setattr(state, "BLOCK", block)
        for prompt, one in zip(PROMPTS, whole, strict=True):
            blocks = Stream(writer, prompt, **settings)
            for rows in zip(*(each.state.rows(each.state.length) for each in (one, blocks)), strict=True):
                assert all(np.array_equal(a, b) for a, b in zip(*rows, strict=True))
            [expected], [found] = (each.state.first for each in (one, blocks))
            assert np.array_equal(expected, found)
        assert max(sizes) == block
        together = generate(writer, PROMPTS, **settings)
        assert [each[0].ids.tolist() for each in together] == [
            generate(writer, [each], **settings)[0][0].ids.tolist() for each in PROMPTS
        ]
        assert max(sizes) > block  # short prompts are still run together
        sizes.clear()


def test_a_long_prompt_needs_the_memory_of_one_block_and_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed-forward network's gate and up rows take 16 MB for the whole prompt, and 2 MB for a block."""
    writer = tiny.model("llama", "causal-lm", threads=1, n_layers=2, d_model=32, d_ffn=1024, max_length=2100)
    ids, peaks = np.random.default_rng(0).integers(8, 200, 2048), {}
    for block in (2048, 256):
        monkeypatch.setattr(state, "BLOCK", block)
        # the first run creates lasting arrays, which are not measured
        list(Stream(writer, Text(ids), max_new_tokens=1))
        tracemalloc.start()
        try:
            Stream(writer, Text(ids), max_new_tokens=1)
            peaks[block] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peaks[256] < peaks[2048] / 3, peaks


@pytest.mark.parametrize("beams", [1, 2])
def test_a_layer_with_a_window_keeps_the_keys_that_its_steps_read(beams: int) -> None:
    """The window has 40 places, and the prompt 130 tokens; keys are dropped in whole groups of 16 rows."""
    writer = model(family="gemma2")
    settings, projection = (
        Settings(start_id=START, max_new_tokens=60, num_beams=beams),
        Projection(**writer.weights["head"]["output"]),
    )
    layers = state.PromptState(writer, [PROMPTS[5]], settings, projection).layers
    room = layers[0].ancestry.room
    assert [each.keys.shape[-1] for each in layers] == [room - 80, room]
    assert [each.skipped for each in state.PromptState(writer, PROMPTS, settings, projection).layers] == [0, 0]


def test_the_keys_and_values_of_a_prompt_are_in_memory_once() -> None:
    """Memory stays below 1.5 times the cache, because only a few layers' rows are in memory besides the cache."""
    sizes = {"n_layers": 24, "d_model": 64, "d_ffn": 16, "n_kv_heads": 0, "max_length": 400}
    writer = tiny.model("llama", "causal-lm", threads=1, **sizes)
    ids = np.random.default_rng(0).integers(8, 200, 384)
    # the first run creates lasting arrays, which are not measured
    list(Stream(writer, Text(ids[:8]), max_new_tokens=1))
    tracemalloc.start()
    try:
        read = Stream(writer, Text(ids), max_new_tokens=1)
        cache = sum(each.keys.nbytes + each.values.nbytes for each in read.state.layers)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * cache
    finally:
        tracemalloc.stop()
