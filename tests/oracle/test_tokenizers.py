"""Tokenizers of older checkpoints compared with transformers: ids, tokens and offsets of 200 lines in many scripts,
alone and as pairs.

The vocabularies are trained here, on the same lines, with the libraries that the authors of checkpoints use.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from transformers import AutoTokenizer

from npformer import Pair, load
from npformer.common.limits import LIMITS
from npformer.config import Config
from npformer.families import FAMILIES, Family
from npformer.text.encoding import Encoder, SourceEncoder
from npformer.text.tokenizer import load_tokenizer
from npformer.text.translation_tokenizer import load_tokenizer as of_sources
from tests.support import later_modernbert, tiny
from tests.support.scripts import LINES

WORD_PIECES = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "mpnet": ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"],
}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
#: The special pieces that each checkpoint's authors passed to SentencePiece's trainer.
TRAINED: dict[str, dict[str, Any]] = {
    "xlm-roberta": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
    "camembert": {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
    "albert": {
        "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "user_defined_symbols": list('(),"-.'),
    },
    "t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "deberta-v2": {
        "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
        "eos_piece": "[SEP]", "unk_piece": "[UNK]",
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of vocabularies: roberta-vocab.json, roberta-merges.txt and a .model of each kind."""
    folder = tmp_path_factory.mktemp("trained")
    byte_level = ByteLevelBPETokenizer()
    byte_level.train_from_iterator(LINES, vocab_size=900, special_tokens=ROBERTA, show_progress=False)
    byte_level.save_model(str(folder), "roberta")
    for name, special in WORD_PIECES.items():
        pieces = BertWordPieceTokenizer()
        pieces.train_from_iterator(LINES, vocab_size=900, special_tokens=special, show_progress=False)
        pieces.save_model(str(folder), name)
    for name, settings in TRAINED.items():
        for rule in ("nmt_nfkc", "identity"):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(line.replace("\0", "") for line in LINES for _ in range(3)),
                model_prefix=str(folder / f"{name}-{rule}"), vocab_size=900, character_coverage=0.98,
                normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=2, num_threads=1, **settings,
            )  # fmt: skip
    return folder


#: Name -> model_type, the files of the folder (file -> trained file), and settings by file.
CASES: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {}
BPE = {"vocab.json": "roberta-vocab.json", "merges.txt": "roberta-merges.txt"}
for _name, _settings in {
    "alone": {},
    "prefix space": {"tokenizer_config.json": {"add_prefix_space": True}},
    "whole places": {"tokenizer_config.json": {"trim_offsets": False, "add_prefix_space": True}},
    "mask takes the space": {"special_tokens_map.json": {"mask_token": MASK, "cls_token": "<s>"}},
    "added": {"added_tokens.json": {"NEW": 900, "(new)": 901}},
    "decoder": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "4": {**MASK, "special": True},
                "900": {**MASK, "content": "NEW", "special": False, "normalized": True},
            }
        }
    },
}.items():
    CASES[f"roberta {_name}"] = ("roberta", BPE, _settings)
CASES["bart alone"] = ("bart", BPE, {})
CASES["bart prefix space"] = ("bart", BPE, {"tokenizer_config.json": {"add_prefix_space": True}})
for _type, _file in (("xlm-roberta", "sentencepiece.bpe.model"), ("camembert", "sentencepiece.bpe.model")):
    for _rule in ("nmt_nfkc", "identity"):
        CASES[f"{_type} {_rule}"] = (_type, {_file: f"{_type}-{_rule}.model"}, {})
    for _name, _settings in {
        "no prefix space": {"tokenizer_config.json": {"add_prefix_space": False}},
        "mask takes the space": {"special_tokens_map.json": {"mask_token": MASK}},
        "extra": {"tokenizer_config.json": {"additional_special_tokens": ["NEW", "(new)"]}},
    }.items():
        CASES[f"{_type} {_name}"] = (_type, {_file: f"{_type}-nmt_nfkc.model"}, _settings)
