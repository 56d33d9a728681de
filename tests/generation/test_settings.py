"""Settings of generation: the caller's come first, then the model's, then the defaults. Invalid settings are errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import pipeline
from npformer.common.errors import NpformerError, NpformerWarning
from npformer.generation.settings import Settings, resolve
from tests.golden import seq2seq_cases as cases
from tests.support import writers
from tests.support.seq2seq_models import golden_model


def test_settings_are_the_callers_then_the_models_then_the_defaults(tmp_path: Path) -> None:
    config = golden_model("marian-small").config
    assert resolve(None, config, {}) == Settings(119, (0,), 119, max_new_tokens=20)
    stored = {
        "max_length": 30,
        "num_beams": 4,
        "bad_words_ids": [[119]],
        "forced_eos_token_id": 0,
        "renormalize_logits": True,
    }
    ignored = {"transformers_version": "4.22.0", "_from_model_config": True, "typical_p": 1.0, "use_cache": True}
    (tmp_path / "generation_config.json").write_text(json.dumps({**stored, **ignored}))
    found = resolve(tmp_path, config, {"num_beams": 2, "min_length": 5})
    assert (found.max_new_tokens, found.min_new_tokens, found.num_beams) == (29, 4, 2)
    assert (found.bad_words_ids, found.forced_eos_token_id) == (((119,),), (0,))
    assert resolve(tmp_path, config, {"max_new_tokens": 7}).max_new_tokens == 7
    assert resolve(tmp_path, config, {"max_length": 7}).max_new_tokens == 6


def test_an_old_config_json_has_the_settings_of_generation(tmp_path: Path) -> None:
    config = {**cases.model_config("marian-small"), "num_beams": 6, "max_length": 40, "bad_words_ids": [[119]]}
    del config["forced_eos_token_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = resolve(tmp_path, golden_model("marian-small").config, {})
    assert (found.num_beams, found.max_new_tokens, found.forced_eos_token_id) == (6, 39, ())


def test_an_older_name_for_the_first_forced_token_counts(tmp_path: Path) -> None:
    config = {**cases.model_config("marian-small"), "force_bos_token_to_be_generated": True, "bos_token_id": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve(tmp_path, golden_model("marian-small").config, {}).forced_bos_token_id == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 4}, "'beams': unknown setting; known: max_new_tokens, "),
        ({"max_new_tokens": 0}, "max_new_tokens: expected a whole number from 1 to 64, got 0"),
        ({"max_new_tokens": 65}, "max_new_tokens: expected a whole number from 1 to 64, got 65"),
        ({"max_length": 66}, "^max_length: expected a whole number from 2 to 65, got 66"),
        ({"max_length": 0}, "^max_length: expected a whole number from 2 to 65, got 0"),
        ({"min_length": -1}, "^min_length: expected a whole number from 0 to 2147483648, got -1"),
        ({"min_length": 9, "max_new_tokens": 65}, "^max_new_tokens: expected a whole number from 1 to 64, got 65"),
        ({"min_new_tokens": 3.0}, "min_new_tokens: expected a whole number from 0 to 2147483648, got 3.0"),
        ({"num_beams": 0}, "num_beams: expected a whole number from 1"),
        ({"num_beams": 61}, "num_beams: 61 is too large for a vocabulary of 120"),
        ({"num_beams": 2.0}, "num_beams: expected a whole number"),
        ({"num_beams": 2, "do_sample": True}, "num_beams: expected 1 for sampling"),
        ({"num_return_sequences": 2}, "2 sequences need as many beams, or do_sample=True; num_beams is 1"),
        ({"temperature": -1}, "temperature: expected a number from 1e-06 to 1000000.0, got -1"),
        (
            {"temperature": 0, "do_sample": True},
            "temperature: expected a number above 0, got 0; .* use do_sample=False",
        ),
        ({"top_p": 1.5}, "top_p: expected a number from 0 to 1, got 1.5"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty: expected a number from"),
        ({"length_penalty": 500}, "length_penalty: expected a number from -50 to 50, got 500"),
        ({"early_stopping": 1}, 'early_stopping: expected True, False or "never", got 1'),
        ({"do_sample": "no"}, "do_sample: expected True or False, got 'no'"),
        ({"bad_words_ids": 5}, "bad_words_ids: expected a list of ids for each word, got 5"),
        (
            {"forced_bos_token_id": 9, "suppress_tokens": [9]},
            "settings: expected an allowed next token; the settings ban all tokens, or ban a forced token",
        ),
        ({"num_beams": 2, "suppress_tokens": np.arange(120)}, "settings: expected an allowed next token"),
        ({"do_sample": True, "suppress_tokens": np.arange(120)}, "settings: expected an allowed next token"),
        ({"early_stopping": "soon"}, "early_stopping: expected True, False or \"never\", got 'soon'"),
        ({"suppress_tokens": [120]}, "suppress_tokens: expected a whole number from 0 to 119, got 120"),
        ({"bad_words_ids": [[3], [-1]]}, "bad_words_ids: expected a whole number"),
        ({"eos_token_id": "a"}, "eos_token_id: expected a whole number"),
        ({"typical_p": 0}, "typical_p: expected a number from 1e-06 to 1, got 0"),
        ({"min_p": 1.5}, "min_p: expected a number from 0 to 1, got 1.5"),
        ({"top_h": "high"}, "top_h: expected a number from 1e-06 to 1, got 'high'"),
        ({"epsilon_cutoff": -1}, "epsilon_cutoff: expected a number from 0 to 1, got -1"),
        ({"sequence_bias": [[3, 4, 5]]}, "sequence_bias: expected a list of pairs, got a list"),
        ({"sequence_bias": [[[], 1.0]]}, "sequence_bias: tokens of a sequence: expected a whole number of at least 1"),
        ({"sequence_bias": {(3, 400): 1.0}}, "sequence_bias: expected a whole number from 0 to 119, got 400"),
        ({"sequence_bias": [[[3], "up"]]}, "sequence_bias: expected a number from -1000000.0 to 1000000.0, got 'up'"),
        ({"exponential_decay_length_penalty": 2}, "exponential_decay_length_penalty: expected a list of pairs, got "),
        ({"exponential_decay_length_penalty": (5, 0)}, "exponential_decay_length_penalty: expected a number from"),
        (
            {"force_words_ids": [[5]]},
            "force_words_ids: a list is not supported: Transformers 5 moved this search to the repository "
            "transformers-community/constrained-beam-search; use bad_words_ids, .*; leave it out",
        ),
        ({"diversity_penalty": 0.5}, "0.5 is not supported: .*transformers-community/group-beam-search; leave it out"),
        ({"stop_strings": "a"}, "stop_strings: 'a' is not supported: only the text-generation task supports it"),
        ({"seed": -1}, "seed: expected a whole number from 0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        golden_model("marian-small").generate([[5, 0]], **settings)


def test_arguments_override_the_file(tmp_path: Path) -> None:
    """A length may be given as max_length or max_new_tokens. None is ignored, and NumPy's numbers are accepted."""
    config = golden_model("marian-small").config
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 50, "min_new_tokens": 3, "num_beams": 5}')
    found = resolve(tmp_path, config, {"max_length": 7, "min_length": 2, "num_beams": None})
    assert (found.max_new_tokens, found.min_new_tokens, found.num_beams) == (6, 1, 5)
    assert resolve(tmp_path, config, {"max_new_tokens": None}).max_new_tokens == 50
    given = {"max_new_tokens": np.int64(5), "temperature": np.float32(0.5), "suppress_tokens": np.array([3, 4])}
    found = resolve(tmp_path, config, given)
    assert (found.max_new_tokens, found.temperature, found.suppress_tokens) == (5, 0.5, (3, 4))
    (tmp_path / "generation_config.json").write_text('{"max_length": 30}')
    assert resolve(tmp_path, config, {"max_new_tokens": 9}).max_new_tokens == 9


