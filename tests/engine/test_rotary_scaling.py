"""Rotations that depend on the length of a text: frequencies, config.json, generation, and the diagnosis of ports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import NpformerError
from npformer.engine.functions import log_softmax
from npformer.engine.mechanisms import PartialRotary, Rotary
from npformer.engine.mechanisms.rotary_scaling import Dynamic, LongRope, Scaling
from npformer.engine.runtime.packing import Text
from npformer.engine.taps import listen
from npformer.families import read_config, write_config
from npformer.generation import Stream, state
from npformer.generation.state import Continued
from tests.support import tiny
from tests.support.rotary_frequencies import DYNAMIC, FREQUENCIES, LONGROPE, MAGNITUDE, THETA

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16,
}  # fmt: skip
FACTORS = {"short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.5, 3.0, 6.0, 12.5]}


def read(model_type: str = "llama", length: int = 32, **fields: Any) -> Any:
    return read_config({"model_type": model_type, **SIZES, "max_position_embeddings": length, **fields})


def model(scaling: Any, **fields: Any) -> Any:
    length = scaling.longest if isinstance(scaling, Dynamic) else 32
    rotary = Rotary(THETA, scaling=scaling)
    return tiny.model("llama", "causal-lm", dtype=np.float64, mechanisms=(rotary,), max_length=length, **fields)


@pytest.mark.parametrize(("scaling", "length"), FREQUENCIES)
def test_frequencies_are_those_of_transformers(scaling: Scaling, length: int) -> None:
    """Frequencies differ by at most a few float32 roundings, because torch's power is not always the nearest number."""
    found = scaling.scaled(np.zeros(4, np.float32), THETA, length)
    np.testing.assert_allclose(found, FREQUENCIES[scaling, length], rtol=2**-22)
    assert scaling.magnitude == pytest.approx(1.0 if scaling == DYNAMIC else MAGNITUDE, rel=1e-15)


def test_config_json_of_dynamic_scaling_has_the_length_before_it() -> None:
    config = read(length=8, rope_scaling={"type": "dynamic", "factor": 3.0})
    assert config.mechanisms == (Rotary(10_000.0, scaling=DYNAMIC),)
    assert config.max_length == 24
    assert write_config(config)["max_position_embeddings"] == 8
    assert read_config(write_config(config)) == config
    neox = read("gpt_neox", 8, rotary_pct=0.5, rope_scaling={"type": "dynamic", "factor": 3.0})
    assert neox.mechanisms == (PartialRotary(10_000.0, columns=4, scaling=DYNAMIC),)
    assert read_config(write_config(neox)) == neox


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_config_json_of_phi_3_has_the_original_length_beside_the_scaling(name: str, kind: str) -> None:
    config = read("phi3", original_max_position_embeddings=8, **{name: {"type": kind, **FACTORS}})
    assert config.mechanisms == (Rotary(10_000.0, scaling=LONGROPE),)
    assert read_config(write_config(config)) == config
    given = {"rope_type": kind, "original_max_position_embeddings": 8, **FACTORS}
    default = read("phi3", 8192, **{name: given})
    assert default.mechanisms[0].scaling.original == 4096  # as in Transformers
    assert default.mechanisms[0].scaling.factor == 2.0


def test_config_json_of_llama_may_have_all_settings_in_the_scaling() -> None:
    given = {"rope_type": "longrope", "original_max_position_embeddings": 8, "factor": 3.0, "attention_factor": 1.5}
    config = read(rope_parameters={**given, **FACTORS})
    longrope = config.mechanisms[0].scaling
    assert longrope == LongRope(LONGROPE.short, LONGROPE.long, 8, 3.0, 1.5)
    assert longrope.magnitude == 1.5
    assert read_config(write_config(config)) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "dynamic"}, "rope_scaling: factor: missing"),
        ({"type": "dynamic", "factor": 0.5}, "factor: expected a number from 1"),
        ({"type": "longrope", **FACTORS, "long_factor": [1.0]}, "long_factor: expected 4 numbers, one for each pair"),
        ({"type": "longrope", **FACTORS, "short_factor": 2.0}, "short_factor: expected a list of numbers, got 2.0"),
        (
            {"type": "longrope", **FACTORS, "long_factor": [1.0, 2.0, 0, 1]},
            "rope_scaling.long_factor: expected a number above 0, got 0",
        ),
    ],
)
def test_invalid_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read(rope_scaling=fields)


