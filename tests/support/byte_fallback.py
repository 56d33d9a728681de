"""A tokenizer like Llama 2's: pieces with ▁ for spaces, and a token for each byte of all other characters."""

from __future__ import annotations

from typing import Any

BYTE = 3  # id of the token for byte 0
PIECES = ("▁", "a", "b", "▁a", "▁the")


def tokenizer() -> Any:
    """Returns the tokenizer. Runs of bytes become characters. If any byte is invalid, each byte becomes U+FFFD."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def of_bytes(text: str | bytes) -> list[int]:
    """Returns the tokens of a text's bytes."""
    return [BYTE + byte for byte in (text.encode() if isinstance(text, str) else text)]
