"""The valid folders on which cases are based, as file names and bytes: small models of every family and head.

Files are written here byte by byte, without the libraries that usually write them, and weights are drawn by `Draw`, so
a case is the same on every machine and with every version of a library.
"""

from __future__ import annotations

import json
import string
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.tied import PROJECTION, ties
from npformer.config import Config, Decoder
from npformer.families import FAMILIES, EncoderTable, distinct_encoders, write_config
from npformer.families.marian import MARIAN
from npformer.families.torch_nn import TORCH_MODULES
from npformer.generation.settings import FILE as GENERATION
from tests.fuzz import json_form, tensor_form
from tests.fuzz.draw import Draw
from tests.fuzz.protobuf_form import BYTES, FLOAT, VARINT, build, varint
from tests.fuzz.tensor_form import Tensor

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
WORDS = [
    "ice",
    "cream",
    "like",
    "love",
    "movie",
    "my",
    "music",
    "not",
    "of",
    "people",
    "paris",
    "politics",
    "this",
    "##ed",
    "##er",
    "##ing",
    "##ly",
]
LETTERS = string.ascii_lowercase
VOCABULARY = (*SPECIAL, *LETTERS, *(f"##{each}" for each in LETTERS), *".,!?'", *"äéß我日本", *WORDS)
LABELS = {
    "sequence-classification": ("NEGATIVE", "POSITIVE"),
    "token-classification": ("O", "B-PER", "I-PER"),
}
LANGUAGES = (">>deu<<", ">>fra<<")
PIECES = ("</s>", "<unk>", *LANGUAGES, "<pad>", "▁", *LETTERS, *string.ascii_uppercase, *".,!? ")
SPM = Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"
ENCODERS = [
    (name, head) for name, table in distinct_encoders().items() for head in dict.fromkeys(table.architectures.values())
] + [("bart", "sequence-classification"), ("bart", "question-answering"), ("bart", "causal-lm")]


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- weights ---------------------------------------------------------------------------------------------------------


@cache
def encoder_config(family: str, head: str, **more: Any) -> Config:
    table = FAMILIES[family]
    sizes: dict[str, Any] = {
        "vocab_size": len(VOCABULARY), "d_model": 8, "n_heads": 2, "n_layers": 2, "d_ffn": 12, "max_length": 24,
        "labels": LABELS.get(head, ()),
    }  # fmt: skip
    if isinstance(table, EncoderTable):
        sizes |= {
            "d_embedding": 4 if "d_embedding" in table.sizes else 0,
            "n_token_types": 2 if table.token_types else 0,
        }
    elif head == "causal-lm":  # BART's decoder alone
        sizes |= {"pad_id": 0, "padding_idx": 0, "start_id": 2, "end_ids": (3,)}
    else:  # BART, whose decoder reads the text again
        decoder = Decoder(n_layers=1, n_heads=2, d_ffn=8, vocab_size=len(VOCABULARY), start_id=3, end_ids=(3,))
        sizes |= {"pad_id": 0, "padding_idx": 0, "decoder": decoder}
    return table.config(head, **(sizes | more))


@cache
def translator_config(**more: Any) -> Config:
    size = more.pop("size", len(PIECES))
    return MARIAN.config(
        "translation", vocab_size=size, d_model=8, n_heads=2, n_layers=1, d_ffn=8, max_length=24, activation="silu",
        scale_embedding=True, shared=True, tied=True, pad_id=4, padding_idx=4,
        decoder=Decoder(n_layers=1, n_heads=2, d_ffn=8, vocab_size=size, start_id=4, end_ids=(0,)), **more,
    )  # fmt: skip


@cache
def module_config(torch_class: str, head: str) -> Config:
    """Returns the config of a state dict of torch's modules."""
    encoder = torch_class != "nn.TransformerDecoder"
    sizes: dict[str, Any] = {
        "d_model": 8,
        "n_heads": 2,
        "n_layers": 1 if encoder else 0,
        "d_ffn": 8,
        "max_length": 24,
        "vocab_size": 0,
    }
    if head != "base":
        sizes |= {"vocab_size": 30, "labels": LABELS.get(head, ()), "pad_id": 1}
    if torch_class != "nn.TransformerEncoder":
        sizes["decoder"] = Decoder(
            n_layers=1, n_heads=2, d_ffn=8, vocab_size=sizes["vocab_size"], start_id=1, end_ids=(0,)
        )
    return TORCH_MODULES.config(head, torch_class=torch_class, **sizes)


@cache
def weights(config: Config) -> layout.Tree:
    """Returns small numbers that are exact in half precision, drawn from the name of each array."""
    flat = {}
    for name, parameter in parameters(config).items():
        count = int(np.prod(parameter.shape))
        is_norm = parameter.group.endswith("norm") and parameter.name == "weight"
        numbers = np.frombuffer(Draw(name).bytes(count), np.int8).reshape(parameter.shape) / 128
        flat[name] = (numbers + is_norm).astype(np.float32)
    for name, table in ties(config).items():
        flat[name] = flat[table].T if name == PROJECTION else flat[table]
    return layout.unflatten(flat)


