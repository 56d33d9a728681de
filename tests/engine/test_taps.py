"""Taps: names, and the arrays that listeners get and replace. A listener affects no other thread or later call."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref

import numpy as np
import pytest

from npformer.engine.runtime.packing import Text
from npformer.engine.taps import listen, listening, scope, spare, tap
from npformer.families import distinct_encoders
from tests.support import tiny

FAMILIES = list(distinct_encoders())


class Ear:
    """A listener that records names and arrays, and returns `change(array)`."""

    def __init__(self, change=lambda array: array) -> None:
        self.names: list[str] = []
        self.arrays: list[np.ndarray] = []
        self.change = change

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray:
        self.names.append(name)
        self.arrays.append(array)
        return self.change(array)


def test_without_a_listener_a_tap_is_its_argument() -> None:
    array = np.arange(3)
    with scope("anywhere"):
        assert tap("name", array) is array
    assert not listening()
    assert spare(array) is array


def test_nothing_is_kept_without_a_listener() -> None:
    class Array(np.ndarray):
        pass

    array = np.arange(3).view(Array)
    reference = weakref.ref(tap("name", array))
    del array
    gc.collect()
    assert reference() is None


def test_names_join_scopes() -> None:
    ear = Ear()
    with listen(ear):
        tap("a", np.arange(1))
        with scope("layers.0"):
            tap("b", np.arange(1))
            with scope("attention"):
                tap("c", np.arange(1))
            tap("d", np.arange(1))
        tap("e", np.arange(1))
    assert ear.names == ["a", "layers.0.b", "layers.0.attention.c", "layers.0.d", "e"]


def test_a_scope_ends_with_an_exception() -> None:
    ear = Ear()
    with listen(ear):
        with pytest.raises(ZeroDivisionError), scope("broken"):
            raise ZeroDivisionError
        tap("a", np.arange(1))
    assert ear.names == ["a"]


def test_a_listener_may_replace_an_array() -> None:
    with listen(Ear(lambda array: array + 1)):
        assert tap("a", np.arange(2)).tolist() == [1, 2]
    assert tap("a", np.arange(2)).tolist() == [0, 1]


def test_listeners_hear_in_the_order_they_were_opened() -> None:
    outer, inner, edit = Ear(lambda array: array * 2), Ear(lambda array: array + 1), Ear(lambda array: array + 10)
    with listen(outer), listen(inner), listen(edit, first=True):
        assert tap("a", np.array(1)) == 23
    assert [ear.arrays[0] for ear in (edit, outer, inner)] == [1, 11, 22]
    with listen(outer), listen(inner):
        pass
    assert not listening()


def test_listening_ends_with_an_exception() -> None:
    ear = Ear()
    with pytest.raises(ZeroDivisionError), listen(ear):
        raise ZeroDivisionError
    assert not listening()
    tap("a", np.arange(1))
    assert ear.names == []


def test_arrays_that_a_listener_may_keep_are_never_reused() -> None:
    with listen(Ear()):
        assert listening()
        assert spare(np.arange(2)) is None


def test_other_threads_hear_nothing() -> None:
    ear = Ear()
    with listen(ear):
        thread = threading.Thread(target=contextvars.Context().run, args=(tap, "elsewhere", np.arange(1)))
        thread.start()
        thread.join()
    assert ear.names == []


@pytest.mark.parametrize("head", ["sequence-classification", "masked-lm"])
@pytest.mark.parametrize("family", ["distilbert", "bert"])
def test_a_run_changes_no_array_that_a_listener_got(family: str, head: str) -> None:
    """A function never writes to an array after passing it to a tap, not even to reuse its memory."""
    model = tiny.model(family, head, threads=2)
    heard: list[tuple[str, np.ndarray, np.ndarray]] = []

    def keep(name: str, array: np.ndarray) -> np.ndarray:
        heard.append((name, array, array.copy()))
        return array

    with listen(keep):
        model.run([Text(np.arange(9)), Text(np.arange(9)), Text(np.arange(4))])
    changed = [name for name, array, copy in heard if not np.array_equal(array, copy)]
    assert len(heard) > 40
    assert changed == []


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_listener_gets_every_stage_once_and_complete(threads: int) -> None:
    """With any number of threads, stages fire in order: all stages of a layer before the stages of the next layer."""
    model, ear = tiny.model(threads=threads), Ear()
    with listen(ear):
        model.run([Text(np.arange(1, length + 1)) for length in (60, 60, 30)] * 10)
    once = [name for name in ear.names if name.rsplit(".")[-1] not in ("query_heads", "key_heads", "value_heads")]
    per_run = ("scores", "weights", "context")
    assert len([name for name in once if not name.endswith(per_run)]) == len(
        {name for name in once if not name.endswith(per_run)}
    )
    assert ear.names.count("layers.1.attention.scores") == 20  # texts of equal length share a call
    rows = dict(zip(ear.names, (len(array) for array in ear.arrays), strict=True))
    assert rows["layers.0.ffn.hidden"] == rows["layers.1.ffn_norm"] == 1500
    layers = [name.split(".")[1] for name in ear.names if name.startswith("layers.")]
    assert layers == sorted(layers)


def test_an_edit_changes_the_answer() -> None:
    model, text = tiny.model(), Text(np.arange(5))
    plain = model.run([text])[0]["logits"]
    with listen(lambda name, array: np.zeros_like(array) if name == "layers.0.attention.output" else array):
        edited = model.run([text])[0]["logits"]
    assert not np.array_equal(plain, edited)
    assert np.array_equal(model.run([text])[0]["logits"], plain)


@pytest.mark.numbers
@pytest.mark.parametrize("family", [*FAMILIES, "bart"])
def test_listening_changes_no_bit_of_the_answer(family: str) -> None:
    model, texts = tiny.model(family), [Text(np.array([2, 40, 41, 3])), Text(np.array([2, 60, 3]))]
    alone = [answer["logits"] for answer in model.run(texts)]
    ear = Ear()
    with listen(ear):
        heard = [answer["logits"] for answer in model.run(texts)]
    np.testing.assert_array_equal(heard, alone)
    np.testing.assert_array_equal(ear.arrays[ear.names.index("logits")], alone)
