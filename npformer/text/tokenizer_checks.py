"""Checks the parts of a tokenizer.json before the tokenizers library reads it.

The library trusts every file, so a few lines can request more memory than the machine has, which kills the process. All
parts are therefore checked here first. A file is rejected if its parts can lengthen a text beyond the limit `growth`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from npformer.common.checks import shown, unknown, whole
from npformer.common.errors import NpformerError
from npformer.common.limits import Limits
from npformer.config import MOST

Part = Mapping[str, Any]

STRING, NUMBER = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', rb"[-+.0-9eE]++"
#: The long parts of a file: pieces with ids, pieces with scores, and merges. The checks skip these parts, because they
#: cannot lengthen a text, and parsing them in Python would double the time to load a tokenizer.
TABLES = re.compile(
    rb'"(?:vocab|merges)"\s*+:\s*+(?:'
    + rb"\{(?:\s*+" + STRING + rb"\s*+:\s*+" + NUMBER + rb"\s*+,?)*+\s*+\}|"
    + rb"\[(?:\s*+(?:" + STRING + rb"|\[\s*+" + STRING + rb"\s*+,\s*+(?:" + STRING + rb"|" + NUMBER + rb")\s*+\])"
    + rb"\s*+,?)*+\s*+\])"
)  # fmt: skip
#: Matches each string of a table, with its id or an empty text. The pattern also matches strings without an id, because
#: it would otherwise be tried again at each quote inside such a string.
IDS = re.compile(STRING + rb"(?:\s*+:\s*+(\d++))?+")


def read_parts(where: str, content: bytes, rows: int, limits: Limits) -> dict[str, Any]:
    """Reads a tokenizer.json without its vocabulary, and checks all parts. rows: rows of the embedding table.

    Raises NpformerError for a part that could make the library fail on a text, or exhaust memory or time.
    """
    tables: list[bytes] = []

    def cut(table: re.Match[bytes]) -> bytes:
        tables.append(table[0])
        return b'"table": 0'

    rest = TABLES.sub(cut, content)
    limits.check("tokenizer", len(rest), f"{where}: bytes without the vocabulary")
    try:
        data = json.loads(rest.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise NpformerError(f"{where}: not a readable tokenizer: {error!s:.200}") from None
    if not isinstance(data, dict):
        raise NpformerError(f"{where}: not a readable tokenizer: expected an object, got {shown(data)}")
    highest = max([_highest_id(where, list(filter(None, IDS.findall(table))), rows) for table in tables], default=0)
    reader = _Reader(where, rows, limits)
    reader.check_model(data.get("model"))
    unusual = data["model"].get("vocab")  # a table whose form `TABLES` does not match
    if isinstance(unusual, Mapping):
        highest = max(
            highest, _highest_id(where, [b"%d" % each for each in unusual.values() if type(each) is int], rows)
        )
    growth = reader.growth("normalizer", data.get("normalizer"))
    before = growth * reader.growth("pre_tokenizer", data.get("pre_tokenizer"))
    after = reader.growth("decoder", data.get("decoder"))
    reader.growth("post_processor", data.get("post_processor"))
    for names, times in (("normalizer and pre_tokenizer", before), ("decoder", after)):
        limits.check("growth", times, f"{where}: {names}: growth of a text")
    added = growth * reader.added_tokens(data.get("added_tokens"))  # the library normalizes added tokens during loading
    limits.check("characters", added, f"{where}: added_tokens: characters")
    return {**data, "has_regex": reader.has_regex, "growth": before, "highest": highest}


def _highest_id(where: str, ids: Sequence[bytes], rows: int) -> int:
    """The highest id of a vocabulary, whose ids are given as decimal digits.

    Rejects ids far above the rows of the embedding table.
    """
    check_rows(where, len(ids), rows)
    most = rows + spare(rows)
    highest = most if max(map(len, ids), default=0) > 18 else max(map(int, ids), default=0)
    if highest >= most:
        raise NpformerError(
            f"{where}: vocab: expected ids below {most}; the embedding table of the model has {rows} rows"
        )
    return highest


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Creates a dict from a JSON object, for json.loads. Rejects duplicate keys, on which JSON readers differ.

    The key "table" replaces each skipped table, so this key may occur several times.
    """
    read = dict(pairs)
    if len(read) < len(pairs) and len(read) - ("table" in read) < sum(key != "table" for key, _ in pairs):
        raise ValueError("an object has a duplicate key")
    return read


