"""Files of named arrays: npz files with valid and invalid headers and archives."""

import io
import zipfile

import numpy as np
import pytest

from npformer import Limits, NpformerError
from npformer.checkpoint.archive import load_arrays, save_arrays


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """Returns the content of an npy file with this header, which may be invalid."""
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version < b"\x02" else 4, "little") + text + data


def described(shape: str = "(2,)", dtype: str = "'<f4'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"


def test_arrays_come_back(tmp_path):
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b/c": np.asfortranarray(np.ones((2, 3))),
        "d": np.array(3),
        "e": np.zeros((0, 2)),
    }
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    save_arrays(tmp_path / "a.safetensors", arrays, {"format": "x"})
    for name in ("plain.npz", "packed.npz", "a.safetensors"):
        found, metadata = load_arrays(tmp_path / name)
        assert metadata.get("format") == ("x" if name == "a.safetensors" else None)
        assert {key: (a.dtype, a.shape, a.tolist()) for key, a in found.items()} == {
            key: (a.dtype, a.shape, a.tolist()) for key, a in arrays.items()
        }


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (npy("{'descr': ("), "not a readable npz file"),  # Python's parser raises TokenError or SyntaxError here
        (npy("'" * 99), "not a readable npz file"),
        (npy("(" * 99), "not a readable npz file"),
        (npy(described("(2**60,)")), "not a readable npz file"),
        (npy(described("(1000000000000,)")), r"'x\.npy': shape \(1000000000000,\) is larger than the file"),
        (npy(described("(65536, 65536, 65536, 65536)"), bytes(8)), "is larger than the file"),
        (npy(described("(-2, -4)"), bytes(32)), "not a readable npz file"),
        (npy(described("(2,)", "'O'"), bytes(16)), "not a readable npz file"),
        (npy(described("(2,)"), bytes(8), b"\x03\x00"), "version 3 of the npy format is not supported"),
        (npy(described("(2,)"), bytes(8), b"\x00\x00"), "not a readable npz file"),
        (b"no array", "not a readable npz file"),
        (b"", "not a readable npz file"),
    ],
)
def test_entries_other_than_arrays_are_refused(tmp_path, member, message):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(NpformerError, match=rf"a\.npz: .*{message}"):
        load_arrays(tmp_path / "a.npz")


def test_an_encrypted_entry(tmp_path):
    """zipfile raises a RuntimeError that asks for a password; npformer raises its own error."""
    file = io.BytesIO()
    np.savez(file, x=np.ones(3))
    data = bytearray(file.getvalue())
    for start, flags in ((data.index(b"PK\x03\x04"), 6), (data.index(b"PK\x01\x02"), 8)):
        data[start + flags] |= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(NpformerError, match=r"a\.npz: not a readable npz file: .*encrypted"):
        load_arrays(tmp_path / "a.npz")


def test_a_bomb_is_measured_before_it_is_unpacked(tmp_path):
    """The file has a hundred kilobytes, which unpack to a hundred megabytes of zeros."""
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as member,
    ):
        member.write(npy(described("(100000000,)", "'|u1'")))
        for _ in range(100):
            member.write(bytes(10**6))
    assert (tmp_path / "a.npz").stat().st_size < 2e5
    with pytest.raises(NpformerError, match=r"bytes of its arrays: 1000001\d\d is more than the limit `unpacked`"):
        load_arrays(tmp_path / "a.npz", Limits(unpacked=10**8))
