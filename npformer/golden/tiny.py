"""A tiny random model and its golden file, for the CI of a port. The same seed gives the same model.

The model is a folder in Hugging Face's form, which transformers reads too. Its weights are scaled from the raw bits of
a random generator, so they do not depend on the version of NumPy. No bias is 0 and no norm's weight is 1, so that
leaving one out changes the stages. `suite.py` writes many such models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.convert import FILES
from npformer.checkpoint.read import CONFIG, load_folder
from npformer.checkpoint.safetensors import write_tensors
from npformer.checkpoint.tied import drawn
from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.common.files import new_folder
from npformer.common.halves import half
from npformer.config import LABELLED, Config, Decoder
from npformer.engine.mechanisms import Window
from npformer.engine.runtime.narrow import BFLOAT16
from npformer.engine.runtime.packing import Text
from npformer.families import FAMILIES, EncoderTable, Family, write_config
from npformer.families.llama import Llama
from npformer.golden.format import Golden
from npformer.golden.record import record
from npformer.model import Model, Seq2Seq

TINY_FILE = "golden.safetensors"
HEAD = "sequence-classification"
SIZES = {"vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ffn": 64, "max_length": 24}
LENGTHS = (9, 6, 3)  # tokens in each text; masks matter because the lengths differ


def tiny(path: str | Path, family: str, seed: int = 0, head: str | None = None) -> Path:
    """Writes a new folder with a random two-layer model and its golden file.

    Parameters
    ----------
    path : folder to make
    family : model_type of a family: "bert", "gpt2", "bart", ...
    seed : seed of the weights and token ids
    head : a head of the family; by default causal-lm for a family of causal models, else a classifier

    Returns
    -------
    Path
        The folder, with config.json, model.safetensors and golden.safetensors.

    Raises
    ------
    NpformerError
        If the family is unknown or does not have the head, the seed is negative, or the folder exists already.

    Examples
    --------
    >>> folder = tiny("tiny-bert", "bert")
    >>> npformer.golden.load(folder / "golden.safetensors")
    <npformer Golden of tiny-bert: 45 stages of 3 texts>
    """
    known = [name for name in FAMILIES if name != "transformer"]  # torch's own modules have no config.json
    if family not in known:
        raise NpformerError(f"tiny: expected a family ({', '.join(known)}), got {family!r}")
    checks.whole("seed", seed, 0)
    own = FAMILIES[family]
    head = checks.one_of("head", head or _usual_head(own), own.architectures.values())
    labels = ("NEGATIVE", "POSITIVE") if head in LABELLED else ()
    config = narrowed(own.config(head, **SIZES, **_more(own, head), labels=labels), 2)
    with new_folder(Path(path)) as folder:
        write_case(folder, f"tiny-{family}", config, seed)
    return Path(path)


def narrowed(config: Config, reach: int) -> Config:
    """Returns the config with windows of this reach, so that a window is narrower than a text."""

    def narrow(mechanisms: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(each, reach=reach) if isinstance(each, Window) else each for each in mechanisms)

    local = config.local and replace(config.local, mechanisms=narrow(config.local.mechanisms))
    return replace(config, mechanisms=narrow(config.mechanisms), local=local)


def _usual_head(family: Family) -> str:
    heads = list(family.architectures.values())
    usual = "causal-lm" if family.constants.get("causal") else HEAD
    return usual if usual in heads else heads[0]


def _more(family: Family, head: str) -> dict[str, Any]:
    """Returns sizes that only some families have. A decoder has its own number of heads and FFN width."""
    if isinstance(family, EncoderTable):
        return {
            "d_embedding": 16 if "d_embedding" in family.sizes else 0,
            "n_token_types": 2 if family.token_types else 0,
            "n_kv_heads": 2 if isinstance(family, Llama) else 0,
        }
    if head == "causal-lm":  # the decoder alone
        return {"pad_id": 1, "padding_idx": 1}
    decoder = Decoder(n_layers=2, n_heads=2, d_ffn=48, vocab_size=SIZES["vocab_size"], start_id=2, end_ids=(2,))
    return {"pad_id": 1, "padding_idx": 1, "decoder": decoder}


def write_case(
    folder: Path, name: str, config: Config, seed: int, lengths: Sequence[int] = LENGTHS, dtype: str = "float32"
) -> Golden:
    """Writes a random model, with weights in this dtype, and its golden file to a folder; returns the golden file."""
    bits = np.random.PCG64(seed)
    tree = layout.own_to_tree(_weights(config, bits), config)
    (folder / CONFIG).write_text(json.dumps(write_config(config), indent=2) + "\n", encoding="utf-8")
    weights_file, layout_name = FILES["torch"]
    arrays = {each: _stored(array, dtype) for each, array in layout.to_torch(tree, config).items()}
    write_tensors(folder / weights_file, arrays, {"format": layout_name})
    model = (Seq2Seq if config.head == "translation" else Model)(*load_folder(folder))
    recorded = record(model, _texts(config, bits, lengths), name=name)
    recorded.save(folder / TINY_FILE)
    return recorded


def _stored(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bfloat16":
        return array.astype(dtype, copy=False)
    return (half(dtype, array).view(np.uint32) >> 16).astype("<u2").view(BFLOAT16)


def _weights(config: Config, bits: np.random.PCG64) -> dict[str, np.ndarray]:
    flat = {}
    for name, parameter in drawn(config).items():
        spread = 1.5 / math.sqrt(parameter.shape[0]) if parameter.transposed else 0.3
        center = parameter.start if name.endswith("norm.weight") else 0
        flat[name] = (center + spread * _uniform(bits, parameter.shape)).astype(np.float32)
    return flat


def _uniform(bits: np.random.PCG64, shape: tuple[int, ...]) -> np.ndarray:
    """Draws numbers of variance 1 between -sqrt(3) and sqrt(3)."""
    raw = np.asarray(bits.random_raw(math.prod(shape))) >> np.uint64(11)
    return (math.sqrt(3) * (raw * 2.0**-52 - 1)).reshape(shape)


def _texts(config: Config, bits: np.random.PCG64, lengths: Sequence[int]) -> list[Any]:
    """Draws token ids. If the model has token_type_ids, the last third of each text is its second segment.

    A translation model has sources of these lengths, and targets of different lengths, which begin with the start
    token.
    """
    texts: list[Any] = []
    for length in lengths:
        ids = _ids(bits, length, config.vocab_size)
        ids[ids == config.uncounted] += 1  # a real token with the padding id would be ambiguous
        if config.decoder and config.head != "translation":
            ids[-1] = config.decoder.end_ids[0]  # the token that a text's head reads
        if config.pooling == "last" and config.pad_id is not None:
            ids[-1] = config.pad_id  # tests that a port finds the last token before padding
        if config.head == "translation":
            target = _ids(bits, max(1, length - 2), config.decoder.vocab_size)
            target[0] = config.decoder.start_id
            texts.append((Text(ids), Text(target)))
            continue
        token_type_ids = (np.arange(length) >= length * 2 // 3).astype(np.int64)
        texts.append(Text(ids, token_type_ids if config.reads_token_types else None))
    return texts


def _ids(bits: np.random.PCG64, length: int, vocab_size: int) -> np.ndarray:
    return (np.asarray(bits.random_raw(length)) % np.uint64(vocab_size)).astype(np.int64)
