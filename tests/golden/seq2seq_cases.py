"""The encoder-decoder cases of `make_seq2seq.py`: configurations, weights, inputs, settings. Needs only NumPy.

Weights are not stored: each is drawn from its name, as uniform numbers that are the same on every machine.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def drawn(case: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of a case's checkpoint: uniform numbers, around 1 for the weights of norms."""
    random = np.random.RandomState(zlib.crc32(f"{case}/{name}".encode()))
    uniform = random.random_sample(shape) * 2 - 1
    if "norm" in name and name.endswith("weight"):
        return (1 + 0.3 * uniform).astype(np.float32)
    if "embed" in name or "shared" in name:
        return (WIDTHS.get(case, 1.0) * uniform).astype(np.float32)
    return ((0.3 if name.endswith("bias") else 1.5 * (6 / sum(shape)) ** 0.5) * uniform).astype(np.float32)


# maximum magnitude of the numbers in token vectors, which determines the spread of the logits
WIDTHS = dict.fromkeys(("marian-small", "marian-middle", "marian-large", "bart-small"), 1.4)


# --- Marian and BART -------------------------------------------------------------------------------------------------

MARIAN: dict[str, dict[str, Any]] = {
    "marian-small": {
        "vocab_size": 120, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 64, "activation_function": "swish",
        "scale_embedding": True, "max_position_embeddings": 64,
    },
    "marian-middle": {
        "vocab_size": 200, "decoder_vocab_size": 180, "share_encoder_decoder_embeddings": False, "d_model": 48,
        "encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 6, "decoder_attention_heads": 3,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 96, "activation_function": "relu", "scale_embedding": False,
        "max_position_embeddings": 64,
    },
    "marian-large": {
        "vocab_size": 300, "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 8,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "activation_function": "gelu",
        "scale_embedding": True, "max_position_embeddings": 64,
    },
}  # fmt: skip
BART: dict[str, dict[str, Any]] = {
    "bart-small": {
        "vocab_size": 60, "d_model": 24, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 40, "activation_function": "gelu",
        "scale_embedding": True, "max_position_embeddings": 32, "bos_token_id": 0,
    },
}  # fmt: skip
GENERATORS = {**MARIAN, **BART}
# bias of the end token's logit, so that targets end at many lengths
END_BIAS = {"marian-small": 6.0, "marian-middle": 8.0, "marian-large": 9.0, "bart-small": 3.0}


def model_config(case: str) -> dict[str, Any]:
    """The case's config.json."""
    config = GENERATORS[case]
    if case in BART:
        kind, name, end, pad, start = "bart", "BartForConditionalGeneration", 2, 1, 2
    else:
        target = config.get("decoder_vocab_size", config["vocab_size"])
        kind, name, end, pad, start = "marian", "MarianMTModel", 0, target - 1, target - 1
    ids = {
        "eos_token_id": end,
        "forced_eos_token_id": end,
        "pad_token_id": pad,
        "decoder_start_token_id": start,
    }
    return {"model_type": kind, "architectures": [name], **config, **ids}


def model_tensor(case: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    tensor = drawn(case, name, shape)
    if name == "final_logits_bias":
        tensor[0, model_config(case)["eos_token_id"]] = END_BIAS[case]
    return tensor


def sources(case: str, count: int = 0) -> list[np.ndarray]:
    """Source ids of 2 to 20 tokens, ending with the end token; fewer texts for BART."""
    random, config = np.random.RandomState(zlib.crc32(case.encode())), model_config(case)
    lengths = random.randint(1, 20, size=count or (20 if case in BART else 60))
    words = _words(config, config["vocab_size"])
    return [np.append(random.randint(*words, size=length), config["eos_token_id"]) for length in lengths]


def targets(case: str, count: int) -> list[np.ndarray]:
    """Decoder inputs of 1 to 8 tokens, beginning with the start token."""
    random, config = np.random.RandomState(zlib.crc32(f"{case} targets".encode())), model_config(case)
    words = _words(config, config.get("decoder_vocab_size", config["vocab_size"]))
    start = config["decoder_start_token_id"]
    return [np.append(start, random.randint(*words, size=length)) for length in random.randint(0, 8, size=count)]


def _words(config: dict[str, Any], vocab_size: int) -> tuple[int, int]:
    """The range of ordinary ids. Special tokens have the first and the last id in Marian, the first three in BART."""
    return (3, vocab_size) if config["model_type"] == "bart" else (1, vocab_size - 1)


#: Settings of `generate`, under Transformers' names. Random models repeat themselves, so most settings forbid that.
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, no token twice": {"no_repeat_ngram_size": 1},
    "greedy, bans": {"no_repeat_ngram_size": 2, "suppress_tokens": [3, 4, 5], "bad_words_ids": [[7], [8, 9], [0]]},
    "greedy, penalty": {"repetition_penalty": 1.4, "min_new_tokens": 4},
    "greedy, forced": {
        "no_repeat_ngram_size": 2, "forced_bos_token_id": 11, "begin_suppress_tokens": [12, 13],
        "renormalize_logits": True,
    },
    "beams 4": {"num_beams": 4},
    "beams 4, penalty 0": {
        "num_beams": 4, "length_penalty": 0.0, "num_return_sequences": 4, "no_repeat_ngram_size": 1,
    },
    "beams 6, penalty 0.6": {"num_beams": 6, "length_penalty": 0.6, "no_repeat_ngram_size": 2},
    "beams 6, penalty 2": {
        "num_beams": 6, "length_penalty": 2.0, "num_return_sequences": 2, "no_repeat_ngram_size": 1,
    },
    "beams 4, early": {
        "num_beams": 4, "early_stopping": True, "renormalize_logits": True, "bad_words_ids": [[6]],
        "no_repeat_ngram_size": 1,
    },
    "beams 3, never": {
        "num_beams": 3, "early_stopping": "never", "length_penalty": 1.2, "no_repeat_ngram_size": 2,
    },
    "beams 4, everything": {
        "num_beams": 4, "no_repeat_ngram_size": 3, "repetition_penalty": 1.2, "min_new_tokens": 3,
        "begin_suppress_tokens": [0, 14], "suppress_tokens": [5], "bad_words_ids": [[7], [8, 9]],
        "forced_bos_token_id": 11, "renormalize_logits": True,
    },
    "beams 2, forced": {
        "num_beams": 2, "forced_bos_token_id": 17, "length_penalty": -1.0, "no_repeat_ngram_size": 1,
    },
}  # fmt: skip
MAX_NEW_TOKENS = 18
PAIRS = 3  # number of pairs of source and target with stored logits


