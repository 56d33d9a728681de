"""`npformer generate`: texts, options, files and JSON, a terminal with streaming output, and a missing model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import npformer
from npformer.cli.main import main
from tests.support import writers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return writers.folder(tmp_path_factory.mktemp("m") / "gpt2", seed=4)


def shown(text: str) -> str:
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


def test_texts_match_the_task(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = npformer.pipeline("text-generation", folder)
    for options, settings in {
        ("--greedy",): {"do_sample": False},
        ("--num-beams", "3", "--best", "2"): {"num_beams": 3, "num_return_sequences": 2},
        ("--seed", "1", "--temperature", "2", "--top-k", "9", "--top-p", "0.9"): {
            "seed": 1, "temperature": 2.0, "top_k": 9, "top_p": 0.9,
        },
        ("--seed", "1", "--min-p", "0.3", "--typical-p", "0.8"): {"seed": 1, "min_p": 0.3, "typical_p": 0.8},
        ("--greedy", "--stop", "X", "--stop", "$$", "--new-text"): {
            "do_sample": False, "stop": ["X", "$$"], "return_full_text": False,
        },
    }.items():  # fmt: skip
        assert main(["generate", "-m", str(folder), "--max-new-tokens", "9", *options, "The", "in a"]) == 0
        expected = task(["The", "in a"], max_new_tokens=9, **settings)
        texts = ["\n---\n".join(each["generated_text"] for each in answer) for answer in expected]
        assert capsys.readouterr().out == shown("\n".join(texts) + "\n")


def test_prompts_of_a_file_as_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.txt").write_text("The\n" + "a" * 70 + "\n")
    command = ["generate", "-m", str(folder), "--greedy", "--file", str(tmp_path / "prompts.txt"), "--json"]
    assert main([*command, "--max-new-tokens", "5"]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["generated_texts"][0].startswith("The")
    assert "expected at most 64 tokens, got 70 and 5 new ones" in second["error"]
    assert main([*command, "--long", "truncate", "--max-new-tokens", "5"]) == 0
    assert "cut to 59" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--new-text"], ["--num-beams", "2"]])
def test_a_terminal_shows_a_text_as_it_is_written(
    more: list[str], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["generate", "-m", str(folder), "--seed", "3", "--max-new-tokens", "9", "The", *more]
    assert main(command) == 0
    whole = capsys.readouterr().out
    flushed: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write = sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda text: (flushed.append(text), write(text))[1])
    assert main(command) == 0
    assert capsys.readouterr().out == whole
    assert (len(flushed) > 5) == (more != ["--num-beams", "2"])
    assert main(["generate", "-m", str(folder), "a" * 90, "--max-new-tokens", "9"]) == 1
    assert "argument 1: expected at most 64 tokens, got 90 and 9 new ones" in capsys.readouterr().err


def test_errors_name_the_option(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "The"]) == 1
    error = capsys.readouterr().err
    assert "--model: missing; give the folder or Hugging Face id of a causal language model" in error
    assert "gpt2-austen" in error
    for options, message in {
        ("--greedy", "--best", "3"): "--best: 3 sequences need as many beams, or no --greedy",
        ("--max-new-tokens", "99"): "--max-new-tokens: expected a whole number from 1 to 64",
        ("--temperature", "0"): "temperature: expected a number above 0, got 0; for greedy decoding, use --greedy",
        ("--stop", ""): "--stop: expected non-empty texts",
    }.items():
        assert main(["generate", "-m", str(folder), "The", *options]) == 1
        assert message in capsys.readouterr().err
