"""The decoder: masks, shift_right, every stage of nn.Transformer against torch, and the bits of single steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from npformer.checkpoint import flatten, load_folder, unflatten
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.attention import masked_attention
from npformer.engine.blocks import PackedTexts, Source
from npformer.engine.blocks.attention import EVERY_KEY
from npformer.engine.embeddings import shift_right, sinusoidal_positions
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Causal
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.runtime.sums import TERMS
from npformer.engine.taps import listen, scope
from npformer.families.building import decoder_layer_of
from npformer.generation.kv_cache import KVCache
from tests.golden import seq2seq_cases as cases
from tests.support import torch_values
from tests.support.packed import decoder, encoder
from tests.support.seq2seq_models import random_model

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

DATA = Path(__file__).parents[1] / "golden" / "seq2seq"
TRANSFORMERS = ["transformer", "transformer-pre-norm"]
Weights = dict[str, np.ndarray]  # flat


# --- inputs ----------------------------------------------------------------------------------------------------


def test_shift_of_the_target_that_004_translates() -> None:
    inputs, labels = shift_right([12, 4433, 2304, 8872, 2240, 456, 2349, 13], start=0, end=99999)
    assert inputs.tolist() == [0, 12, 4433, 2304, 8872, 2240, 456, 2349, 13]
    assert labels.tolist() == [12, 4433, 2304, 8872, 2240, 456, 2349, 13, 99999]
    with pytest.raises(
        NpformerError, match=r"shift_right: target: expected whole numbers \(L,\), got int64 of shape \(1, 2\)"
    ):
        shift_right([[1, 2]], 0, 1)


@pytest.mark.parametrize("width", [2, 8, 9])
def test_positions_in_halves_are_the_papers_in_another_order(width: int) -> None:
    paper, halves = sinusoidal_positions(20, width), sinusoidal_positions(20, width, halves=True)
    assert np.array_equal(halves, np.concatenate([paper[:, 0::2], paper[:, 1::2]], axis=1))
    assert halves.dtype == np.float32


# --- every stage against torch ---------------------------------------------------------------------------------------


@cache
def heard(case: str, dtype: str) -> dict[str, np.ndarray]:
    return run(*load_folder(DATA / case, dtype), dtype)


def run(config: Config, tree: Mapping[str, Any], dtype: str = "float32") -> dict[str, np.ndarray]:
    """Runs the packed texts; returns the stages and the result, each flat and in the order of the texts."""
    found: dict[str, list[np.ndarray]] = {}

    def hear(name: str, array: np.ndarray) -> np.ndarray:
        found.setdefault(name, []).append(array.ravel())
        return array

    x, y = (
        cases.rows(name, each).astype(dtype)
        for name, each in (("source", cases.LENGTHS), ("target", cases.TARGET_LENGTHS))
    )
    lengths, target_lengths = np.array(cases.LENGTHS), np.array(cases.TARGET_LENGTHS)
    options = {"eps": config.eps, "norm_first": config.norm_first}
    shape = (config.n_heads, ACTIVATIONS[config.activation])
    with listen(hear):
        with scope("encoder"):
            encoded = encoder(x, lengths, *shape, **tree["encoder"], **options)
        with scope("decoder"):
            result = decoder(y, target_lengths, encoded, lengths, *shape, **tree["decoder"], **options)
    return {name: np.concatenate(each) for name, each in found.items()} | {"result": result.ravel()}


@cache
def torchs(case: str) -> dict[str, np.ndarray]:
    return load_file(DATA / case / "stages.safetensors")


def stages(case: str, dtype: str) -> dict[str, np.ndarray]:
    return torch_values.below(torchs(case), dtype)


def out_of_budget(case: str, found: dict[str, np.ndarray]) -> dict[str, str]:
    """Returns the stages of a float32 run with errors above their budgets, and a description of each error."""
    torch32, truth, errors = stages(case, "float32"), stages(case, "float64"), torch_values.errors_in(torchs(case))
    wrong = {name: torch_values.over_budget(found[name], torch32[name], truth[name], errors[name]) for name in truth}
    return {name: line for name, line in wrong.items() if line}


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_every_stage_of_nn_transformer_in_float32(case: str) -> None:
    """Torch runs one padded batch with causal, source-padding and target-padding masks. Here, nothing is padded."""
    assert "decoder.layers.0.cross_attention.weights" in stages(case, "float64")
    assert out_of_budget(case, heard(case, "float32")) == {}


def changed(part: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Weights], Weights]:
    """Returns a function that changes the weights whose names contain `part`."""
    return lambda weights: {name: change(array) if part in name else array for name, array in weights.items()}


def exchanged(one: str, other: str) -> Callable[[Weights], Weights]:
    """Returns a function that exchanges two weight names in the decoder's layers."""
    names = {one: other, other: one}
    pattern = re.compile(rf"(?<=decoder\.layers\.\d\.)({one}|{other})\b")
    return lambda weights: {pattern.sub(lambda found: names[found[1]], name): a for name, a in weights.items()}