def test_a_minimum_above_the_maximum_warns_and_ends_at_the_maximum() -> None:
    """npformer only warns, as Transformers does, because the limits on new tokens depend on each prompt's length."""
    model = golden_model("marian-small")
    with pytest.warns(UserWarning, match="min_length .* asks for 29 new tokens, but texts end at the maximum of 7"):
        found = model.generate([[5, 0], [6, 0]], min_length=30, max_new_tokens=7)
    assert [len(each[0].ids) for each in found] == [7, 7]
    prompts = [[5], [5, 6, 7, 8], [5, 6]]
    with pytest.warns(UserWarning, match="min_length .* asks for 8 new tokens, but texts end at the maximum of 5"):
        found = writers.model(seed=4).generate(prompts, min_length=9, max_new_tokens=5)
    assert [len(each[0].ids) for each in found] == [5, 5, 5]


def test_a_setting_of_the_folder_that_is_unsupported_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"num_beam_groups": 2, "min_p": 0.2, "typical_p": 0.9}')
    config = golden_model("marian-small").config
    with pytest.raises(NpformerError, match=r"generation_config\.json: num_beam_groups: 2 is not supported"):
        resolve(tmp_path, config, {})
    found = resolve(tmp_path, config, {"num_beam_groups": 1, "min_p": 0.3, "do_sample": True})
    assert (found.min_p, found.typical_p) == (0.3, 0.9)


