"""Replays of models give the engine's bits for every family, whatever happens between two passes."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npformer
from npformer.engine.replay import program as programs
from npformer.engine.replay import replays
from npformer.engine.replay.passes import Pass
from npformer.engine.replay.replays import PASSES, Replays
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.trials import Trial
from npformer.families import FAMILIES
from npformer.model import Model
from tests.support import tiny
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

HEADS = [(name, head) for name, each in FAMILIES.items() for head in each.all_heads if head != "translation"]
FIRST = sorted(
    HEADS, key=lambda each: HEADS.index(each) if each[0] not in {n for n, _ in HEADS[: HEADS.index(each)]} else 999
)
LENGTHS = ([7], [3, 9, 9, 1])


def texts(model: Model, lengths: Any, seed: int) -> list[Text]:
    """Returns random texts; if the model has a decoder, they end with its end token."""
    random = np.random.default_rng(seed)
    found = [random.integers(0, 100, length) for length in lengths]  # includes special tokens
    if model.config.decoder:
        for ids in found:
            ids[-1] = model.parts.end_id
    types = [random.integers(0, max(1, model.config.n_token_types), length) for length in lengths]
    return [Text(ids, each) for ids, each in zip(found, types, strict=True)]


def equal(a: list[dict[str, np.ndarray]], b: list[dict[str, np.ndarray]]) -> bool:
    """Returns whether two lists of answers have the same bits."""
    return all(x[name].tobytes() == y[name].tobytes() for x, y in zip(a, b, strict=True) for name in x | y)


def warmed(model: Model, lengths: Any = LENGTHS[0]) -> Model:
    """Returns the model after it has tested a program for texts of these lengths."""
    for seed in range(PASSES + 3):
        model.run(texts(model, lengths, seed))
    assert has_program(model)
    return model


def has_program(model: Model) -> bool:
    return any(each.tested and each.program for each in model.replays._shapes.values())


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("family", "head"), slow_after(len(FAMILIES), FIRST))
def test_every_model_is_replayed_with_the_bits_of_the_engine(family: str, head: str, lengths: list[int]) -> None:
    model = tiny.model(family, head)
    inputs = [texts(model, lengths, seed) for seed in range(3)]
    expected = [model.run(each) for each in inputs]
    warmed(model, lengths)
    for each, answers in zip(inputs, expected, strict=True):
        assert equal(model.run(each), answers)


@settings(max_examples=15)
@given(
    family=st.sampled_from(["bert", "modernbert", "deberta-v2", "gpt2", "llama", "gemma2", "bart"]),
    dtype=st.sampled_from(["float32", "float64"]),
    threads=st.sampled_from([1, 2, 3]),
    same_bits=st.booleans(),
    width=st.sampled_from([32, 96, 384]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_shapes_threads_and_widths(
    family: str, dtype: str, threads: int, same_bits: bool, width: int, lengths: list[int]
) -> None:
    if family == "bart":
        lengths = [each + 1 for each in lengths]
    first = tiny.model(family, dtype=dtype, d_model=width, d_ffn=2 * width, n_layers=1)
    model = Model(first.config, first.weights, threads=threads, same_bits=same_bits)
    inputs = [texts(model, lengths, seed) for seed in range(2)]
    expected = [model.run(each) for each in inputs]
    for _ in range(PASSES):
        for each, answers in zip(inputs, expected, strict=True):
            found = model.run(each)
            if same_bits:
                assert equal(found, answers)
            else:  # a trial may choose a different layout of weights, which changes the order of sums
                assert all(np.allclose(a[n], b[n], atol=1e-4) for a, b in zip(found, answers, strict=True) for n in a)


# --- what may happen between two passes ------------------------------------------------------------------------------


def replaced(model: Model) -> None:
    norm = model.weights["layers"][1]["attention_norm"]
    norm["weight"] = norm["weight"] * 2


def scaled(model: Model) -> None:
    model.weights["layers"][0]["ffn"]["output"]["weight"][...] *= 2


def without_a_layer(model: Model) -> None:
    model.weights["layers"].pop()


def without_a_bias(model: Model) -> None:
    del model.weights["layers"][0]["ffn"]["hidden"]["bias"]


def another_config(model: Model) -> None:
    model.config = dataclasses.replace(model.config, activation="relu")


def another_tree(model: Model) -> None:
    model.weights = tiny.weights(model.config, seed=5)


@pytest.mark.parametrize("change", [replaced, scaled, without_a_layer, without_a_bias, another_tree, another_config])
def test_changed_weights_have_effect(change: Callable[[Model], None]) -> None:
    """Weights in memory may be writable, as in training. The call after a change uses the changed weights."""
    model = tiny.model()
    model.weights = copy.deepcopy(model.weights)
    for array in npformer.checkpoint.flatten(model.weights).values():
        array.flags.writeable = True
    warmed(model)
    before = model.run(texts(model, [7], 0))
    change(model)
    expected = Model(model.config, model.weights).run(texts(model, [7], 0))
    assert not equal(before, expected)
    for _ in range(PASSES + 3):
        assert equal(model.run(texts(model, [7], 0)), expected)


def test_every_changed_weight_has_effect() -> None:
    """The weights include MPNet's table of distances, which is read through a view of overlapping windows."""
    model = tiny.model("mpnet")
    model.weights = copy.deepcopy(model.weights)
    weights = npformer.checkpoint.flatten(model.weights)
    for array in weights.values():
        array.flags.writeable = True
    warmed(model)
    for name, array in weights.items():
        array *= 1.5
        expected = Model(model.config, model.weights).run(texts(model, [7], 0))
        assert equal(model.run(texts(model, [7], 0)), expected), name


