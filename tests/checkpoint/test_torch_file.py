"""Files of torch.save: real files, compared value by value, and forged files."""

import json
import signal
import struct
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.checkpoint.storage import converted
from npformer.checkpoint.torch_file import read_torch
from npformer.common.errors import NpformerError
from tests.support.torch_writer import (
    LEGACY_HEAD,
    Global,
    dump,
    of_array,
    save,
    storage,
    tensor,
    write_legacy,
    write_zip,
)

GOLDEN = Path(__file__).parents[1] / "golden/checkpoints"
ZIPS = ("zip", "zip_protocol_4", "zip_protocol_5")
LEGACY = ("legacy", "legacy_protocol_4")
SIX = np.arange(6, dtype=np.float32)


def assert_equal(arrays, values):
    assert list(arrays) == list(values)
    for name, array in arrays.items():
        expected = values[name]
        if "bfloat16" in name:
            array = converted(array, np.dtype(np.float32))
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
        assert array.tobytes() == expected.tobytes(), name  # every bit, including signed zeros and NaNs
        assert not array.flags.writeable


@pytest.mark.parametrize("name", ZIPS + LEGACY)
def test_files_of_torch_are_read(name):
    """Reads all dtypes, parameters, empty tensors, and shared, sliced, transposed, stepped and expanded storages."""
    assert_equal(read_torch(GOLDEN / f"{name}.bin"), np.load(GOLDEN / "values.npz"))


@pytest.mark.parametrize("name", ["state_dict", "state_dict_legacy"])
def test_a_module_s_state_dict(name):
    assert_equal(read_torch(GOLDEN / f"{name}.bin"), np.load(GOLDEN / "state_dict.npz"))


def test_a_whole_module_is_refused_by_its_class():
    with pytest.raises(NpformerError, match=r"refers to 'torch\.nn\.modules\.container\.Sequential'"):
        read_torch(GOLDEN / "whole_module.bin")


@pytest.mark.parametrize("write", [write_zip, write_legacy])
def test_shared_storages_take_no_copy(tmp_path, write):
    content = {"a": of_array(SIX, "0"), "b": tensor(storage("FloatStorage", "0", 6), (2, 2), (1, 2), 1)}
    arrays = read_torch(write(tmp_path / "a.bin", content, {"0": SIX.tobytes() if write is write_zip else SIX}))
    assert np.array_equal(arrays["b"], [[1, 3], [2, 4]])
    assert np.shares_memory(arrays["a"], arrays["b"])


def test_a_view_of_a_legacy_storage(tmp_path):
    """torch < 1.0 stored a part of a storage as a view: (key, first element, number of elements)."""
    part = storage("FloatStorage", "0", 6, ("1", 2, 3))
    content = {"a": tensor(part, (2,), (2,)), "all": tensor(part, (3,), (1,))}
    arrays = read_torch(write_legacy(tmp_path / "a.bin", content, {"0": SIX}))
    assert np.array_equal(arrays["a"], [2, 4])
    assert np.array_equal(arrays["all"], [2, 3, 4])


