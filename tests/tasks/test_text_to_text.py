"""summarization and text2text-generation: settings, the task inferred from a folder, and errors.

`test_against_transformers.py` compares the answers with transformers' pipelines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.generation.settings import resolve
from npformer.tasks.pipelines import tasks_of
from npformer.tasks.text_to_text import Summarization, Text2TextGeneration, TextToText
from tests.support import tiny
from tests.support.seq2seq_models import bart_folder, golden_model, t5_folder

TEXT = "the people of Paris"
OWN = {"summarization": {"max_length": 12, "min_length": 4, "num_beams": 2, "prefix": "news: "}}
NAMES = ("translation", "summarization", "text2text-generation")


def settings(task: Any) -> Any:
    return resolve(task.model.folder, task.model.config, task.options.settings)


@pytest.mark.parametrize(
    ("specific", "name"),
    [
        ({}, "text2text-generation"),
        ({"task_specific_params": OWN}, "summarization"),
        ({"task_specific_params": {"summarization_cnn": {}}}, "summarization"),
        ({"task_specific_params": {"conversational": {}}}, "text2text-generation"),
        ({"task_specific_params": None}, "text2text-generation"),
    ],
)
def test_a_bart_summarizes_if_its_config_has_such_settings(specific: dict[str, Any], name: str, tmp_path: Path) -> None:
    folder = bart_folder(tmp_path / "bart", **specific)
    task = npformer.pipeline(model=folder)
    assert (task.name, npformer.pipeline(model=npformer.load(folder)).name) == (name, name)
    described = json.loads((folder / "config.json").read_text())
    assert tasks_of(task.model.config, described) == [name, *(each for each in NAMES[1:] if each != name)]


#: As in google-t5/t5-small, but with shorter texts.
OF_T5 = {
    "summarization": {"max_length": 12, "num_beams": 2, "prefix": "summarize: "},
    "translation_en_to_de": {"max_length": 9, "num_beams": 3, "prefix": "translate English to German: "},
    "translation_en_to_fr": {"max_length": 9, "prefix": "translate English to French: "},
}


def test_a_t5_has_a_prefix_for_each_task_and_language(tmp_path: Path) -> None:
    """task_specific_params is read as in Transformers 4. By default, the task is text2text-generation."""
    folder = t5_folder(tmp_path / "t5", task_specific_params=OF_T5)
    writes, summarizes = npformer.pipeline(model=folder), npformer.pipeline("summarization", folder)
    german = npformer.pipeline("translation_en_to_de", folder)
    assert (writes.name, german.name) == ("text2text-generation", "translation")
    assert [settings(each).num_beams for each in (writes, summarizes, german)] == [4, 2, 3]
    assert tasks_of(writes.model.config, {"task_specific_params": OF_T5}) == [NAMES[2], NAMES[1], NAMES[0]]
    model = npformer.load(folder)

    def written(prefix: str, **given: Any) -> str:
        [[found]] = model.generate([model.tokenizer.encode(prefix + TEXT)], **given)
        return model.tokenizer.decode(found.ids.tolist())

    assert writes(TEXT, max_new_tokens=5)["generated_text"] == written("", num_beams=4, max_new_tokens=5)
    assert summarizes(TEXT)["summary_text"] == written("summarize: ", num_beams=2, max_length=12)
    expected = written("translate English to German: ", num_beams=3, max_length=9)
    assert german(TEXT)["translation_text"] == expected
    assert npformer.pipeline("translation", folder, to="de")(TEXT)["translation_text"] == expected
    french = written("translate English to French: ", num_beams=3, max_length=9)
    assert german(TEXT, to="fr")["translation_text"] == french
    with pytest.raises(NpformerError, match="to: expected a target language of this model: de, fr"):
        npformer.pipeline("translation", folder)
    with pytest.raises(NpformerError, match=r"language: '>>ro<<' is not known\. Known: de, fr"):
        german(TEXT, to="ro")


def test_vectors_of_a_whole_t5_are_its_encoder_s(tmp_path: Path) -> None:
    """A folder without `architectures`, such as a folder with only the encoder, has the same vectors."""
    embed = npformer.pipeline("sentence-embedding", t5_folder(tmp_path / "t5"))
    bare = t5_folder(tmp_path / "bare", architectures=None)
    assert np.array_equal(embed([TEXT]), npformer.pipeline("sentence-embedding", bare)([TEXT]))
    assert npformer.pipeline("text2text-generation", bare, max_new_tokens=3)(TEXT)["generated_text"]


def test_a_marian_translates() -> None:
    assert tasks_of(golden_model("marian-small").config) == ["translation"]


def test_one_answer_and_several(tmp_path: Path) -> None:
    folder = bart_folder(tmp_path / "bart")
    for name, key in zip(NAMES, ("translation_text", "summary_text", "generated_text"), strict=True):
        task = npformer.pipeline(name, folder, max_new_tokens=6, num_beams=3)
        one, several = task(TEXT), task(TEXT, num_return_sequences=2)
        assert list(one) == [key]
        assert [list(each) for each in several] == [[key]] * 2
        assert several[0] == one == task({"text": TEXT})
        assert (one[0], one.truncated) == (one, False)


def test_the_usual_settings_give_way_to_the_folder_and_the_caller(tmp_path: Path) -> None:
    """The defaults are those of Transformers 4, up to the model's 64 positions, but translation has the defaults of
    `generate`."""
    folder = bart_folder(tmp_path / "bart")
    found = settings(npformer.pipeline("summarization", folder))
    assert (found.num_beams, found.max_new_tokens, found.do_sample) == (4, 64, False)
    assert settings(npformer.pipeline("translation", folder)).num_beams == 1
    (folder / "generation_config.json").write_text('{"num_beams": 3, "max_length": 20, "min_length": 5}')
    task = npformer.pipeline("text2text-generation", folder)
    assert (settings(task).num_beams, settings(task).max_new_tokens, settings(task).min_new_tokens) == (3, 19, 4)
    given = settings(npformer.pipeline("text2text-generation", folder, max_new_tokens=7, min_length=2))
    assert (given.num_beams, given.max_new_tokens, given.min_new_tokens) == (3, 7, 1)
    (folder / "generation_config.json").write_text('{"do_sample": true}')
    assert settings(npformer.pipeline("summarization", folder)).num_beams == 1
    (folder / "generation_config.json").write_text('{"max_new_tokens": 9}')
    assert settings(npformer.pipeline("summarization", folder)).max_new_tokens == 9


def test_the_settings_of_a_task_are_its_own(tmp_path: Path) -> None:
    """The task's settings override generation_config.json, and the caller's settings override both."""
    folder = bart_folder(tmp_path / "bart", task_specific_params=OWN, prefix="the ")
    (folder / "generation_config.json").write_text('{"num_beams": 3, "max_new_tokens": 20, "min_new_tokens": 9}')
    summarize, rewrite = Summarization(npformer.load(folder)), Text2TextGeneration(npformer.load(folder))
    found = settings(summarize)
    assert (found.num_beams, found.max_new_tokens, found.min_new_tokens) == (2, 11, 3)
    assert (settings(rewrite).num_beams, settings(rewrite).max_new_tokens) == (3, 20)
    assert settings(Summarization(summarize.model, max_new_tokens=5)).max_new_tokens == 5
    assert summarize.settle(summarize.options, {"max_length": None}).settings["max_length"] == 12
    encode = summarize.model.tokenizer.encode
    for task, prefix in ((summarize, "news: "), (rewrite, "the ")):
        assert task.source(TEXT, task.options).texts[0].ids.tolist() == encode(prefix + TEXT)
    with pytest.raises(NpformerError, match="the text is empty"):
        summarize(" ")


def test_a_sample_has_one_beam(tmp_path: Path) -> None:
    task = npformer.pipeline("summarization", bart_folder(tmp_path / "bart"), max_new_tokens=8)
    drawn = task(TEXT, do_sample=True, seed=1, temperature=2.0)
    assert drawn == task(TEXT, do_sample=True, seed=1, temperature=2.0, num_beams=1) != task(TEXT)
    with pytest.raises(NpformerError, match="num_beams: expected 1 for sampling"):
        task(TEXT, do_sample=True, num_beams=2)


def test_pieces_join_to_the_text(tmp_path: Path) -> None:
    task = npformer.pipeline("summarization", bart_folder(tmp_path / "bart", task_specific_params=OWN))
    assert isinstance(task, TextToText)
    assert "".join(task.tokens(TEXT)) == task(TEXT, num_beams=1)["summary_text"]


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"task_specific_params": [1]}, "task_specific_params: expected an object with the settings of each task"),
        ({"task_specific_params": {"summarization": 3}}, "task_specific_params: expected an object with the settings"),
        ({"prefix": 3}, "prefix: expected a text, got int"),
        ({"task_specific_params": {"summarization": {"num_beams": "x"}}}, "num_beams: expected a whole number"),
        ({"task_specific_params": {"summarization": {"num_beam_groups": 2}}}, "num_beam_groups: 2 is not supported"),
    ],
)
def test_settings_that_make_no_sense(described: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match=message):
        npformer.pipeline("summarization", bart_folder(tmp_path / "bart", **described))


def test_log_probabilities_are_refused(tmp_path: Path) -> None:
    """Log probabilities are refused because the answers would not contain them."""
    folder = bart_folder(tmp_path / "bart")
    for name in NAMES[1:]:
        with pytest.raises(NpformerError, match=f"logprobs: {name} does not return them; use model.generate"):
            npformer.pipeline(name, folder)(TEXT, num_beams=1, logprobs=2)


def test_models_that_do_not_fit() -> None:
    with pytest.raises(NpformerError, match="summarization: expected an encoder-decoder, got a masked-lm model"):
        npformer.pipeline("summarization", tiny.model("bert", "masked-lm"))
    with pytest.raises(NpformerError, match=r"no default model; .* an encoder-decoder for summarization"):
        npformer.pipeline("summarization")
