"""Converts the tokenizer files of older checkpoints to an equivalent tokenizer.json.

`safe_tokenizer.py` can then read and check all tokenizers in the same way. The files are of three kinds: byte-level BPE
in vocab.json and merges.txt (Radford et al., 2019, section 2.2), a unigram model in a SentencePiece file (Kudo, 2018,
"Subword regularization"), and BPE in a SentencePiece file (Sennrich et al., 2016).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.files import read_json, read_text
from npformer.common.limits import Limits
from npformer.families.base import AS_IN_THE_FILE, PieceOrder
from npformer.text.sentencepiece_file import (
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePiece,
    read_sentencepiece,
)

MERGES, MERGES_VOCABULARY = "merges.txt", "vocab.json"
FAIRSEQ, ALBERT, DEBERTA = "sentencepiece.bpe.model", "spiece.model", "spm.model"
LLAMA = "tokenizer.model"
MOST_MERGES = 1 << 20  # maximum number of pairs; Gemma's 256,000 pieces form about 600,000 pairs
MOST_TRIED = 1 << 26  # maximum characters in all splits of pieces; Gemma's pieces have about 20 million


def describe_bpe(folder: Path, prefix_space: bool, limits: Limits) -> dict[str, Any]:
    """The tokenizer of GPT-2, RoBERTa and BART, which merges adjacent pieces in the order listed in merges.txt."""
    path = folder / MERGES
    lines = read_text(path, limits, "vocabulary").removesuffix("\n").split("\n")
    limits.check("piece", max(map(len, lines)) // 2, f"{path}: characters of a piece")
    merges = [line.removesuffix("\r").split(" ") for line in lines if not line.startswith("#version")]
    for pair in merges:
        if len(pair) != 2:
            raise NpformerError(
                f"{path}: expected two pieces separated by a space in each line, got {shown(' '.join(pair))}"
            )
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
    vocabulary = read_json(folder / MERGES_VOCABULARY, limits)
    return _description(None, byte_level, {**model, "vocab": vocabulary, "merges": merges})


def describe_unigram(
    path: Path, special: Mapping[str, str], order: PieceOrder, prefix_space: bool, clean_up: list[Any], limits: Limits
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The tokenizer of a SentencePiece file, and the pieces that are never split.

    special: the special token of each role. clean_up: normalizers that run before the normalizer of the file.
    """
    model, charsmap, added = _unigram(path, special, order, limits)
    blob = base64.b64encode(charsmap).decode()
    own = [{"type": "Precompiled", "precompiled_charsmap": blob}] if charsmap else []
    described = _description(
        {"type": "Sequence", "normalizers": [*clean_up, *own]},
        {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace(prefix_space, "never")]},
        model,
    )
    return described | {"decoder": metaspace(prefix_space, "never")}, added