@pytest.mark.parametrize(
    ("part", "shape", "strides", "offset"),
    [
        (storage("FloatStorage", "0", 6), (7,), (1,), 0),
        (storage("FloatStorage", "0", 6), (6,), (1,), 1),
        (storage("FloatStorage", "0", 6), (2, 2), (5, 1), 0),
        (storage("FloatStorage", "0", 6), (2,), (-1,), 1),
        (storage("FloatStorage", "0", 6), (-1,), (1,), 0),
        (storage("FloatStorage", "0", 6), (2,), (1,), -1),
        (storage("FloatStorage", "0", 6), (2, 2), (1,), 0),
        (storage("FloatStorage", "0", 6), (2**40, 2**40), (0, 0), 0),
        (storage("FloatStorage", "0", 2**40), (2**40,), (1,), 0),
        (storage("FloatStorage", "0", 5), (5,), (1,), 0),
        (storage("DoubleStorage", "0", 6), (6,), (1,), 0),
        (storage("FloatStorage", "0", 6, ("1", 2, 3)), (4,), (1,), 0),
        (storage("FloatStorage", "0", 6, ("1", 4, 3)), (3,), (1,), 0),
        (storage("FloatStorage", "0", 6, ("1", -1, 3)), (3,), (1,), 0),
        (storage("FloatStorage", "0", 6, ("1", 2, -1)), (0,), (1,), 0),
        (storage("FloatStorage", "1", 6), (6,), (1,), 0),
        (storage("FloatStorage", "../data.pkl", 6), (6,), (1,), 0),
    ],
)
def test_a_tensor_outside_of_its_storage(tmp_path, part, shape, strides, offset):
    content = {"layer.weight": tensor(part, shape, strides, offset)}
    with pytest.raises(NpformerError, match=r"a\.bin: not a readable torch checkpoint: 'layer\.weight': "):
        read_torch(write_zip(tmp_path / "a.bin", content, {"0": SIX.tobytes()}))
    with pytest.raises(NpformerError):
        read_torch(write_legacy(tmp_path / "a.bin", content, {"0": SIX}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "expected a dict of tensors, got a list"),
        (3, "expected a dict of tensors, got 3"),
        ({"state_dict": {}}, r"'state_dict': expected a tensor, got a dict; save only the model's state_dict\(\)"),
        ({"epoch": 3}, "'epoch': expected a tensor, got 3"),
        ({3: of_array(SIX, "0")}, "a dict with a key that is not a string"),
        ({"a": storage("FloatStorage", "0", 6)}, "'a': expected a tensor, got a Storage"),
        ({"a": Global("collections", "OrderedDict")}, "'a': expected a tensor, got a Name"),
        ({"a": Global("os", "system")}, r"refers to 'os.system', .* save only the model's state_dict\(\)"),
        (
            {"a": Global("torch._utils", "_rebuild_tensor_v3")},  # used for float8
            "_rebuild_tensor_v3', .* nothing was executed; save plain tensors in float32, float16 or bfloat16$",
        ),
    ],
)
@pytest.mark.parametrize("write", [write_zip, write_legacy])
def test_files_without_a_dict_of_tensors_are_refused(tmp_path, content, message, write):
    with pytest.raises(NpformerError, match=message):
        read_torch(write(tmp_path / "a.bin", content, {}))


def test_another_format_is_named_by_its_first_bytes(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"<!DOCTYPE html><title>Login</title>")
    with pytest.raises(NpformerError, match=r"not in a format of torch\.save; it begins with b'<!DOCTYPE html>"):
        read_torch(tmp_path / "a.bin")


def test_big_endian_is_refused(tmp_path):
    content = {"a": of_array(SIX, "0")}
    with pytest.raises(NpformerError, match="not little-endian"):
        read_torch(write_zip(tmp_path / "a.bin", content, {"0": SIX.tobytes()}, {"byteorder": b"big"}))
    head = (*LEGACY_HEAD[:2], {"little_endian": False})
    with pytest.raises(NpformerError, match="not little-endian"):
        read_torch(write_legacy(tmp_path / "a.bin", content, {"0": SIX}, head))


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    write_zip(tmp_path / "a.bin", {}, {"0": bytes(10**7)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(NpformerError, match=r"'archive/data\.pkl' is compressed or encrypted"):
        read_torch(tmp_path / "a.bin")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "with one data.pkl"),
        (["data.pkl"], "with one data.pkl"),
        (["a/b/data.pkl"], "with one data.pkl"),
        (["a/data.pkl", "b/data.pkl"], "with one data.pkl"),
        (["../data.pkl"], None),
    ],
)
def test_archives_of_another_kind(tmp_path, names, message):
    """Names are looked up, never used as paths, so `..` is a name like any other."""
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("readme", b"")
        for name in names:
            archive.writestr(name, dump({}))
    if message is None:
        assert read_torch(tmp_path / "a.bin") == {}
    else:
        with pytest.raises(NpformerError, match=message):
            read_torch(tmp_path / "a.bin")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_entries_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        for content in ({}, {"a": 1}):
            archive.writestr("archive/data.pkl", dump(content))
    with pytest.raises(NpformerError, match=r"duplicate entry 'archive/data\.pkl'"):
        read_torch(tmp_path / "a.bin")


