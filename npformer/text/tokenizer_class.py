"""The class of a tokenizer, from the settings of a folder, and the files that the class reads.

Transformers reads a file with the class that the folder names. The same vocab.txt gives different pieces with
BertJapaneseTokenizer, which first splits words with a Japanese dictionary, or with BertweetTokenizer, which merges
bytes. A class that npformer does not have is therefore rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from npformer.checkpoint.read import CONFIG
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.text.legacy_files import ALBERT, DEBERTA, FAIRSEQ, LLAMA, MERGES

FILE, VOCABULARY, SETTINGS = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
FILES = (FILE, VOCABULARY, MERGES, FAIRSEQ, ALBERT, DEBERTA, LLAMA)  # in search order
MERGES_OF_WORDS = "bpe.codes"  # file next to the vocab.txt of BertweetTokenizer and PhobertTokenizer

#: Values of tokenizer_class that make Transformers use a tokenizer.json unchanged.
OF_NO_FAMILY = ("PreTrainedTokenizerFast", "TokenizersBackend")

#: For each file of older checkpoints, the names (without "Tokenizer") of the classes that npformer supports.
CLASSES: Mapping[str, tuple[str, ...]] = {
    VOCABULARY: (
        "Bert", "DistilBert", "Electra", "MPNet", "ConvBert", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader",
        "LayoutLM", "Lxmert", "MobileBert", "Realm", "RetriBert", "SqueezeBert",
    ),
    MERGES: ("GPT2", "Roberta", "Bart", "CodeGen", "GPTNeoX", "LED", "Longformer", "Qwen2"),
    FAIRSEQ: ("XLMRoberta", "Camembert"),
    ALBERT: ("Albert", "T5", "MT5"),
    DEBERTA: ("DebertaV2",),
    LLAMA: ("Llama", "CodeLlama", "Gemma"),
}  # fmt: skip

#: Classes written in Python. Transformers reads the files of these classes, never a tokenizer.json.
IN_PYTHON = (
    "BertGeneration", "BertJapanese", "Bertweet", "BioGpt", "ByT5", "Canine", "CTRL", "Esm", "Flaubert", "FSMT",
    "GPTNeoXJapanese", "Luke", "MLuke", "Phobert", "ProphetNet", "RoCBert", "Tapas", "XLM", "XLMProphetNet",
)  # fmt: skip

#: Maps each setting of BertJapaneseTokenizer that changes how texts are split to the value with which it works like
#: BERT.
SPLITTING = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}

INSTEAD = "encode texts with that class in transformers, and give the model their token ids"


def read_settings(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, or {} if it does not exist."""
    return read_json(folder / SETTINGS) if (folder / SETTINGS).exists() else {}


def class_of(folder: Path, settings: Mapping[str, Any]) -> str:
    """The class that a folder names in tokenizer_config.json, or else in config.json, without "Fast".

    Returns "" if no class is named. Names in `OF_NO_FAMILY` keep "Fast".
    """
    return _named(folder, settings)[1]


def stem(name: str) -> str:
    """Removes the suffix "Tokenizer" from the name of a class."""
    return name.removesuffix("Tokenizer")


def file_to_read(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The first file in a folder that its tokenizer class reads, or None for a folder without a tokenizer.

    Raises NpformerError if npformer does not have the class.
    """
    where, name = _named(folder, settings)
    found = [each for each in FILES if (folder / each).exists()]
    if not found:
        return None
    if stem(name) in IN_PYTHON:
        raise _refused(where, name, f"npformer reads no files of this class; {INSTEAD}")
    if found[0] == FILE:
        return FILE
    for setting, usual in SPLITTING.items():
        if settings.get(setting) not in (None, usual):
            value = shown(settings[setting])
            raise NpformerError(
                f"{folder / SETTINGS}: {setting}: {value} is not supported; supported: {usual!r}; {INSTEAD}"
            )
    if code := _own_code(settings):
        raise _refused(folder / SETTINGS, code, f"auto_map: the class is the checkpoint's own code; {INSTEAD}")
    if found[0] == VOCABULARY and (folder / MERGES_OF_WORDS).exists():
        raise NpformerError(f"{folder / MERGES_OF_WORDS}: merges next to a vocab.txt are not supported; copy {FILE}")
    if not name or name in OF_NO_FAMILY:
        return found[0]
    read = [each for each in found if stem(name) in CLASSES[each]]
    if not read:
        known = ", ".join(f"{each}Tokenizer" for each in CLASSES[found[0]])
        raise _refused(where, name, f"npformer reads {found[0]} like {known}; copy {FILE} from the model, or {INSTEAD}")
    return read[0]


def _named(folder: Path, settings: Mapping[str, Any]) -> tuple[Path, str]:
    """The file that names the class of a tokenizer, and the name without "Fast" ("" without a class)."""
    where, name = folder / SETTINGS, settings.get("tokenizer_class")
    if name is None and (folder / CONFIG).exists():
        where = folder / CONFIG
        name = read_json(where).get("tokenizer_class")
    if name is not None and not isinstance(name, str):
        raise NpformerError(f"{where}: tokenizer_class: expected the name of a class, got {shown(name)}")
    name = name or ""
    return where, name if name in OF_NO_FAMILY else name.removesuffix("Fast")


def _own_code(settings: Mapping[str, Any]) -> str:
    """The tokenizer class in the checkpoint's own code, from auto_map; "" if there is no such class."""
    named = settings.get("auto_map")
    classes = named.get("AutoTokenizer") if isinstance(named, Mapping) else named
    several: Collection[Any] = classes if isinstance(classes, list) else [classes]
    return next((each for each in several if isinstance(each, str)), "")


def _refused(where: Path, name: str, reason: str) -> NpformerError:
    return NpformerError(f"{where}: tokenizer_class: {shown(name)} is not supported: {reason}")
