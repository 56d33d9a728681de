"""The files of a sentence-transformers folder: modules.json, and the folders of the modules that it lists."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint.read import CONFIG, read_file
from npformer.checkpoint.storage import Array, converted, dtype_name, first_nonfinite, is_floating
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.files import read_text
from npformer.common.limits import LIMITS, Limits

MODULES = "modules.json"
ENCODERS = ("Transformer", "MLMTransformer")  # kinds of modules that are encoders
WITH_WEIGHTS = ("Dense", "LayerNorm")
#: Linear layers in files next to BGE-M3's encoder: for token weights, and for token vectors as in ColBERT.
TOKEN_WEIGHTS, TOKEN_VECTORS = "sparse_linear.pt", "colbert_linear.pt"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # in order of precedence


class Module(NamedTuple):
    """A module: the last part of its type, such as "Pooling", and its folder ("" means the model's folder)."""

    kind: str
    path: str


def read_modules(folder: Path) -> list[Module]:
    """The modules of a folder, in the order of computation, or [] if there is no modules.json.

    Raises NpformerError for an invalid modules.json or a module outside the folder.
    """
    path = folder / MODULES
    if not path.exists():
        return []
    text = read_text(path)
    try:
        found = [Module(str(each["type"]).rsplit(".", 1)[-1], _plain(str(each["path"]))) for each in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NpformerError(f"{path}: expected a list of modules, each with a type and a path") from None
    if not all(re.fullmatch(r"[\w-]{0,100}", each.path) for each in found):
        paths = ", ".join(shown(each.path) for each in found[:9])
        raise NpformerError(f"{path}: expected modules in folders next to this file, got {paths}")
    linked = next((each.path for each in found if each.path and (folder / each.path).is_symlink()), None)
    if linked is not None:
        raise NpformerError(f"{folder / linked}: is a link, and links are not followed; replace it with the folder")
    return found


def _plain(path: str) -> str:
    """The plain name of a folder next to modules.json, from a form such as "./1_Pooling/"; "" for the folder itself."""
    return "" if path in (".", "./") else path.removeprefix("./").removesuffix("/")


def encoder_folder(folder: Path) -> Path:
    """The folder of a sentence-transformers encoder: `folder` itself, or a subfolder such as 0_Transformer."""
    return next((folder / path for kind, path in read_modules(folder) if kind in ENCODERS), folder)


def home(folder: Path) -> Path:
    """The sentence-transformers folder that contains an encoder's folder, or `folder` itself without such a folder."""
    inside = not (folder / MODULES).exists() and (folder.parent / MODULES).exists()
    return folder.parent if inside and encoder_folder(folder.parent) == folder else folder


def file_at_home(folder: Path | None, name: str) -> Path | None:
    """The path of the file with this name in the `home` of a model's folder, or None if there is no such file."""
    path = None if folder is None else home(folder) / name
    return path if path is not None and path.exists() else None


def flattened(folder: Path) -> str:
    """The content of modules.json for a copy of the folder in which the encoder's files are next to modules.json."""
    listed = json.loads(read_text(folder / MODULES))
    inner = encoder_folder(folder).name
    return json.dumps([{**each, "path": ""} if _plain(each["path"]) == inner else each for each in listed], indent=2)


def module_files(folder: Path) -> list[tuple[str, ...]]:
    """The files of the modules after the encoder, relative to the folder. Only one file of each tuple is needed."""
    found: list[tuple[str, ...]] = []
    for kind, path in read_modules(folder)[1:]:
        if path:
            found.append((f"{path}/{CONFIG}",))
        if path and kind in WITH_WEIGHTS:
            found.append(tuple(f"{path}/{name}" for name in WEIGHT_FILES))
    return [*found, (TOKEN_WEIGHTS,), (TOKEN_VECTORS,)] if (folder / MODULES).exists() else found


def module_weights(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: Any, limits: Limits = LIMITS
) -> dict[str, Array]:
    """Reads the tensors in the folder of a module, in `dtype`.

    Raises NpformerError for a missing file, and for tensors with wrong names, wrong shapes or non-finite numbers.
    """
    path = next((folder / name for name in WEIGHT_FILES if (folder / name).exists()), None)
    if path is None:
        raise NpformerError(f"{folder}: no weights; looked for {', '.join(WEIGHT_FILES)}")
    return _checked(path, shapes, dtype, limits)


def linear_weights(path: Path, width: int, out: int | None, dtype: Any, limits: Limits = LIMITS) -> dict[str, Array]:
    """Reads torch's nn.Linear(width, out) from a file: weight (width, out) and bias (out,). out: None for any width.

    Raises the same errors as `module_weights`.
    """
    if out is None:
        bias = read_file(path, limits, mapped=False)[0].get("bias", np.zeros(0))
        out = bias.size
    arrays = _checked(path, {"weight": (out, width), "bias": (out,)}, dtype, limits)
    return {"weight": arrays["weight"].T.copy(), "bias": arrays["bias"]}


def _checked(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: Any, limits: Limits) -> dict[str, Array]:
    tensors, _ = read_file(path, limits, mapped=False)
    if tensors.keys() != shapes.keys():
        raise NpformerError(f"{path}: expected {', '.join(shapes)}, got {', '.join(tensors):.300}")
    arrays = {}
    for name, shape in shapes.items():
        if tensors[name].shape != shape or not is_floating(tensors[name].dtype):
            got = f"{tensors[name].shape} of {dtype_name(tensors[name].dtype)}"
            raise NpformerError(f"{path}: {name}: expected floating point {shape}, got {got}")
        arrays[name] = converted(tensors[name], np.dtype(dtype))
        if first_nonfinite(arrays[name]) is not None:
            raise NpformerError(f"{path}: {name}: contains a number that is not finite; the file is damaged")
    return arrays