def test_an_invalid_value_of_the_file_names_the_file(tmp_path: Path) -> None:
    stored = '{"eos_token_id": 400, "do_sample": true, "top_p": 2, "max_length": 0}'
    (tmp_path / "generation_config.json").write_text(stored)
    config = golden_model("marian-small").config
    given = {"eos_token_id": 0, "top_p": 0.5, "max_length": 9}
    for name in given:
        with pytest.raises(NpformerError, match=rf"generation_config\.json: {name}: expected "):
            resolve(tmp_path, config, {other: value for other, value in given.items() if other != name})
    with pytest.raises(NpformerError, match=r"^top_p: expected "):
        resolve(tmp_path, config, {**given, "top_p": 3})


@pytest.mark.parametrize(
    "stored", [{"top_k": -1}, {"top_p": 0, "temperature": -1.0}, {"top_k": -1, "do_sample": False}]
)
def test_greedy_decoding_ignores_a_folder_s_settings_of_sampling(stored: dict[str, Any], tmp_path: Path) -> None:
    """Transformers also ignores settings of sampling in greedy decoding. In vLLM, top_k = -1 turns top_k off."""
    (tmp_path / "generation_config.json").write_text(json.dumps(stored))
    config = golden_model("marian-small").config
    assert resolve(tmp_path, config, {}) == resolve(None, config, {})
    name = min(stored.keys() - {"do_sample", "top_p"})
    with pytest.raises(NpformerError, match=rf"generation_config\.json: {name}: expected "):
        resolve(tmp_path, config, {"do_sample": True})
    with pytest.raises(NpformerError, match=r"^top_k: expected "):
        resolve(tmp_path, config, {"top_k": -1})  # the caller's own value


def test_greedy_decoding_ignores_a_temperature_of_zero() -> None:
    """Some folders store a temperature of 0 to mean greedy decoding. Transformers ignores this temperature, too."""
    assert resolve(None, golden_model("marian-small").config, {"temperature": 0.0}).temperature == 0


def test_top_p_of_zero_leaves_the_best_token() -> None:
    """With top_p = 0, Transformers and OpenAI's API also keep only the most likely token."""
    model = writers.model(seed=4)
    [[greedy]] = model.generate([[5, 6]], do_sample=False, max_new_tokens=9)
    [[sampled]] = model.generate([[5, 6]], do_sample=True, top_k=0, top_p=0, seed=1, max_new_tokens=9)
    assert sampled.ids.tolist() == greedy.ids.tolist()


