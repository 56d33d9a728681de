"""Reads a local model folder: config.json, and the weights from the first of several possible files that exists.

`safetensors.py` and `torch_file.py` read the file formats, and `families/` defines the names of tensors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.safetensors import read_tensors
from npformer.checkpoint.storage import Array, first_nonfinite
from npformer.checkpoint.tree import Tree, parameter_dtype
from npformer.common import checks
from npformer.common.checks import shown
from npformer.common.errors import NpformerError, warn
from npformer.common.files import read_json
from npformer.common.limits import LIMITS, Limits
from npformer.config import Config
from npformer.engine.runtime.narrow import NARROW
from npformer.families import quantized, read_config, refuse_quantized, text_config, unread_code

CONFIG = "config.json"
ADAPTER = "adapter_config.json"  # of the library peft
MERGE = "not a model; merge it into its model with merge_and_unload of peft, then call save_pretrained"
# Weights in npformer's layout have a different file name. Hugging Face's libraries would ignore the unknown names in a
# model.safetensors and use random weights.
OWN_WEIGHTS = "npformer.safetensors"
FINITE = "finite"  # metadata key: "true" if all numbers in the file are finite
KEEP = ("float32", *NARROW, "stored")
WEIGHTS = (  # in order of precedence
    OWN_WEIGHTS,
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


class Stored(NamedTuple):
    """The content of a folder."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Array]  # in their stored dtypes
    own: bool  # the tensors have npformer's names and layout
    finite: bool = False  # the file is marked as `FINITE`
    limits: Limits = LIMITS
    gap: str = ""  # an entry of the shard index without a tensor


def load_folder(
    path: str | Path,
    dtype: Any = np.float32,
    head: str | None = None,
    *,
    limits: Limits = LIMITS,
    mapped: bool = True,
    allow_nonfinite: bool = False,
    keep: str = "float32",
) -> tuple[Config, Tree]:
    """Reads the config and the weights of a local folder.

    Weights in half precision are widened, unless `keep` stores them in fewer bytes. With mapped=True, arrays of a
    converted checkpoint stay mapped if they already have this dtype. All other arrays are copies.

    Parameters
    ----------
    path : str or Path
    dtype : float32 or float64
    head : str, the head to read; by default the head in config.json
    limits, mapped, allow_nonfinite, keep : as in `load`

    Returns
    -------
    (Config, nested dict of read-only arrays)

    Raises
    ------
    NpformerError
        A file is missing, corrupt or unsupported. The message names the file.

    Examples
    --------
    >>> config, weights = npformer.checkpoint.load_folder(npformer.load("distilbert-sst2").folder)
    >>> weights["layers"][0]["attention"]["query"]["weight"].shape
    (384, 384)
    """
    dtype = parameter_dtype(dtype, keep)
    check_keep(keep, dtype, allow_nonfinite)
    return read_tree(read_folder(path, limits, mapped), dtype, head, allow_nonfinite, keep)


def check_keep(keep: str, dtype: Any, allow_nonfinite: bool = False, writable: bool = False) -> None:
    """Checks the argument `keep` of `load` and its combination with other arguments."""
    if checks.one_of("keep", keep, KEEP) == "float32":
        return
    if dtype != np.float32:
        raise NpformerError(f"keep: {keep!r} needs dtype float32, got {dtype}; omit either keep or dtype")
    for name, given in (("allow_nonfinite", allow_nonfinite), ("writable", writable)):
        if given:
            raise NpformerError(f"keep: {keep!r} is not supported with {name}=True; omit keep")


def read_tree(
    stored: Stored,
    dtype: np.dtype[Any] | None,
    head: str | None = None,
    allow_nonfinite: bool = False,
    keep: str = "float32",
) -> tuple[Config, Tree]:
    """Converts the content of a folder to a config and weights. With dtype None, arrays keep their dtypes."""
    config = config_of(stored.folder, stored.config, head, stored.limits)
    if note := unread_code(stored.config, config):
        warn(f"{stored.folder / CONFIG}: {note}")
    try:
        to_tree = layout.own_to_tree if stored.own else layout.to_tree
        if stored.own and not allow_nonfinite:
            layout.check_scales(stored.tensors)
        tree = to_tree(stored.tensors, config, dtype, allow_nonfinite or stored.finite, keep)
    except NpformerError as error:
        problem = stored.gap or quantized(stored.config)
        raise NpformerError(f"{stored.folder}: {f'{problem}; ' if problem else ''}{error}") from None
    if stored.gap:
        warn(f"{stored.gap}; the model does not need it")
    return config, tree


def read_description(folder: Path, limits: Limits = LIMITS) -> dict[str, Any]:
    """The content of a folder's config.json, or only the section of the text model if the model also reads images."""
    if (folder / ADAPTER).exists() and not (folder / CONFIG).exists():
        raise NpformerError(_of_adapter(folder))
    return dict(text_config(read_json(folder / CONFIG, limits, "config")))