@pytest.mark.parametrize("warm", [PASSES + 1, PASSES + 3])
def test_read_only_weights_that_become_writable(warm: int) -> None:
    """Products read copies of read-only weights, so the copies must not outlive a change."""
    model = tiny.model(d_model=128, d_ffn=640)
    model.weights = copy.deepcopy(model.weights)
    weights = npformer.checkpoint.flatten(model.weights).values()
    for array in weights:
        array.flags.writeable = False
    for seed in range(warm):
        model.run(texts(model, [7], seed))
    for array in weights:
        array.flags.writeable = True
        array *= 1.5
    expected = Model(model.config, copy.deepcopy(model.weights)).run(texts(model, [7], 0))
    for _ in range(2 * PASSES):
        assert equal(model.run(texts(model, [7], 0)), expected)
    assert has_program(model)


def test_weights_that_become_read_only_before_the_recorded_pass() -> None:
    """A copy for products would be a recorded array, which no later pass could use."""
    model = tiny.model(d_model=128, d_ffn=640)
    model.weights = copy.deepcopy(model.weights)
    weights = npformer.checkpoint.flatten(model.weights).values()
    for seed in range(PASSES + 3):
        for array in weights:
            array.flags.writeable = seed < PASSES - 2
        model.run(texts(model, [7], seed))
    for length in (7, 8):
        expected = Model(model.config, copy.deepcopy(model.weights)).run(texts(model, [length], 0))
        assert equal(model.run(texts(model, [length], 0)), expected)


def test_an_underflow_is_no_error() -> None:
    """The engine's softmax ignores underflows, and replays must do the same."""
    model = tiny.model()
    model.weights = copy.deepcopy(model.weights)
    for layer in model.weights["layers"]:
        layer["attention"]["query"]["weight"] = layer["attention"]["query"]["weight"] * 300
    with np.errstate(all="raise"):
        warmed(model)


def test_listeners_hear_every_stage_of_a_model_that_is_replayed() -> None:
    model, inputs = tiny.model(), texts(tiny.model(), [7], 0)
    expected = model.run(inputs)
    warmed(model)
    for _ in range(2):
        with npformer.trace() as stages:
            model.run(inputs)
        assert "layers.1.ffn.hidden" in stages
        with npformer.edit({"layers.0.ffn_norm": lambda x: 0 * x}):
            assert not equal(model.run(inputs), expected)
        assert equal(model.run(inputs), expected)


