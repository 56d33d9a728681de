"""safetensors files are read as the safetensors library reads them, and files that the format forbids are refused."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.checkpoint import storage
from npformer.checkpoint.safetensors import check_sums, read_tensors, write_tensors
from npformer.checkpoint.storage import converted
from npformer.common.errors import NpformerError
from npformer.engine.runtime.narrow import BFLOAT16

RNG = np.random.default_rng(0)
SIGNED = (np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8)
DTYPES = (*SIGNED, np.uint64, np.uint32, np.uint16, np.uint8, np.bool_)
ARRAYS = {np.dtype(dtype).name: RNG.integers(0, 2, (3, 5)).astype(dtype) for dtype in DTYPES} | {
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "odd": np.arange(3, dtype=np.int8),
}


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def sha256_of(path):
    """Computes the metadata's `sha256` from the file's bytes, as the docstring of `checksum` describes."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    digest = hashlib.sha256()
    for key, value in sorted(header.pop("__metadata__").items()):
        if key != "sha256":
            digest.update(f"{key}={value}\n".encode())
    for name, entry in sorted(header.items()):
        first, last = entry["data_offsets"]
        digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode() + data[start + first : start + last])
    return digest.hexdigest()


def test_files_of_the_library_are_read(tmp_path):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "a.safetensors", {"format": "pt", "by": "test"})
    arrays, metadata = read_tensors(tmp_path / "a.safetensors")
    assert metadata == {"format": "pt", "by": "test"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert array.dtype == ARRAYS[name].dtype
        assert np.array_equal(array, ARRAYS[name])
        assert not array.flags.writeable
        assert array.flags.aligned


def test_the_library_reads_our_files(tmp_path):
    transposed = {**ARRAYS, "transposed": ARRAYS["float32"].T}
    write_tensors(tmp_path / "a.safetensors", transposed, {"format": "npformer"})
    back = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert back.keys() == transposed.keys()
    for name, array in back.items():
        assert array.dtype == transposed[name].dtype
        assert np.array_equal(array, transposed[name])
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() == {"format": "npformer", "sha256": sha256_of(tmp_path / "a.safetensors")}


@settings(max_examples=40)
@given(st.dictionaries(st.text(), st.text(), min_size=1))
def test_metadata_may_be_any_text(tmp_path_factory, metadata):
    """Sorting the metadata in the file does not change the header's length, even with escaped characters."""
    path = tmp_path_factory.getbasetemp() / "metadata.safetensors"
    write_tensors(path, ARRAYS, metadata)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {**metadata, "sha256": sha256_of(path)}
        assert set(file.keys()) == ARRAYS.keys()
    arrays, read = read_tensors(path)
    assert read == {**metadata, "sha256": read["sha256"]}
    assert check_sums(path, arrays, read)


@pytest.mark.parametrize("where", ["the first byte", "the last byte", "a name", "another entry", "the checksum"])
def test_a_change_anywhere_is_damage(tmp_path, where):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": np.arange(3.0), "b": np.arange(3.0) + 8}, {"by": "test"})
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    at = {"the first byte": start, "the last byte": len(data) - 1, "a name": data.index(b'"a"') + 1}
    at |= {"another entry": data.index(b"test"), "the checksum": data.index(b'"sha256":"') + 10}
    spoilt = bytearray(data)
    spoilt[at[where]] ^= 8 if where == "a name" else 1
    path.write_bytes(spoilt)
    with pytest.raises(NpformerError, match=r"a\.safetensors: damaged: its content does not match the sha256"):
        check_sums(path, *read_tensors(path))


def test_an_array_that_no_file_can_have_is_named(tmp_path):
    with pytest.raises(NpformerError, match="a: complex128 is not supported; supported: float64, "):
        write_tensors(tmp_path / "a.safetensors", {"a": np.zeros(3, complex)}, {})


def test_a_file_without_a_checksum_has_none(tmp_path):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "a.safetensors")
    assert not check_sums(tmp_path / "a.safetensors", *read_tensors(tmp_path / "a.safetensors"))