@cache
def tensors(config: Config, own: bool) -> tuple[Tensor, ...]:
    """Returns a checkpoint's tensors with names and layout of npformer (`own`) or Hugging Face."""
    tree = weights(config)
    arrays = layout.stored(tree, config) if own else layout.to_torch(tree, config)
    return tuple(of_array(name, array) for name, array in arrays.items())


def of_array(name: str, array: np.ndarray) -> Tensor:
    dtype = {"float32": "F32", "float64": "F64", "int64": "I64"}[array.dtype.name]
    return Tensor(name, dtype, array.shape, np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())


def safetensors(made: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    return tensor_form.build(made, json_form.form(dict(metadata)))


# --- tokenizers ------------------------------------------------------------------------------------------------------


def added(tokens: Sequence[str], vocabulary: Sequence[str]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": vocabulary.index(each), "content": each, **flags} for each in tokens]


def ids(pieces: Sequence[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(pieces)}


def tokenizer(kind: str = "WordPiece") -> dict[str, Any]:
    """Returns a tokenizer.json for VOCABULARY, with a model of this kind."""
    n = {piece: i for i, piece in enumerate(VOCABULARY)}
    around = {"type": "BertProcessing", "sep": ["[SEP]", n["[SEP]"]], "cls": ["[CLS]", n["[CLS]"]]}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [n["[CLS]"]], "tokens": ["[CLS]"]}},
    }
    models = {
        "WordPiece": {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": n},
        "WordLevel": {"unk_token": "[UNK]", "vocab": n},
        "BPE": {
            "dropout": None, "unk_token": "[UNK]", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "vocab": n | {"ic": len(n) - 1, "ice": len(n) - 2},
            "merges": [["i", "c"], ["ic", "e"]],
        },
        "Unigram": {"unk_id": 1, "byte_fallback": False, "vocab": [[piece, -1.0 - i / 8] for piece, i in n.items()]},
    }  # fmt: skip
    if kind == "BPE":
        models["BPE"]["vocab"] = {piece: i for piece, i in n.items() if i < len(n) - 2} | {
            "ic": len(n) - 2,
            "ice": len(n) - 1,
        }
    clean = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    }
    several = {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFKC"},
            {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "},
        ],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added(SPECIAL, VOCABULARY),
        "normalizer": clean if kind in ("WordPiece", "WordLevel") else several,
        "pre_tokenizer": {"type": "BertPreTokenizer"} if kind != "Unigram" else {"type": "Whitespace"},
        "post_processor": around if kind in ("WordPiece", "BPE") else template,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": kind, **models[kind]},
    }


def letters() -> dict[str, Any]:
    """Returns a tokenizer.json for a translation model, in which pieces are letters."""
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added(PIECES[:5], PIECES),
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, {"Sequence": {"id": "B", "type_id": 1}}, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [0], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": ids(PIECES), "unk_token": "<unk>"},
    }


# --- folders ---------------------------------------------------------------------------------------------------------

SETTINGS = {"do_lower_case": True, "model_max_length": 24, "tokenizer_class": "BertTokenizer", "mask_token": "[MASK]"}


def describe(config: Config, **more: Any) -> bytes:
    return dumped({**write_config(config), **more})


def encoder(
    family: str = "distilbert", head: str = "sequence-classification", own: bool = True, **more: Any
) -> dict[str, bytes]:
    """Returns a model's folder as Hugging Face stores it, or converted. Callers can replace its tokenizer."""
    config = encoder_config(family, head, **more)
    name, form = ("npformer.safetensors", "npformer") if own else ("model.safetensors", "pt")
    return {
        "config.json": describe(config),
        name: safetensors(tensors(config, own), {"format": form}),
        "tokenizer_config.json": dumped(SETTINGS),
        "tokenizer.json": dumped(tokenizer()),
    }


def vocabulary() -> dict[str, bytes]:
    """Returns a folder with the tokenizer files of older checkpoints."""
    files = encoder("bert")
    del files["tokenizer.json"]
    more = {"additional_special_tokens": ["[NEW]"], "mask_token": {"content": "[MASK]", "lstrip": True}}
    return files | {
        "vocab.txt": "\n".join((*VOCABULARY[:-1], "")).encode(),
        "special_tokens_map.json": dumped({"unk_token": "[UNK]", "cls_token": "[CLS]", **more}),
        "added_tokens.json": dumped({"[NEW]": len(VOCABULARY) - 1}),
    }


