"""Tiny folders like those of ModernBERT's later checkpoints: mmBERT, with Gemma's tokenizer, and Ettin's encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import tiny

#: Fields in both folders' config.json. transformers reads some of them and ignores the others.
_BOTH = {
    "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
    "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
    "decoder_bias": True, "deterministic_flash_attn": False, "embedding_dropout": 0.0, "global_attn_every_n_layers": 3,
    "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 32, "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02, "intermediate_size": 48, "layer_norm_eps": 1e-05, "local_attention": 8,
    "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05,
    "num_attention_heads": 4, "num_hidden_layers": 4, "position_embedding_type": "sans_pos",
    "repad_logits_with_grad": False, "sparse_pred_ignore_index": -100, "sparse_prediction": False,
}  # fmt: skip
_PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
_PIECES += [*"▁abcdefghijklmnopqrstuvwxyzI.,é", "th", "the", "▁the", "in", "▁a"]
CONFIGS: dict[str, dict[str, Any]] = {
    "mmBERT": {
        **_BOTH, "vocab_size": len(_PIECES), "max_position_embeddings": 8192, "dtype": "float32",
        "global_rope_theta": 160000, "local_rope_theta": 160000, "transformers_version": "4.48.0",
        "bos_token_id": 2, "cls_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "sep_token_id": 1, "unk_token_id": 3,
    },
    "Ettin": {
        **_BOTH, "vocab_size": len(tiny.VOCABULARY), "max_position_embeddings": 7999, "torch_dtype": "float32",
        "global_rope_theta": 160000.0, "local_rope_theta": 160000.0, "transformers_version": "4.48.3",
        "causal_mask": False, "tie_word_embeddings": True,
        "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "sep_token_id": 3,
    },
}  # fmt: skip


def gemma_tokenizer() -> Any:
    """Returns a small tokenizer like Gemma's: spaces as ▁, BPE with byte fallback, <bos> and <eos> around a text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = {piece: i for i, piece in enumerate(_PIECES)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "n"), ("▁", "a")]
    made = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=True, unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B:1 <eos>:1", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    made.add_special_tokens(_PIECES[:5])
    return made


def folder(path: Path, name: str, tokenizer_class: str | None = "PreTrainedTokenizerFast") -> Path:
    """Writes a folder in the form of "mmBERT" or "Ettin", with random weights."""
    data = CONFIGS[name]
    sizes = {"vocab_size": data["vocab_size"], "n_layers": 4, "d_ffn": 48}
    made = tiny.folder(path, "modernbert", "masked-lm", **sizes)
    (made / "config.json").write_text(json.dumps(data), encoding="utf-8")
    around = (
        ("<bos>", "<eos>", "<mask>", "<pad>", "<unk>")
        if name == "mmBERT"
        else ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")
    )
    roles = dict(zip(("cls_token", "sep_token", "mask_token", "pad_token", "unk_token"), around, strict=True))
    if name == "mmBERT":
        gemma_tokenizer().save(str(made / "tokenizer.json"))
        roles |= {"bos_token": "<bos>", "eos_token": "<eos>"}
    described = {**roles, "model_max_length": 8192, "tokenizer_class": tokenizer_class}
    (made / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    return made
