"""Named arrays in one file, as traces and golden files keep them: safetensors written whole or not at all, npz read.

The format of checkpoints is the same; what is particular to them is in `checkpoint/`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.checkpoint.storage import BFLOAT16, load
from npformer.errors import NpformerError


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write in a folder beside `path`, renamed to it when the block ends well, and removed when it does not.

    Raises NpformerError, which names `path`, where it cannot be written. A folder, a pipe or a device is not replaced.
    """
    path = Path(path)
    if not path.name or (os.path.exists(path) and not os.path.isfile(path)):
        raise NpformerError(f"{path}: cannot be written: it names no file")
    # A folder, because some writers go by a file's ending, and some put files of their own beside it.
    folder = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        folder.mkdir()
        yield folder / path.name
        os.replace(folder / path.name, path)
    except OSError as error:
        raise NpformerError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file beside its place, and rename it when it is complete."""
    with written_whole(path) as partial:
        write_tensors(partial, arrays, metadata)


def load_arrays(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the metadata of a .safetensors or .npz file (which has none); bfloat16 widened to float32.

    Raises NpformerError, which names the file, for what is not there, cut short, or holds anything but arrays.
    """
    path = Path(path)
    if path.suffix != ".npz":
        arrays, metadata = read_tensors(path)
        return {
            name: load(a, np.dtype(np.float32)) if a.dtype == BFLOAT16 else a for name, a in arrays.items()
        }, metadata
    import zipfile
    import zlib

    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            return dict(file), {}
    except OSError as error:
        raise NpformerError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise NpformerError(f"{path}: not an npz file that can be read: {error!s:.200}") from None
