"""Files of named arrays, such as traces and golden files: writes safetensors, and reads safetensors and npz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format

from npformer.checkpoint.safetensors import check_sums, read_tensors, write_tensors
from npformer.checkpoint.storage import converted
from npformer.common.errors import NpformerError
from npformer.common.files import as_given, open_file, written_whole
from npformer.common.limits import LIMITS, Limits
from npformer.runtime.narrow import BFLOAT16


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file under a temporary name, then renames it."""
    with written_whole(path) as partial:
        write_tensors(partial, arrays, metadata)


def load_arrays(path: str | Path, limits: Limits = LIMITS) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads the arrays and the metadata of a .safetensors file, or the arrays of an .npz file.

    bfloat16 is widened to float32. Raises NpformerError, which names the file, if the file is missing or truncated,
    contains data other than arrays, or does not match its checksum.
    """
    suffix, path = Path(path).suffix, as_given(path)
    if suffix != ".npz":
        # There may be more arrays than in a checkpoint, so the header has the larger limit of JSON files.
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


def _read_npz(opened: BinaryIO, limits: Limits) -> dict[str, np.ndarray]:
    """Reads the arrays of an npz file. Checks their sizes before it unpacks them."""
    from math import prod
    from zipfile import ZipFile

    read_magic, headers = format.read_magic, (format.read_array_header_1_0, format.read_array_header_2_0)
    arrays = {}
    with ZipFile(opened) as archive:
        limits.check("unpacked", sum(info.file_size for info in archive.infolist()), "bytes of its arrays")
        for info in archive.infolist():
            with archive.open(info) as file:
                major, _ = read_magic(file)
                if major > len(headers):
                    raise NpformerError(f"{info.filename!r:.200}: version {major} of the npy format is not supported")
                shape, _, dtype = headers[major - 1](file)
            if prod(shape) * dtype.itemsize > info.file_size:
                raise NpformerError(f"{info.filename!r:.200}: shape {shape!s:.100} is larger than the file")
            with archive.open(info) as file:
                arrays[info.filename.removesuffix(".npy")] = format.read_array(file, allow_pickle=False)
    return arrays