def spare(rows: int) -> int:
    """The number of pieces that may lack a row in the embedding table, such as a blank last line in vocab.txt.

    A tokenizer with more such pieces belongs to a different model. Added tokens do not count.
    """
    return max(8, rows // 100)


def check_rows(where: str, pieces: int, rows: int) -> None:
    """Rejects a vocabulary with many more pieces than the embedding table has rows."""
    if pieces > rows + spare(rows):
        raise NpformerError(
            f"{where}: expected at most {rows} pieces, one per row of the embedding table, got {pieces}; the tokenizer "
            "belongs to a different model"
        )


def check_marks(where: str, pieces: Iterable[str]) -> None:
    """Rejects WordPiece with pieces from a SentencePiece file, as in KoBERT, because every word would be unknown.

    SentencePiece marks the first piece of a word with ▁, and WordPiece marks the other pieces with ##.
    """
    several = list(pieces)
    if any(piece.startswith("##") for piece in several):
        return
    marked = [piece for piece in several if piece.startswith("▁") and len(piece) > 1]
    if marked:
        raise NpformerError(
            f"{where}: expected pieces of WordPiece, which continue a word with ##, got pieces of SentencePiece "
            f"such as {shown(min(marked))}, with which every word would be unknown; encode texts with the tokenizer "
            "class of the model's authors, and give the model their token ids"
        )


def check_charsmap(where: str, blob: bytes) -> int:
    """Checks the character map of SentencePiece. Returns the length of the longest replacement of a character.

    The map consists of the size of a trie (4 bytes), the trie (a double array of 32-bit units), and texts that end with
    a zero byte. Readers walk the trie without bounds checks, so every step must stay inside the trie. Yata et al.,
    2007, "A compact static double-array keeping character codes". The units have the format of darts-clone.
    """
    size = int.from_bytes(blob[:4], "little")
    if not 0 < size <= len(blob) - 4 or size % 1024:
        raise NpformerError(f"{where}: precompiled_charsmap: invalid size of the trie, {size} of {len(blob)} bytes")
    units, texts = np.frombuffer(blob, "<u4", size // 4, 4).astype(np.int64), blob[4 + size :]
    offsets = (units >> 10) << ((units & 512) >> 6)
    is_inner = units < 2**31
    bases = (np.arange(len(units)) ^ offsets)[is_inner]  # a byte leads from an inner node to base ^ byte
    ends = (np.arange(len(units)) ^ offsets)[is_inner & (units & 256 > 0)]  # positions of the nodes' values
    inside = not (bases | 255 >= len(units)).any() and not (units[ends] & (2**31 - 1) >= len(texts)).any()
    if not inside or not texts.endswith(b"\0"):
        raise NpformerError(f"{where}: precompiled_charsmap: an index is out of bounds")
    return max(len(text.decode(errors="replace")) for text in texts.split(b"\0"))


class _Reader:
    """Checks and counts the parts of a file."""

    def __init__(self, where: str, rows: int, limits: Limits) -> None:
        self.where, self.rows, self.limits = where, rows, limits
        self.count = 0
        self.has_regex = self.has_template = False

    def growth(self, kind: str, part: Any) -> int:
        """The maximum factor, at least 1, by which a part can lengthen a text, in characters."""
        if part is None:
            return 1
        self.count += 1
        self.limits.check("parts", self.count, f"{self.where}: {kind}")
        name = part.get("type") if isinstance(part, Mapping) else None
        if name == "Sequence":
            return self.sequence(kind, part)
        if not isinstance(name, str) or name not in PARTS[kind]:
            raise unknown(f"{self.where}: {kind}", name, [*PARTS[kind], "Sequence"])
        return PARTS[kind][name](self, part, f"{self.where}: {kind}: {name}")

    def sequence(self, kind: str, part: Part) -> int:
        """The growth of a sequence of parts: the product of their growths."""
        several = part.get(SEVERAL[kind])
        if not isinstance(several, list):
            raise NpformerError(f"{self.where}: {kind}: {SEVERAL[kind]}: expected a list, got {shown(several)}")
        return prod([self.growth(kind, each) for each in several])

    def text(self, where: str, part: Part, name: str, default: str | None = None) -> str:
        """Returns a text in a part, after checking that it does not exceed the limit `piece`."""
        text = part.get(name, default)
        if not isinstance(text, str):
            raise NpformerError(f"{where}: {name}: expected a text, got {shown(text)}")
        self.limits.check("piece", len(text), f"{where}: {name}: characters")
        return text

    def pattern(self, where: str, part: Part) -> tuple[bool, str]:
        """Returns whether the pattern of a part is a regular expression, and its text."""
        pattern = part.get("pattern")
        if not isinstance(pattern, Mapping) or len(pattern) != 1 or not pattern.keys() <= {"String", "Regex"}:
            raise NpformerError(f'{where}: pattern: expected {{"String": ...}} or {{"Regex": ...}}')
        is_regex = "Regex" in pattern
        self.has_regex |= is_regex
        return is_regex, self.text(f"{where}: pattern", pattern, "Regex" if is_regex else "String")

    # --- parts: each function returns the growth ---------------------------------------------------------------------

    def replace(self, part: Part, where: str) -> int:
        is_regex, pattern = self.pattern(where, part)
        content = self.text(where, part, "content")
        if not pattern or (is_regex and content):  # such a pattern may match between any two characters
            return 1 + len(content)
        return 1 if is_regex else max(1, -(-len(content) // len(pattern)))

    def prepend(self, part: Part, where: str) -> int:
        return 1 + len(self.text(where, part, "prepend"))

    def precompiled(self, part: Part, where: str) -> int:
        blob = part.get("precompiled_charsmap")
        try:
            read = base64.b64decode(blob, validate=True) if isinstance(blob, str) else b""
        except (binascii.Error, ValueError):
            read = b""
        return max(1, check_charsmap(where, read))

    def split(self, part: Part, where: str) -> int:
        self.pattern(where, part)
        return 1

    def fixed_length(self, part: Part, where: str) -> int:
        whole(f"{where}: length", part.get("length"), 1)
        return 1

    def strip_decoder(self, part: Part, where: str) -> int:
        for name in ("start", "stop"):
            whole(f"{where}: {name}", part.get(name), 0, self.limits.piece)
        return 1

    def suffix_decoder(self, part: Part, where: str) -> int:
        """A decoder that replaces a suffix with a space."""
        return 1 if self.text(where, part, "suffix") else 2

    def delimiter_decoder(self, part: Part, where: str) -> int:
        return 1 if self.text(where, part, "word_delimiter_token") else 2

    # --- tokens around a text ----------------------------------------------------------------------------------------

    def one_template(self, where: str) -> None:
        """Rejects a second template, because the library does not support nested templates."""
        if self.has_template:
            raise NpformerError(f"{where}: expected only one template of special tokens, got a second one")
        self.has_template = True

    def ends(self, part: Part, where: str) -> int:
        """Checks [CLS] and [SEP] with their ids."""
        self.one_template(where)
        for name in ("cls", "sep"):
            pair = part.get(name)
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
                raise NpformerError(f"{where}: {name}: expected a token and its id")
            whole(f"{where}: {name}", pair[1], 0, self.rows - 1)
        return 1

    def template(self, part: Part, where: str) -> int:
        self.one_template(where)
        tokens = part.get("special_tokens")
        if not isinstance(tokens, Mapping):
            raise NpformerError(f"{where}: special_tokens: expected an object, got {shown(tokens)}")
        for name, token in tokens.items():
            ids = token.get("ids") if isinstance(token, Mapping) else None
            texts = token.get("tokens") if isinstance(token, Mapping) else None
            if not isinstance(ids, list) or not isinstance(texts, list) or len(ids) != len(texts):
                raise NpformerError(f"{where}: special_tokens: {shown(name)}: expected as many ids as tokens")
            self.limits.check("parts", len(ids), f"{where}: special_tokens: {shown(name)}")
            for each in ids:
                whole(f"{where}: special_tokens: {shown(name)}", each, 0, self.rows - 1)
        for form, wanted in (("single", ["A"]), ("pair", ["A", "B"])):
            pieces = part.get(form)
            pieces = pieces if isinstance(pieces, list) else []
            self.limits.check("parts", len(pieces), f"{where}: {form}")
            texts = [each.get("Sequence") for each in pieces if isinstance(each, Mapping) and "Sequence" in each]
            if sorted(str(each.get("id")) if isinstance(each, Mapping) else "" for each in texts) != wanted:
                names = " and ".join(f"${each}" for each in wanted)
                raise NpformerError(f"{where}: {form}: expected {names} exactly once")
            for each in pieces:
                special = each.get("SpecialToken") if isinstance(each, Mapping) else None
                name = special.get("id") if isinstance(special, Mapping) else None
                if isinstance(name, str) and name not in tokens:
                    raise NpformerError(f"{where}: {form}: the token {shown(name)} is not in special_tokens")
        return 1

    # --- the vocabulary ----------------------------------------------------------------------------------------------

    def added_tokens(self, tokens: Any) -> int:
        """Checks the tokens that are never split. Returns their total number of characters."""
        if tokens is None:
            return 0
        if not isinstance(tokens, list) or not all(isinstance(each, Mapping) for each in tokens):
            raise NpformerError(f"{self.where}: added_tokens: expected a list of objects, got {shown(tokens)}")
        for token in tokens:
            whole(f"{self.where}: added_tokens: id", token.get("id"), 0, MOST)
        return sum(len(self.text(f"{self.where}: added_tokens", token, "content")) for token in tokens)

    def check_model(self, model: Any) -> None:
        """Checks the settings of the tokenizer's model, which splits words into pieces."""
        if not isinstance(model, Mapping):
            raise NpformerError(f"{self.where}: not a readable tokenizer: no model")
        for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(name) is not None:
                self.text(f"{self.where}: model", model, name)
        where = f"{self.where}: model: max_input_chars_per_word"
        self.limits.check("piece", whole(where, model.get("max_input_chars_per_word", 0), 0), where)


def _times(growth: int) -> Callable[[_Reader, Part, str], int]:
    return lambda reader, part, where: growth


NORMAL_FORMS = 18  # maximum number of characters in a Unicode normal form of one character

#: For each field of tokenizer.json, maps types of parts to their growth. Unicode normal forms have growth 1, because a
#: repeated normal form has no further effect. `check_growth` multiplies by NORMAL_FORMS once.
PARTS: Mapping[str, Mapping[str, Callable[[_Reader, Part, str], int]]] = {
    "normalizer": {
        **dict.fromkeys(("Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Strip", "StripAccents"), _times(1)),
        "BertNormalizer": _times(3),  # adds a space on each side of a Chinese character
        "ByteLevel": _times(4),
        "Precompiled": _Reader.precompiled,
        "Prepend": _Reader.prepend,
        "Replace": _Reader.replace,
    },
    "pre_tokenizer": {
        **dict.fromkeys(
            ("BertPreTokenizer", "CharDelimiterSplit", "Digits", "Punctuation", "UnicodeScripts"), _times(1)
        ),
        **dict.fromkeys(("Whitespace", "WhitespaceSplit"), _times(1)),
        "ByteLevel": _times(5),  # adds a space before each word, and has a character for each byte
        "FixedLength": _Reader.fixed_length,
        "Metaspace": _times(2),
        "Split": _Reader.split,
    },
    "post_processor": {
        **dict.fromkeys(("BertProcessing", "RobertaProcessing"), _Reader.ends),
        "ByteLevel": _times(1),
        "TemplateProcessing": _Reader.template,
    },
    "decoder": {
        **dict.fromkeys(("ByteFallback", "ByteLevel", "Fuse", "Metaspace", "WordPiece"), _times(1)),
        "BPEDecoder": _Reader.suffix_decoder,
        "CTC": _Reader.delimiter_decoder,
        "Replace": _Reader.replace,
        "Strip": _Reader.strip_decoder,
    },
}
SEVERAL = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