def test_equal_contents_are_equal_bytes(tmp_path):
    """The bytes are equal in every process and for any order of tensors, although the library reorders metadata."""
    metadata = {str(n): "x" for n in range(10)}
    write_tensors(tmp_path / "a.safetensors", ARRAYS, metadata)
    write_tensors(tmp_path / "b.safetensors", dict(reversed(ARRAYS.items())), dict(reversed(metadata.items())))
    code = (
        "import sys, pathlib; from npformer.checkpoint.safetensors import read_tensors\n"
        "from npformer.checkpoint.safetensors import write_tensors\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "write_tensors(folder / 'c.safetensors', *read_tensors(folder / 'a.safetensors'))\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    assert len({(tmp_path / f"{name}.safetensors").read_bytes() for name in "abc"}) == 1


def test_a_file_has_the_permissions_of_any_other(tmp_path):
    write_tensors(tmp_path / "a.safetensors", ARRAYS, {"format": "npformer"})
    (tmp_path / "b").touch()
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_bfloat16(tmp_path):
    bits = np.arange(0, 2**16, 997, dtype=np.uint16)
    header = {"x": {"dtype": "BF16", "shape": [len(bits)], "data_offsets": [0, bits.nbytes]}}
    arrays, _ = read_tensors(write(tmp_path / "a.safetensors", header, bits.tobytes()))
    assert np.array_equal(converted(arrays["x"], np.dtype(np.float32)).view(np.uint32) >> 16, bits)
    write_tensors(tmp_path / "b.safetensors", arrays, {})
    with safetensors.safe_open(tmp_path / "b.safetensors", "np") as file:
        assert file.get_slice("x").get_dtype() == "BF16"
    again, _ = read_tensors(tmp_path / "b.safetensors")
    assert again["x"].dtype == BFLOAT16
    assert again["x"].tobytes() == bits.tobytes()


def test_tensors_are_the_pages_of_the_file(tmp_path):
    """The array is mapped memory, which processes share: on Linux its address is in a mapping of the file."""
    write_tensors(tmp_path / "a.safetensors", {"x": np.ones(5000, np.float32)}, {})
    code = (
        "import sys, pathlib; from npformer.checkpoint.safetensors import read_tensors\n"
        "x = read_tensors(pathlib.Path(sys.argv[1]))[0]['x']\n"
        "address = x.__array_interface__['data'][0]\n"
        "for line in open('/proc/self/maps'):\n"
        "    first, last = (int(part, 16) for part in line.split()[0].split('-'))\n"
        "    if first <= address < last: print(line.split()[-1], line.split()[1])\n"
    )
    path = str((tmp_path / "a.safetensors").resolve())
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs Linux's /proc")
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [path, "r--s"]


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TWICE = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"x": ENTRY}, b"1234567", "expected 77 bytes according to the header, got 76"),
        ({"x": ENTRY}, b"123456789", "expected 77 bytes according to the header, got 78"),
        ({"x": {**ENTRY, "shape": [3]}}, b"12345678", "'x': expected bytes 0 to 12, got 0 to 8"),
        ({"x": {**ENTRY, "shape": [2**62, 2**62, 0, 2**62]}}, b"12345678", "'x': expected bytes 0 to 0"),
        ({"x": {**ENTRY, "shape": [2**63]}}, b"12345678", "'x': expected a shape of whole numbers"),
        ({"x": {**ENTRY, "shape": [1] * 40 + [2]}}, b"12345678", "'x': expected a shape"),
        ({"x": {**ENTRY, "shape": [-2]}}, b"12345678", "'x': expected a shape"),
        ({"x": {**ENTRY, "shape": [2.0]}}, b"12345678", "'x': expected a shape"),
        ({"x": {**ENTRY, "shape": [True, 2]}}, b"12345678", "'x': expected a shape"),
        (
            {"x": {**ENTRY, "dtype": "F8_E4M3"}},
            b"12345678",
            "'x': dtype 'F8_E4M3' is not supported; supported: F64",
        ),
        ({"x": {**ENTRY, "dtype": ["F32"]}}, b"12345678", "'x': dtype"),
        ({"x": {"dtype": "F32", "shape": [2]}}, b"12345678", "'x': expected data_offsets"),
        ({"x": {**ENTRY, "data_offsets": [0]}}, b"12345678", "'x': expected data_offsets"),
        ({"x": {**ENTRY, "data_offsets": [8, 0]}}, b"", "'x': expected bytes 0 to 8, got 8 to 0"),
        ({"x": {**ENTRY, "data_offsets": [0, 2**70]}}, b"12345678", "'x': expected data_offsets"),
        (
            {"x": {**ENTRY, "data_offsets": [4, 12]}},
            b"123456789012",
            "'x': expected bytes 0 to 8, got 4 to 12",
        ),
        ({"x": ENTRY, "y": ENTRY}, b"12345678", "'y': expected bytes 8 to 16, got 0 to 8"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [12, 20]}}, b"1" * 20, "'y': expected bytes 8 to 16"),
        ({"x": "ENTRY"}, b"12345678", "'x': expected data_offsets"),
        ({"__metadata__": {"a": 1}, "x": ENTRY}, b"12345678", "__metadata__"),
        ([], b"", "not a JSON object"),
        (b"{", b"", "not JSON"),
        (b"\xff\xfe{}", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
        (b'{"x": %s}' % (b"9" * 5000), b"", "not JSON"),
        (TWICE, b"12345678", "duplicate key 'x'"),
    ],
)
def test_files_that_violate_the_format_are_refused(tmp_path, header, data, message):
    path = write(tmp_path / "a.safetensors", header, data)
    with pytest.raises(NpformerError, match=message) as error:
        read_tensors(path)
    assert str(error.value).startswith(f"{path}: not a valid safetensors file: ")