def merges() -> dict[str, bytes]:
    """Returns a folder with the byte-level tokenizer of older checkpoints."""
    letters = [chr(each) for each in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    joined = ["i c", "ic e", "Ġ l", "o v", "ov e", "Ġl ove", "Ã ©"]
    listed = [*ROBERTA_SPECIAL, *letters, *(each.replace(" ", "") for each in joined)]
    files = encoder("roberta", vocab_size=len(listed) + 3)
    del files["tokenizer.json"]
    return files | {
        "tokenizer_config.json": dumped({"add_prefix_space": False, "trim_offsets": True, "model_max_length": 24}),
        "special_tokens_map.json": dumped({"cls_token": "<s>", "mask_token": {"content": "<mask>", "lstrip": True}}),
        "vocab.json": dumped(ids(listed)),
        "merges.txt": "\n".join(["#version: 0.2", *joined, ""]).encode(),
    }


def unigram(name: str = "sentencepiece.bpe.model", family: str = "xlm-roberta") -> dict[str, bytes]:
    """Returns a folder with an older checkpoint's SentencePiece model; its character map changes no character."""
    charsmap = (1024).to_bytes(4, "little") + bytes(1024) + b"\0"
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, "[CLS]": 3, "[SEP]": 3, "[MASK]": 3, ",": 4}
    listed = [*kinds, "▁", *LETTERS, *(f"▁{each}" for each in WORDS), *"äé我."]
    message = [(1, BYTES, _piece(each, -i / 8, kinds.get(each, 1))) for i, each in enumerate(listed)]
    message.append((2, BYTES, build([(3, VARINT, varint(1)), (4, VARINT, varint(len(listed)))])))
    message.append((3, BYTES, build([(1, BYTES, b"nmt_nfkc"), (2, BYTES, charsmap), (3, VARINT, varint(1))])))
    files = encoder(family, vocab_size=len(listed) + 9)
    del files["tokenizer.json"]
    settings = {"do_lower_case": True, "keep_accents": False, "unk_token": "<unk>", "model_max_length": 24}
    return files | {"tokenizer_config.json": dumped(settings), name: build(message)}


def _piece(text: str, score: float, kind: int) -> bytes:
    typed = [(3, VARINT, varint(kind))] if kind != 1 else []
    return build([(1, BYTES, text.encode()), (2, FLOAT, struct.pack("<f", score)), *typed])


def decoder_settings() -> bytes:
    return dumped({
        "_from_model_config": True, "bad_words_ids": [[4]], "decoder_start_token_id": 4, "eos_token_id": 0,
        "forced_eos_token_id": 0, "max_length": 9, "no_repeat_ngram_size": 2, "num_beams": 2, "pad_token_id": 4,
        "renormalize_logits": True, "early_stopping": False, "length_penalty": 1.0, "do_sample": False, "temperature": 1.0,
        "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.1, "use_cache": True, "transformers_version": "5",
    })  # fmt: skip


def translation(own: bool = True) -> dict[str, bytes]:
    config = translator_config()
    name, form = ("npformer.safetensors", "npformer") if own else ("model.safetensors", "pt")
    return {
        "config.json": describe(config),
        name: safetensors(tensors(config, own), {"format": form}),
        "tokenizer_config.json": dumped({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 24}),
        GENERATION: decoder_settings(),
        "tokenizer.json": dumped(letters()),
    }


def pieces() -> dict[str, bytes]:
    """Returns a Marian model with SentencePiece's files."""
    config = translator_config(size=100)
    return {
        "config.json": describe(config),
        "model.safetensors": safetensors(tensors(config, False), {"format": "pt"}),
        "tokenizer_config.json": (SPM / "tokenizer_config.json").read_bytes(),
        GENERATION: decoder_settings(),
        **{name: (SPM / name).read_bytes() for name in ("vocab.json", "source.spm", "target.spm")},
    }


def modules(torch_class: str, head: str) -> dict[str, bytes]:
    config = module_config(torch_class, head)
    return {"config.json": describe(config), "model.safetensors": safetensors(tensors(config, False), {"format": "pt"})}


def sentence() -> dict[str, bytes]:
    """Returns a sentence-transformers folder."""
    kinds = ("Transformer", "Pooling", "Normalize")
    paths = ("", "1_Pooling", "2_Normalize")
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    return encoder("bert", "base") | {
        "modules.json": dumped(listed),
        "1_Pooling/config.json": dumped(
            {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
        ),
        "sentence_bert_config.json": dumped({"max_seq_length": 16, "do_lower_case": False}),
        "config_sentence_transformers.json": dumped(
            {"prompts": {"query": "ask: ", "plain": ""}, "default_prompt_name": "query"}
        ),
    }


TABLE = [("POSITIVE", "I love ice cream"), ("NEGATIVE", "not my music"), ("POSITIVE", 'people like "it"')]


def table(separator: str) -> bytes:
    quote = '"' if separator == "," else ""
    rows = [("label", "text"), *((label, text.replace('"', 2 * quote or '"')) for label, text in TABLE)]
    return "".join(f"{label}{separator}{quote}{text}{quote}\n" for label, text in rows).encode()


def jsonl() -> bytes:
    return b"".join(dumped({"label": label, "text": text}) + b"\n" for label, text in TABLE)