# --- torch's modules -------------------------------------------------------------------------------------------------

SIZES = {"d_model": 16, "n_heads": 4, "d_ffn": 24}

#: A checkpoint with npformer's own config.json next to a torch state dict.
TORCH: dict[str, dict[str, Any]] = {
    "transformer": {"architectures": ["nn.Transformer"], "n_layers": 2, "n_decoder_layers": 1, "final_norm": True},
    "transformer-pre-norm": {
        "architectures": ["nn.Transformer"], "n_layers": 1, "n_decoder_layers": 2, "final_norm": True,
        "norm_first": True, "bias": False, "activation": "gelu",
    },
    "encoder": {"architectures": ["nn.TransformerEncoder"], "n_layers": 2, "activation": "gelu", "norm_first": True},
    "encoder-layer": {"architectures": ["nn.TransformerEncoderLayer"], "n_layers": 1, "bias": False},
    "decoder": {"architectures": ["nn.TransformerDecoder"], "n_decoder_layers": 2, "final_norm": True},
    "decoder-layer": {"architectures": ["nn.TransformerDecoderLayer"], "n_decoder_layers": 1, "norm_first": True},
    "attention": {"architectures": ["nn.MultiheadAttention"]},
    "attention-no-bias": {"architectures": ["nn.MultiheadAttention"], "bias": False},
    "classifier": {
        "architectures": ["nn.TransformerEncoder"], "n_layers": 3, "vocab_size": 50, "max_length": 40,
        "head": "sequence-classification", "id2label": {"0": "negative", "1": "positive"},
        "modules": {
            "embeddings.token": "encoder.embedding",
            "layers.*": "encoder.layers.*",
            "layers.*.attention.query": "encoder.layers.*.self_attn.query_linear",
            "layers.*.attention.key": "encoder.layers.*.self_attn.key_linear",
            "layers.*.attention.value": "encoder.layers.*.self_attn.value_linear",
            "layers.*.attention.output": "encoder.layers.*.self_attn.output_linear",
            "layers.*.ffn.hidden": "encoder.layers.*.feed_forward.fc1",
            "layers.*.ffn.output": "encoder.layers.*.feed_forward.fc2",
            "head.output": "classifier.fc",
        },
    },
}  # fmt: skip
OLD_FORMAT = ("transformer-pre-norm", "encoder", "attention")  # saved as torch did before 1.6


def torch_config(case: str) -> dict[str, Any]:
    """The case's config.json."""
    return {"model_type": "transformer", **SIZES, **TORCH[case]}


LENGTHS, TARGET_LENGTHS = [4, 5, 5, 2], [3, 3, 4, 1]  # lengths of the modules' input texts


def rows(name: str, lengths: list[int]) -> np.ndarray:
    """Input vectors, packed: (T, D)."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    return (random.random_sample((sum(lengths), SIZES["d_model"])) * 4 - 2).astype(np.float32)


def classifier_ids() -> list[np.ndarray]:
    random = np.random.RandomState(3)
    return [random.randint(1, 50, size=length) for length in (9, 5, 33, 1)]