def test_an_archive_with_wrong_offsets_is_refused(tmp_path):
    good = save(tmp_path / "a.bin", {"a": SIX}).read_bytes()
    start = good.index(b"PK\x01\x02")  # the first entry of the central directory
    for field, value in ((42, 2**31), (42, 1), (24, 2**31), (20, 3)):  # the fields for an offset and two sizes
        bad = bytearray(good)
        bad[start + field : start + field + 4] = struct.pack("<I", value)
        (tmp_path / "b.bin").write_bytes(bad)
        with pytest.raises(NpformerError, match=r"entry 'archive/data\.pkl' (is|extends)"):
            read_torch(tmp_path / "b.bin")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"hello", "not in a format of torch.save; it begins with b'hello'"),
        (b"\x80\x02h", "corrupt"),
        (b"PK\x03\x04", "truncated or corrupt"),
        (b"\x80\x02K\x01.", "not in a format of torch.save"),
        (dump(1) + dump(2), "not in a format of torch.save"),
        (dump(LEGACY_HEAD[0]) + dump(1002), "not in a format of torch.save"),
        (b"".join(map(dump, LEGACY_HEAD[:2])) + dump([]), "little-endian"),
        (b"".join(map(dump, LEGACY_HEAD)) + dump({}) + dump("keys"), "the list of storages"),
        (b"".join(map(dump, LEGACY_HEAD)) + dump({}) + dump(["0"]), "the list of storages"),
        (b"".join(map(dump, LEGACY_HEAD)) + dump({}) + dump([{}]), "the list of storages"),
        (json.dumps({"a": 1}).encode(), "not in a format of torch.save"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
def test_other_files(tmp_path, content, message):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(NpformerError, match=message):
        read_torch(tmp_path / "a.bin")


def test_a_legacy_storage_that_promises_more_than_the_file_has(tmp_path):
    path = write_legacy(tmp_path / "a.bin", {"a": of_array(SIX, "0")}, {"0": SIX})
    content = path.read_bytes()
    for size in (7, 2**40, 2**64 - 1):
        path.write_bytes(content[:-32] + size.to_bytes(8, "little") + content[-24:])
        with pytest.raises(NpformerError, match="truncated: storage '0'"):
            read_torch(path)


@contextmanager
def within(seconds):
    """Sets an alarm that ends a hanging test."""
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("name", ["zip", "legacy"])
def test_truncated_anywhere(tmp_path, name):
    content = (GOLDEN / f"{name}.bin").read_bytes()
    for size in range(0, len(content), 31):
        (tmp_path / "a.bin").write_bytes(content[:size])
        with pytest.raises(NpformerError):
            read_torch(tmp_path / "a.bin")


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # damaged text may contain an invalid escape
@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(ZIPS + LEGACY + ("state_dict", "whole_module")))
def test_any_damage_is_refused_or_harmless(tmp_path_factory, data, name):
    content = bytearray((GOLDEN / f"{name}.bin").read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(min_size=1, max_size=8))
    path = tmp_path_factory.getbasetemp() / "damaged.bin"
    path.write_bytes(content)
    with within(seconds=10):
        try:
            arrays = read_torch(path)
        except NpformerError:
            return
    for array in arrays.values():
        if array.size < 10**6:  # a stride of 0 repeats one element
            array.tobytes()
