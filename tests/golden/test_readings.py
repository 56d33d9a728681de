"""Ports that make a mistake in reading a text in chunks with a cache, or in padding texts to one length."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from npformer import golden
from npformer.engine.mechanisms import Rotary, Window
from npformer.engine.mechanisms.rotary_scaling import Llama3
from npformer.engine.runtime.packing import Text
from npformer.golden.page_edits.readings import FUNCTIONS
from npformer.model import Model
from tests.support import tiny
from tests.support.edited_pages import Arrays, Plant, edited, inputs, run, run_in_chunks

pytestmark = [pytest.mark.numbers, pytest.mark.edits]

SOFTMAX, SCORES, CONTEXT = (
    "weights = masked_softmax(scores, mask)",
    "q @ k.mT / math.sqrt(q.shape[-1])",
    "return weights @ v",
)
#: Functions that number the chunk of each row, independent of `readings.py`: chunks of 3, and steps after 4 tokens.
CHUNKS = """
def in_chunks(n):
    return np.repeat(np.arange(n), 3)[:n]
def in_steps(n):
    return np.concatenate([np.zeros(4, int), np.arange(1, n)])[:n]
def same(of):
    return np.equal.outer(of, of)
def coarse(x):
    return np.round(x / np.abs(x).max() * 127) * np.abs(x).max() / 127
def by_steps(x):
    return np.concatenate([coarse(x[:, :4]), *[coarse(x[:, i : i + 1]) for i in range(4, x.shape[1])]], axis=1)
def of_prompt(x):
    step = np.abs(x[:, :4]).max() / 127
    return np.clip(np.round(x / step), -127, 127) * step
def with_more_zeros(scores, mask):
    e = np.exp(np.where(mask, scores, -np.inf))
    empty = np.where(np.arange(len(mask)) < 4, 0, 23 - np.arange(len(mask)))
    return e / (e.sum(-1, keepdims=True) + empty[:, None])
def plain(positions, frequencies):
    own = positions[..., None] * frequencies
    return np.where((np.arange(len(own)) < 4)[:, None], positions[..., None] * 10000.0 ** (-np.arange(4) / 4), own)
def slots_of(x):
    return np.concatenate([x[:, :3], x[:, 4:5], x[:, 4:]], axis=1) if x.shape[1] > 4 else x