for _type, _mask in (("bert", "[MASK]"), ("mpnet", "<mask>")):
    for _name, _settings in {
        "alone": {},
        "capitals": {"tokenizer_config.json": {"do_lower_case": False}},
        "mask takes the space": {"special_tokens_map.json": {"mask_token": {**MASK, "content": _mask}}},
        "mask takes no space": {"special_tokens_map.json": {"mask_token": {**MASK, "content": _mask, "lstrip": False}}},
    }.items():
        CASES[f"{_type} {_name}"] = (_type, {"vocab.txt": f"{_type}-vocab.txt"}, _settings)
CASES["bert with xlm-roberta's"] = (
    "bert",
    {"sentencepiece.bpe.model": "xlm-roberta-nmt_nfkc.model"},
    {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}},
)
for _name, _settings in {
    "alone": {},
    "prefix space": {"tokenizer_config.json": {"add_prefix_space": True}},
    "padding": {"special_tokens_map.json": {"pad_token": "[PAD]"}},
    "start": {"tokenizer_config.json": {"add_bos_token": True}},
    "start and end": {"tokenizer_config.json": {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>"}},
}.items():
    CASES[f"gpt2 {_name}"] = ("gpt2", BPE, _settings)
END_TEXT = {**MASK, "content": "</s>", "lstrip": False, "__type": "AddedToken"}
CASES["opt as published"] = (
    "opt",
    BPE,
    {
        "tokenizer_config.json": {
            "add_bos_token": True, "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer",
            "bos_token": END_TEXT, "eos_token": END_TEXT, "unk_token": END_TEXT, "pad_token": "<pad>",
        }
    },
)  # fmt: skip
for _name, _settings in {
    "alone": {},
    "accents": {"tokenizer_config.json": {"keep_accents": True}},
    "capitals": {"tokenizer_config.json": {"do_lower_case": False, "keep_accents": True}},
    "no prefix space": {"tokenizer_config.json": {"add_prefix_space": False, "do_lower_case": False}},
    "mask takes the space": {"special_tokens_map.json": {"mask_token": {**MASK, "content": "[MASK]"}}},
}.items():
    CASES[f"albert {_name}"] = ("albert", {"spiece.model": "albert-nmt_nfkc.model"}, _settings)
for _name, _settings in {
    "alone": {},
    "mask added": {"added_tokens.json": {"[MASK]": 900}},
    "mask stated": {"added_tokens.json": {"[MASK]": 900}, "special_tokens_map.json": {"mask_token": "[MASK]"}},
    "small letters": {"tokenizer_config.json": {"do_lower_case": True, "vocab_type": "spm"}},
    "marks": {"tokenizer_config.json": {"split_by_punct": True}},
    "no prefix space": {"tokenizer_config.json": {"add_prefix_space": False}},
    "extra": {"tokenizer_config.json": {"additional_special_tokens": ["NEW", "(new)"]}},
}.items():
    CASES[f"deberta-v2 {_name}"] = ("deberta-v2", {"spm.model": "deberta-v2-nmt_nfkc.model"}, _settings)
CASES["deberta-v2 identity"] = ("deberta-v2", {"spm.model": "deberta-v2-identity.model"}, {})
CASES["t5 alone"] = ("t5", {"spiece.model": "t5-nmt_nfkc.model"}, {})
CASES["t5 few sentinels"] = ("t5", {"spiece.model": "t5-nmt_nfkc.model"}, {"tokenizer_config.json": {"extra_ids": 3}})
CASES["albert identity"] = ("albert", {"spiece.model": "albert-identity.model"}, {})

#: Name -> a case above, fields to remove from the tokenizer.json that Transformers makes from it, and settings.
WRITTEN: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "roberta's own": ("roberta alone", [], {}),
    "roberta's with a space first": ("roberta alone", [], {"add_prefix_space": True}),
    "xlm-roberta's own": ("xlm-roberta nmt_nfkc", [], {}),
    "xlm-roberta's without its unknown": ("xlm-roberta nmt_nfkc", ["unk_id"], {}),
}

#: Minimal families, for tokenizers of families that npformer does not have.
END = "<|endoftext|>"
STAND_INS = [
    Family(
        model_type="gpt2", architectures={}, single="$A", pair="$A $B",
        special_tokens={"unk_token": END, "bos_token": END, "eos_token": END},
    ),
    Family(
        model_type="albert", architectures={},
        special_tokens={
            "unk_token": "<unk>", "sep_token": "[SEP]", "pad_token": "<pad>", "cls_token": "[CLS]", "mask_token": "[MASK]"
        },
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in STAND_INS:
        monkeypatch.setitem(FAMILIES, each.model_type, FAMILIES.get(each.model_type, each))


def folder_of(case: str, trained: Path, folder: Path) -> Path:
    model_type, files, settings = CASES[case]
    for name, source in files.items():
        (folder / name).write_bytes((trained / source).read_bytes())
    for name, content in {"config.json": {"model_type": model_type}, **settings}.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_ids_and_places_are_transformers(case: str, trained: Path, tmp_path: Path) -> None:
    compare(folder_of(case, trained, tmp_path), CASES[case][0])


@pytest.mark.parametrize("case", WRITTEN)
def test_a_tokenizer_json_is_read_first_as_transformers_reads_it(case: str, trained: Path, tmp_path: Path) -> None:
    older, without, settings = WRITTEN[case]
    AutoTokenizer.from_pretrained(folder_of(older, trained, tmp_path)).backend_tokenizer.save(
        str(tmp_path / "tokenizer.json")
    )
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["model"] = {name: each for name, each in data["model"].items() if name not in without}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    for name in CASES[older][1]:
        (tmp_path / name).unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    compare(tmp_path, CASES[older][0])


def compare(folder: Path, model_type: str) -> None:
    """Checks that ids, offsets, words, types and decoded texts equal those of transformers."""
    theirs = AutoTokenizer.from_pretrained(folder)
    size = len(theirs)
    config = Config(model_type, "base", size + 9, 8, 2, 1, 8, 64, n_token_types=1)
    ours = load_tokenizer(folder, config)
    assert ours.get_vocab() == theirs.get_vocab()
    # GPT-2 and OPT do not read pairs
    pairs = list(zip(LINES[::7], LINES[3::7], strict=False)) if model_type not in ("gpt2", "opt") else []
    for given in [(line,) for line in LINES] + pairs:
        expected = theirs(*given, return_offsets_mapping=True, return_token_type_ids=True)
        got = ours.encode(*given)
        assert got.ids == expected["input_ids"], given
        assert got.offsets == expected["offset_mapping"], given
        assert got.type_ids == expected["token_type_ids"], given
        assert got.word_ids == expected.word_ids(), given
        assert got.sequence_ids == expected.sequence_ids(), given
    for line in LINES:
        ids = ours.encode(line).ids
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids, skip_special_tokens=False), line


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast", None])
def test_a_modernbert_with_gemma_s_tokenizer(name: str | None, tmp_path: Path) -> None:
    folder = later_modernbert.folder(tmp_path / "model", "mmBERT", name)
    theirs, ours = AutoTokenizer.from_pretrained(folder), load(folder).tokenizer
    for line in (*LINES, "", " <mask> a", "the  <bos>"):
        assert ours.encode(line).ids == theirs(line)["input_ids"]
        assert ours.encode(line, "the hat").ids == theirs(line, "the hat")["input_ids"]


@pytest.mark.parametrize("case", ["bert alone", "roberta alone", "xlm-roberta nmt_nfkc", "albert alone", "gpt2 start"])
def test_long_texts_are_truncated_on_the_side_that_the_settings_name(case: str, trained: Path, tmp_path: Path) -> None:
    folder = folder_of(case, trained, tmp_path)
    settings = folder / "tokenizer_config.json"
    stored = json.loads(settings.read_text()) if settings.exists() else {}
    for side in ("left", "right"):
        settings.write_text(json.dumps({**stored, "truncation_side": side}))
        theirs = AutoTokenizer.from_pretrained(folder)
        config = Config(CASES[case][0], "base", len(theirs) + 9, 8, 2, 1, 8, 64, n_token_types=1)
        model: Any = SimpleNamespace(
            tokenizer=load_tokenizer(folder, config), config=config, folder=folder, threads=1, limits=LIMITS
        )
        for line, other in zip(LINES, LINES[3:], strict=False):
            for texts in [(line,)] if "gpt2" in case else [(line,), (line, other)]:
                expected = theirs(*texts, truncation=True, max_length=9, return_offsets_mapping=True)
                (read,) = Encoder(model).read([line if len(texts) == 1 else Pair(*texts)], limit=9)
                assert read.texts[0].ids.tolist() == expected["input_ids"], texts
                assert read.pieces[0].offsets == expected["offset_mapping"], texts


@pytest.mark.parametrize("case", ["t5 alone", "bart alone"])
def test_sources_are_truncated_on_the_left(case: str, trained: Path, tmp_path: Path) -> None:
    folder = folder_of(case, trained, tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"truncation_side": "left", "model_max_length": 9}))
    theirs = AutoTokenizer.from_pretrained(folder)
    size = {"vocab_size": len(theirs) + 9}
    plain = tiny.config(CASES[case][0], "translation")
    config = replace(plain, **size, decoder=replace(plain.decoder, **size, end_ids=(theirs.eos_token_id,)))
    model: Any = SimpleNamespace(tokenizer=of_sources(folder, config), config=config, folder=folder, limits=LIMITS)
    for line in filter(str.strip, LINES):
        read = SourceEncoder(model).read(line, "truncate")
        assert read.texts[0].ids.tolist() == theirs(line, truncation=True)["input_ids"], line


