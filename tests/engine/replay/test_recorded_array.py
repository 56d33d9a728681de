"""Recorded arrays: each NumPy operation is recorded or refused, and the program gives NumPy's bits for other values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.engine.replay.make_program import make_program
from npformer.engine.replay.passes import InPlace, Pass
from npformer.engine.replay.program import _Free
from npformer.engine.runtime.recording import Changed, Unrecordable
from npformer.engine.runtime.threads import run_tasks

Formula = Callable[[np.ndarray], Any]
TABLE = np.arange(40.0, dtype=np.float32).reshape(10, 4)


def pass_of(work: Any, x: np.ndarray, weights: Any = None, caches: Any = ()) -> Pass:
    """Returns a pass with one input and one answer, for work(x), work(x, weights) or work(x, caches)."""

    def whole(weights: Any, inputs: Any, caches: Any) -> dict[str, np.ndarray]:
        return {"y": work(*inputs, *[each for each in (weights, caches) if each])}

    return Pass("shape", whole, weights or {}, [x], lambda inputs: [inputs[0] + 1], caches)


def numbers(seed: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, 4)).astype(dtype)


def in_place(x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x, shape=(5, 4))
    y[:3] = x
    y[3:] = 0
    y[y > 1] = np.nan
    y[[0, 2]] = 3
    y *= 2
    y[..., 1] += x[0, 0]
    np.copyto(y, -1, where=np.isnan(y))
    return y


def in_parts(x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)

    def part(rows: slice) -> None:
        np.exp(x[rows], out=y[rows])

    run_tasks([lambda: part(slice(0, 1)), lambda: part(slice(1, 3))], 2)
    return y


def padded(x: np.ndarray) -> np.ndarray:
    """Copies `x * 2` into a larger array. A program may write this result directly into the larger array."""
    y = np.empty_like(x, shape=(5, 4))
    y[:3] = x * 2
    y[3:] = 0
    return y @ y.T


def in_halves(x: np.ndarray) -> np.ndarray:
    """Returns two results that are copied into strided parts of one array."""
    y = np.empty_like(x)
    y[:, ::2] = x[:, :2] * 3
    y[:, 1::2] = x[:, 2:] - y[:, ::2]
    return y * 1.0


def read_after_the_copy(x: np.ndarray) -> np.ndarray:
    h, y = x * 2, np.empty_like(x)
    y[...] = h
    y *= 3
    return y + h


def target_read_before_the_copy(x: np.ndarray) -> np.ndarray:
    y = x + 1
    h = y * 2
    z = h * y
    y[...] = h
    return y + z


def copied_twice(x: np.ndarray) -> np.ndarray:
    y, z = np.empty_like(x, shape=(2, 3, 4)), np.empty_like(x, shape=(24,))
    y[0] = x + 1
    y[1] = (x + 2).reshape(12)[::-1].reshape(3, 4)
    z[...] = y.reshape(24)
    return z[5:] + 1


OPERATIONS: dict[str, Formula] = {
    **{each.__name__: each for each in (padded, in_halves, read_after_the_copy, target_read_before_the_copy)},
    "copied twice": copied_twice,
    "arithmetic": lambda x: 1 / (x * x + 2) - x,
    "product": lambda x: x @ TABLE[:4] + np.vecdot(x, x)[:, None],
    "reductions": lambda x: x.max(axis=-1) + x.sum(axis=-1) + np.add.reduce(x, axis=-1) + x.mean(),
    "one number": lambda x: x.sum() * x[1, 2],
    "in a fixed order": lambda x: np.add.accumulate(x, axis=-1)[:, -1] + x.cumsum()[-1],
    "views": lambda x: x.reshape(2, 6).T.mT.swapaxes(0, 1)[..., ::-1] + 0,
    "a reshape that copies": lambda x: x.T.reshape(2, 6) * 2,
    "ravel and flatten": lambda x: np.ravel(x.T) + x.T.flatten(),
    "copies": lambda x: x.astype(np.float64) + x.copy(),
    "rows of itself": lambda x: x[np.array([2, 0])] + x[np.array([0, 1]), np.array([1, 1])][:, None],
    "np.where": lambda x: np.where(x > 0, x, -x),
    "windows": lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, axis=1)[:, 1:] + x[:, :2, None],
    "a repeated row": lambda x: np.broadcast_to(x[1], (3, 4)) * 2,
    "joined": lambda x: np.concatenate([x, TABLE, x], axis=0).repeat(2, axis=1),
    "stacked": lambda x: np.stack([x, x * 2])[1],
    "shifted": lambda x: np.roll(x, 1),
    "places of the largest": lambda x: x.argmax(axis=-1) + np.argsort(x, axis=-1)[:, 0],
    "along an axis": lambda x: np.take_along_axis(x, np.argsort(x, axis=-1), axis=-1),
    "like it": lambda x: np.zeros_like(x) + np.full_like(x, 2) + np.ones_like(x),
    "in place": in_place,
    "in parts": in_parts,
    "several results": lambda x: np.divmod(x, 2)[1] + np.modf(x)[0],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_program_gives_the_bits_of_its_pass(operation: str, dtype: type) -> None:
    formula = OPERATIONS[operation]
    program = make_program(pass_of(formula, numbers(0, dtype)))
    for seed in (1, 2, 0):
        x = numbers(seed, dtype)
        [found] = program([x]).values()
        assert type(found) is np.ndarray
        assert found.tobytes() == formula(x).tobytes()


def test_a_table_is_read_by_ids_of_the_pass() -> None:
    """In `table[ids]`, NumPy notifies only the table, so the weights of a pass must be recorded views."""
    ids = np.array([1, 3])
    program = make_program(pass_of(lambda ids, weights: weights["table"][ids] * 2, ids, {"table": TABLE}))
    assert np.array_equal(program([np.array([0, 9])])["y"], TABLE[[0, 9]] * 2)


def test_a_program_reads_the_weights_that_the_model_has() -> None:
    """A weight that is changed in place takes effect, as in the engine."""
    weights = {"w": TABLE.copy()}
    x = numbers(0)
    program = make_program(pass_of(lambda x, weights: (1 + weights["w"][:3]) * x, x, weights))
    weights["w"] *= 3
    assert np.array_equal(program([x])["y"], (1 + weights["w"][:3]) * x)


def test_a_program_reads_weights_through_plain_views() -> None:
    """`sliding_window_view` returns a plain array, so the recorder does not see its uses."""
    weights = {"w": TABLE.copy()}

    def work(x: np.ndarray, weights: Any) -> np.ndarray:
        return x[:, :2] + np.lib.stride_tricks.sliding_window_view(weights["w"] * 2, 2, axis=1)[:3, 1]

    x = numbers(0)
    program = make_program(pass_of(work, x, weights))
    weights["w"] += 1
    assert np.array_equal(program([x])["y"], work(x, weights))


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x * 2 if x[0, 0] > 0 else x,
        lambda x: x * int(x[0, 0] > 0),
        lambda x: x * (x[0, 0] > 0).item(),
        lambda x: x * float(np.sign(x[0, 0])),
        lambda x: x if (x[:1] > 0).tolist()[0][0] else -x,
        lambda x: x * np.flatnonzero(x[:, 0] > 0).sum(),
        lambda x: x[x[:, 0] > 0, 1:] * 2,
        lambda x: x.repeat((x[:, 0] > 0).astype(int), axis=0) * 2,
        lambda x: np.bincount((x[:, 0] > 0).astype(int)),
    ],
)
def test_a_program_refuses_values_with_which_the_pass_would_do_something_else(formula: Formula) -> None:
    x = np.abs(numbers(0))
    program = make_program(pass_of(formula, x))
    assert np.array_equal(program([x + 1])["y"], formula(x + 1))
    with pytest.raises(Changed):
        program([-x])


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: np.add(x, x, out=np.empty((3, 4), np.float32)),
        lambda x: np.copyto(np.empty((3, 4), np.float32), x) or x,
        lambda x: np.sort(x),
        lambda x: np.inner(x, x),
        lambda x: np.putmask(x, x > 0, 0) or x,
        lambda x: x[x > 0],
        lambda x: np.unique(x),
        lambda x: np.pad(x, 1),
        lambda x: x * np.count_nonzero(x > 0),
        lambda x: x[np.where(x[:2, :2] > 0)],
        lambda x: x * x.flat[3],
        lambda x: np.linalg.inv(x[:3, :3]),
        lambda x: np.vectorize(float)(x),
        lambda x: np.broadcast_arrays(x, x)[0] * 2,
        lambda x: x.reshape(4, 3, order="F"),
    ],
)
def test_what_cannot_be_repeated_is_refused(formula: Formula) -> None:
    with pytest.raises(Unrecordable):
        make_program(pass_of(formula, numbers(0)))


def test_an_array_of_a_pass_is_not_used_after_it() -> None:
    kept = []
    make_program(pass_of(lambda x: kept.append(x) or x * 2, numbers(0)))
    with pytest.raises(Unrecordable, match="after the pass"):
        kept[0] + 1


def test_large_arrays_are_read_in_place() -> None:
    """A program reads the arrays of each pass in place, and keeps none of them alive."""

    def work(x: np.ndarray, arrays: Any) -> np.ndarray:
        return x @ arrays[0][:, 1:3] + arrays[1][0, 0]

    x = numbers(0)
    arrays = [InPlace(TABLE[:4].copy() + each, numbers(each)) for each in range(3)]
    program = make_program(pass_of(work, x, caches=arrays[0]))
    for each in [*arrays, *arrays]:
        each.arrays[0][...] += 1
        assert np.array_equal(program([x], each)["y"], work(x, each.arrays))


class Growing:
    """A cache that is read again in each pass."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def attend(self, q: np.ndarray) -> np.ndarray:
        self.rows.append(q.copy())
        return np.add.reduce(self.rows)


