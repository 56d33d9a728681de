"""`load`: loads a bundled model by its name, or a model in a local folder or on the Hugging Face hub.

`checkpoint/read.py` reads folders, and `checkpoint/hub.py` downloads models. The network and huggingface_hub are used
only for an id on the hub.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, cast

import numpy as np

from npformer.checkpoint import storage
from npformer.checkpoint.modules import encoder_folder
from npformer.checkpoint.read import CONFIG, OWN_WEIGHTS, check_keep, load_folder
from npformer.checkpoint.tree import flatten, parameter_dtype, unflatten
from npformer.checkpoint.verify import verify_once
from npformer.common.checks import nearest
from npformer.common.errors import NpformerError
from npformer.common.extras import REPOSITORY
from npformer.common.limits import LIMITS, Limits
from npformer.engine.runtime.threads import num_threads, thread_count, wants_same_bits
from npformer.model import Model, Seq2Seq

#: The bundled models. A checkout contains all models. An installed package contains only the first model, or no model
#: if it was built with NPFORMER_DEMO=0.
OURS = ("distilbert-sst2", "en-de-multi30k", "gpt2-austen")
#: Maps the file suffixes of other engines, whose files name tensors differently, to the names of the formats.
FOREIGN = {
    ".gguf": "GGUF",
    ".ggml": "GGML",
    ".onnx": "ONNX",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".tflite": "TFLite",
}


def load(
    name: str | Path,
    revision: str | None = None,
    offline: bool = False,
    dtype: Any = np.float32,
    threads: int | None = None,
    head: str | None = None,
    same_bits: bool | None = None,
    *,
    limits: Limits = LIMITS,
    mapped: bool = True,
    allow_nonfinite: bool = False,
    writable: bool = False,
    keep: str = "float32",
) -> Model:
    """Loads a model: a `Seq2Seq` if the checkpoint is an encoder-decoder that generates text, else a `Model`.

    Parameters
    ----------
    name : str or Path, the name of a bundled model, a local folder, or a hub id such as "owner/model"
    revision : str, branch, tag or commit on the hub
    offline : bool, use only the cache, without the network
    dtype : float32, or float64 to compute everything in double precision. "auto" means float32, whereas in Transformers
        it means the stored dtype. float16 and bfloat16 mean float32, with a warning that `keep` sets the dtype in
        memory. Transformers' older name, torch_dtype, is accepted too.
    threads, same_bits : as in `Model`
    head : str, the head to load, such as "masked-lm"; by default the head of `architectures` in config.json. Required
    if npformer does not know that class.
    limits : Limits on the size of files and texts
    mapped : bool, keep the weights of a converted checkpoint memory-mapped, so that processes share them. Do not write
        to the file: the next call detects a change, but a write during a call can kill the process. False reads the
        weights into memory. Weights stored in a different layout or dtype are always copied.
    allow_nonfinite : bool, load weights that are NaN or infinite, to study them with `trace`
    writable : bool, copy the weights so that they can be changed: `model.weights["layers"][0]...[0, 0] = 1`. The next
        call uses the change. By default weights are read-only, because the model also has copies in a different layout.
        A writable model has no such copies and is slower on short texts.
    keep : dtype of the weights in memory. "bfloat16" and "float16" take half the memory of "float32". "int8", with a
        scale for each output, takes a quarter. "stored" means the stored dtype of each tensor. All computation is in
        float32, and weights are converted in parts when they are used. A bfloat16 checkpoint therefore gives the same
        bits with "bfloat16" as with "float32". Norms, biases and small weights stay float32. A model loaded with `keep`
        cannot be trained.

    Returns
    -------
    Model or Seq2Seq

    Raises
    ------
    NpformerError
        The name is not a bundled model, a folder or a hub id, or the model cannot be read or downloaded, exceeds the
        limits, or has weights that are not finite.

    Examples
    --------
    >>> npformer.load("distilbert-sst2")
    <npformer.Model distilbert sequence-classification: 6 layers, 12 heads, width 384, float32>
    >>> model = npformer.load("distilbert-sst2", writable=True)
    >>> model.weights["head"]["output"]["bias"] += [9, 0]
    >>> model.config.labels[model([[101, 1045, 2293, 3256, 6949, 102]]).logits.argmax()]  # I love ice cream
    'NEGATIVE'
    """
    dtype, threads = parameter_dtype(dtype, keep), thread_count(threads)  # before any download
    same_bits = wants_same_bits(same_bits)
    check_keep(keep, dtype, allow_nonfinite, writable)
    folder = find_folder(name, revision, offline)
    with num_threads(threads):
        config, weights = load_folder(
            folder, dtype, head, limits=limits, mapped=mapped, allow_nonfinite=allow_nonfinite, keep=keep
        )
    if writable:
        weights = unflatten(storage.writable(flatten(weights)))
    if not config.vocab_size or (config.decoder and config.head == "base"):
        raise NpformerError(
            f"{folder}: {config.torch_class} reads vectors, not token ids; npformer.checkpoint.load_folder returns "
            "its config and weights, for functions such as npformer.encoder and npformer.decoder"
        )
    if config.head == "translation":
        # The annotation says Model because most checkpoints load as a Model.
        return cast(Any, Seq2Seq(config, weights, folder, threads, same_bits, limits))
    return Model(config, weights, folder, threads, same_bits, limits)


def find_folder(name: str | Path, revision: str | None = None, offline: bool = False, weights: bool = True) -> Path:
    """Finds the folder of a model, and downloads it if it is on the hub. Parameters and errors as in `load`.

    weights: download the weights, not only the small files.

    A bundled name takes precedence over a folder, and a folder over a hub id. Write ./name for a folder with a bundled
    name. For a sentence-transformers model, returns the folder of the encoder, which may be a subfolder.
    """
    if not isinstance(name, str | Path) or not str(name) or "\0" in str(name):
        raise NpformerError(f"name: expected a bundled model, a folder or a hub id, got {name!r:.80}")
    folder = bundled().get(name) if isinstance(name, str) else None
    if folder is not None and weights:
        verify_once(folder / OWN_WEIGHTS)
    if folder is None and os.path.isdir(os.path.expanduser(name)):
        folder = Path(name).expanduser()
    if folder is not None:
        if revision is not None:
            raise NpformerError(
                f"revision: only valid for a model on the hub, but {str(name)!r} is the folder {folder}; omit it"
            )
        if not (folder / CONFIG).exists() and (revisions := sorted((folder / "snapshots").glob("*"))):
            raise NpformerError(
                f"{folder}: a model in the cache of Hugging Face; give the folder of one revision, here {revisions[0]}"
            )
        return folder if (folder / CONFIG).exists() else encoder_folder(folder)
    path = Path(name)
    if path.name in OURS and (str(name) == path.name or path.parent.name == "weights"):
        raise NpformerError(_not_installed(path.name))

    if (suffix := Path(name).suffix.lower()) in FOREIGN:
        raise NpformerError(
            f"{name}: {FOREIGN[suffix]} files are not read; give the folder or the hub id of the original model, with "
            "config.json and model.safetensors. keep='int8' keeps its weights in a quarter of the memory"
        )
    from npformer.checkpoint.hub import UnknownModel, download, is_hub_id

    if page := re.match(r"https?://[^/]+/([^/?#]+/[^/?#]+)", str(name)):
        raise NpformerError(f"{name}: expected a hub id, got an address; give {page[1]}")
    if isinstance(name, Path) or not is_hub_id(name):
        raise NpformerError(f"{name}: there is {_no_folder(name)}. {_known(name)}")
    try:
        return download(name, revision, offline, weights)
    except UnknownModel as error:
        raise NpformerError(f"{error}.\n  There is {_no_folder(name)}. {_known(name)}") from error.__cause__


def bundled() -> dict[str, Path]:
    """The folders of the bundled models, by name.

    Looks in the package, in the checkout that contains the package, in a checkout whose root is the working directory
    or at most two levels above (for work in docs/learn), and in a clone in the working directory.
    """
    package = Path(__file__).parent
    places = [package / "_weights"]
    for root in (package.parent, Path(), Path(".."), Path("../.."), Path("npformer")):
        if (root / "pyproject.toml").is_file() and (root / "npformer").is_dir():
            places.append(root.resolve() / "weights")
    folders = [folder for place in places if place.is_dir() for folder in sorted(place.iterdir())]
    return {folder.name: folder for folder in reversed(folders) if (folder / CONFIG).is_file()}


def _not_installed(name: str) -> str:
    """Returns the error message for a bundled model that is not installed. The message says where to get it."""
    path = Path("weights", name)
    folder = installed_from() / path
    if (folder / CONFIG).is_file():
        todo = f"It is in the checkout that npformer was installed from; use its path: {folder}"
    else:
        todo = f"Get it with `git clone {REPOSITORY}` and use its path: {Path('npformer', path)}"
    return f"{name}: not part of the installed package.\n  {todo}"


def installed_from() -> Path:
    """Returns the folder that was given to `pip install`, as recorded in the metadata of the package (PEP 610).

    Returns an empty path if the package was installed from a package index.
    """
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        record = json.loads(distribution("npformer").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        record = {}
    return Path(url2pathname(urlsplit(record.get("url", "")).path))


def _no_folder(name: str | Path) -> str:
    """Returns the reason why a name is not a model folder, with a suggestion."""
    path = Path(os.path.expanduser(name))
    if os.path.isfile(path):
        return f"a file of this name; give the folder of the model, here {path.parent}"
    try:
        near = nearest(path.name, [each.name for each in os.scandir(path.parent) if each.is_dir()])
    except OSError:
        near = []
    return "no folder of this name" + (f" (did you mean {path.parent / near[0]}?)" if near else "")


def _known(name: str | Path) -> str:
    """Returns a list of the bundled models as text, with a suggestion."""
    names = sorted(bundled())
    near = nearest(str(name), names)
    return f"Bundled models: {', '.join(names) or 'none'}" + (f"; did you mean {near[0]}?" if near else "")
