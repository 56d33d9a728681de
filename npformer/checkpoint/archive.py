"""Named arrays in one file, for traces and golden files: writes safetensors, reads safetensors and npz.

Checkpoints have the same format; what is particular to them is in the package's other modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.checkpoint.storage import BFLOAT16, load
from npformer.errors import NpformerError
from npformer.files import open_file, written_whole
from npformer.limits import LIMITS, Limits

MANY = Limits(header=LIMITS.json)  # a trace of many texts has more arrays than any checkpoint


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file, under a temporary name until it is complete."""
    with written_whole(path) as partial:
        write_tensors(partial, arrays, metadata)


def load_arrays(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads the arrays and the metadata of a .safetensors or .npz file (without metadata), bfloat16 widened to float32.

    Raises NpformerError, which names the file, if it is missing, cut short, or holds anything but arrays.
    """
    path = Path(path)
    if path.suffix != ".npz":
        arrays, metadata = read_tensors(path, MANY)
        return {
            name: load(a, np.dtype(np.float32)) if a.dtype == BFLOAT16 else a for name, a in arrays.items()
        }, metadata
    import zipfile
    import zlib

    try:
        with open_file(path) as opened, np.load(opened, allow_pickle=False) as file:
            return dict(file), {}
    except OSError as error:
        raise NpformerError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise NpformerError(f"{path}: not an npz file that can be read: {error!s:.200}") from None