def kept_in_ring(mask):
    n, last = len(mask), np.minimum(np.arange(len(mask)) // 3 * 3 + 2, len(mask) - 1)
    return mask & (np.arange(n) > last[:, None] - mask.sum(-1).max())
def mixed(weights, v):
    made = []
    for i in range(v.shape[1]):
        slots = np.concatenate([v[:, :3], v[:, 4 : i + 1], 0 * v[:, :1]], axis=1) if i >= 4 else v[:, : i + 1]
        made.append(weights[:, i : i + 1, : i + 1] @ slots)
    return np.concatenate(made, axis=1)
def with_zeros(scores, mask):
    n = len(mask)
    seen = mask | (np.arange(n) >= 4)[:, None]
    return masked_softmax(np.where(mask, scores, 0.0), seen)
"""
IN_STEPS = "same(in_steps(len(mask)))"
#: Name of a mistake -> family, edits that plant the mistake, and a part of the edit that the diagnosis shows.
MISTAKES: dict[str, tuple[str, tuple[tuple[str, str], ...], str]] = {
    "no mask inside later chunks": (
        "llama",
        ((SOFTMAX, f"{SOFTMAX[:-1]} | (same(in_chunks(len(mask))) & (in_chunks(len(mask)) > 0)))"),),
        "mask | own_later_chunk(scores, chunks_of(3))",
    ),
    "no mask inside chunks": (
        "llama", ((SOFTMAX, f"{SOFTMAX[:-1]} | same(in_chunks(len(mask))))"),),
        "mask | own_chunk(scores, chunks_of(3))",
    ),
    "the cache is not read": (
        "qwen3", ((SOFTMAX, f"{SOFTMAX[:-1]} & same(in_chunks(len(mask))))"),),
        "mask & own_chunk(scores, chunks_of(3))",
    ),
    "a ring that a chunk overwrites": (
        "windowed", ((SOFTMAX, f"{SOFTMAX[:-1]} & kept_in_ring(mask))"),), "mask & in_ring(mask, chunks_of(3))"
    ),
    "the first key stays in the window": (
        "windowed", ((SOFTMAX, f"{SOFTMAX[:-1]} | (mask.cumsum(0) > 0) & (np.arange(len(mask)) < 1))"),),
        "with_first_keys(mask, 1)",
    ),
    "keys and values in 8 bits": (
        "qwen3", ((SCORES, SCORES.replace("k.mT", "by_steps(k).mT")), (CONTEXT, "return weights @ by_steps(v)")),
        "by_chunk(int8, k, steps_after(4))",
    ),
    "zeros that are not written": (
        "qwen3", ((SOFTMAX, "weights = with_zeros(scores, mask)"), (CONTEXT, "return (weights * mask) @ v")),
        "with_unwritten_keys(scores, mask, steps_after(4))",
    ),
    "values written one row early": (
        "llama", ((CONTEXT, "return mixed(weights, v)"),), "written_early(weights, v, steps_after(4))"
    ),
    "the scale of the prompt": (
        "qwen3", ((SCORES, SCORES.replace("k.mT", "of_prompt(k).mT")), (CONTEXT, "return weights @ of_prompt(v)")),
        "with_scale_of_prompt(k, steps_after(4)",
    ),
    "a static cache of 24 slots": (
        "gpt2", ((SOFTMAX, "weights = with_more_zeros(scores, mask)"),), "with_unwritten_keys(scores, mask, steps_after(4), slots=24)"
    ),
    "scaling that the prompt lacks": (
        "scaled", (("positions[..., None] * frequencies.astype(np.float64)", "plain(positions, frequencies)"),),
        "in_prompt(positions[..., None] * unscaled(",
    ),
    "the last slot overwritten": (
        "llama",
        (
            (SCORES, f"np.where({IN_STEPS}, {SCORES}, {SCORES.replace('k.mT', 'slots_of(k).mT')})"),
            (CONTEXT, f"return weights * {IN_STEPS} @ v + weights * ~{IN_STEPS} @ slots_of(v)"),
        ),
        "overwritten(k, steps_after(4))",
    ),
}  # fmt: skip


@cache
def recorded(family: str) -> tuple[Model, golden.Golden]:
    scaled = Rotary(10000.0, scaling=Llama3(8.0, 1.0, 4.0, 64))
    kinds: dict[str, Any] = {"windowed": (Rotary(10000.0), Window(4)), "scaled": (scaled,)}
    more = {"mechanisms": kinds[family]} if family in kinds else {}
    model, random = (
        tiny.model({"windowed": "mistral", "scaled": "llama"}.get(family, family), "causal-lm", **more),
        np.random.default_rng(2),
    )
    return model, golden.record(model, [Text(random.integers(5, 60, length)) for length in (9, 6)])


def shown_by(arrays: Arrays, full: bool) -> Arrays:
    """The stages that a port exports: if `full`, all except scores, like a port with a cache, else hidden states."""
    ends = ("ffn_residual", "ffn_norm", "/embeddings.norm", "/embeddings.sum", "/norm", "/logits")
    return {
        name: each for name, each in arrays.items() if (not name.endswith("scores") if full else name.endswith(ends))
    }


def first_edits(model: Model, reference: golden.Golden, plant: Plant, full: bool) -> str:
    found = golden.diagnose(reference, shown_by(run(model, reference, plant, padded=False), full), model)
    assert found.edits is not None
    assert len(found.edits.causes) == 1, found
    assert found.edits.explain_all
    return str(found.edits)


@pytest.mark.parametrize("full", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["full", "hidden states"])
@pytest.mark.parametrize(("family", "edits", "after"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_of_a_reading_is_the_only_edit(
    family: str, edits: tuple[tuple[str, str], ...], after: str, full: bool
) -> None:
    assert after in first_edits(*recorded(family), edited(*edits, added=CHUNKS), full)


@pytest.mark.parametrize("full", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["full", "hidden states"])
def test_padding_that_is_attended_is_named(full: bool) -> None:
    model = tiny.model("distilbert", "sequence-classification")
    reference = golden.record(model, [Text(np.arange(5, 14)), Text(np.arange(20, 26))])
    longer = golden.record(model, [Text(np.r_[each.ids, [0] * (12 - len(each.ids))]) for each in reference.texts])
    arrays = {}
    for name, array in run(model, longer, padded=False).items():
        n = len(reference.texts[int(name[0])].ids)
        arrays[name] = array[tuple(slice(n) if size == 12 else slice(None) for size in array.shape)]
    found = golden.diagnose(reference, shown_by(arrays, full), model)
    assert found.edits is not None
    assert "padded to 12 tokens on the right, with id 0, without a mask" in str(found.edits.causes[0])


def test_positions_that_count_padding_are_named() -> None:
    model = tiny.model("gpt2", "causal-lm")
    reference = golden.record(model, [Text(np.arange(5, 14)), Text(np.arange(20, 26))])
    plant = inputs(positions="positions + 11 - len(positions)")
    found = golden.diagnose(reference, run(model, reference, plant, padded=False), model)
    assert "padded to 11 tokens on the left, masked, and positions count the padding" in str(found)


def test_positions_after_a_padded_prompt_are_named() -> None:
    """A prompt of 4 tokens is padded to 6, and later positions count the padding."""
    model, reference = recorded("llama")
    plant = inputs(positions="positions + 2 * (positions >= 4)")
    found = golden.diagnose(reference, shown_by(run(model, reference, plant, padded=False), True), model)
    assert "< start, positions, positions + 2)" in str(found.edits), found


def test_scores_of_unwritten_keys_are_not_called_a_wrong_mask() -> None:
    """A wrong mask that sets scores to 0 explains only the weights; keys and values of 0 explain all later stages."""
    model, reference = recorded("qwen3")
    _, edits, _ = MISTAKES["zeros that are not written"]
    found = golden.diagnose(
        reference, shown_by(run(model, reference, edited(*edits, added=CHUNKS), padded=False), True), model
    )
    assert found.causes == []
    assert "cause:" not in str(found)


def test_a_mistake_in_the_last_layer_is_searched_there() -> None:
    """The same line of the page computes both layers, and only the last one is wrong."""
    model, reference = recorded("llama")
    arrays = shown_by(run_in_chunks(model, reference, 4, cached=lambda past: [past[0], past[0]]), False)
    arrays = {name: each for name, each in arrays.items() if "layers.1." not in name}
    found = golden.diagnose(reference, arrays, model)
    assert (found.stage, found.edits is None) == ("norm", False)
    assert "['layers.0.attention.key_rotated'], k" in str(found.edits)


@pytest.mark.parametrize("reading", ["chunks_of(4)", "steps_after(4)"])
def test_readings_have_a_number_for_each_row(reading: str) -> None:
    of = eval(reading, dict(FUNCTIONS))(7)
    assert of.tolist() == {"chunks_of(4)": [0, 0, 0, 0, 1, 1, 1], "steps_after(4)": [0, 0, 0, 0, 1, 2, 3]}[reading]
