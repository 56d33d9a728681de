"""Tiny random models that write texts: GPT-2 with byte-level pieces, which are the 256 bytes and a few merges.

    folder = writers.folder(tmp_path / "model")
    model = writers.model()

`<|endoftext|>` is id 0, which begins a text without a prompt and ends every generated text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npformer.model import Model
from tests.support import tiny

END = "<|endoftext|>"
MERGES = ["t h", "th e", "Ġ the", "i n", "Ġ a", "Ġ i", "Ġi s", "o u", "Ġ w", "e r", "Ã ©"]
SIZES: dict[str, Any] = {"start_id": 0, "end_ids": (0,)}


def tokenizer() -> Any:
    """Returns a tokenizer like GPT-2's: bytes as letters, joined by MERGES, without special tokens around a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    pieces = [END, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(each.replace(" ", "") for each in MERGES)]
    merges = [tuple(each.split()) for each in MERGES]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    made.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    return made


def model(head: str = "causal-lm", **overrides: Any) -> Model:
    """Returns a model in memory; the arguments are the same as for `tiny.model`."""
    made = tiny.model("gpt2", head, **(_sizes() | overrides))
    made.tokenizer = tokenizer()
    return made


def folder(path: Path, head: str = "causal-lm", generation: dict[str, Any] | None = None, **overrides: Any) -> Path:
    """Writes the same model as Hugging Face does; generation: the content of generation_config.json."""
    tiny.folder(path, "gpt2", head, **(_sizes() | overrides))
    tokenizer().save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "GPT2Tokenizer", **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return path


def _sizes() -> dict[str, Any]:
    return SIZES | {"vocab_size": 1 + 256 + len(MERGES)}