def test_other_choices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NpformerError, match="max_length: expected 24, because dynamic scaling by 3 extends 8 pos"):
        tiny.config("llama", "base", mechanisms=(Rotary(THETA, scaling=DYNAMIC),))
    with pytest.raises(NpformerError, match="dynamic scaling needs at least 4 rotated columns, got 2"):
        tiny.config("llama", "base", mechanisms=(Rotary(THETA, scaling=DYNAMIC),), max_length=24, head_width=2)
    with pytest.raises(NpformerError, match="phi3 models; supported: 'default', 'longrope', 'su', 'yarn'"):
        read("phi3", rope_scaling={"type": "linear", "factor": 2.0})
    with pytest.raises(NpformerError, match="rope_type: 'dynamic' is not supported for gemma3 models"):
        read("gemma3_text", head_dim=8, rope_scaling={"type": "dynamic", "factor": 2.0})


@pytest.mark.numbers
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_a_text_has_the_same_bits_alone_in_a_batch_and_in_steps(scaling: Any) -> None:
    whole, random = model(scaling), np.random.default_rng(0)
    texts = [Text(random.integers(8, 60, n)) for n in (4, 9, 8, 20, 20, 3)]
    for text, answer in zip(texts, whole.run(texts), strict=True):
        np.testing.assert_array_equal(whole.run([text])[0]["logits"], answer["logits"])
    for prompt, new in ((4, 5), (9, 1 if scaling == DYNAMIC else 6)):  # up to the original length, and beyond it
        ids = texts[0].ids if prompt == 4 else texts[1].ids
        with listen(heard := Heard()):
            [[written]] = whole.generate(ids, max_new_tokens=new, min_new_tokens=new)
        every = np.concatenate([ids, written.ids])
        for count, row in enumerate(heard.rows, prompt):
            np.testing.assert_array_equal(row, whole.run([Text(every[:count])])[0]["logits"][-1])
        assert len(heard.rows) == new


class Heard:
    """A listener that collects the rows of logits of each step."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def __call__(self, name: str, array: np.ndarray) -> np.ndarray:
        if name == "logits":
            self.rows.append(array[-1].copy())
        return array


def test_threads_that_share_a_text_rotate_by_its_whole_length() -> None:
    scaling = LongRope(LONGROPE.short, LONGROPE.long, 150, 4.0)
    shared = tiny.model(
        "llama", "sequence-classification", mechanisms=(Rotary(THETA, scaling=scaling),), max_length=250, threads=2
    )
    text = Text(np.random.default_rng(0).integers(8, 60, 230))
    [together] = shared.run([text])
    shared.threads = 1
    np.testing.assert_array_equal(together["logits"], shared.run([text])[0]["logits"])


@pytest.mark.parametrize(("scaling", "prompt"), [(DYNAMIC, 3), (LONGROPE, 3), (DYNAMIC, 12)])
def test_a_generation_that_crosses_the_original_length_is_refused_before_the_prompt_is_computed(
    scaling: Any, prompt: int
) -> None:
    writer, most = model(scaling), 6 if prompt == 3 else 1
    message = (
        f"max_new_tokens: expected at most {most} after a prompt of {prompt} tokens, got {most + 1}; in this model, "
    )
    with listen(heard := Heard()), pytest.raises(NpformerError, match=message):
        writer.generate(np.arange(8, 8 + prompt), max_new_tokens=most + 1)
    assert not heard.rows
    assert len(writer.generate(np.arange(8, 8 + prompt), max_new_tokens=most, min_new_tokens=most)[0][0].ids) == most


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
def test_a_prompt_is_rotated_by_its_whole_length_where_others_are_read_in_blocks(
    scaling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "BLOCK", 4)
    writer, ids = model(scaling), np.arange(8, 20)
    expected = writer.run([Text(ids)])[0]["logits"][-1]
    stream = Stream(writer, Text(ids), max_new_tokens=1, logprobs=3)
    list(stream)
    np.testing.assert_array_equal(log_softmax(expected)[stream.likely[0].tokens[0]], stream.likely[0].scores[0])


def test_keys_of_an_earlier_text_are_kept_only_if_they_are_rotated_alike() -> None:
    writer = model(LONGROPE)
    for earlier, later, kept in ((5, 7, True), (5, 9, False), (9, 12, True), (9, 7, False)):
        stream = Stream(writer, Text(np.arange(8, 8 + earlier)), max_new_tokens=1)
        list(stream)
        found = stream.state.continued(np.arange(8, 8 + later), 4)
        assert isinstance(found, Continued) is kept
