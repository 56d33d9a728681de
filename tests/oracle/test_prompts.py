"""Generation after prompts equals transformers' `generate` with each prompt alone, token for token, in float64.

GPT-2 runs with every setting. Settings do not depend on the model, so all other models run only with greedy search and
beams.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
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
    "biases": {"sequence_bias": [[[30], 1.5], [[31, 32], 9.0], [[33, 34, 35], -2.0]], "repetition_penalty": 1.1},
    "decay": {"exponential_decay_length_penalty": (4, 1.05), "max_new_tokens": 30},
    "min_length": {"min_length": 40, "max_new_tokens": 12},  # short prompts cannot reach this length
    "min_length for none": {"min_new_tokens": 30, "max_new_tokens": 12, "forced_eos_token_id": 8},
    "one end": {"eos_token_id": 9, "max_new_tokens": 40},
    "beams": {"num_beams": 3},
    "beams, ends": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 1.7},
    "beams, early": {"num_beams": 2, "early_stopping": True},
    "beams, never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.5},
    "beams, min_length": {"min_length": 40, "max_length": 70, "num_beams": 2},
    "beams, penalties": {"num_beams": 3, "no_repeat_ngram_size": 3, "repetition_penalty": 0.8},
    "beams, renormalized": {"renormalize_logits": True, "num_beams": 3},
    "beams, biases": {"num_beams": 3, "sequence_bias": [[[30], 4.0], [[31, 32], 9.0]]},
    "beams, decay": {"num_beams": 3, "exponential_decay_length_penalty": (2, 1.2), "max_new_tokens": 30},
    "beams, short": {"num_beams": 3, "min_length": 40, "max_new_tokens": 12},
    "many beams": {"num_beams": 30, "max_new_tokens": 10, "eos_token_id": 9},
}


SIZES = {"n_positions": 96, "n_embd": 48, "n_layer": 2, "n_head": 4}
DECODER = {
    "d_model": 48, "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 192,
}  # fmt: skip
ENCODER = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
GROUPED = {**ENCODER, "num_key_value_heads": 2, "max_position_embeddings": 96}
OPT = {**ENCODER, "max_position_embeddings": 96, "ffn_dim": 96}
GEMMA = {**GROUPED, "head_dim": 20, "query_pre_attn_scalar": 12, "sliding_window": 20}
# always causal
DECODERS = (
    *("gpt2", "bart", "llama", "mistral", "qwen3", "gemma2", "gemma3_text", "gpt_neox", "opt", "phi3", "bloom"),
    *("smollm3", "olmo2"),
)
#: model_type -> the class in transformers and its sizes.
WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", SIZES),
    "bart": ("BartForCausalLM", {**DECODER, "max_position_embeddings": 96}),
    "bert": ("BertLMHeadModel", {**ENCODER, "max_position_embeddings": 96}),
    "electra": ("ElectraForCausalLM", {**ENCODER, "max_position_embeddings": 96, "embedding_size": 32}),
    "llama": ("LlamaForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 20}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 20, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0}),
    "gemma3_text": ("Gemma3ForCausalLM", {**GEMMA, "sliding_window_pattern": 2}),
    "opt": ("OPTForCausalLM", {**OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "phi3": ("Phi3ForCausalLM", {**GROUPED, "partial_rotary_factor": 0.5, "sliding_window": 20}),
    "smollm3": ("SmolLM3ForCausalLM", {**GROUPED, "no_rope_layer_interval": 2}),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "bloom": ("BloomForCausalLM", {"hidden_size": 48, "n_layer": 2, "n_head": 6}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**ENCODER, "max_position_embeddings": 96, "rotary_pct": 0.5}),
    **{
        name: (f"{title}ForCausalLM", {**ENCODER, "max_position_embeddings": PAD + 97, "type_vocab_size": 1})
        for name, title in (("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert"))
    },
}
CASES = [("gpt2", name) for name in SETTINGS]
CASES += [(family, name) for family in WRITERS if family != "gpt2" for name in ("greedy", "beams")]
Pair = tuple[Any, npformer.Model]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    @cache
    def made(family: str) -> Pair:
        architecture, sizes = WRITERS[family]
        causal = {} if family in DECODERS else {"is_decoder": True}
        config = transformers.AutoConfig.for_model(
            family, **sizes, **causal, vocab_size=240, pad_token_id=PAD, bos_token_id=3, eos_token_id=ENDS
        )
        torch.manual_seed(0)
        theirs = getattr(transformers, architecture)(config).double().eval()
        for name, parameter in theirs.named_parameters():
            if family == "bart" and "norm" in name:  # a random last norm would always favour one token
                continue
            # Embeddings are small, so no token predicts itself as the next one. Encoders also get small numbers in their
            # other tables and biases.
            tables = {"gpt2": "wte", "bart": "wte", "gemma2": "embed_tokens", "gemma3_text": "embed_tokens"}
            small = re.search(tables.get(family, r"_embeddings\.weight|bias"), name)
            torch.nn.init.normal_(parameter, std=0.08 if small else 0.3 if "embed_tokens" in name else 0.6)
        folder: Path = tmp_path_factory.mktemp(family)
        theirs.save_pretrained(folder)
        return theirs, npformer.load(folder, dtype="float64")

    return made


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")  # npformer has the same default length
@pytest.mark.filterwarnings("ignore:Unfeasible length", "ignore:min_length or min_new_tokens")
@pytest.mark.parametrize(("family", "name"), CASES)
def test_ragged_prompts_continue_as_in_transformers(models: Callable[[str], Pair], family: str, name: str) -> None:
    """RoBERTa's positions are passed to `generate`, which counts from row 0, although RoBERTa's forward does not."""
    theirs, ours = models(family)
    random, settings = np.random.default_rng(1), SETTINGS[name]
    if family not in ("gpt2", "bart"):
        settings = {**settings, "suppress_tokens": [*settings.get("suppress_tokens", []), PAD]}
    lengths = (5, 16, 1, 33, 17, 31, 48, 2) if family == "gpt2" and name in ("greedy", "beams") else (5, 1, 33, 48)
    prompts = [random.integers(50, 240, length) for length in lengths]
    for prompt, hypotheses in zip(prompts, generate(ours, [Text(ids) for ids in prompts], **settings), strict=True):
        given = torch.from_numpy(prompt[None])
        told = {"attention_mask": torch.ones_like(given)}
        if ours.config.positions.skips_padding:
            first = ours.config.positions.first
            told["position_ids"] = torch.arange(first, first + len(prompt))[None]
        expected = theirs.generate(given, **told, do_sample=False, **settings).numpy()
        for ids, each in zip(expected[:, len(prompt) :], hypotheses, strict=True):
            assert np.array_equal(ids[: len(each.ids)], each.ids)
            assert (ids[len(each.ids) :] == PAD).all()


@pytest.mark.parametrize("family", WRITERS)
def test_some_of_them_end_before_the_last_step(models: Callable[[str], Pair], family: str) -> None:
    prompts = [Text(np.random.default_rng(1).integers(50, 240, length)) for length in range(1, 40)]
    lengths = {len(each.ids) for [each] in generate(models(family)[1], prompts)}
    assert len(lengths) >= 4
