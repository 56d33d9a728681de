"""The table of well-known checkpoints: each line agrees with npformer's result for the recorded fields of
config.json."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from npformer.common.errors import NpformerError
from npformer.engine.mechanisms import Rotary
from npformer.families import FAMILIES, read_config, unread_code

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = runpy.run_path(str(EXAMPLES / "checkpoints.py"))
PAGE = EXAMPLES.parent / "docs" / "howto" / "checkpoints.md"
NOTED = json.loads((EXAMPLES / "checkpoints.json").read_text(encoding="utf-8"))


def test_the_page_is_as_it_would_be_written():
    written = PAGE.read_text(encoding="utf-8")
    assert written == SCRIPT["page"](), "run python examples/checkpoints.py"


def test_a_page_that_is_out_of_date_is_reported(tmp_path, capsys):
    changed = tmp_path / "checkpoints.md"
    changed.write_text(PAGE.read_text(encoding="utf-8").replace("| yes |", "| no |", 1))
    SCRIPT["main"].__globals__["PAGE"] = changed
    assert SCRIPT["main"](["--check"]) == 1
    assert "run python examples/checkpoints.py" in capsys.readouterr().out
    assert SCRIPT["main"]([]) == 0
    assert SCRIPT["main"](["--check"]) == 0


def test_names_come_once_and_families_are_shown():
    names = [each["name"] for each in NOTED]
    assert len(set(names)) == len(names) >= 100
    shown = {each["config"]["model_type"] for each in NOTED}
    assert shown >= FAMILIES.keys() - {"transformer"}  # torch's own modules are not on a hub


@pytest.mark.parametrize(
    ("name", "columns", "longest"),
    [("Phi-3-mini-4k", 96, 4096), ("Phi-3.5-mini", 96, 131072), ("Phi-4-mini", 96, 131072)],
)
def test_phi_runs_with_the_config_that_its_authors_published(name, columns, longest):
    """These checkpoints name their own code, which is not needed. In Phi-4, 96 of the 128 columns of a head rotate."""
    (data,) = (each["config"] for each in NOTED if each["name"] == f"microsoft/{name}-instruct")
    assert data["auto_map"]["AutoModelForCausalLM"] == "modeling_phi3.Phi3ForCausalLM"
    config = read_config(data)
    rotary = next(each for each in config.mechanisms if isinstance(each, Rotary))
    assert (config.max_length, getattr(rotary, "columns", config.d_head)) == (longest, columns)
    assert (rotary.scaling is None) == (longest == 4096)
    assert rotary.scaling is None or len(rotary.scaling.short) == len(rotary.scaling.long) == columns // 2
    assert unread_code(data, config) == (
        "auto_map: the checkpoint's own code ('modeling_phi3.Phi3ForCausalLM') is never run; npformer computes a phi3 "
        "model, as Transformers does by default"
    )


@pytest.mark.parametrize(
    ("name", "runs", "what"),
    [
        ("BAAI/bge-reranker-base", "yes", "text-classification, text-ranking"),
        ("Helsinki-NLP/opus-mt-en-de", "with the extra `translate`", "translation"),
        ("google-t5/t5-small", "yes", "text2text-generation, summarization"),
        ("Qwen/Qwen3-Reranker-0.6B", "yes", "text-generation"),
        ("google/gemma-2-2b-it", "yes", "text-generation"),
        ("openai/whisper-small", "no", "model_type: 'whisper' needs speech"),
        (
            "jinaai/jina-embeddings-v2-base-en",
            "no",
            "position_embedding_type: 'alibi' is not supported for bert models; ",
        ),
    ],
)
def test_each_line_agrees_with_loading(name, runs, what):
    (config,) = (each["config"] for each in NOTED if each["name"] == name)
    found, said = SCRIPT["verdict"](config)
    assert (found, said[: len(what)]) == (runs, what)
    if runs == "no":
        with pytest.raises(NpformerError) as caught:
            read_config(config)
        assert what.split(" ")[1] in str(caught.value)
    else:
        assert read_config(config).model_type == config["model_type"]