def describe_deberta(
    path: Path, special: Mapping[str, str], prefix_space: bool, lower_case: bool, split_marks: bool, limits: Limits
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The tokenizer of DeBERTa-v2 and -v3, which uses the pieces of a SentencePiece file but not its normalizer."""
    model, _, added = _unigram(path, special, AS_IN_THE_FILE, limits)
    clean_up = [
        *([{"type": "Lowercase"}] if lower_case else []),
        {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "},
        {"type": "NFC"},
        {"type": "Strip", "strip_left": False, "strip_right": True},
    ]
    marks = [{"type": "Punctuation", "behavior": "Isolated"}] if split_marks else []
    spaces = metaspace(prefix_space, "first")
    described = _description(
        {"type": "Sequence", "normalizers": clean_up}, {"type": "Sequence", "pretokenizers": [*marks, spaces]}, model
    )
    return described | {"decoder": spaces}, added


def describe_llama(path: Path, file: SentencePiece, limits: Limits) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The tokenizer of Llama 1 and 2, Mistral and Gemma: BPE over characters, with unknown characters as bytes.

    Each pair of pieces that forms another piece is a merge, in the order of the file, as in Transformers.
    """
    symbols = any(piece.type == USER_DEFINED for piece in file.pieces)
    for there, what in (
        (file.charsmap, "a character map"),  # the tokenizers library would apply the map to graphemes
        (file.removes_spaces, "a normalizer that removes spaces"),
        (file.dummy_prefix and symbols, "a space before texts together with user-defined symbols"),
    ):
        if there:
            raise NpformerError(
                f"{path}: {what}: not supported; copy tokenizer.json from the original model, or write it with "
                "save_pretrained of transformers' tokenizer"
            )
    vocabulary = {piece.text: i for i, piece in enumerate(file.pieces)}
    unknown = next((piece.text for piece in file.pieces if piece.type == UNKNOWN), None)
    if unknown is None or len(vocabulary) < len(file.pieces):
        raise NpformerError(f"{path}: expected unique pieces, and one of the type UNKNOWN")
    prefix = [{"type": "Prepend", "prepend": "▁"}] if file.dummy_prefix else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = {
        "type": "BPE", "unk_token": unknown, "fuse_unk": True, "byte_fallback": file.byte_fallback,
        "vocab": vocabulary, "merges": _merges(path, file.pieces, limits),
    }  # fmt: skip
    described = _description({"type": "Sequence", "normalizers": [*prefix, spaces]}, None, model)
    decoders = [
        {**spaces, "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
    ]
    return described | {"decoder": {"type": "Sequence", "decoders": decoders}}, _never_split(file.pieces)


def _merges(path: Path, pieces: Sequence[Piece], limits: Limits) -> list[tuple[str, str]]:
    """The pairs of pieces that form another piece, ordered by score (best first) and by the length of the first piece.

    Raises NpformerError for more than MOST_TRIED splits of pieces, or more than MOST_MERGES pairs.
    """
    limits.check("piece", max(len(piece.text) for piece in pieces), f"{path}: characters of a piece")
    known = {piece.text: piece for piece in pieces if piece.type in (NORMAL, USER_DEFINED)}
    tried = sum(len(text) ** 2 for text in known)  # each split takes time proportional to the piece's length
    if tried > MOST_TRIED:
        raise NpformerError(
            f"{path}: expected at most {MOST_TRIED} characters in the splits of all pieces, got {tried}; the pieces "
            "are too long"
        )
    order = {piece.text: i for i, piece in enumerate(pieces)}
    found: list[tuple[float, int, int, str]] = []
    for piece in known.values():
        text = piece.text
        splits = (at for at in range(1, len(text)) if text[:at] in known and text[at:] in known)
        found += [(-piece.score, order[text], at, text) for at in splits]
        if len(found) > MOST_MERGES:
            raise NpformerError(f"{path}: expected at most {MOST_MERGES} pairs of pieces that make another piece")
    found.sort()
    return [(text[:at], text[at:]) for _, _, at, text in found]


def _never_split(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """The added tokens of a SentencePiece file."""
    return [
        {"content": piece.text, "special": piece.type == CONTROL, "normalized": False}
        for piece in pieces
        if piece.type in (CONTROL, USER_DEFINED)
    ]


def metaspace(prefix_space: bool, otherwise: str) -> dict[str, Any]:
    """The component that replaces spaces with ▁ and, if prefix_space is set, adds ▁ before each text.

    otherwise: the prepend_scheme to use without prefix_space.
    """
    scheme = "always" if prefix_space else otherwise
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}


def _unigram(
    path: Path, special: Mapping[str, str], order: PieceOrder, limits: Limits
) -> tuple[dict[str, Any], bytes, list[dict[str, Any]]]:
    """The model of a SentencePiece file, its character map, and the pieces that are never split."""
    pieces, charsmap, *_ = read_sentencepiece(path, UNIGRAM, limits)
    first = [(special.get(name, name), score) for name, score in order.first]
    last = [(special.get(name, name), 0.0) for name in order.last]
    vocabulary = [*first, *((piece.text, piece.score) for piece in pieces[order.dropped :]), *last]
    name = special.get("unk_token")
    unknown = next((i for i, (text, _) in enumerate(vocabulary) if text == name), None)
    if unknown is None:
        raise NpformerError(f"{path}: the unknown token {shown(name)} is not in the vocabulary")
    added = _never_split(pieces)
    added += [{"content": name, "special": True, "normalized": False} for name in order.last if name not in special]
    return {"type": "Unigram", "unk_id": unknown, "byte_fallback": False, "vocab": vocabulary}, charsmap, added


def albert_clean_up(lower_case: bool, keep_accents: bool) -> list[dict[str, Any]]:
    """The normalizers of ALBERT (Lan et al., 2020): unify quotation marks, strip accents, convert to lower case."""
    quotes = [{"type": "Replace", "pattern": {"String": each}, "content": '"'} for each in ("``", "''")]
    accents = [] if keep_accents else [{"type": "NFKD"}, {"type": "StripAccents"}]
    return [*quotes, *accents, *([{"type": "Lowercase"}] if lower_case else [])]


def _description(normalizer: Any, pre_tokenizer: Any, model: dict[str, Any]) -> dict[str, Any]:
    """The content of a tokenizer.json. Special tokens are added later."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": pre_tokenizer,
        "model": model,
    }