def test_an_interrupted_pass_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    expected = model.run(texts(model, [7], 0))
    warmed(model)
    [shape] = model.replays._shapes.values()
    count = len(shape.program._calls)

    def interrupt() -> None:
        raise KeyboardInterrupt

    for place in (1, count // 2, count - 1):
        monkeypatch.setattr(shape.program, "_calls", [*shape.program._calls[:place], interrupt])
        with pytest.raises(KeyboardInterrupt):
            model.run(texts(model, [7], 1))
        monkeypatch.undo()
        assert shape.program is None  # another thread may still write to its memory
        assert equal(model.run(texts(model, [7], 0)), expected)
        warmed(model)


def test_threads_that_use_one_model_at_once() -> None:
    """A program has only one set of buffers, so only one thread replays it at a time."""
    model = warmed(tiny.model())
    inputs = [texts(model, [7], seed) for seed in range(8)]
    expected = [Model(model.config, model.weights).run(each) for each in inputs]

    def work(index: int) -> None:
        for _ in range(30):
            assert equal(model.run(inputs[index]), expected[index])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only for systems with fork")
def test_a_fork_replays_too() -> None:
    model = warmed(tiny.model())
    inputs = texts(model, [7], 0)
    expected = model.run(inputs)
    child = os.fork()
    if not child:
        os._exit(0 if equal(model.run(inputs), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_model_have_replays_of_their_own(copied: Callable[[Model], Model]) -> None:
    model = warmed(tiny.model())
    other = copied(model)
    assert equal(other.run(texts(model, [7], 0)), model.run(texts(model, [7], 0)))
    assert other.replays is not model.replays


# --- which programs are kept ------------------------------------------------------------------------------------------


def test_programs_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is not made if there is no room for it, and a program in use keeps its room."""
    model = warmed(tiny.model())
    [first] = model.replays._shapes.values()
    monkeypatch.setattr(replays, "ROOM", 3 * first.program.nbytes)
    for length in range(8, 20):
        for seed in range(PASSES + 2):
            model.run(texts(model, [length], seed))
        model.run(texts(model, [7], 0))
    kept = [each.program.nbytes for each in model.replays._shapes.values() if each.program]
    assert 1 < len(kept) < 12
    assert sum(kept) <= 3 * first.program.nbytes
    assert first.program is not None


def test_programs_that_no_longer_run_give_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    model = warmed(tiny.model())
    [first] = model.replays._shapes.values()
    monkeypatch.setattr(replays, "ROOM", int(1.5 * first.program.nbytes))
    monkeypatch.setattr(replays, "IDLE", 2 * PASSES)
    for seed in range(8 * PASSES):
        model.run(texts(model, [8], seed))
    assert first.program is None
    assert has_program(model)


def test_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "SHAPES", 5)
    model = tiny.model()
    for length in range(1, 20):
        model.run(texts(model, [length], 0))
    assert len(model.replays._shapes) <= 5


def test_a_program_with_other_bits_is_never_used() -> None:
    """The work hides an operation from the recorder, so its program would repeat the first answer."""

    def work(weights: Any, inputs: Any, caches: Any) -> dict[str, np.ndarray]:
        return {"y": np.asarray(inputs[0]) * 2}

    weights, run = dict[str, Any](), Replays()
    for seed in range(3 * PASSES):
        x = np.random.default_rng(seed).standard_normal(5)
        answers = run.run(Pass("", work, weights, [x], lambda inputs: [inputs[0] + 1]))
        assert np.array_equal(answers["y"], 2 * x)
    [shape] = run._shapes.values()
    assert shape.refused


def test_a_program_that_depends_on_trials_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(replays, "REPLAYS", 4)
    original = programs.Program.__init__

    def counted(self: Any, recorder: Any, *args: Any) -> None:
        recorder.tried = True
        made.append(1)
        original(self, recorder, *args)

    monkeypatch.setattr(programs.Program, "__init__", counted)
    model = tiny.model()
    expected = model.run(texts(model, [7], 0))
    for _ in range(6 * PASSES):
        assert equal(model.run(texts(model, [7], 0)), expected)
    assert len(made) == 3  # after 4, then after 16 replays


@pytest.mark.parametrize(("ends", "before"), [(False, 8 * PASSES), (True, 2 * PASSES)])
def test_a_program_waits_for_trials_of_the_same_work(ends: bool, before: int) -> None:
    """A trial needs passes of the engine, so a program is made after the trial, or after a fixed number of passes."""
    trial = Trial((1, 2), 1)

    def work(weights: Any, inputs: Any, caches: Any) -> dict[str, np.ndarray]:
        return {"y": inputs[0] * trial.run(lambda way: 3)}

    weights, run, x = dict[str, Any](), Replays(), np.ones(3)
    for count in range(1, before + 8):
        trial.decided = ends and count > PASSES + 1
        run.run(Pass("", work, weights, [x], lambda inputs: [inputs[0] + 1]))
        [shape] = run._shapes.values()
        assert (shape.program is not None) == (count > before)