def test_a_cache_is_asked_in_each_pass() -> None:
    x, caches = numbers(0), Growing()
    program = make_program(pass_of(lambda x, caches: 2 * caches[0].attend(x + 1), x, caches=[caches]))
    for count in range(2, 5):
        assert np.allclose(program([x], [caches])["y"], 2 * count * (x + 1), rtol=1e-6)  # sums of equal terms
    assert np.array_equal(program([x], [Growing()])["y"], 2 * (x + 1))


@pytest.mark.parametrize(("formula", "count"), [(padded, 3), (in_halves, 3), (read_after_the_copy, 4)])
def test_copies_of_results_are_omitted(formula: Formula, count: int) -> None:
    program = make_program(pass_of(formula, numbers(0)))
    assert len(program._calls) == count


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 5)), max_size=40))
def test_memories_in_use_at_once_share_no_bytes(sizes: list[tuple[int, int]]) -> None:
    free, used = _Free(), list[tuple[int, int]]()
    for size, drop in sizes:
        first = free.take(size)
        assert all(first >= at + other or first + size <= at for at, other in used)
        assert first % 64 == 0
        assert first + size <= free.end
        used.append((first, size))
        for _ in range(min(drop, len(used))):
            free.give(*used.pop(0))
    for each in used:
        free.give(*each)
    if sizes:
        assert free.take(free.end) == 0