def _of_adapter(folder: Path) -> str:
    """The error message for a folder with only an adapter of the library peft."""
    return f"{folder}: an adapter for {shown(read_json(folder / ADAPTER).get('base_model_name_or_path'))}, {MERGE}"


def config_of(folder: Path, data: Mapping[str, Any], head: str | None = None, limits: Limits = LIMITS) -> Config:
    """Applies `read_config` to the content of a folder's config.json, with the path of the file in errors."""
    try:
        return read_config(data, head, limits)
    except NpformerError as error:
        raise type(error)(f"{folder / CONFIG}: {error}") from None


def read_folder(path: str | Path, limits: Limits = LIMITS, mapped: bool = True) -> Stored:
    """Reads config.json and the first file of `WEIGHTS` that exists."""
    folder = Path(path)
    try:
        there = sorted(os.listdir(folder))
    except (OSError, ValueError) as error:
        raise NpformerError(f"{folder}: {getattr(error, 'strerror', None) or error}") from None
    name = next((name for name in WEIGHTS if name in there), None)
    if name is None and ADAPTER in there:
        raise NpformerError(_of_adapter(folder))
    if name is None:
        found = ", ".join(there[:20]) or "nothing"
        raise NpformerError(f"{folder}: no weights; looked for {', '.join(WEIGHTS)}; found {found}")
    config = read_description(folder, limits)
    try:
        refuse_quantized(config)  # this error is clearer than an error about dtypes
    except NpformerError as error:
        raise NpformerError(f"{folder / CONFIG}: {error}") from None
    if ADAPTER in there:
        warn(f"{folder / ADAPTER}: the adapter in this folder is not applied; only {name} is read")
    if name.endswith(".index.json"):
        sharded, gap = _read_shards(folder, name, limits, mapped)
        return Stored(folder, config, sharded, own=False, limits=limits, gap=gap)
    tensors, metadata = read_file(folder / name, limits, mapped)
    own = name == OWN_WEIGHTS
    return Stored(folder, config, tensors, own, own and metadata.get(FINITE) == "true", limits)


def own_metadata(arrays: Mapping[str, Array]) -> dict[str, str]:
    """The metadata of a file in npformer's layout. `FINITE` makes a later check for non-finite numbers unnecessary."""
    finite = all(first_nonfinite(array) is None for array in arrays.values())
    return {"format": "npformer"} | ({FINITE: "true"} if finite else {})


def read_file(path: Path, limits: Limits, mapped: bool) -> tuple[dict[str, Array], dict[str, str]]:
    """Reads the tensors in a file, and the metadata of a safetensors file."""
    if path.suffix == ".safetensors":
        return read_tensors(path, limits, mapped)
    # Imported here, because the import of zipfile and pickletools takes longer than loading a converted model.
    from npformer.checkpoint.torch_file import read_torch

    return read_torch(path, limits, mapped), {}


def shards(index: Path) -> list[str]:
    """The files that an index names. Omits names that contain a path, which `load_folder` rejects."""
    weight_map = read_json(index).get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    return [name for name in dict.fromkeys(map(str, names)) if re.fullmatch(r"\w[\w.-]*", name)]


def _read_shards(folder: Path, index_name: str, limits: Limits, mapped: bool) -> tuple[dict[str, Array], str]:
    """Reads the tensors of all shards. Also returns a description of an index entry without a tensor, or "".

    Every tensor must be in the shard that the index names.
    """
    index = folder / index_name
    weight_map = read_json(index, limits).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise NpformerError(f"{index}: weight_map: expected an object that maps tensor names to file names")
    names: dict[str, set[str]] = {}
    gap = ""
    for name, shard in weight_map.items():
        if isinstance(shard, str) and (shard in names or _is_plain(index, shard)):
            names.setdefault(shard, set()).add(name)
        else:
            gap = f"{index}: expected names of {_suffix(index)} files in the same folder, got {shard!r:.200}"
    tensors: dict[str, Array] = {}
    for shard, listed in sorted(names.items()):
        if not os.path.lexists(folder / shard):
            gap = f"{index}: the shard {shard} is missing from the folder"
            continue
        arrays, _ = read_file(folder / shard, limits, mapped)
        misplaced = (arrays.keys() - listed) & weight_map.keys() | arrays.keys() & tensors.keys()
        if misplaced:
            raise NpformerError(gap or f"{index}: {min(misplaced)!r:.200} is also in {shard}")
        if absent := listed - arrays.keys():
            gap = f"{index}: {min(absent)!r:.200} is not in {shard}"
        tensors |= arrays
    return tensors, gap


def _suffix(index: Path) -> str:
    return Path(index.name.removesuffix(".index.json")).suffix


def _is_plain(index: Path, shard: str) -> bool:
    """Whether the name of a shard is a plain file name. A path could point outside the folder."""
    return bool(re.fullmatch(rf"[^/\\\0]{{1,200}}{re.escape(_suffix(index))}", shard))
