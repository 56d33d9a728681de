"""The text model in the folder of a Gemma 3 that also reads pictures, as transformers writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

import npformer
from tests.support.in_double import in_double


def test_logits_are_those_of_the_whole_model(tmp_path: Path) -> None:
    text = {
        "vocab_size": 300, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "query_pre_attn_scalar": 16,
        "sliding_window": 5,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    tokens = {"image_token_index": 299, "boi_token_index": 298, "eoi_token_index": 297}
    torch.manual_seed(0)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1, **tokens)
    theirs = transformers.Gemma3ForConditionalGeneration(config).double().eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(tmp_path)
    ids = np.random.default_rng(1).integers(5, 290, (1, 20))
    with in_double(), torch.no_grad():
        expected = theirs(input_ids=torch.from_numpy(ids)).logits.numpy()
    given = npformer.load(tmp_path, dtype="float64")(ids).logits
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
