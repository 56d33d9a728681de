"""Encoder-decoders for tests: the golden models of `golden/seq2seq_cases.py`, and small random models."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import drawn
from npformer.config import Decoder
from npformer.families import read_config
from npformer.families.torch_nn import TORCH_MODULES
from npformer.model import Seq2Seq
from tests.golden import seq2seq_cases as cases
from tests.support import tiny

MARIAN_FILES = Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"


@cache
def golden_model(case: str, dtype: str = "float32", threads: int = 2) -> Seq2Seq:
    """Returns the Marian or BART model of a golden case; each weight is drawn from its Hugging Face name."""
    config = read_config(cases.model_config(case))
    flat = {}
    for ours, each in drawn(config).items():
        name = layout.sources(config)[ours].names[0]
        shape = each.shape[::-1] if each.transposed else each.shape
        flat[name] = cases.model_tensor(case, name, (1, *shape) if name == "final_logits_bias" else shape)
    return Seq2Seq(config, layout.to_tree(flat, config, np.dtype(dtype)), threads=threads)


def random_model(dtype: str = "float32", threads: int = 2, **fields: Any) -> Seq2Seq:
    """Returns a model with two layers per stack, 512 positions, and heads 64 wide, as products of large models need."""
    sizes: dict[str, Any] = {
        "vocab_size": 500, "d_model": 128, "n_heads": 2, "n_layers": 2, "d_ffn": 192, "max_length": 512,
        "activation": "silu", "shared": True, "tied": True, "scale_embedding": True, "pad_id": 499,
        "decoder": Decoder(n_layers=2, n_heads=2, d_ffn=192, vocab_size=500, start_id=499, end_ids=(0,)),
    }  # fmt: skip
    config = TORCH_MODULES.config("translation", **{**sizes, **fields})
    return Seq2Seq(config, tiny.weights(config, dtype=dtype), threads=threads)


def folder_of_letters(path: Path) -> Path:
    """Copies the golden Marian model's folder to `path`, with a tokenizer.json of letters and without SentencePiece
    models."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    shutil.copytree(MARIAN_FILES, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.spm", "vocab.json"))
    pieces = json.loads((MARIAN_FILES / "vocab.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", pieces["</s>"])]
    )
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>", ">>deu<<", ">>fra<<"])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def bart_folder(path: Path, **described: Any) -> Path:
    """Writes the folder of a tiny BART, with a tokenizer.json. described: additional fields for its config.json."""
    tiny.folder(path, "bart", "translation", seed=3)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, **described}), encoding="utf-8")
    return path


def t5_folder(path: Path, head: str = "translation", **described: Any) -> Path:
    """Writes the folder of a tiny T5, with a tokenizer.json. described: additional fields for its config.json."""
    tiny.folder(path, "t5", head, seed=3, scale_output=head == "translation", n_layers=1)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, **described}), encoding="utf-8")
    return path
