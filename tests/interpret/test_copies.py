"""Changed copies of a text have the same bits together as in separate runs, for any change and family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import edit
from npformer.common import progress
from npformer.common.errors import NpformerError
from npformer.engine.runtime.threads import start_workers
from npformer.interpret import copies
from npformer.interpret.copies import run_copies
from npformer.interpret.edits import Change, from_trace, without_head
from npformer.interpret.patching import patch
from npformer.interpret.study_inputs import read_inputs
from npformer.interpret.traces import trace
from tests.support import tiny
from tests.support.seq2seq_models import random_model
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

CLEAN, CORRUPTED = "I love [MASK] cream", "you love [MASK] cream"
FAMILIES = [
    ("deberta-v2", "sequence-classification"), ("modernbert", "masked-lm"),
    ("gpt2", "causal-lm"), ("distilbert", "sequence-classification"), ("bert", "masked-lm"), ("albert", "sequence-classification"), ("mpnet", "question-answering"),
    ("gpt2", "sequence-classification"), ("bart", "sequence-classification"),
]  # fmt: skip


def one_by_one(model: Any, given: Any, changes: list[tuple[str, Change]]) -> list[dict[str, np.ndarray]]:
    found = []
    for name, change in changes:
        with edit({name: change}):
            found += model.run([given])
    return found


def check(model: Any, given: Any, changes: list[tuple[str, Change]]) -> None:
    for got, expected in zip(run_copies(model, given, changes), one_by_one(model, given, changes), strict=True):
        assert got.keys() == expected.keys()
        for name in got:
            np.testing.assert_array_equal(got[name], expected[name])


def changes_of(clean: Any, count: int) -> list[tuple[str, Change]]:
    """Returns changes to rows, heads and whole stages in every layer, in random order."""
    found: list[dict[str, Change]] = []
    for name in [name for name in clean if not name.endswith("probabilities")]:  # computed after the model, by a task
        shape = clean[name].shape
        found.append(from_trace(clean, name))
        if len(shape) > 1 and shape[-2] == count:
            found += [from_trace(clean, name, i) for i in (0, count - 1)]
        if name.endswith(".context"):
            found += [without_head(name, head) for head in range(shape[0])]
    pairs = [pair for each in found for pair in each.items()]
    return [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))]


@pytest.mark.parametrize(("family", "head"), slow_after(3, FAMILIES))
def test_bits_are_those_of_one_run_for_each_change(family: str, head: str) -> None:
    model = tiny.model(family, head)
    (given,) = read_inputs(model, CORRUPTED).inputs
    check(model, given, changes_of(trace(model, CLEAN), len(given)))


@pytest.mark.slow
def test_the_copies_of_a_translation_run_whole() -> None:
    model = random_model(n_layers=1)
    pair = ([5, 6, 0], [499, 7, 8])
    (given,) = read_inputs(model, pair).inputs
    check(model, given, changes_of(trace(model, ([8, 6, 0], [499, 7, 8])), 3))


def test_an_edit_around_them_changes_every_copy() -> None:
    model = tiny.model()
    (given,) = read_inputs(model, CORRUPTED).inputs
    with edit({"layers.*.ffn.output": lambda rows: 2 * rows}):
        check(model, given, changes_of(trace(model, CLEAN), len(given))[:40])


def test_layers_below_a_change_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fired = tiny.model(threads=1), []
    change = {"layers.1.ffn.output": lambda rows: (fired.append(rows.shape), rows)[1]}
    (given,) = read_inputs(model, CORRUPTED).inputs
    with edit({"layers.0.ffn.output": lambda rows: (fired.append("below"), rows)[1]}):
        run_copies(model, given, list(change.items()) * 3)
    assert fired == ["below", *[(len(given), 32)] * 3]


@pytest.mark.parametrize("threads", [1, 2])
def test_long_runs_are_cut_into_batches(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "TOKENS", 20)
    model = tiny.model(threads=threads)
    start_workers(threads - 1)
    (given,) = read_inputs(model, CORRUPTED).inputs
    check(model, given, changes_of(trace(model, CLEAN), len(given))[:40])


def test_progress_counts_the_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "DELAY", 0)
    patch(tiny.model(), CLEAN, CORRUPTED, progress=True)
    assert "\r12 runs in " in capsys.readouterr().err


def test_a_stage_that_does_not_fire_is_an_error() -> None:
    model = tiny.model()
    with pytest.raises(NpformerError, match=r"'layers.1.ffn.outputs': no such stage; did you mean layers.1.ffn.output"):
        run_copies(model, read_inputs(model, CLEAN).inputs[0], [("layers.1.ffn.outputs", np.zeros_like)])


def test_no_change_needs_no_run() -> None:
    assert run_copies(tiny.model(), read_inputs(tiny.model(), CLEAN).inputs[0], []) == []