#: Mistakes that ports make in an encoder-decoder, as changes to its config or its weights.
OF_CONFIG: dict[str, Callable[[Config], Config]] = {
    "another library's eps": lambda config: replace(config, eps=1e-6),
    "another formula of the activation": lambda config: replace(
        config, activation={"gelu": "gelu_tanh", "relu": "silu"}[config.activation]
    ),
    "norms on the other side of the blocks": lambda config: replace(config, norm_first=not config.norm_first),
    "fewer heads": lambda config: replace(config, n_heads=2, decoder=replace(config.decoder, n_heads=2)),
}
OF_WEIGHTS: dict[str, Callable[[Weights], Weights]] = {
    "weights that went through float16": changed("", lambda array: array.astype(np.float16).astype(array.dtype)),
    "scores scaled twice": changed("cross_attention.query.", lambda array: array / 2),
    "square weights not transposed": changed("cross_attention.output.weight", np.transpose),
    "keys for values of the source": exchanged("cross_attention.key", "cross_attention.value"),
    "one block's norm for another's": exchanged("attention_norm", "cross_attention_norm"),
    "the encoder's last norm left out": lambda weights: {
        name: array for name, array in weights.items() if not name.startswith("encoder.norm.")
    },
}


@pytest.mark.parametrize("mistake", [*OF_CONFIG, *OF_WEIGHTS])
@pytest.mark.parametrize("case", TRANSFORMERS)
def test_budgets_are_tight_enough_to_detect_every_mistake(case: str, mistake: str) -> None:
    config, tree = load_folder(DATA / case, "float32")
    weights = flatten(dict(tree))
    if mistake in OF_CONFIG:
        config = OF_CONFIG[mistake](config)
    else:
        weights = OF_WEIGHTS[mistake](weights)
    assert out_of_budget(case, {**heard(case, "float32"), **run(config, unflatten(weights))})


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_targets_that_see_later_tokens_exceed_the_budgets(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def every_key(self: Causal, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.ones((1, 1, queries.shape[1], keys.shape[1]), bool)

    monkeypatch.setattr(Causal, "mask", every_key)
    assert out_of_budget(case, run(*load_folder(DATA / case, "float32")))


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_every_stage_of_nn_transformer_in_float64(case: str) -> None:
    found, truth = heard(case, "float64"), stages(case, "float64")
    finite = {name: np.isfinite(array) for name, array in truth.items()}
    wrong = {
        name: np.abs(found[name] - truth[name])[finite[name]].max() / np.abs(truth[name][finite[name]]).max()
        for name in truth
    }
    assert {name: error for name, error in wrong.items() if error > 1e-13} == {}


def test_only_the_stages_that_split_heads_are_ours_alone() -> None:
    ours = {name for name in heard("transformer", "float32") if not name.endswith(("_heads", "combined"))}
    assert ours == set(stages("transformer", "float64"))


# --- the bits of a step ----------------------------------------------------------------------------------------------


@given(data=st.data(), dtype=st.sampled_from(["float32", "float64"]))
@settings(max_examples=40)
def test_a_masked_key_changes_no_bit(data: st.DataObject, dtype: str) -> None:
    """The bits of a row's context do not depend on the places of masked keys, or on the number of other rows."""
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    length, n_beams = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 6))
    width = data.draw(st.sampled_from([4, 16, 64]))
    q, k, v = (random.standard_normal((rows, width)).astype(dtype) for rows in (3, length, length))
    alone = masked_attention(q, k, v, EVERY_KEY)

    room = (length + data.draw(st.integers(0, 20))) * n_beams
    room += -room % 16
    own = np.arange(length) * n_beams + random.integers(n_beams, size=length)
    keys, values = (random.standard_normal((room, width)).astype(dtype) for _ in range(2))
    keys[own], values[own] = k, v
    mask = np.zeros((1, room), bool)
    mask[:, own] = True
    among = masked_attention(q[:1], keys, values, mask, terms=TERMS * n_beams)
    assert np.array_equal(among, alone[:1])
    transposed = np.ascontiguousarray(keys.T).T  # the layout of keys in a cache
    assert np.array_equal(masked_attention(q, transposed, values, mask, terms=TERMS * n_beams), alone)


