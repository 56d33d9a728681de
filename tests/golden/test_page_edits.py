"""Edits of a page explain ports of families that npformer runs, and of a page that only this file contains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from npformer import golden
from npformer.common.halves import half
from npformer.engine.mechanisms import PartialRotary, Rotary, Window
from npformer.engine.runtime.packing import Text
from npformer.golden.page_edits import Causes, edits_of_model, explain
from npformer.golden.page_edits.instrumented import Page
from npformer.golden.page_edits.number_formats import FUNCTIONS
from npformer.golden.page_edits.roundings import format_of
from npformer.golden.page_edits.solved import number
from npformer.model import Model
from tests.support import tiny
from tests.support.edited_pages import (
    Arrays,
    Plant,
    changed,
    diagnosis,
    edited,
    inputs,
    run,
    run_in_chunks,
)

pytestmark = [pytest.mark.numbers, pytest.mark.edits]

Weights = dict[str, np.ndarray]

#: A family that npformer's engine lacks, in which each token gets a decayed sum of the earlier tokens.
RETENTION = """
import math
import numpy as np


def linear(x, weight, bias):
    return x @ weight + bias


def unit_norm(x, gain, eps):
    rms = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return x / rms * gain


def decay_mask(length, decay):
    steps = np.arange(length)
    distances = steps[:, None] - steps
    return np.where(distances >= 0, decay ** np.abs(distances), 0.0)


def retention(x, decay, query, key, value):
    q = linear(x, **query)
    k = linear(x, **key)
    v = linear(x, **value)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    kept = scores * decay_mask(len(x), decay)
    mixed = kept @ v
    return mixed


def layer(x, decay, eps, gain, mixer, gate):
    normed = unit_norm(x, gain, eps)
    retained = retention(normed, decay, **mixer)
    opened = np.tanh(linear(normed, **gate))
    output = x + opened * retained
    return output
