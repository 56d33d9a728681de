"""Files of named arrays, such as traces and golden files: writes safetensors, and reads safetensors, npz and npy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format

from npformer.checkpoint.safetensors import check_sums, read_tensors, write_tensors
from npformer.checkpoint.storage import converted
from npformer.common.errors import NpformerError
from npformer.common.files import as_given, open_file, written_whole
from npformer.common.limits import LIMITS, Limits
from npformer.engine.runtime.narrow import BFLOAT16


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file under a temporary name, then renames it."""
    with written_whole(path) as partial:
        write_tensors(partial, arrays, metadata)


def load_arrays(path: str | Path, limits: Limits = LIMITS) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads the arrays and the metadata of a .safetensors file, or the arrays of an .npz file.

    bfloat16 is widened to float32. Raises an NpformerError that names the file if the file is missing or truncated,
    contains data other than arrays, or does not match its checksum.
    """
    suffix, path = Path(path).suffix, as_given(path)
    if suffix != ".npz":
        # A trace can have more arrays than a checkpoint, so the larger limit of JSON files applies to the header.
        arrays, metadata = read_tensors(path, replace(limits, header=limits.json))
        check_sums(path, arrays, metadata)
        return {
            name: converted(a, np.dtype(np.float32)) if a.dtype == BFLOAT16 else a for name, a in arrays.items()
        }, metadata
    with open_file(path) as opened:
        try:
            return _read_npz(opened, limits), {}
        except NpformerError as error:
            raise NpformerError(f"{path}: {error}") from None
        except Exception as error:  # zipfile, zlib, lzma and NumPy raise many types of errors for damaged files
            raise NpformerError(f"{path}: not a readable npz file: {error!s:.200}") from None


def load_npy_folder(folder: Path, limits: Limits = LIMITS) -> dict[str, np.ndarray]:
    """Reads the .npy files in a folder and its subfolders. The array in 0/logits.npy has the name 0/logits.

    Raises an NpformerError that names the file if a file is damaged or contains data other than an array.
    """
    arrays, total = {}, 0
    for file in sorted(folder.rglob("*.npy")):
        with open_file(file) as opened:
            size = os.fstat(opened.fileno()).st_size
        total += size
        limits.check("unpacked", total, f"{folder}: bytes of its arrays")
        try:
            name = file.relative_to(folder).with_suffix("").as_posix()
            arrays[name] = _read_npy(partial(open_file, file), size)
        except NpformerError as error:
            raise NpformerError(f"{file}: {error}") from None
        except Exception as error:
            raise NpformerError(f"{file}: not a readable npy file: {error!s:.200}") from None
    return arrays


def _read_npz(opened: BinaryIO, limits: Limits) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file, after checking their sizes."""
    from zipfile import ZipFile

    arrays = {}
    with ZipFile(opened) as archive:
        limits.check("unpacked", sum(info.file_size for info in archive.infolist()), "bytes of its arrays")
        for info in archive.infolist():
            try:
                array = _read_npy(partial(archive.open, info), info.file_size)
            except NpformerError as error:
                raise NpformerError(f"{info.filename!r:.200}: {error}") from None
            arrays[info.filename.removesuffix(".npy")] = array
    return arrays


def _read_npy(opened: Callable[[], Any], size: int) -> np.ndarray:
    """Checks that the shape in the header fits into `size` bytes, including the header, and reads the array."""
    from math import prod

    headers = (format.read_array_header_1_0, format.read_array_header_2_0)
    with opened() as file:
        major, _ = format.read_magic(file)
        if major > len(headers):
            raise NpformerError(f"version {major} of the npy format is not supported")
        shape, _, dtype = headers[major - 1](file)
    if prod(shape) * dtype.itemsize > size:
        raise NpformerError(f"shape {shape!s:.100} is larger than the file")
    with opened() as file:
        array: np.ndarray = format.read_array(file, allow_pickle=False)
    return array
