"""A model loads even if config.json lacks some fields, or names a token that has no row."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer import NpformerError, NpformerWarning
from npformer.families import FAMILIES, encoders, read_config, write_config
from tests.support import tiny

WITHOUT_TABLE = {  # model_type -> transformers' maximum length if config.json has none
    "llama": 2048, "mistral": 131_072, "qwen2": 32_768, "qwen3": 32_768, "gemma": 8192, "gemma2": 8192,
    "gemma3_text": 131_072, "phi3": 4096, "smollm3": 32_768, "olmo2": 2048, "gpt_neox": 2048, "modernbert": 8192,
}  # fmt: skip


def changed(path: Path, model_type: str, **fields: Any) -> Path:
    """Writes the folder of a model that generates text, with these fields in config.json; ... removes a field."""
    made = tiny.folder(path / "m", model_type, "causal-lm")
    data = json.loads((made / "config.json").read_text())
    data = {name: value for name, value in {**data, **fields}.items() if value is not ...}
    (made / "config.json").write_text(json.dumps(data))
    return made


def test_ids_of_a_larger_vocabulary_are_left_out(tmp_path: Path) -> None:
    """GPT2Config(vocab_size=100) also saves the ids of GPT-2's own vocabulary, even in generation_config.json."""
    made = changed(tmp_path, "gpt2", bos_token_id=50256, eos_token_id=50256)
    ids = {"bos_token_id": 50256, "eos_token_id": 50256}
    several = {"eos_token_id": [50256, -1]}
    for generation in ({}, ids, several):
        (made / "generation_config.json").write_text(json.dumps(generation))
        model = npformer.load(made)
        assert (model.config.start_id, model.config.end_ids) == (None, ())
        warned = (
            pytest.warns(NpformerWarning, match="outside the vocabulary") if generation is several else nullcontext()
        )
        with warned:
            found = npformer.pipeline("text-generation", model)("ice", max_new_tokens=3, do_sample=False)
        assert found[0]["generated_text"].startswith("ice")
    with pytest.raises(NpformerError, match=r"^eos_token_id: expected a whole number from 0 to"):
        model.generate([[5]], max_new_tokens=3, eos_token_id=50256)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pad_token_id": -1}, (1, (2,), None)),
        ({"pad_token_id": 10**6, "eos_token_id": [2, 10**6]}, (1, (2,), None)),
        ({"bos_token_id": -1, "eos_token_id": -1, "pad_token_id": 0}, (None, (), 0)),
        ({"bos_token_id": None, "eos_token_id": None}, (None, (), None)),
    ],
)
def test_llama_s_tokens_without_a_row(fields: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    """Llama's first checkpoints have the padding token -1."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    config = npformer.load(changed(tmp_path, "llama", **{**ids, **fields})).config
    assert (config.start_id, config.end_ids, config.pad_id) == expected
    assert config.padding_idx == expected[2]


@pytest.mark.parametrize("fields", [{"pad_token_id": "x"}, {"bos_token_id": [1]}, {"eos_token_id": [1.5]}])
def test_ids_that_are_no_numbers(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match=f"{next(iter(fields))}: expected a whole number"):
        npformer.load(changed(tmp_path, "llama", **fields))


@pytest.mark.parametrize("model_type", WITHOUT_TABLE)
def test_a_missing_length_is_the_one_of_transformers(model_type: str, tmp_path: Path) -> None:
    head = "masked-lm" if model_type == "modernbert" else "causal-lm"
    data = write_config(tiny.config(model_type, head))
    del data["max_position_embeddings"]
    assert read_config(data).max_length == WITHOUT_TABLE[model_type]


def test_a_table_of_positions_needs_its_length() -> None:
    for model_type in encoders().keys() - WITHOUT_TABLE.keys():
        data = write_config(tiny.config(model_type, FAMILIES[model_type].architectures and "base"))
        name = encoders()[model_type].sizes.get("max_length")
        if name is None:  # for example T5, which reads texts of any length
            continue
        del data[name]
        with pytest.raises(NpformerError, match=f"{name}: missing, but required in config.json of {model_type} models"):
            read_config(data)