def test_cached_decoding_has_the_bits_of_one_pass() -> None:
    """Three texts have four beams each, which are reordered at random. The last step has the same bits as one pass over
    the whole target of each beam."""
    model, random, n_beams, steps = random_model(), np.random.default_rng(0), 4, 40
    config, layers = model.config, model.weights["decoder"]["layers"]
    shape = (config.decoder.n_heads, ACTIVATIONS[config.activation])
    stack = Stack((decoder_layer_of(*shape, LayerNorm(1e-5), False),) * len(layers))
    source_lengths = np.array([3, 40, 17])
    source = random.standard_normal((60, config.d_model), dtype=np.float32)
    cache = KVCache(len(layers), source_lengths, n_beams)
    histories: list[list[np.ndarray]] = [[] for _ in range(3 * n_beams)]
    for step in range(steps):
        parents = random.integers(n_beams, size=(3, n_beams)) if step else None
        if parents is not None:
            histories = [list(histories[text * n_beams + beam]) for text in range(3) for beam in parents[text]]
        x = random.standard_normal((3 * n_beams, config.d_model), dtype=np.float32)
        for history, row in zip(histories, x, strict=True):
            history.append(row)
        cache.step(parents)
        batch = pack([Text(np.zeros(n_beams, np.int64))] * 3)
        texts = PackedTexts(batch.lengths, batch, source=Source(source, source_lengths), caches=cache.layers)
        last = stack(x, texts, {"layers": layers})
    whole = decoder(
        np.concatenate([np.stack(history) for history in histories]),
        np.full(3 * n_beams, steps),
        np.concatenate([each for each in np.split(source, np.cumsum(source_lengths)[:-1]) for _ in range(n_beams)]),
        source_lengths.repeat(n_beams),
        *shape,
        layers,
    )
    assert np.array_equal(whole[steps - 1 :: steps], last)


def test_texts_have_the_same_bits_in_any_batch_order_and_number_of_threads() -> None:
    random = np.random.default_rng(1)
    pairs = [
        (Text(random.integers(1, 499, size=s)), Text(random.integers(1, 499, size=t)))
        for s, t in [(5, 9), (5, 9), (1, 1), (30, 4), (64, 100), (5, 3)]
    ]
    one, two = random_model(threads=1), random_model(threads=2)
    alone = [one.run([pair])[0] for pair in pairs]
    for model in (one, two):
        for order in (range(6), [3, 1, 5, 0, 2, 4]):
            together = model.run([pairs[i] for i in order])
            for i, answer in zip(order, together, strict=True):
                assert all(np.array_equal(answer[name], alone[i][name]) for name in answer)