#: The special pieces, and the transformers class that reads a SentencePiece BPE model.
SENTENCEPIECE_BPE: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}, "LlamaTokenizer"),
    "gemma": (
        {
            "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>",
            "add_dummy_prefix": False, "user_defined_symbols": ["<mask>", "<start_of_turn>", "\n", "\n\n", "▁▁", "▁▁▁"],
        },
        "GemmaTokenizer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("model_type", SENTENCEPIECE_BPE)
def test_a_sentencepiece_model_of_bpe(model_type: str, tmp_path: Path) -> None:
    """transformers 5 adds no space before a Llama text that begins with a space or follows a special token.

    SentencePiece and the published tokenizer.json files add it.
    """
    options, name = SENTENCEPIECE_BPE[model_type]
    lines = [line.replace("\0", "") for line in LINES if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 3), model_prefix=str(tmp_path / "tokenizer"), model_type="bpe", vocab_size=900,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
        allow_whitespace_only_pieces=True, character_coverage=0.98, hard_vocab_limit=False, num_threads=1, **options,
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    special = {"bos_token": options.get("bos_piece", "<s>"), "eos_token": options.get("eos_piece", "</s>")}
    settings = {"tokenizer_class": name, "add_bos_token": True, "unk_token": "<unk>", **special}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path, tiny.config(model_type, "causal-lm", vocab_size=len(theirs)))
    assert ours.get_vocab() == theirs.get_vocab()
    compared = 0
    for line in (*LINES, "<start_of_turn>user\n\n\nHi   you", "1234", "    if x:"):
        if model_type == "gemma" or not (
            line.startswith((" ", "▁")) or any(each in line for each in ("<s>", "</s>", "<unk>"))
        ):
            assert ours.encode(line).ids == theirs(line)["input_ids"], line
            compared += 1
    assert compared > 150
