"""Reads the tokenizer of a checkpoint from tokenizer.json, or from the files and settings of older checkpoints.

The result is a `SafeTokenizer` that returns the same ids as Transformers, without truncation or padding.
`text/encoding.py` truncates texts.

docs/reference/transformers-versions.md lists differences between versions 4 and 5 of Transformers, and npformer's
choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npformer.common.checks import boolean, one_of, shown, whole
from npformer.common.errors import NpformerError
from npformer.common.files import read_text
from npformer.common.limits import LIMITS, Limits
from npformer.config import Config
from npformer.families import FAMILIES, Family, family_of
from npformer.families.base import SPECIAL_TOKENS
from npformer.text.around_texts import add_asked, template
from npformer.text.legacy_files import (
    ALBERT,
    DEBERTA,
    LLAMA,
    MERGES,
    albert_clean_up,
    describe_bpe,
    describe_deberta,
    describe_llama,
    describe_unigram,
)
from npformer.text.safe_tokenizer import Read, SafeTokenizer, Uncalled, read_tokenizer, safely, tried
from npformer.text.sentencepiece_file import BPE, read_sentencepiece
from npformer.text.special_tokens import added_token, added_tokens, special_tokens, token_text
from npformer.text.tokenizer_checks import check_marks, check_rows
from npformer.text.tokenizer_class import (
    CLASSES,
    FILE,
    FILES,
    OF_NO_FAMILY,
    SETTINGS,
    VOCABULARY,
    class_of,
    file_to_read,
    read_settings,
    stem,
)

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

MOST_SENTINELS = 10_000  # maximum number of T5's sentinels <extra_id_0>, ...

#: Unicode white space, which the tokenizers library strips from the end of each line of a vocab.txt.
SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"

#: Maps BERT's normalization settings in tokenizer_config.json to their names in the normalizer and their defaults.
CLEAN_UP: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}


def load_tokenizer(folder: Path, config: Config, limits: Limits = LIMITS) -> SafeTokenizer:
    """Reads the tokenizer of a checkpoint folder for a model with this config.

    Raises NpformerError for a folder without a tokenizer, an unreadable file, a file that exceeds the limits, a piece
    without a row in the embedding table, and a tokenizer that fails on a trial text.
    """
    settings, rows = read_settings(folder), config.vocab_size
    family = _family(config, folder, settings)
    name = file_to_read(folder, settings)
    if name is None:
        raise NpformerError(f"{folder}: no tokenizer; looked for {', '.join(FILES)}; copy one from the original model")
    path = folder / name
    if name == FILE:
        unknown = family.special_tokens["unk_token"]
        read = read_tokenizer(path, rows, limits, unknown_piece=unknown)
        _complete(read.tokenizer, path, settings)
        named = added_tokens(folder, settings, special_tokens(folder, settings))
        missing = [each for each in named if read.tokenizer.token_to_id(each.content) is None]
        _add(read.tokenizer, folder, missing, limits)  # as in Transformers
    else:
        llama = read_sentencepiece(path, BPE, limits) if name == LLAMA else None
        if llama:
            family = replace(family, special_tokens=llama.special)
        special = special_tokens(folder, settings, family)
        added: list[dict[str, Any]] = []
        if name == VOCABULARY:
            read = Read(_from_vocabulary(folder, settings, special, limits))
        else:
            described, added = (
                describe_llama(path, llama, limits) if llama else _described(path, settings, special, family, limits)
            )
            content = json.dumps(described, ensure_ascii=False).encode()
            read = read_tokenizer(path, rows, limits, content)._replace(has_regex=False)  # its expressions are fast
        _add(read.tokenizer, folder, [*added_tokens(folder, settings, special), *map(added_token, added)], limits)
        settings = {**settings, **special}
    tokenizer = read.tokenizer
    if tokenizer.post_processor is None:
        tokenizer.post_processor = template(tokenizer, path, settings, family)
    if name == FILE:
        with safely(f"{path}: the tokenizer failed"):
            add_asked(tokenizer, path, settings)
    check_rows(str(path), tokenizer.get_vocab_size(False), rows)
    return tried(read, path, rows, limits)


def longest_text(folder: Path | None, config: Config) -> int:
    """The maximum number of tokens: the smaller of max_length and model_max_length in tokenizer_config.json."""
    limit = read_settings(folder).get("model_max_length") if folder is not None else None
    if limit is None or not isinstance(limit, int | float) or isinstance(limit, bool):
        return config.max_length
    if limit < 1:
        raise NpformerError(f"{folder}/{SETTINGS}: model_max_length: expected at least 1, got {shown(limit)}")
    return int(min(config.max_length, limit))


def truncation_side(folder: Path | None, tokenizer: Any) -> str:
    """The side from which texts are truncated, "right" or "left", from truncation_side in the settings or the file."""
    own = getattr(tokenizer, "truncation_side", "right") if isinstance(tokenizer, Uncalled) else "right"
    side = read_settings(folder).get("truncation_side", own) if folder is not None else own
    return str(one_of(f"{folder}/{SETTINGS}: truncation_side", side, ("right", "left")))


def gives_token_types(folder: Path | None, config: Config) -> bool:
    """Whether the tokenizer provides token types. model_input_names in tokenizer_config.json may omit them."""
    names = read_settings(folder).get("model_input_names") if folder is not None and config.reads_token_types else None
    if names is not None and not isinstance(names, list):
        raise NpformerError(f"{folder}/{SETTINGS}: model_input_names: expected a list of names, got {shown(names)}")
    return config.reads_token_types and (names is None or "token_type_ids" in names)


def special_token(folder: Path | None, config: Config, role: str) -> str:
    """The special token of a role such as "mask_token", by default the token of the family."""
    if folder is None:
        return family_of(config).special_tokens[role]
    settings = read_settings(folder)
    return token_text(special_tokens(folder, settings, _family(config, folder, settings))[role])


def _family(config: Config, folder: Path, settings: Mapping[str, Any]) -> Family:
    """The family of the tokenizer, from its class, because some BERT models have XLM-RoBERTa's tokenizer."""
    name = stem(class_of(folder, settings))
    own = next((key for key in FAMILIES if key.replace("-", "") == name.lower()), "")
    if not own and name in CLASSES[VOCABULARY]:  # such as LayoutLMTokenizer
        own = "bert"
    return FAMILIES[own] if own else family_of(config)


