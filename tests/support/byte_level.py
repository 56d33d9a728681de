"""A byte-level tokenizer like Qwen's: every byte is a token, with merges only for "yes" and "no"."""

from __future__ import annotations

from typing import Any

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = ("yes", "no")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
N_TOKENS = 256 + 3 + 3  # bytes; special tokens; "ye", "yes" and "no"


def tokenizer(ends: bool = True) -> Any:
    """Returns the tokenizer: NFC, Qwen's splits, bytes, "yes", "no". ends: texts end in END, as in Qwen3-Embedding."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ye", *WORDS]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [("y", "e"), ("ye", "s"), ("n", "o")]))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END, START, STOP])
    parts = [processors.ByteLevel(trim_offsets=False)]
    if ends:
        of_end = [(END, made.token_to_id(END))]
        parts += [processors.TemplateProcessing(single=f"$A {END}", pair=f"$A $B {END}", special_tokens=of_end)]
    made.post_processor = processors.Sequence(parts)
    return made
