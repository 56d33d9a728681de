"""The special tokens around a text, from the template of a family and from the settings of a decoder's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npformer.common.checks import boolean, shown
from npformer.common.errors import NpformerError
from npformer.families import Family
from npformer.text.legacy_files import LLAMA
from npformer.text.special_tokens import decoder_class, template_tokens, token_text
from npformer.text.tokenizer_class import FILE, OF_NO_FAMILY, SETTINGS, class_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Maps classes (without "Tokenizer") with the settings add_bos_token and add_eos_token to the default values.
ASKING = {
    **{each: {"bos": True, "eos": False} for each in ("Llama", "CodeLlama", "Gemma", "Cohere")},
    "GPTNeoX": {"bos": False, "eos": False},
}


def template(tokenizer: Tokenizer, path: Path, special: Mapping[str, Any], family: Family) -> Any:
    """The post-processor that adds the family's special tokens to a text or a pair (Devlin et al., 2019, figure 2).

    Byte-level pieces and MPNet's mask token include the preceding space. Their offsets are trimmed to exclude it.
    """
    from tokenizers import pre_tokenizers, processors

    forms = _forms(path, special, family)
    tokens = {role: special.get(role) or family.special_tokens[role] for role in _roles(forms)}
    around = _around(tokenizer, path, forms, tokens)
    splits = tokenizer.pre_tokenizer
    if "cls_token" in tokens and isinstance(splits, pre_tokenizers.ByteLevel):
        trim = boolean(f"{path.with_name(SETTINGS)}: trim_offsets", special.get("trim_offsets", True))
        trimmed = processors.ByteLevel(trim_offsets=trim, add_prefix_space=splits.add_prefix_space)
    elif family.mask_takes_space and isinstance(splits, pre_tokenizers.BertPreTokenizer):
        trimmed = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    else:
        return around
    return processors.Sequence([trimmed, around])


def add_asked(tokenizer: Tokenizer, path: Path, settings: Mapping[str, Any]) -> None:
    """Adds the start and end tokens requested by add_bos_token and add_eos_token, in classes with these settings.

    These settings override the post-processor of a tokenizer.json, as in Transformers 4. Version 5 ignores them. If a
    folder lacks these settings, the post-processor of the file is used, because version 5 writes such folders.
    """
    usual = ASKING.get(decoder_class(path.parent, settings), {})
    asked = {role: settings.get(f"add_{role}_token") for role in usual}
    if all(each is None for each in asked.values()):
        return
    named = template_tokens(path.parent)
    for role, value in asked.items():
        if value is None:
            asked[role] = usual[role] and tokenizer.token_to_id(named.get(f"{role}_token", "")) is not None
        else:
            boolean(f"{path.with_name(SETTINGS)}: add_{role}_token", value)
    bos, eos = (f"{role} " * bool(value) for role, value in asked.items())
    forms = f"{bos}$A {eos}", f"{bos}$A {eos}" + f"{bos}$B {eos}".replace(" ", ":1 ")
    tokens = {role: named.get(role, "") for role in _roles(forms)}
    tokenizer.post_processor = _around(tokenizer, path, forms, tokens)


def _around(tokenizer: Tokenizer, path: Path, forms: Sequence[str], special: Mapping[str, Any]) -> Any:
    """The post-processor that adds special tokens to a text and to a pair in these forms, as in `Family`."""
    from tokenizers import processors

    tokens = {role: token_text(token) for role, token in special.items()}
    for token in tokens.values():
        if token.startswith("$") or ":" in token:  # in a template, $ and : have a special meaning
            raise NpformerError(f"{path}: the special token {shown(token)} must not begin with $ or contain :")
        if tokenizer.token_to_id(token) is None:
            raise NpformerError(f"{path}: the special token {shown(token)} is not in the vocabulary")
    single, pair = (
        [tokens.get(f"{part}_token", part) + (colon + number) for part, colon, number in form]
        for form in map(_parts, forms)
    )
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(tokens.values())]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _parts(form: str) -> list[tuple[str, str, str]]:
    return [each.partition(":") for each in form.split()]


def _roles(forms: Sequence[str]) -> list[str]:
    """The roles of the special tokens in these forms, without duplicates."""
    parts = [part for form in forms for part, *_ in _parts(form)]
    return list(dict.fromkeys(f"{part}_token" for part in parts if not part.startswith("$")))


def _forms(path: Path, settings: Mapping[str, Any], family: Family) -> tuple[str, str]:
    """The special tokens around a text and around a pair, as in `Family`.

    Without a tokenizer.json, a decoder's tokenizer also adds the start and end tokens that its settings request. OPT's
    published folders name GPT-2's tokenizer, with add_bos_token. A generic tokenizer class, such as
    PreTrainedTokenizerFast, adds only the tokens that tokenizer.json defines. A tokenizer that was trained without a
    template therefore adds no tokens.
    """
    if path.name == FILE and class_of(path.parent, settings) in OF_NO_FAMILY:
        return "$A", "$A $B:1"
    if path.name == FILE or not {"$A", "bos"}.issuperset(family.single.split()):
        return family.single, family.pair

    def asked(role: str, default: bool) -> str:
        value, token = settings.get(f"add_{role}_token"), settings.get(f"{role}_token")
        wanted = default if value is None else boolean(f"{path.with_name(SETTINGS)}: add_{role}_token", value)
        return f"{role} " if wanted and (token or f"{role}_token" in family.special_tokens) else ""

    bos, eos = asked("bos", "bos" in family.single or path.name == LLAMA), asked("eos", False)
    return f"{bos}$A {eos}", f"{bos}$A {eos}{bos}$B {eos}"
