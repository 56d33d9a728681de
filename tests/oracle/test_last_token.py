"""Vectors of decoders, such as Qwen3-Embedding's, compared with sentence-transformers in float64.

Each folder is like Qwen3-Embedding's: a Qwen3 model, with or without a prefix in tensor names, last-token pooling, a
prompt with an instruction, and a tokenizer that ends each text with a special token. One folder is like
EmbeddingGemma's: attention in both directions, the mean of all tokens, and two Dense modules.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as m
from transformers import (
    Gemma3TextConfig,
    Gemma3TextModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)

from npformer import pipeline
from tests.support.byte_level import END, N_TOKENS, STOP, tokenizer
from tests.support.in_double import in_double

CONFIG = {
    "vocab_size": N_TOKENS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": True,
    "initializer_range": 0.3,
}  # fmt: skip
#: Two of its three layers have a window that is shorter than the texts.
GEMMA = Gemma3TextConfig(
    **{**CONFIG, "rope_parameters": None, "num_hidden_layers": 3},
    use_bidirectional_attention=True, sliding_window=7, sliding_window_pattern=3, query_pre_attn_scalar=10,
)  # fmt: skip
PROMPTS = {"query": "Instruct: Given a query, retrieve passages that answer it\nQuery:", "document": ""}
TEXTS = ["I love ice cream", "", "not my MUSIC", f"what  the{END} news 我爱 😀", "ice " * 90]
CALLS = [{}, {"prompt_name": "query"}, {"prompt": "ice: "}, {"normalize_embeddings": True, "truncate_dim": 4}]
LINEAR = {"bias": False, "activation_function": torch.nn.Identity()}
CASES = {
    "model alone": {},
    "causal language model": {"kind": Qwen3ForCausalLM},
    "its tensors without a prefix": {"bare": True},
    "right padding": {"side": "right"},
    "older flags": {"flags": True},
    "matryoshka": {"truncate_dim": 8},
    "EmbeddingGemma": {
        "kind": Gemma3TextModel, "config": GEMMA, "bare": True, "side": "right", "poolings": "mean",
        "after": (m.Dense(32, 48, **LINEAR), m.Dense(48, 32, **LINEAR)),
    },
}  # fmt: skip


def save(
    path,
    kind=Qwen3Model,
    config=None,
    bare=False,
    side="left",
    flags=False,
    poolings="lasttoken",
    after=(),
    **described,
):
    """Writes a folder as sentence-transformers does, then changes the class and names to those of the hub's files."""
    torch.manual_seed(0)
    kind(config or Qwen3Config(**CONFIG)).save_pretrained(path / "model")
    tokens = {"eos_token": STOP, "pad_token": END, "padding_side": side, "model_max_length": 200}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **tokens).save_pretrained(path / "model")
    modules = [m.Transformer(str(path / "model")), m.Pooling(32, poolings), *after, m.Normalize()]
    made = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS, **described)
    made.save(str(path / "saved"))
    written = path / "saved" / "config.json"
    architecture = "Qwen3ForCausalLM" if config is None else kind.__name__
    written.write_text(json.dumps({**json.loads(written.read_text()), "architectures": [architecture]}))
    weights = path / "saved" / "model.safetensors"
    tensors = {name.removeprefix("model."): each for name, each in load_file(weights).items()}
    prefix = "" if bare else "model."
    save_file({prefix + name: each for name, each in tensors.items()}, weights, {"format": "pt"})
    if flags:
        old = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
        (path / "saved" / "1_Pooling" / "config.json").write_text(json.dumps(old))
    return path / "saved", made


@pytest.mark.filterwarnings("ignore:input 4")  # the warning that input 4 is truncated
@pytest.mark.parametrize("case", CASES)
def test_vectors_match_a_sentence_transformer(case, tmp_path):
    """Vectors of length 1 agree to 1e-12, thousands of times their float64 rounding; prompts change them by more than
    0.1."""
    folder, model = save(tmp_path, **CASES[case])
    model, ours = model.double(), pipeline(None, folder, dtype=np.float64)
    assert ours.name == "sentence-embedding"
    with in_double():
        for call in CALLS:
            np.testing.assert_allclose(ours(TEXTS, **call), model.encode(TEXTS, **call), rtol=0, atol=1e-12)
        np.testing.assert_allclose(ours.encode_query(TEXTS), model.encode_query(TEXTS), rtol=0, atol=1e-12)
    assert np.abs(ours.encode_query(TEXTS) - ours.encode_document(TEXTS)).max() > 0.1
