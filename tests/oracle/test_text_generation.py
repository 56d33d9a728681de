"""text-generation compared with transformers.pipeline: greedy and beam search, stop strings, long prompts, and stored
settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import pipeline

import npformer
from tests.support import chatters, tiny, writers

PROMPTS = ["The other", "", "naïve 😀 京", " in the w", "a" * 20 + "<|endoftext|>b"]
SETTINGS: list[dict[str, Any]] = [
    {"do_sample": False, "max_new_tokens": 24},
    {"do_sample": False, "max_new_tokens": 24, "return_full_text": False},
    {"do_sample": False, "max_new_tokens": 12, "num_beams": 4},
    {"do_sample": False, "max_new_tokens": 12, "num_beams": 4, "num_return_sequences": 3, "length_penalty": -1.0},
    {"do_sample": False, "max_length": 30, "repetition_penalty": 1.3},
    {"do_sample": False, "max_new_tokens": 24, "no_repeat_ngram_size": 2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writers.folder(tmp_path_factory.mktemp("m") / "gpt2", seed=4)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_texts_match_transformers(settings: dict[str, Any], folder: Path) -> None:
    theirs, ours = (made("text-generation", model=str(folder)) for made in (pipeline, npformer.pipeline))
    assert ours(PROMPTS[0], **settings) == theirs(PROMPTS[0], **settings)
    assert ours(PROMPTS, **settings) == theirs(PROMPTS, **settings)


@pytest.mark.parametrize(
    ("family", "settings"), [*(("bert", each) for each in SETTINGS[:3]), ("electra", SETTINGS[3])], ids=str
)
def test_texts_of_encoders_match_transformers(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Every prompt, even an empty one, is surrounded by special tokens, and only new tokens are decoded."""
    end = tiny.SPECIAL.index("[SEP]")
    folder = str(tiny.folder(tmp_path / "m", family, "causal-lm", seed=4, end_ids=(end,), start_id=end - 1))
    theirs, ours = (made("text-generation", model=folder) for made in (pipeline, npformer.pipeline))
    settings = {**settings, "suppress_tokens": [0, 1]}
    for prompt in ("I love ice cream", "", "  ", "Don't do that!", "[MASK] is ##ing"):
        assert ours(prompt, **settings) == theirs(prompt, **settings), prompt


@pytest.mark.parametrize("beams", [1, 3])
def test_stop_strings_match_transformers(beams: int, folder: Path) -> None:
    """Stop strings are parts of a text that was generated without them, so they occur. They may begin in the prompt or
    end inside a token.
    """
    theirs, ours = (made("text-generation", model=str(folder)) for made in (pipeline, npformer.pipeline))
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16, "num_beams": beams}
    for prompt in PROMPTS:
        text = ours(prompt, **settings, return_full_text=False)[0]["generated_text"]
        whole = prompt[-2:] + text
        for stop in {
            each for each in (whole[1:4], whole[2:3], text[5:8], text[-4:-2]) if each and "\ufffd" not in each
        }:
            for given in (stop, ["nowhere", stop]):
                expected = theirs(prompt, **settings, stop_sequence=given)
                assert ours(prompt, **settings, stop_sequence=given) == expected, (prompt, given)


@pytest.mark.filterwarnings("ignore:input 0. .* tokens, cut to 44")
def test_a_long_prompt_keeps_its_last_tokens(folder: Path) -> None:
    theirs, ours = (made("text-generation", model=str(folder)) for made in (pipeline, npformer.pipeline))
    theirs.tokenizer.model_max_length = 64
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20, "handle_long_generation": "hole"}
    for length in (10, 44, 45, 46, 100):
        prompt = ("the in " * 30)[:length] + "x" * (length % 3)
        assert ours(prompt, **settings) == theirs(prompt, **settings), length


def test_settings_of_the_folder_and_defaults(tmp_path: Path) -> None:
    stored = {"bos_token_id": 0, "eos_token_id": [0, 5], "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    folder = str(writers.folder(tmp_path / "m", generation=stored))
    assert npformer.pipeline(model=folder)(PROMPTS) == pipeline("text-generation", folder)(PROMPTS)
    torch.manual_seed(0)
    theirs = pipeline("text-generation", str(writers.folder(tmp_path / "n", max_length=400)))
    ours = npformer.pipeline("text-generation", tmp_path / "n", eos_token_id=1)
    settings = theirs._get_set_generation_params(theirs._prepare_generate_kwargs({}))
    assert {"do_sample": True, "temperature": 0.7, "max_new_tokens": 256}.items() <= settings.items()
    assert {"do_sample": True, "temperature": 0.7}.items() <= ours.options.settings.items()
    assert ours._settings(ours.options, 5)["max_new_tokens"] == 256


def test_conversations_match_transformers(tmp_path: Path) -> None:
    """Compares the tokens of messages without control tokens, and the form of the answers."""
    folder = str(chatters.folder(tmp_path / "m", "llama"))
    theirs, ours = (made("text-generation", model=folder) for made in (pipeline, npformer.pipeline))
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " naïve 😀\n"}]
    chats = [asked, asked[1:], [*asked, {"role": "assistant", "content": "Well"}]]
    for chat, ids in zip(chats, ours.chat.encoded(chats), strict=True):
        begins = chat[-1]["role"] != "assistant"
        how = {"add_generation_prompt": begins, "continue_final_message": not begins}
        assert theirs.tokenizer.apply_chat_template(chat, **how)["input_ids"] == ids.tolist()
    for full in (True, False):
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "return_full_text": full}
        assert ours(chats[0], **settings) == theirs(chats[0], **settings)
        assert ours(chats, **settings) == theirs(chats, **settings)
