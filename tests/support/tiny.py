"""Tiny random models for tests, of every family and head: as a `Model` in memory, or as a checkpoint folder on disk.

    from tests.support import tiny
    model = tiny.model("bert", "token-classification", labels=("O", "B-PER"))
    path = tiny.folder(tmp_path / "model", "distilbert", "masked-lm", n_layers=1)

The same arguments give the same weights. The WordPiece vocabulary has a few hundred pieces, including all ASCII
letters, digits and punctuation, so every ASCII text can be tokenized.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.read import OWN_WEIGHTS, own_metadata
from npformer.checkpoint.safetensors import write_tensors
from npformer.checkpoint.tied import PROJECTION, ties
from npformer.config import Config, Decoder
from npformer.engine.mechanisms import Disentangled
from npformer.families import FAMILIES, encoders, write_config
from npformer.families.llama import Llama
from npformer.golden.tiny import narrowed
from npformer.model import Model, Seq2Seq

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "about all am and are as at be because been but by can cream do for from good great had has have he "
    "her his hot how ice if in is it like love movie music my news no not of on one or our out paris "
    "people politics right she so sport that the their them then there they this time to up was we were "
    "what when where which who will with you your example ##ed ##er ##est ##ing ##ion ##ly ##ness"
)
VOCABULARY = (
    *SPECIAL,
    *string.digits,
    *string.ascii_letters,
    *string.punctuation,
    *(f"##{each}" for each in string.digits + string.ascii_letters),
    *"äöüéèñçß我爱冰激凌京都日本",
    *WORDS.split(),
)
LABELS = {
    "sequence-classification": ("NEGATIVE", "POSITIVE"),
    "token-classification": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
}


def config(model_type: str = "distilbert", head: str = "sequence-classification", **overrides: Any) -> Config:
    """Returns a config with two layers of four heads, width 32, 64 positions, and tables of width 16 if a family allows
    tables narrower than its layers. Fields can be set by name."""
    if model_type not in encoders():
        gated = {"activation": "gelu_tanh"} if FAMILIES[model_type].constants.get("gated") else {}
        return FAMILIES[model_type].config(head, **(_of_two_stacks(head) | gated | overrides))
    family = encoders()[model_type]
    fields: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 2,
        "d_ffn": 64,
        "max_length": 64,
        "d_embedding": 16 if "d_embedding" in family.sizes else 0,
        "n_token_types": 2 if family.token_types else 0,
        "labels": LABELS.get(head, ()),
        "n_kv_heads": (2 if overrides.get("n_heads", 4) % 2 == 0 else 1) if isinstance(family, Llama) else 0,
        **({"mechanisms": (distances(),)} if Disentangled in family.mechanisms else {}),
    }
    config = family.config(head, **(fields | overrides))
    # the window is narrower than texts of ten tokens
    return config if overrides.keys() & {"local", "mechanisms"} else narrowed(config, 3)


def distances(n_rows: int = 16, max_distance: int = 40, norm: bool = True, **fields: Any) -> Disentangled:
    """Returns DeBERTa's mechanism with a small table of relative positions."""
    return Disentangled(n_rows, max_distance, norm=norm, **fields)


def _of_two_stacks(head: str) -> dict[str, Any]:
    """Returns fields of an encoder-decoder's config, or a decoder's for causal-lm, with [SEP] as the end token."""
    sizes = {"vocab_size": len(VOCABULARY), "n_heads": 4, "n_layers": 2, "d_ffn": 64}
    end = SPECIAL.index("[SEP]")
    options = {"d_model": 32, "max_length": 64, "pad_id": 0, "padding_idx": 0, "tied": True, "activation": "gelu"}
    if head == "causal-lm":  # the decoder alone
        return {**sizes, **options, "start_id": SPECIAL.index("[CLS]"), "end_ids": (end,)}
    decoder = Decoder(**sizes, start_id=end, end_ids=(end,))
    return {**sizes, **options, "decoder": decoder, "labels": LABELS.get(head, ())}


def weights(config: Config, seed: int = 0, dtype: Any = np.float32) -> layout.Tree:
    """Returns random weights of any config, read-only like loaded weights, and large enough that answers differ."""
    random = np.random.default_rng(seed)
    flat = {}
    for name, parameter in parameters(config).items():
        is_norm = parameter.group.endswith("norm") and parameter.name == "weight"
        array = random.standard_normal(parameter.shape) * 0.2 + is_norm * parameter.start
        flat[name] = array.astype(dtype)
        flat[name].flags.writeable = False
    for name, table in ties(config).items():
        flat[name] = flat[table].T if name == PROJECTION else flat[table]
    return layout.unflatten(flat)


def model(
    model_type: str = "distilbert",
    head: str = "sequence-classification",
    seed: int = 0,
    threads: int | None = None,
    dtype: Any = np.float32,
    **overrides: Any,
) -> Any:
    """Returns a model in memory, with the tokenizer from `tokenizer()` unless it is a translator."""
    settings = config(model_type, head, **overrides)
    if settings.head == "translation":
        return Seq2Seq(settings, weights(settings, seed, dtype), threads=threads)
    made = Model(settings, weights(settings, seed, dtype), threads=threads)
    made.tokenizer = tokenizer()
    return made


def folder(
    path: Path,
    model_type: str = "distilbert",
    head: str = "sequence-classification",
    seed: int = 0,
    own: bool = False,
    lowercase: bool = True,
    **overrides: Any,
) -> Path:
    """Writes the same model as a folder, as Hugging Face does, or (`own`) as `npformer convert` does."""
    settings = config(model_type, head, **overrides)
    tree = weights(settings, seed)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(write_config(settings), indent=2), encoding="utf-8")
    arrays = layout.stored(tree, settings) if own else layout.to_torch(tree, settings)
    name = OWN_WEIGHTS if own else "model.safetensors"
    write_tensors(path / name, arrays, own_metadata(arrays) if own else {"format": "pt"})
    tokenizer(lowercase).save(str(path / "tokenizer.json"))
    described = {"do_lower_case": lowercase, "model_max_length": settings.max_length}
    (path / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    return path


def vocabulary_folder(path: Path, **tokenizer_config: Any) -> Path:
    """Writes a folder with only vocab.txt and tokenizer_config.json, the tokenizer's files in old checkpoints."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    return path


def tokenizer(lowercase: bool = True) -> Any:
    """Returns BERT's WordPiece over VOCABULARY: [CLS] text [SEP], [CLS] text [SEP] pair [SEP]."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {piece: i for i, piece in enumerate(VOCABULARY)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    made.add_special_tokens(list(SPECIAL))
    return made
