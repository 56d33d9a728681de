"""Adds the modules of a sentence-transformers folder to the folder of a tiny model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.safetensors import write_tensors
from tests.support import byte_level, tiny, torch_writer

#: Fields of tokenizer_config.json that transformers' tokenizer needs in addition to the tiny models' tokenizer.json.
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 64,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")},
}


def write_modules(
    folder: Path,
    modules: Sequence[tuple[str, Mapping[str, Any], Mapping[str, np.ndarray]]],
    encoder: str = "sentence_transformers.models.Transformer",
    settings: Mapping[str, Any] | None = None,
    **described: Any,
) -> Path:
    """Adds modules to a model's folder, after the encoder.

    modules: type, config and tensors of each. encoder: the type of the first module. settings:
    sentence_bert_config.json. described: fields of config_sentence_transformers.json.
    """
    listed = [{"idx": 0, "name": "0", "path": "", "type": encoder}]
    for number, (kind, config, tensors) in enumerate(modules, 1):
        path = f"{number}_{kind.rsplit('.', 1)[-1]}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": kind})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
        if tensors:
            write_tensors(folder / path / "model.safetensors", tensors, {"format": "pt"})
    (folder / "modules.json").write_text(json.dumps(listed))
    stored = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**TOKENIZER, **stored}))
    if settings is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    if described:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(described))
    return folder


def decoder(folder: Path, prompt: str, family: str = "qwen3", **sizes: Any) -> Path:
    """Writes a folder like Qwen3-Embedding's: last-token pooling, and a query prompt that pooling does not exclude."""
    made = tiny.folder(folder, family, "causal-lm", vocab_size=byte_level.N_TOKENS, max_length=200, **sizes)
    byte_level.tokenizer().save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": byte_level.STOP, "padding_side": "left"}))
    modules = [("sentence_transformers.models.Pooling", {"pooling_mode_lasttoken": True}, {})]
    modules += [("sentence_transformers.models.Normalize", {}, {})]
    return write_modules(made, modules, prompts={"query": prompt})


def write_splade(folder: Path, config: Mapping[str, Any], **described: Any) -> Path:
    """Adds SpladePooling to a masked-language model's folder, with the types of sentence-transformers 5.0 to 5.3."""
    pooling = "sentence_transformers.sparse_encoder.models.SpladePooling"
    encoder = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    return write_modules(folder, [(pooling, config, {})], encoder, **described)


def write_token_heads(folder: Path, sparse: np.ndarray | None = None, colbert: np.ndarray | None = None) -> Path:
    """Adds BGE-M3's modules: CLS pooling, Normalize, and linear layers for tokens, (out, D + 1) with the bias in the
    last column."""
    pooling = ("sentence_transformers.models.Pooling", {"pooling_mode_cls_token": True}, {})
    write_modules(folder, [pooling, ("sentence_transformers.models.Normalize", {}, {})])
    for name, layer in (("sparse_linear.pt", sparse), ("colbert_linear.pt", colbert)):
        if layer is not None:
            torch_writer.save(folder / name, {"weight": layer[:, :-1].copy(), "bias": layer[:, -1].copy()})
    return folder
