"""The special tokens named in the files of a folder, by role, and the tokens that are never split.

As in Transformers, special_tokens_map.json overrides tokenizer_config.json, but it is ignored if tokenizer_config.json
contains added_tokens_decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npformer.checkpoint.read import CONFIG
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.families import Family
from npformer.text.tokenizer_class import SETTINGS, class_of, read_settings, stem

if TYPE_CHECKING:
    from tokenizers import AddedToken

SPECIAL_TOKENS_FILES = SPECIAL_TOKENS_MAP, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"

#: The roles of special tokens, in the order in which they are added to a vocabulary.
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
GPT_TOKENS = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
#: Maps the class (without "Tokenizer") of a decoder's tokenizer to its default special tokens.
USUAL: Mapping[str, Mapping[str, str]] = {
    "Llama": LLAMA_TOKENS,
    "CodeLlama": LLAMA_TOKENS,
    "Gemma": {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "GPT2": GPT_TOKENS,
    "GPTNeoX": GPT_TOKENS,
    "Qwen2": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "Bloom": {**LLAMA_TOKENS, "pad_token": "<pad>"},
}
#: Maps a model_type to the class of its tokenizer, for folders that name no class.
USUAL_CLASS = {
    "llama": "Llama", "mistral": "Llama", "phi3": "Llama", "gemma": "Gemma", "gemma2": "Gemma", "gemma3": "Gemma",
    "gemma3_text": "Gemma", "gpt2": "GPT2", "opt": "GPT2", "gpt_neox": "GPTNeoX", "olmo2": "GPTNeoX", "qwen2": "Qwen2",
    "qwen3": "Qwen2", "bloom": "Bloom",
}  # fmt: skip


def usual_tokens(folder: Path, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """The default special tokens of a decoder's tokenizer class, for a folder that names no special tokens."""
    return USUAL.get(decoder_class(folder, settings), {})


def decoder_class(folder: Path, settings: Mapping[str, Any]) -> str:
    """The tokenizer class (without "Tokenizer") that the files of a decoder name. The default depends on model_type."""
    if name := class_of(folder, settings):
        return stem(name)
    described = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    return USUAL_CLASS.get(str(described.get("model_type")), "")


def template_tokens(folder: Path) -> dict[str, Any]:
    """The special tokens of a folder as variables for a chat template, such as bos_token."""
    settings = read_settings(folder)
    found = {**usual_tokens(folder, settings)}
    for each in _files(folder, settings):
        given = {**_extra(each), **{name: value for name, value in each.items() if name.endswith("_token")}}
        found |= {name: text for name, value in given.items() if (text := token_text(value))}
    more = [token_text(each) for each in _additional(folder, settings)]
    return found | ({"additional_special_tokens": more} if more else {})


def special_tokens(folder: Path, settings: Mapping[str, Any], family: Family | None = None) -> dict[str, Any]:
    """The special token of each role, a string or an object.

    Additional tokens have the keys "additional 0", "additional 1" and so on.
    """
    files = _files(folder, settings)
    found: dict[str, Any] = {role: family.special_tokens.get(role) if family else None for role in ROLES}
    for each in files:
        found |= {role: each[role] for role in ROLES if each.get(role)}
    special = {role: token for role, token in found.items() if token}
    more = _additional(folder, settings)
    if not all(token_text(each) for each in (*special.values(), *more)):
        raise _not_strings(folder, files)
    if family and family.mask_takes_space and isinstance(special["mask_token"], str):
        special["mask_token"] = {"content": special["mask_token"], "lstrip": True}
    return special | {f"additional {i}": each for i, each in enumerate(more)}


def _files(folder: Path, settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The contents of the files that name special tokens. A later file overrides an earlier one."""
    path = folder / SPECIAL_TOKENS_MAP
    return [settings, read_json(path)] if path.exists() and "added_tokens_decoder" not in settings else [settings]


def _additional(folder: Path, settings: Mapping[str, Any]) -> list[Any]:
    """The special tokens without a standard role, in all formats that versions of Transformers write."""
    found: list[Any] = []
    files = _files(folder, settings)
    for each in files:
        extra = list(_extra(each).values()) or each.get("extra_special_tokens") or []
        several = [each.get("additional_special_tokens") or [], extra]
        if not all(isinstance(tokens, list) for tokens in several):
            raise _not_strings(folder, files)
        found += [token for tokens in several for token in tokens if token not in found]
    return found


def _extra(file: Mapping[str, Any]) -> Mapping[str, Any]:
    """The special tokens with custom names, such as image_token."""
    extra = file.get("extra_special_tokens")
    return extra if isinstance(extra, Mapping) else {}


def _not_strings(folder: Path, files: list[Mapping[str, Any]]) -> NpformerError:
    path = folder / (SPECIAL_TOKENS_MAP if len(files) > 1 else SETTINGS)
    return NpformerError(f"{path}: expected strings as special tokens")


def added_tokens(folder: Path, settings: Mapping[str, Any], special: Mapping[str, Any]) -> list[AddedToken]:
    """The tokens that are never split: from added_tokens_decoder or added_tokens.json, by id, then special tokens.

    Special tokens are not repeated if they are already among the added tokens.
    """
    path = folder / ADDED_TOKENS
    names = [token_text(each) for each in special.values()]
    by_id: dict[int, Any] = {}
    try:
        if "added_tokens_decoder" in settings:
            path = folder / SETTINGS
            by_id = {int(i): each for i, each in settings["added_tokens_decoder"].items()}
        elif path.exists():
            stated = _stated(folder, settings)  # as in Transformers, other tokens are matched after normalization
            by_id = {
                int(i): {"content": each, "special": each in names, "normalized": each not in stated}
                for each, i in read_json(path).items()
            }
        tokens = [added_token(by_id[i]) for i in sorted(by_id)]
        known = {token.content for token in tokens}
        return tokens + [added_token(each, special=True) for each in special.values() if token_text(each) not in known]
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NpformerError(f"{path}: invalid added tokens: {error!s:.200}") from None


def _stated(folder: Path, settings: Mapping[str, Any]) -> set[str]:
    """The special tokens named in the files of a folder."""
    path = folder / SPECIAL_TOKENS_MAP
    files = [settings, read_json(path) if path.exists() else {}]
    return {token_text(each.get(role)) for each in files for role in ROLES}


def added_token(token: Any, **flags: bool) -> AddedToken:
    from tokenizers import AddedToken

    if isinstance(token, str):
        return AddedToken(token, **flags)
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    if not token_text(token):
        raise TypeError(f"{shown(token)} has no content")
    return AddedToken(**{name: token[name] for name in names if name in token} | flags)


def token_text(token: Any) -> str:
    """The text of a special token, which is a string or an object. Returns "" for any other value."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""