@pytest.mark.parametrize("length", [9, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_promises_more_than_the_file_has(tmp_path, length):
    (tmp_path / "a.safetensors").write_bytes(length.to_bytes(8, "little") + b'{"x":{}}')
    with pytest.raises(NpformerError, match=f"expected a header of {length} bytes, but the file has only 16 bytes"):
        read_tensors(tmp_path / "a.safetensors")


def test_another_format_is_named_by_its_first_bytes(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"<!DOCTYPE html><title>Login</title>")
    with pytest.raises(NpformerError, match="the file has only 35 bytes; it begins with b'<!DOCTYP'"):
        read_tensors(tmp_path / "a.safetensors")


def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path):
    """A header length above the limit is refused, even if the file is large enough."""
    with open(tmp_path / "a.safetensors", "wb") as file:
        file.write((2**39).to_bytes(8, "little"))
        file.truncate(2**40)
    with pytest.raises(NpformerError, match="bytes of the header: 549755813888 is more than the limit `header`"):
        read_tensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 20, -1])
def test_truncated(tmp_path, size):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": np.ones(3)}, {})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(NpformerError, match=str(path)):
        read_tensors(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_refused_or_harmless(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "whole.safetensors"
    if not whole.exists():
        write_tensors(whole, ARRAYS, {"format": "npformer"})
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged.safetensors"
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        arrays, _ = read_tensors(damaged)
    except NpformerError:
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(content)


def test_a_number_too_large_for_float16_is_refused_anywhere_in_a_large_tensor(tmp_path, monkeypatch):
    """Large tensors are copied in pieces, and each piece is checked."""
    monkeypatch.setattr(storage, "_PIECE", 20_000)
    for piece in range(20):
        array = np.zeros(400_000, np.float32).reshape(200, -1)
        array[10 * piece] = 1e6
        with pytest.raises(NpformerError, match="x: contains a number that is too large for float16"):
            write_tensors(tmp_path / "x.safetensors", {"x": array}, {}, "float16")
    assert os.listdir(tmp_path) == []


def test_metadata_may_be_null(tmp_path):
    """The safetensors library accepts null, because some writers store null instead of omitting the metadata."""
    path = write(tmp_path / "a.safetensors", {"__metadata__": None, "x": ENTRY}, b"12345678")
    arrays, metadata = read_tensors(path)
    assert (list(arrays), metadata) == (["x"], {})
    with safetensors.safe_open(path, "np") as file:
        assert list(file.keys()) == ["x"]
