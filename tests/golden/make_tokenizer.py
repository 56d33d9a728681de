"""Makes golden token ids for every way in which checkpoints describe tokenizers, or with --check compares them.

    python tests/golden/make_tokenizer.py [--check]

It needs the `oracle` group (transformers). It makes `tasks/tokenizer_ids.json`: each case has the files of a folder,
and the ids from transformers' AutoTokenizer for the forty texts of `texts.py`. "cuts" lists how transformers truncates
pairs of texts.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.golden.texts import TEXTS
from tests.support import tiny

HERE = Path(__file__).parent
FILE = HERE / "tasks" / "tokenizer_ids.json"
CHARACTERS = 400  # maximum length of a text; pieces are letters, so longer texts would test nothing new
_FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}

#: Letters that stand for bytes (printable Latin-1 characters, then characters from U+0100 on), and their merges.
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_LETTERS = [*map(chr, _PRINTED), *map(chr, range(256, 256 + 256 - len(_PRINTED)))]
_JOINED = ["t h", "th e", "Ġ the", "i n", "Ġ a", "o o", "g oo", "goo d", "Ġ good", "Ã ©", "e r", "Ġ f"]
_PIECES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *_LETTERS, *(each.replace(" ", "") for each in _JOINED)]
_BPE = {
    "config.json": {"model_type": "roberta"},
    "vocab.json": {piece: i for i, piece in enumerate(_PIECES)},
    "merges.txt": "\n".join(["#version: 0.2", *_JOINED, ""]),
}
_MASK = {"content": "[MASK]", **_FLAGS, "lstrip": True}

#: The files of the folder in addition to vocab.txt. "lowercase" is an option of the tokenizer.json, for a case that has
#: this file. A folder with its own config.json has no vocab.txt, and ".model" names the SentencePiece file to copy.
CASES: dict[str, dict[str, Any]] = {
    "vocabulary alone": {},
    "cased": {"tokenizer_config.json": {"do_lower_case": False}},
    "uncased, accents kept": {"tokenizer_config.json": {"do_lower_case": True, "strip_accents": False}},
    "cased, accents stripped": {"tokenizer_config.json": {"do_lower_case": False, "strip_accents": True}},
    "Chinese characters in words": {"tokenizer_config.json": {"tokenize_chinese_chars": False}},
    "never_split": {"tokenizer_config.json": {"never_split": ["love", "GOOD"], "do_basic_tokenize": True}},
    "additional special tokens": {
        "tokenizer_config.json": {"additional_special_tokens": ["<br />", "GOOD"], "mask_token": "[MASK]"}
    },
    "special_tokens_map": {
        "special_tokens_map.json": {
            "mask_token": {"content": "great", **_FLAGS},
            "cls_token": "[CLS]",
            "additional_special_tokens": ["&amp;"],
        }
    },
    "added_tokens": {"added_tokens.json": {"Film": len(tiny.VOCABULARY) + 1, "/b>": len(tiny.VOCABULARY)}},
    "added_tokens_decoder": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "4": {"content": "[MASK]", **_FLAGS, "lstrip": True, "special": True},
                str(len(tiny.VOCABULARY)): {"content": "Great", **_FLAGS, "normalized": True},
            }
        }
    },
    "tokenizer.json": {"lowercase": True, "tokenizer_config.json": {"do_lower_case": True}},
    "tokenizer.json cased": {"lowercase": False, "tokenizer_config.json": {"do_lower_case": False}},
    "tokenizer.json against its settings": {
        "lowercase": True,
        "tokenizer_config.json": {"do_lower_case": False, "tokenize_chinese_chars": False},
    },
    "tokenizer.json without settings": {"lowercase": False},
    "tokenizer.json of no special class": {
        "lowercase": False,
        "tokenizer_config.json": {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"},
    },
    "merges": _BPE,
    "merges with a space first": {**_BPE, "tokenizer_config.json": {"add_prefix_space": True}},
    "merges with special tokens": {**_BPE, "special_tokens_map.json": {"mask_token": _MASK, "cls_token": "<s>"}},
    "XLM-RoBERTa's pieces": {"config.json": {"model_type": "xlm-roberta"}, "sentencepiece.bpe.model": "source.spm"},
    "CamemBERT's pieces": {
        "config.json": {"model_type": "camembert"},
        "sentencepiece.bpe.model": "source.spm",
        "tokenizer_config.json": {"add_prefix_space": False, "additional_special_tokens": ["Film"]},
    },
    "BERT with XLM-RoBERTa's pieces": {
        "config.json": {"model_type": "bert"},
        "sentencepiece.bpe.model": "target.spm",
        "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"},
    },
}


def write_folder(folder: Path, files: dict[str, Any]) -> Path:
    """Writes the case's folder. Its tokenizer.json sets truncation and padding, which loading must ignore."""
    folder.mkdir(parents=True)
    if "config.json" not in files:
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
        (folder / "vocab.txt").write_text("\n".join(tiny.VOCABULARY) + "\n", encoding="utf-8")
    for name, content in files.items():
        if name == "lowercase":
            tokenizer = tiny.tokenizer(content)
            tokenizer.enable_truncation(8)
            tokenizer.enable_padding(length=16)
            tokenizer.save(str(folder / "tokenizer.json"))
        elif name.endswith(".model"):
            (folder / name).write_bytes((HERE / "seq2seq" / "marian-files" / content).read_bytes())
        elif isinstance(content, str):
            (folder / name).write_text(content, encoding="utf-8", newline="")
        else:
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def golden_texts() -> list[str | list[str]]:
    """The texts in their JSON form: a pair is a list of two texts."""
    return [text[:CHARACTERS] if isinstance(text, str) else list(text) for text in TEXTS]


def cuts() -> list[list[int]]:
    """Returns rows of token counts: the lengths of two texts, the maximum for the pair, and the tokens kept of each."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny.tokenizer())
    first, second = (tokenizer.convert_tokens_to_ids(word) for word in ("ice", "cream"))
    found = []
    for one, other, limit in itertools.product(range(8), range(8), range(4, 18)):
        texts = [" ".join(["ice"] * one)], [" ".join(["cream"] * other)]
        (ids,) = tokenizer(*texts, truncation="longest_first", max_length=limit)["input_ids"]
        if len(ids) < one + other + 3:
            found.append([one, other, limit, ids.count(first), ids.count(second)])
    return found


def make() -> dict[str, Any]:
    from transformers import AutoTokenizer

    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, files in CASES.items():
            tokenizer = AutoTokenizer.from_pretrained(write_folder(Path(temporary) / name, files))
            ids = []
            for text in golden_texts():
                pair = (text,) if isinstance(text, str) else tuple(text)
                ids.append(tokenizer(*pair, truncation=False, padding=False)["input_ids"])
            cases.append({"name": name, "files": files, "ids": ids})
    return {"texts": golden_texts(), "cuts": cuts(), "cases": cases}


def main() -> int:
    made = json.dumps(make(), ensure_ascii=True, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n"
    if "--check" in sys.argv[1:]:
        same = made == FILE.read_text(encoding="utf-8")
        print(f"{FILE.name}: {'as committed' if same else 'differs from what transformers gives'}")
        return 0 if same else 1
    FILE.write_text(made, encoding="utf-8")
    print(f"{FILE.name}: {len(made)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
