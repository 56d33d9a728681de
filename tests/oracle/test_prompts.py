"""What GPT-2 and BART's decoder write after prompts: transformers' tokens after each prompt alone, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import npformer
from npformer import Text
from npformer.generation import generate

ENDS = list(range(8, 30))
PAD = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "long": {"max_new_tokens": 45},
    "max_length": {"max_length": 60},
    "min_new_tokens": {"min_new_tokens": 12, "max_new_tokens": 30},
    "repetition": {"repetition_penalty": 1.3},
    "ngrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[30], [31, 32], [33, 34, 35]]},
    "suppressed": {"suppress_tokens": [40, 41, 42], "begin_suppress_tokens": [43, 44]},
    "forced end": {"forced_eos_token_id": 8},
    "one end": {"eos_token_id": 9, "max_new_tokens": 40},
    "beams": {"num_beams": 3},
    "beams, ends": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 1.7},
    "beams, early": {"num_beams": 2, "early_stopping": True},
    "beams, never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.5},
    "beams, min_length": {"min_length": 40, "max_length": 70, "num_beams": 2},
    "beams, penalties": {"num_beams": 3, "no_repeat_ngram_size": 3, "repetition_penalty": 0.8},
    "beams, renormalised": {"renormalize_logits": True, "num_beams": 3},
    "many beams": {"num_beams": 30, "max_new_tokens": 10, "eos_token_id": 9},
}


IDS = {"pad_token_id": PAD, "bos_token_id": 3, "eos_token_id": ENDS}


def gpt2() -> Any:
    sizes = {"vocab_size": 240, "n_positions": 96, "n_embd": 48, "n_layer": 2, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **IDS))


def bart() -> Any:
    """Its settings have an end that is forced, token 2; transformers' cache has as many layers as the encoder."""
    sizes = {"vocab_size": 240, "max_position_embeddings": 96, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 192}
    return transformers.BartForCausalLM(transformers.BartConfig(**sizes, **IDS))


@pytest.fixture(scope="module", params=[gpt2, bart])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, npformer.Model]:
    torch.manual_seed(0)
    theirs = request.param().double().eval()
    for name, parameter in theirs.named_parameters():  # a table so small that a token is not the likeliest after itself
        if "norm" not in name:  # BART's last one would make one token the likeliest everywhere
            torch.nn.init.normal_(parameter, std=0.08 if "wte" in name else 0.3 if "embed_tokens" in name else 0.6)
    folder: Path = tmp_path_factory.mktemp("writer")
    theirs.save_pretrained(folder)
    return theirs, npformer.load(folder, dtype="float64")


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")  # the length, which is ours too
@pytest.mark.parametrize("name", SETTINGS)
def test_ragged_prompts_go_on_as_transformers_goes_on_after_each(models: tuple[Any, npformer.Model], name: str) -> None:
    theirs, ours = models
    random, settings = np.random.default_rng(1), SETTINGS[name]
    prompts = [random.integers(50, 240, length) for length in (5, 16, 1, 33, 17, 31, 48, 2)]
    for prompt, hypotheses in zip(prompts, generate(ours, [Text(ids) for ids in prompts], **settings), strict=True):
        given = torch.from_numpy(prompt[None])
        expected = theirs.generate(given, attention_mask=torch.ones_like(given), do_sample=False, **settings).numpy()
        for ids, each in zip(expected[:, len(prompt) :], hypotheses, strict=True):
            assert np.array_equal(ids[: len(each.ids)], each.ids)
            assert (ids[len(each.ids) :] == PAD).all()


def test_some_of_them_end_before_the_last_step(models: tuple[Any, npformer.Model]) -> None:
    prompts = [Text(np.random.default_rng(1).integers(50, 240, length)) for length in range(1, 40)]
    lengths = {len(each.ids) for [each] in generate(models[1], prompts)}
    assert len(lengths) > 4
