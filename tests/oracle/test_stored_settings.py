"""Generation settings in config.json are used as in transformers if there is no generation_config.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import npformer

PROMPT = [5, 9, 6, 7, 2]
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
ENCODER = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", {"d_model": 16, **DECODER, **ENCODER, "max_position_embeddings": 40}),
    "marian": (
        "MarianMTModel",
        {"d_model": 16, **DECODER, **ENCODER, "max_position_embeddings": 40, "pad_token_id": 59, "eos_token_id": 0},
    ),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "bos_token_id": 3}),
}
FIELDS: list[dict[str, Any]] = [
    {},
    {"forced_eos_token_id": 4},
    {"forced_eos_token_id": None, "num_beams": 3, "length_penalty": 2.0},
    {"forced_bos_token_id": 8, "no_repeat_ngram_size": 2},
    {"force_bos_token_to_be_generated": True, "bos_token_id": 11},
    {"repetition_penalty": 1.5, "min_length": 4, "max_length": 12},
]


@cache
def weights(family: str) -> Any:
    kind, sizes = KINDS[family]
    torch.manual_seed(0)
    ends = {"decoder_start_token_id": sizes.get("pad_token_id", 2), "eos_token_id": 2, "vocab_size": 60}
    config = transformers.AutoConfig.for_model(family, **{**ends, **sizes})
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")  # npformer has the same default length
@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("family", KINDS)
def test_settings_in_config_json_count(family: str, fields: dict[str, Any], tmp_path: Path) -> None:
    weights(family).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    described = json.loads((tmp_path / "config.json").read_text())
    described.pop("forced_eos_token_id", None)
    (tmp_path / "config.json").write_text(json.dumps({**described, **fields}))
    theirs = getattr(transformers, KINDS[family][0]).from_pretrained(tmp_path)
    for more in ({}, {"max_new_tokens": 6}):
        expected = theirs.generate(torch.tensor([PROMPT]), do_sample=False, **more)[0].tolist()
        [[found]] = npformer.load(tmp_path).generate([PROMPT], **more)
        read = len(PROMPT) if family == "gpt2" else 1
        assert found.ids.tolist() == expected[read:]
