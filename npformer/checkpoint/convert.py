"""`convert`: writes a model folder in the layout of npformer or Hugging Face.

A folder is written under a temporary name next to its destination, and renamed when complete.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.modules import MODULES, flattened, home, module_files
from npformer.checkpoint.read import CONFIG, OWN_WEIGHTS, own_metadata, read_folder, read_tree
from npformer.checkpoint.safetensors import write_tensors
from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.common.files import new_folder, open_file
from npformer.common.limits import LIMITS, Limits
from npformer.engine.runtime.narrow import NARROW
from npformer.families import family_of

#: Files that are copied unchanged: the tokenizer and the settings of sentence-transformers. The files of modules are
#: also copied.
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
    "target_vocab.json",
    "source.spm",
    "target.spm",
    "generation_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
FILES = {"npformer": (OWN_WEIGHTS, "npformer"), "torch": ("model.safetensors", "pt")}  # file name, `format` in metadata
STORED_DTYPES = ("float16", "float32", "float64")


def convert(
    src: str | Path,
    dst: str | Path,
    to: str = "npformer",
    dtype: str | None = None,
    *,
    limits: Limits = LIMITS,
    keep: str | None = None,
) -> Path:
    """Writes the model in a folder to a new folder with the given layout and precision.

    config.json stays in Hugging Face's format, and the files of the tokenizer are copied. Tensors that the model does
    not use, such as those of another head, are omitted. Converting weights from torch's layout to npformer's and
    back preserves every bit, unless `dtype` or `keep` changes them.

    Parameters
    ----------
    src, dst : str or Path, the source folder and the new folder
    to : "npformer" for npformer's names and weights (in, out), which load without a copy, or "torch" for the names and
        layout of Hugging Face
    dtype : stored dtype, "float16", "float32" or "float64"; by default, the dtype of each tensor is unchanged
    limits : Limits on the size of src
    keep : "bfloat16", "float16" or "int8", to store the weights in the form in which `load(..., keep=keep)` keeps them
        in memory, so that `load` can map the file. Only with to="npformer", and without dtype.

    Returns
    -------
    Path of the new folder

    Raises
    ------
    NpformerError
        src cannot be read, dst exists or cannot be written, or a number is too large for float16.

    Examples
    --------
    >>> src = npformer.load("distilbert-sst2").folder
    >>> sorted(path.name for path in npformer.checkpoint.convert(src, "converted").glob("*.safetensors"))
    ['npformer.safetensors']
    """
    from shutil import copyfileobj  # imported here, because it is slow and `load` imports this module

    if to not in FILES:
        raise NpformerError(f"to: expected one of {', '.join(FILES)}, got {to!r:.80}")
    if dtype is not None and dtype not in STORED_DTYPES:
        raise NpformerError(f"dtype: expected one of {', '.join(STORED_DTYPES)}, got {dtype!r:.80}")
    if keep is not None and (checks.one_of("keep", keep, NARROW) and (to == "torch" or dtype is not None)):
        raise NpformerError(f"keep: {keep!r} works only in npformer's format and without dtype; omit to and dtype")
    src, dst = Path(src), Path(dst)
    with new_folder(dst) as folder:
        stored = read_folder(src, limits)
        # Without keep, NaN and infinite numbers are also copied, because `load` checks for them.
        config, tree = read_tree(stored, None, allow_nonfinite=keep is None, keep=keep or "float32")
        if dtype is not None:
            tree = layout.unflatten({name: np.asarray(array) for name, array in layout.flatten(tree).items()})
        arrays = layout.to_file(layout.stored(tree, config)) if to == "npformer" else layout.to_torch(tree, config)
        name, form = FILES[to]
        write_tensors(folder / name, arrays, own_metadata(arrays) if to == "npformer" else {"format": form}, dtype)
        description = {**stored.config, "architectures": [family_of(config).architecture(config)]}
        # Transformers computes in this dtype and rounds Gemma's factor to it, whereas npformer rounds as in training.
        if dtype is not None and (to == "torch" or not config.scale_dtype):
            description["dtype"] = dtype
            description.pop("torch_dtype", None)  # older name of the same setting
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
        whole = home(src)  # the folder with modules.json, which may be the parent of src
        for name in (*COMPANIONS, *(name for names in module_files(whole) for name in names)):
            found = next((each / name for each in (src, whole) if (each / name).exists()), None)
            if found is not None:
                (folder / name).parent.mkdir(exist_ok=True)
                with open_file(found) as source, open(folder / name, "wb") as copy:
                    limits.check("json", os.fstat(source.fileno()).st_size, found)
                    copyfileobj(source, copy)
        if whole != src:
            (folder / MODULES).write_text(flattened(whole), encoding="utf-8")
    return dst
