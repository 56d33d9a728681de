"""Bytes as arrays: no byte outside an array's span is read, and half precision widens exactly."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.checkpoint import storage
from npformer.checkpoint.storage import converted, open_buffer, view
from npformer.common.errors import NpformerError
from npformer.engine.runtime.narrow import BFLOAT16
from npformer.engine.runtime.threads import num_threads

F4 = np.dtype("<f4")


@pytest.fixture
def buffer(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(16, dtype="<f4").tobytes())
    return open_buffer(path)


def test_a_view_is_read_only_and_takes_no_copy(buffer):
    array = view(buffer, (16, 64), F4, [3, 4])
    assert np.array_equal(array, np.arange(4, 16).reshape(3, 4))
    assert not array.flags.writeable
    assert array.base is buffer
    transposed = view(buffer, (0, 64), F4, [4, 3], [1, 4], 2)
    assert np.array_equal(transposed, np.arange(16).reshape(4, 4)[:3, :].T + 2)


@pytest.mark.parametrize(
    ("span", "shape", "strides", "offset"),
    [
        ((0, 64), [17], None, 0),
        ((0, 60), [16], None, 0),
        ((0, 64), [16], None, 1),
        ((0, 64), [2, 2], [15, 2], 0),
        ((0, 64), [2], [-1], 1),
        ((0, 64), [-2], [1], 0),
        ((0, 64), [2], [1], -1),
        ((0, 64), [2], [1, 1], 0),
        ((32, 16), [1], None, 0),
        ((0, 65), [1], None, 0),
        ((-4, 8), [1], None, 0),
        ((0, 64), [2**62, 2**62], [0, 0], 0),
        ((0, 64), [2**70, 0], None, 0),
        ((0, 64), [2**70], None, 0),
        ((0, 64), [1] * 65, None, 0),
    ],
)
def test_a_view_that_leaves_its_span_is_refused(buffer, span, shape, strides, offset):
    with pytest.raises(NpformerError):
        view(buffer, span, F4, shape, strides, offset)


NUMBERS = st.integers(-3, 70)


@given(start=NUMBERS, stop=NUMBERS, offset=NUMBERS, axes=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4))
def test_every_element_of_a_view_is_in_its_span(tmp_path_factory, start, stop, offset, axes):
    path = tmp_path_factory.getbasetemp() / "bytes"
    if not path.exists():
        path.write_bytes(bytes(range(64)))
    try:
        array = view(
            open_buffer(path), (start, stop), np.dtype("u1"), *zip(*axes, strict=True) if axes else [(), ()], offset
        )
    except NpformerError:
        return
    assert array.size == 0 or (array.min() >= start and array.max() < stop)


def test_empty_and_scalar(buffer):
    assert view(buffer, (0, 0), F4, [0, 3]).shape == (0, 3)
    scalar = view(buffer, (4, 8), F4, [])
    assert scalar.shape == ()
    assert scalar == 1
    assert converted(scalar, np.dtype(np.float64)) == 1
    assert converted(view(buffer, (0, 0), F4, [0, 3]), np.dtype(np.float64)).shape == (0, 3)


def test_files_that_cannot_be_mapped(tmp_path):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "none": "No such file",
        "empty": "empty",
        "pipe": "not a regular",
        ".": "not a regular",
    }.items():
        with pytest.raises(NpformerError, match=message):
            open_buffer(tmp_path / name)


@np.errstate(invalid="ignore")  # NumPy warns of signalling NaNs
def test_half_precision_widens_exactly():
    """Checks all 65,536 bit patterns: float16 against NumPy, bfloat16 against the upper half of a float32."""
    bits = np.arange(2**16, dtype=np.uint16)
    halves = bits.view(np.float16)
    finite = halves[np.isfinite(halves)].reshape(-1, 496)  # NumPy widens blocks that contain NaN or infinity
    for array in (halves, finite, finite.T):
        widened = converted(array, F4)
        assert np.array_equal(widened, array.astype(np.float32), equal_nan=True)
        assert np.array_equal(np.signbit(widened), np.signbit(array))
    brains = bits.view(BFLOAT16).reshape(256, 256)
    for array in (brains, brains.T):
        widened = converted(array, F4)
        assert np.array_equal(widened.view(np.uint32) >> 16, array["bfloat16"])
        assert not (widened.view(np.uint32) & 0xFFFF).any()
        assert np.array_equal(converted(array, np.dtype(np.float64)), widened.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("threads", [1, 3])
def test_large_arrays_are_copied_in_pieces_by_several_threads(monkeypatch, threads):
    """Every piece of rows or columns is copied, even a short last piece, and all parts of a row longer than a piece."""
    monkeypatch.setattr(storage, "_PIECE", 1000)
    numbers = np.random.default_rng(0).normal(size=(130, 70)).astype(np.float16)
    arrays = [numbers, numbers.T, numbers[:, 0], numbers.reshape(1, -1), numbers[:0], numbers[0, 0].reshape(())]
    for dtype in (np.float32, np.float64):
        with num_threads(threads):
            copies = storage.converted_all(arrays, np.dtype(dtype))
        for array, copy in zip(arrays, copies, strict=True):
            assert np.array_equal(copy, array.astype(dtype))
            assert copy.flags.c_contiguous
            assert not copy.flags.writeable


@pytest.mark.parametrize("shape", [(200, 3), (3, 200), (64, 64), (65, 129), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_transposing_copy(shape, dtype):
    array = np.random.default_rng(0).normal(size=shape).astype(dtype)
    for target in (np.float32, np.float64):
        copy = converted(array.T, np.dtype(target))
        assert np.array_equal(copy, array.T.astype(target))
        assert copy.flags.c_contiguous
        assert not copy.flags.writeable


def test_arrays_in_the_right_layout_are_not_copied(buffer):
    array = view(buffer, (0, 64), F4, [4, 4])
    assert converted(array, F4).base is array or converted(array, F4).base is buffer
    unaligned = view(buffer, (1, 61), F4, [15])
    assert not unaligned.flags.aligned
    assert converted(unaligned, F4).flags.aligned
    writeable = np.zeros(3, np.float32)
    assert not converted(writeable, F4).flags.writeable
    assert writeable.flags.writeable