def _complete(tokenizer: Tokenizer, path: Path, settings: Mapping[str, Any]) -> None:
    """Applies the settings for normalization and spaces in tokenizer_config.json, as Transformers does."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    normalizer = tokenizer.normalizer
    if settings.get("tokenizer_class") not in OF_NO_FAMILY:
        for part, kind in (
            ("pre_tokenizer", pre_tokenizers.ByteLevel),
            ("post_processor", processors.RobertaProcessing),
        ):
            own = getattr(tokenizer, part)
            if isinstance(own, kind):
                where = path.with_name(SETTINGS)
                own.add_prefix_space = _boolean(where, settings, "add_prefix_space", own.add_prefix_space)
                setattr(tokenizer, part, own)
    if tokenizer.decoder is None and isinstance(tokenizer.model, models.WordPiece):
        tokenizer.decoder = decoders.WordPiece()
    if isinstance(normalizer, normalizers.BertNormalizer) and _is_bert(settings):
        for name, (theirs, _) in CLEAN_UP.items():
            setattr(normalizer, theirs, _setting(path.with_name(SETTINGS), settings, name))
        tokenizer.normalizer = normalizer


def _is_bert(settings: Mapping[str, Any]) -> bool:
    """Returns whether Transformers applies the normalization settings, which depends on the tokenizer class."""
    return str(settings.get("tokenizer_class", "BertTokenizer")).startswith(("Bert", "DistilBert", "Electra", "MPNet"))


def _from_vocabulary(
    folder: Path, settings: Mapping[str, Any], special: Mapping[str, Any], limits: Limits
) -> Tokenizer:
    """Creates BERT's tokenizer from vocab.txt: normalization, splitting at spaces and punctuation, WordPiece."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    path = folder / VOCABULARY
    unknown = token_text(special.get("unk_token"))
    pieces = _pieces(path, limits)
    if unknown not in pieces:
        raise NpformerError(f"{path}: the unknown token {shown(unknown)} is not in the vocabulary")
    check_marks(str(path), pieces)
    with safely(f"{path}: not a readable tokenizer"):
        tokenizer = Tokenizer(models.WordPiece(pieces, unk_token=unknown))
    clean_up: dict[str, Any] = {
        theirs: _setting(folder / SETTINGS, settings, name) for name, (theirs, _) in CLEAN_UP.items()
    }
    tokenizer.normalizer = normalizers.BertNormalizer(**clean_up)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _described(
    path: Path, settings: Mapping[str, Any], special: Mapping[str, Any], family: Family, limits: Limits
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The files of an older checkpoint as the content of a tokenizer.json, and the pieces that are never split."""

    def setting(name: str, default: bool) -> bool:
        return _boolean(path.with_name(SETTINGS), settings, name, default)

    if path.name == MERGES:
        if family.special_tokens == SPECIAL_TOKENS:  # a family such as Qwen2, with a different regular expression
            raise NpformerError(
                f"{path}: {family.model_type} models do not split texts as GPT-2 does, so merges.txt is not enough; "
                f"copy {FILE} from the original model, or write it with save_pretrained of transformers' tokenizer"
            )
        return describe_bpe(path.parent, setting("add_prefix_space", False), limits), []
    names = {role: token_text(token) for role, token in special.items()}
    if path.name == DEBERTA:
        lower_case, split_marks = setting("do_lower_case", False), setting("split_by_punct", False)
        return describe_deberta(path, names, setting("add_prefix_space", True), lower_case, split_marks, limits)
    clean_up, order = [], family.pieces
    if order.sentinels:
        count = whole(f"{path.with_name(SETTINGS)}: extra_ids", settings.get("extra_ids", 100), 0, MOST_SENTINELS)
        order = order._replace(last=tuple(f"<extra_id_{i}>" for i in reversed(range(count))))
    elif path.name == ALBERT:
        clean_up = albert_clean_up(setting("do_lower_case", True), setting("keep_accents", False))
    return describe_unigram(path, names, order, setting("add_prefix_space", True), clean_up, limits)


def _add(tokenizer: Tokenizer, folder: Path, tokens: list[AddedToken], limits: Limits) -> None:
    """Adds tokens that are never split."""
    for token in tokens:
        limits.check("piece", len(token.content), f"{folder}: characters of an added token")
    with safely(f"{folder}: added tokens"):
        tokenizer.add_tokens(tokens)


def _pieces(path: Path, limits: Limits) -> dict[str, int]:
    """The id of each piece in a vocab.txt: the number of its line, counted from 0."""
    lines = read_text(path, limits, "vocabulary").removesuffix("\n").split("\n")
    limits.check("piece", max(map(len, lines)), f"{path}: characters of a piece")
    return {line.rstrip(SPACES): number for number, line in enumerate(lines)}


def _boolean(path: Path, settings: Mapping[str, Any], name: str, default: bool) -> bool:
    return boolean(f"{path}: {name}", settings.get(name, default))


def _setting(path: Path, settings: Mapping[str, Any], name: str) -> bool | None:
    default = CLEAN_UP[name][1]
    value = settings.get(name, default)
    if type(value) is not bool and value is not default:
        raise NpformerError(f"{path}: {name}: expected true or false, got {shown(value)}")
    return value
