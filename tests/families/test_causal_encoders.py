"""Encoders that predict the next token: `is_decoder` and token ids in config.json, their weights, and their uses.

tests/oracle/test_every_family.py compares their answers with those of transformers, and test_prompts.py compares their
generated texts.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import Text, golden, view
from npformer.checkpoint.safetensors import read_tensors
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.families import encoders, read_config, write_config
from npformer.tasks.pipelines import tasks_of
from npformer.tasks.task import without_head
from npformer.training.data import encode_blocks
from tests.support import tiny
from tests.support.torch_writer import save

ARCHITECTURES = json.loads((Path(__file__).parents[1] / "golden/checkpoints/architectures.json").read_text())
CLASSES = {
    "bert": "BertLMHeadModel",
    "electra": "ElectraForCausalLM",
    "roberta": "RobertaForCausalLM",
    "xlm-roberta": "XLMRobertaForCausalLM",
    "camembert": "CamembertForCausalLM",
}
END = tiny.SPECIAL.index("[SEP]")


@pytest.fixture(params=CLASSES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def described(family: str, **changes: Any) -> dict[str, Any]:
    return {**ARCHITECTURES[CLASSES[family]]["config"], **changes}


def folder(path: Path, family: str = "bert", **fields: Any) -> str:
    return str(tiny.folder(path, family, "causal-lm", seed=4, end_ids=(END,), start_id=END - 1, **fields))


# --- config.json -----------------------------------------------------------------------------------------------------


def test_all_of_them_are_here() -> None:
    causal = {
        name for name, each in encoders().items() if "causal-lm" in each.heads and not each.constants.get("causal")
    }
    assert causal == CLASSES.keys()


def test_a_config_is_read_and_written(family: str) -> None:
    config = read_config(described(family))
    assert (config.head, config.causal) == ("causal-lm", True)
    written = write_config(config)
    assert (written["architectures"], written["is_decoder"]) == ([CLASSES[family]], True)
    for each in (config, tiny.config(family, "causal-lm", start_id=7, end_ids=(3, 4)), replace(config, end_ids=())):
        assert read_config(write_config(each)) == each
    assert "is_decoder" not in write_config(tiny.config(family, "masked-lm"))


def test_ids_that_are_not_in_the_file_match_transformers(family: str) -> None:
    bare = {name: each for name, each in described(family).items() if not name.endswith("_token_id")}
    read = read_config(bare)
    usual = (0, (2,), 1) if "roberta" in family or family == "camembert" else (None, (), 0)
    assert (read.start_id, read.end_ids, read.pad_id) == usual
    null = read_config(bare | {"bos_token_id": None, "eos_token_id": None})
    assert (null.start_id, null.end_ids) == (None, ())
    given = read_config(bare | {"bos_token_id": 5, "eos_token_id": [6, 7], "pad_token_id": 3})
    assert (given.start_id, given.end_ids, given.pad_id) == (5, (6, 7), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"is_decoder": False},
            "is_decoder: expected True, because a causal-lm model .* got False; for masked words use .*Mas",
        ),
        ({"is_decoder": "yes"}, "is_decoder: expected true or false, got 'yes'"),
        ({"is_decoder": 1}, "is_decoder: expected true or false, got 1"),
        ({"add_cross_attention": True}, "add_cross_attention: True is not supported"),
        ({"eos_token_id": "2"}, "eos_token_id: expected a whole number"),
        ({"bos_token_id": "a"}, "bos_token_id: expected a whole number from 0"),
    ],
)
def test_unsupported_options_are_refused_by_name(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config(described(family, **changes))


def test_other_heads_are_not_causal(family: str) -> None:
    for head in encoders()[family].heads:
        if head not in ("causal-lm", "base"):
            with pytest.raises(
                NpformerError, match=f"is_decoder: .* a {head} model, got True; .* {CLASSES[family]} supports"
            ):
                read_config(described(family), head)
    with pytest.raises(NpformerError, match=r"is_decoder: expected False for a base model, got True$"):
        read_config({**ARCHITECTURES["MPNetModel"]["config"], "is_decoder": True})
    with pytest.raises(NpformerError, match=r"is_decoder: expected False for a causal-lm model, got True$"):
        read_config({**ARCHITECTURES["GPT2LMHeadModel"]["config"], "is_decoder": True})


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
def test_only_bert_s_head_has_the_activation_of_the_layers(family: str, activation: str) -> None:
    config = read_config(described(family, hidden_act=activation))
    assert write_config(config)["hidden_act"] == activation
    assert config.below_head == (config.activation if family == "bert" else "gelu")


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_torch_s_files_are_read_in_each_dtype(family: str, tied: bool, tmp_path: Path) -> None:
    made = tmp_path / "m"
    folder(made, family, tied=tied)
    tensors, _ = read_tensors(made / "model.safetensors")
    ids = [[2, 9, 30, 3], [2, 40]]
    expected = npformer.load(made)(ids).logits
    assert not np.triu(npformer.trace(npformer.load(made), ids[:1])["layers.1.attention.weights"], 1).any()
    (made / "model.safetensors").unlink()
    save(made / "pytorch_model.bin", {name: np.array(each) for name, each in tensors.items()})
    assert np.array_equal(npformer.load(made)(ids).logits, expected)
    half = {name: np.array(each, np.float16) for name, each in tensors.items()}
    save(made / "pytorch_model.bin", half)
    # float16 stores 11 bits of each weight, and an answer passes through about ten products.
    np.testing.assert_allclose(npformer.load(made)(ids).logits, expected, atol=0.05)


# --- features that use these models ----------------------------------------------------------------------------------


def test_a_token_sees_nothing_after_it_and_its_bits_do_not_change(family: str) -> None:
    model = tiny.model(family, "causal-lm", threads=2, max_length=300)
    texts = [Text(np.random.default_rng(length).integers(8, 200, length)) for length in (250, 7, 7, 31)]
    for text, answer in zip(texts, model.run(texts), strict=True):
        assert np.array_equal(model.run([text])[0]["logits"], answer["logits"])  # 250 tokens run on two threads
        begun = model.run([Text(text.ids[:5])])[0]["logits"]
        np.testing.assert_allclose(begun, answer["logits"][:5], rtol=1e-5, atol=1e-5)


def test_tasks_texts_and_streams(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path / "m", family)
    task = npformer.pipeline(model=made, max_new_tokens=9, do_sample=False)
    assert tasks_of(task.model.config)[0] == task.name == "text-generation"
    prompts = ["I love ice", "", "news"]
    together = task(prompts, return_full_text=False)
    for prompt, [answer] in zip(prompts, together, strict=True):
        assert "".join(task.tokens(prompt)) == answer["generated_text"] == task(
            prompt, return_full_text=False
        )[0]["generated_text"]  # fmt: skip
    assert main(["generate", "-m", made, "--greedy", "--max-new-tokens", "9", "I love ice"]) == 0
    assert capsys.readouterr().out.strip() == f"I love ice{together[0][0]['generated_text']}".strip()
    assert main(["info", made]) == 0
    assert "text-generation" in capsys.readouterr().out


def test_perplexity_counts_the_special_tokens_too() -> None:
    model = tiny.model("bert", "causal-lm")
    ids = model.tokenizer.encode("I love ice cream").ids
    logits = model([ids]).logits[0].astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = npformer.perplexity(model, "I love ice cream")
    assert found.tokens == len(ids) - 1
    assert found.log_probability == pytest.approx(log_probabilities[np.arange(len(ids) - 1), ids[1:]].sum(), rel=1e-5)
    for empty in ("", "  "):
        with pytest.raises(NpformerError, match="expected a text of at least two tokens, with at least one"):
            npformer.perplexity(model, empty)


def test_an_end_token_follows_a_document_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("I love ice cream")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for ends in ((END,), ()):
        model = tiny.model("bert", "causal-lm", end_ids=ends)
        [example] = encode_blocks(model, files)
        ids = model.tokenizer.encode("I love ice cream").ids
        assert [*example.text.ids, example.target[-1]] == [*ids, *ids]


def test_it_learns_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("I love good ice cream, not hot news. " * 20)
    made, text, out = folder(tmp_path / "m"), str(tmp_path / "a.txt"), str(tmp_path / "out")
    command = ["finetune", "-m", made, "--train", text, "--dev", text, "-o", out, "--epochs", "4", "--dropout", "0"]
    assert main([*command, "--batch-size", "4", "--learning-rate", "1e-2"]) == 0
    capsys.readouterr()
    read = (Path(text)).read_text()
    before, after = (npformer.perplexity(npformer.load(each), read).perplexity for each in (made, out))
    assert after < before / 5
    assert npformer.load(out).config == npformer.load(made).config


def test_it_is_looked_into_as_others_are(family: str, tmp_path: Path) -> None:
    model = tiny.model(family, "causal-lm", dtype=np.float64)
    found = npformer.logit_attribution(model, "I love ice")
    assert found.position == 4
    assert found.total == pytest.approx(found.logit, abs=1e-9)
    for drawn in (view.heads, view.model, view.logit, view.stages):
        assert "ice" in drawn(model, "I love ice").html()
    recorded = golden.record(tiny.model(family, "causal-lm"), "I love ice")
    assert not golden.compare(recorded, {"logits": [each * 1.01 for each in recorded.stages["logits"]]}).ok


def test_without_its_head_it_is_causal_and_read_back_so(family: str, tmp_path: Path) -> None:
    """A task for vectors removes the head. head="base" removes it, too, as `AutoModel` does."""
    alone = without_head(tiny.model(family, "causal-lm", dtype=np.float64))
    assert alone.config.causal
    assert np.array_equal(alone([[5, 6, 7]]).last_hidden_state[:, 0], alone([[5]]).last_hidden_state[:, 0])
    npformer.trace(alone, [5, 6, 7]).save(tmp_path / "trace.safetensors")
    assert npformer.Trace.load(tmp_path / "trace.safetensors").config.causal
    stored = folder(tmp_path / "stored", family)
    golden.record(without_head(npformer.load(stored)), [5, 6, 7]).save(tmp_path / "golden.safetensors")
    assert golden.load(tmp_path / "golden.safetensors").config.causal
    read = npformer.load(stored, head="base")
    assert read.config.causal
    assert np.array_equal(
        read([[5, 6, 7]]).last_hidden_state, without_head(npformer.load(stored))([[5, 6, 7]]).last_hidden_state
    )