"""
OF_PAGE = (
    ("q @ k.mT / math.sqrt(q.shape[-1])", "q @ k.mT / q.shape[-1]"),
    ("distances >= 0", "distances > 0"),
    ("distances >= 0", "distances <= 0"),
    ("scores * decay_mask(len(x), decay)", "scores"),
    ("mixed = kept @ v", "mixed = kept @ k"),
    ("steps[:, None] - steps", "steps - steps[:, None]"),
    ("x + opened * retained", "normed + opened * retained"),
    ("np.tanh(linear(normed, **gate))", "linear(normed, **gate)"),
    (".mean(axis=-1, keepdims=True)", ".sum(axis=-1, keepdims=True)"),
    ("opened * retained", "opened + retained"),
)


def mixers() -> dict[str, Weights]:
    random = np.random.default_rng(0)
    return {
        name: {"weight": random.normal(size=(12, 12)), "bias": random.normal(size=12)}
        for name in ("query", "key", "value")
    }


def given() -> dict[str, object]:
    random = np.random.default_rng(1)
    gate = {"weight": random.normal(size=(12, 12)), "bias": random.normal(size=12)}
    return {
        "x": random.normal(size=(7, 12)), "decay": 0.9, "eps": 1e-6, "gain": random.normal(size=12), "mixer": mixers(),
        "gate": gate,
    }  # fmt: skip


def stages_of(source: str, **changed: object) -> dict[str, np.ndarray]:
    """The stages of the page `source`, rounded to float32. changed: arguments that differ from `given()`."""
    page = Page(source)
    page.record(lambda module: module.layer(**(given() | changed)), frozenset(), "")
    return {name: array.astype(np.float32) for name, array in page.stages.items()}


def explained(port: dict[str, np.ndarray], shown: tuple[str, ...] = ("",)) -> Causes:
    """The causes found for a port of RETENTION. shown: endings of the names of the stages that it exports."""
    theirs = {name: [array] for name, array in port.items() if name.endswith(shown)}
    budgets = {name: 2e-6 * float(np.abs(array).max()) for name, (array,) in theirs.items()}
    return explain(RETENTION, [lambda page: page.layer(**given())], theirs, budgets, seconds=30)


def of_page(*edits: tuple[str, str], shown: tuple[str, ...] = ("",)) -> Causes:
    """The causes found for a port that is RETENTION with each `old` text replaced by `new`."""
    source = RETENTION
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return explained(stages_of(source), shown)


@pytest.mark.parametrize(("old", "new"), OF_PAGE, ids=[new for _, new in OF_PAGE])
def test_a_page_without_a_family_is_diagnosed_by_edits(old: str, new: str) -> None:
    found = of_page((old, new))
    assert any(new in cause.after for cause in found.causes), found


def test_a_right_port_has_no_wrong_stage() -> None:
    found = of_page(("kept @ v", "(kept @ v)"))
    assert (found.stage, found.causes) == ("", [])


def test_a_stage_that_the_page_has_too_is_not_explained() -> None:
    right = stages_of(RETENTION)["output"]
    found = explain(
        RETENTION, [lambda page: page.layer(**given())], {"output": [right]}, {"output": 1.0}, stage="output"
    )
    assert (found.stage, found.causes, found.tried) == ("", [], 0)


def test_a_mistake_that_no_edit_makes_is_not_named() -> None:
    found = of_page(("kept @ v", "np.sin(3 * kept) @ v[::-1]"))
    assert (found.stage, found.causes) == ("mixer.mixed", [])
    assert str(found).startswith("no edit of the page gives your values")


def test_a_search_without_time_says_that_it_was_cut() -> None:
    def layer(page: ModuleType) -> object:
        return page.layer(**given())

    found = explain(RETENTION, [layer], {"mixer.scores": [np.zeros((7, 7))]}, {"mixer.scores": 1e-6}, seconds=0)
    assert found.was_cut
    assert found.cause is None
    assert "the search was cut short" in str(found)


def test_a_cause_that_may_not_be_the_only_one_is_not_stated_alone() -> None:
    found = of_page(("mixed = kept @ v", "mixed = kept @ k"))
    assert str(found).startswith("this edit of the page gives your values:")
    cut = replace(found, was_cut=True)
    assert cut.cause is None
    assert str(cut).startswith("an edit that gives your values:")


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(8**-0.5, ("1 / math.sqrt(8)", True)), (0.5, ("0.5", True)), (0.3711, ("0.3711", False)), (1.19, ("1.19", True))],
)
def test_factors_are_recognised(factor: float, expected: tuple[str, bool]) -> None:
    assert number(factor, [(3, 8)], {}) == expected


def test_two_edits_that_explain_a_part_each_are_found_together() -> None:
    found = of_page(
        ("q @ k.mT / math.sqrt(q.shape[-1])", "q @ k.mT"), ("np.tanh(linear", "(linear"), shown=("output",)
    )  # fmt: skip
    both = [found.causes[0], *found.causes[0].second]
    assert {each.after for each in both} == {"scores = q @ k.mT", "opened = linear(normed, **gate)"}, found
    assert found.cause is None  # another pair, which was not tried, may also fit
    assert str(found).startswith("two edits of the page that give your values:")


def test_a_number_is_solved_for() -> None:
    found = of_page(("opened * retained", "0.3711 * (opened * retained)"))
    assert "0.3711" in found.causes[0].after, found


def test_a_known_mistake_is_searched_for_a_shorter_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npformer.golden.page_edits.fitting.KNOWN", 0.0)
    port = {"mixer.scores": [stages_of(RETENTION)["mixer.scores"] * 2.0]}
    for all_of_them in (True, False):
        found = explain(
            RETENTION, [lambda page: page.layer(**given())], port, {"mixer.scores": 1e-5}, all_of_them=all_of_them
        )
        assert (found.was_cut, bool(found.causes)) == (not all_of_them, all_of_them)


def rounded(group: Weights, quantise: Callable[[np.ndarray], np.ndarray]) -> Weights:
    return {name: quantise(w) if w.ndim > 1 else w for name, w in group.items()}


#: Number formats of weights, some with the type of their scales, and mistakes in converting weights back.
READ = [
    "float16(weight)", "int8(weight)", "int8(weight, stored=float16)", "int8_columns(weight)",
    "int8_columns(weight, stored=bfloat16)", "uint8(weight)", "int4_columns(weight, stored=bfloat16)", "q8_0(weight)",
    "q4_0(weight)", "q4_1(weight)", "nf4(weight)", "float8(weight)", "float8_e5m2(weight)",
    "int8_groups(weight, size=8)", "bfloat16(weight, toward_zero=True)", "int8_columns(weight, toward_zero=True)",
    "uint8_columns(weight, zero_point=False)", "int4_groups(weight, size=8, scale_of=1)",
    "bfloat16_read_as_float16(weight)", "nibbles_swapped(int4_columns(weight))", "nibbles_halved(q4_0(weight))",
    "uint4_groups(weight, size=8)", "uint4_groups(weight, size=8, off_by_one=True)",
]  # fmt: skip


def read_as(call: str, weight: np.ndarray) -> np.ndarray:
    """The weight that the call `call`, such as those in READ, returns for `weight`."""
    return np.asarray(eval(call, {**FUNCTIONS, "weight": np.asarray(weight, np.float64)}))


@pytest.mark.parametrize("call", READ)
def test_quantized_weights_of_some_layers_are_named(call: str) -> None:
    mixer = {name: rounded(group, partial(read_as, call)) for name, group in mixers().items()}
    found = explained(stages_of(RETENTION, mixer=mixer), shown=("output",))
    assert found.cause is not None, found
    assert (found.cause.after, found.cause.only) == (f"return x @ {call} + bias", "mixer")


@pytest.mark.parametrize("call", [each for each in READ if not each.startswith(("int8(", "uint8("))])
def test_the_format_of_a_weight_is_named(call: str) -> None:
    own = np.random.default_rng(0).normal(size=(24, 20)).astype(np.float32)
    found = format_of(read_as(call, own).astype(np.float32), own)
    np.testing.assert_array_equal(read_as(found, own), read_as(call, own))


def test_a_weight_in_no_known_format_is_not_named() -> None:
    own = np.random.default_rng(0).normal(size=(24, 20)).astype(np.float32)
    assert format_of(own + np.float32(0.01), own) == ""


def test_groups_read_with_the_next_scale_keep_their_steps() -> None:
    """With equal scales, the scale of another group changes nothing."""
    x = np.tile(np.random.default_rng(0).normal(size=(8, 3)), (4, 1))
    made, other = (FUNCTIONS["int4_groups"](x, size=8, scale_of=shift) for shift in (0, 1))
    np.testing.assert_allclose(made, other, rtol=1e-15)  # not equal: the steps are divided by a scale once more


@pytest.mark.parametrize("order", ["interleaved", "halved"])
def test_orders_of_nibbles_are_inverse(order: str) -> None:
    x = np.arange(64 * 3).reshape(64, 3)
    other = {"interleaved": "halved", "halved": "interleaved"}[order]
    assert np.array_equal(FUNCTIONS[f"nibbles_{other}"](FUNCTIONS[f"nibbles_{order}"](x)), x)
    assert np.array_equal(FUNCTIONS["nibbles_swapped"](x)[:4, 0], [3, 0, 9, 6])


def test_a_function_in_half_precision_is_named() -> None:
    root = "bfloat16((x**2).mean(axis=-1, keepdims=True)) + eps"
    source = RETENTION.replace(
        "np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)", f"bfloat16(np.sqrt(bfloat16({root})))"
    )
    source = source.replace("(x**2)", "bfloat16(x**2)").replace("x / rms * gain", "bfloat16(bfloat16(x / rms) * gain)")
    found = explained(stages_of(source), shown=("output",))
    first = found.causes[0]
    lines = [each.after.replace("x ** 2", "x**2") for each in (first, *first.second)]
    assert [line in source for line in lines] == [True, True], found
    assert str(found).startswith("two edits of the page that give your values:")


def test_numbers_of_a_group_share_a_scale() -> None:
    x = np.random.default_rng(0).normal(size=(70, 3))
    for name, most in (("q8_0", 1 / 127), ("q4_0", 1 / 8), ("q4_1", 2 / 15)):
        made = FUNCTIONS[name](x)
        for rows in (slice(0, 32), slice(32, 64), slice(64, 70)):
            # The largest step of a group, and the float16 rounding of its scale.
            assert np.abs(made - x)[rows].max() <= np.abs(x[rows]).max() * (most + 2**-10)


#: Family, text in the model's page, text that replaces it, page that is named, and line of that page that is named.
OF_MODELS = [
    ("distilbert", "y + feed_forward(", "x + feed_forward(", "formulas", "y + feed_forward(y, activation, **ffn)"),
    ("distilbert", "q @ k.mT / math.sqrt(q.shape[-1])", "q @ k.mT / q.shape[-1]", "formulas", "q @ k.mT"),
    ("llama", "activated * linear(x, **up)", "activated + linear(x, **up)", "formulas", "activated * linear(x, **up)"),
    ("llama", "attention_residual + gated", "normed + gated", "llama", "attention_residual + gated_feed_forward("),
]


@cache
def recorded(family: str, head: str = "sequence-classification", **fields: Any) -> tuple[Model, golden.Golden]:
    model, random = tiny.model(family, head, **fields), np.random.default_rng(2)
    end = [3] if family == "bart" else []  # its head reads the row of this token
    texts = [Text(np.r_[random.integers(5, 60, length), end].astype(int)) for length in (9, 6)]
    return model, golden.record(model, texts)


def port(family: str, old: str, new: str) -> Arrays:
    return run(*recorded(family), edited((old, new)), padded=False)


@pytest.mark.parametrize(("family", "old", "new", "page", "line"), OF_MODELS, ids=[each[2] for each in OF_MODELS])
def test_the_difference_of_a_models_page(family: str, old: str, new: str, page: str, line: str) -> None:
    model, reference = recorded(family)
    stages = port(family, old, new)
    theirs = {name: [np.asarray(stages[f"{i}/{name}"]) for i in range(2)] for name in reference.stages}
    found = edits_of_model(model, reference.inputs, theirs, reference.budgets, seconds=20)
    assert found.cause is not None, found
    assert (found.cause.page, new in found.cause.after) == (f"npformer/plain/{page}.py", True)
    assert line in found.cause.before


#: Mistakes of a text that is read in two chunks, and a part of the edit. Rows from the fourth are in the second chunk.
IN_CHUNKS = [
    ("positions=np.where(np.arange(len(positions)) < 4, positions, positions - 4)", "- start"),
    ("positions=np.where(np.arange(len(positions)) < 4, positions, positions + 1)", "positions + 1"),
]


@pytest.mark.parametrize("full", [True, False], ids=["all stages", "hidden states"])
@pytest.mark.parametrize(("change", "after"), IN_CHUNKS, ids=[each[1] for each in IN_CHUNKS])
def test_the_second_chunk_of_a_text_has_wrong_positions(change: str, after: str, full: bool) -> None:
    model, reference = recorded("llama")
    name, _, text = change.partition("=")
    arrays = run(model, reference, inputs(**{name: text}), padded=False)
    shown = ("",) if full else ("ffn_residual", "/embeddings.sum", "/norm", "/logits")
    found = golden.diagnose(reference, {name: each for name, each in arrays.items() if name.endswith(shown)}, model)
    assert found.edits is not None
    assert any(after in cause.after for cause in found.edits.causes), found


def int8(x: np.ndarray) -> np.ndarray:
    step = np.abs(x).max(axis=-1, keepdims=True) / 127
    return (np.rint(x / step) * step).astype(x.dtype)


def in_layers(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], Any]:
    return lambda past: [tuple(map(change, pair)) for pair in past]


@pytest.mark.parametrize(
    "full", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["all stages", "hidden states"]
)
def test_a_mistake_of_later_rows_alone_is_named(full: bool) -> None:
    """The gate is applied only to the 4 tokens of the prompt."""
    model, reference = recorded("llama", "causal-lm")
    plant = edited(
        ("activated * linear(x, **up)", "np.where(np.arange(len(x))[:, None] < 4, activated, 1) * linear(x, **up)")
    )
    arrays = run(model, reference, plant, padded=False)
    shown = ("",) if full else ("ffn_residual", "/embeddings.sum", "/norm", "/logits")
    found = golden.diagnose(reference, {name: each for name, each in arrays.items() if name.endswith(shown)}, model)
    assert found.edits is not None
    assert any(each.before.startswith("gated = ") for each in found.edits.causes), found


#: Mistakes in the cache of the first four tokens, or in the chunk that reads it, and a part of the edit.
OF_A_CACHE: dict[str, tuple[Plant, Callable[[Any], Any], str]] = {
    "int8": (Plant(), in_layers(int8), "before_start(int8_rows(each), each)"),
    "bfloat16": (Plant(), in_layers(partial(half, "bfloat16")), "before_start(bfloat16(each), each)"),
    "the last slot not written": (
        edited(("past[1], value_heads]", "past[1], value_heads * (past[1].shape[-2] == 0)]")),
        lambda past: past, "unwritten(",
    ),
    "a slot overwritten": (Plant(), in_layers(lambda x: x[..., :-1, :]), "!= start - 1"),
    "one layer's for all": (
        Plant(), lambda past: [past[0], past[0]], "for each in [before_start(split_heads(stages['layers.0."
    ),
    "keys one position further": (
        edited(("    keys = np.concatenate(", "    key_rotated = turned(past, key_rotated)\n    keys = np.concatenate("),
            added="""def turned(past, key):
    angle = (past[0].shape[-2] > 0) * 10000.0 ** (-np.arange(0, 8, 2) / 8)
    return rotate(key, np.cos(angle), np.sin(angle))"""),
        lambda past: past, "np.roll(each, -1, axis=-2) for each in angles",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("plant", "cached", "after"), OF_A_CACHE.values(), ids=OF_A_CACHE)
def test_a_wrong_cache_is_named(plant: Plant, cached: Callable[[Any], Any], after: str) -> None:
    model, reference = recorded("llama", "causal-lm")
    found = golden.diagnose(reference, run_in_chunks(model, reference, 4, plant, cached), model)
    assert found.edits is not None
    assert any(after in cause.after for cause in found.edits.causes), found.edits


def test_a_right_port_may_read_chunks() -> None:
    model, reference = recorded("llama", "causal-lm")
    assert golden.compare(reference, run_in_chunks(model, reference, 4)).ok


@pytest.mark.parametrize("sign", "+-")
def test_the_window_of_steps_is_off_by_one(sign: str) -> None:
    model, reference = recorded("mistral", "causal-lm", mechanisms=(Rotary(10000.0), Window(2)))
    wrong = f"key_positions, reach {sign} (len(key_positions) > len(positions)))"
    arrays = run_in_chunks(model, reference, 4, edited(("key_positions, reach)\n    past", f"{wrong}\n    past")))
    found = golden.diagnose(reference, arrays, model)
    assert found.edits is not None
    assert any(
        f"(reach {sign} (np.arange(len(positions)) >= start)[:, None])" in each.after for each in found.edits.causes
    )


def test_the_order_of_a_tables_columns_is_named_from_a_sum() -> None:
    model, reference = recorded("distilbert")
    interleaved = changed("position", lambda w: np.stack(np.split(w, 2, axis=-1), axis=-1).reshape(w.shape))
    arrays = run(model, reference, interleaved, padded=False)
    found = golden.diagnose(
        reference, {name: each for name, each in arrays.items() if "/embeddings.norm" in name}, model
    )
    assert "+ total = embedding(ids, **token) + np.stack(np.split(embedding(positions, **position)," in str(found)


def test_a_port_that_no_rotation_fits_is_diagnosed() -> None:
    """A head of a different width cannot be rotated, so the diagnosis skips such a port."""
    model = tiny.model("phi3", "causal-lm", mechanisms=(PartialRotary(10000.0, columns=4), Window(4)))
    whole = inputs(frequencies="1 / 10000.0 ** (np.arange(4) / 4)")
    assert "rotation of the wrong columns (whole heads)" in diagnosis(model, whole, full=False)


def test_a_known_mistake_is_shown_as_an_edit_too() -> None:
    model, reference = recorded("distilbert")
    arrays = port("distilbert", "q @ k.mT / math.sqrt(q.shape[-1])", "q @ k.mT")
    found = golden.diagnose(reference, arrays, model)
    assert found.mistake == "unscaled scores"
    assert "as an edit of the page:" in str(found)
    assert "+ scores = q @ k.mT" in str(found)


def test_the_diagnosis_shows_the_edit_that_no_known_mistake_explains() -> None:
    model, reference = recorded("distilbert")
    arrays = port("distilbert", "x * (1 + erf(x / math.sqrt(2))) / 2", "x * (2 + erf(x / math.sqrt(2))) / 2")
    found = golden.diagnose(reference, arrays, model)
    assert found.causes == []
    assert found.edits is not None
    assert "+ return (x * (1 + (1 + erf(x / math.sqrt(2)))) / 2).astype(x.dtype)" in str(found)


def test_a_large_model_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npformer.golden.page_edits.of_model.LARGE", 10)
    monkeypatch.setattr("npformer.golden.page_edits.of_model.LARGEST", 10)
    model, reference = recorded("distilbert")
    theirs = {"logits": [array + 1 for array in reference.stages["logits"]]}
    assert edits_of_model(model, reference.inputs, theirs, reference.budgets).tried == 0