def test_the_last_bias_of_a_sequence_counts() -> None:
    """If the biases include a sequence twice, Transformers also uses the last bias."""
    found = resolve(None, golden_model("marian-small").config, {"sequence_bias": [[[5], 3.0], [[6], 1.0], [[5], -3.0]]})
    assert found.sequence_bias == (((5,), -3.0), ((6,), 1.0))


def test_one_source_is_streamed() -> None:
    with pytest.raises(NpformerError, match="stream: expected one source, got 2"):
        golden_model("marian-small").stream([[5, 0], [6, 0]])


#: Settings of a file that the model cannot use, the warning, arguments that replace them, and the remaining settings.
UNUSABLE: list[tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    ({"num_beans": 4}, "'num_beans': unknown setting; it is ignored", {}, {}),
    ({"x" * 999: [{}], "num_beams": 2}, "'xx.*: unknown setting", {}, {"num_beams": 2}),
    ({"max_time": 2.5}, "max_time: ignored: results would depend on speed; use max_new_tokens", {}, {}),
    ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens: ignored: speculative decoding", {}, {}),
    (
        {"max_length": 4096},
        "max_length: 4096 is above the maximum of the model; 64 is used",
        {"max_length": 5},
        {"max_length": 64},
    ),
    (
        {"eos_token_id": [0, 400, 7, 120]},
        "eos_token_id: ids outside the vocabulary of 120 tokens are ignored",
        {"eos_token_id": 3},
        {"eos_token_id": [0, 7]},
    ),
    ({"suppress_tokens": [5, 120]}, "suppress_tokens: ids outside", {"suppress_tokens": [6]}, {"suppress_tokens": [5]}),
]


@pytest.mark.parametrize(("stored", "warning", "given", "remaining"), UNUSABLE)
def test_a_setting_of_the_file_that_the_model_cannot_use_is_ignored_with_a_warning(
    stored: dict[str, Any], warning: str, given: dict[str, Any], remaining: dict[str, Any], tmp_path: Path
) -> None:
    """A file may have settings of other libraries, or of a model with other sizes. A call may replace any of them."""
    (tmp_path / "generation_config.json").write_text(json.dumps(stored))
    config = golden_model("marian-small").config
    with pytest.warns(NpformerWarning, match=rf"generation_config\.json: {warning}"):
        assert resolve(tmp_path, config, {}) == resolve(None, config, remaining)
    if given:
        assert resolve(tmp_path, config, given) == resolve(None, config, given)


def test_a_stored_number_of_new_tokens_is_limited_to_the_room_after_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 4096}')
    config = golden_model("marian-small").config
    assert resolve(tmp_path, config, {}, 9).max_new_tokens == config.max_length + 1 - 9
    with pytest.raises(NpformerError, match="max_new_tokens: expected a whole number from 1 to"):
        resolve(tmp_path, config, {"max_new_tokens": 4096}, 9)


def test_an_end_of_the_config_above_the_vocabulary_ends_nothing() -> None:
    config = golden_model("marian-small").config
    ends = replace(config.decoder, end_ids=(0, 5))
    assert resolve(None, replace(config, decoder=ends), {}).end_ids == (0, 5)
    causal = writers.model(seed=4).config
    assert resolve(None, replace(causal, end_ids=(3, 10**6)), {}).end_ids == (3,)
    with pytest.raises(NpformerError, match="eos_token_id: expected a whole number from 0 to"):
        resolve(None, replace(causal, end_ids=(10**6,)), {})


def test_a_pipeline_reads_the_settings_that_its_model_can_use(tmp_path: Path) -> None:
    plain = writers.folder(tmp_path / "plain", generation={"max_new_tokens": 4, "do_sample": False})
    stored = {"max_new_tokens": 4, "do_sample": False, "max_time": 1, "own_field": {}}
    folder = writers.folder(tmp_path / "odd", generation=stored)
    with pytest.warns(NpformerWarning, match="own_field"):
        assert pipeline("text-generation", folder)("the ice") == pipeline("text-generation", plain)("the ice")
