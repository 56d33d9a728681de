"""Training on plain texts: blocks, the command, and errors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.training.data import encode_blocks
from npformer.training.metrics import evaluate_blocks
from tests.support import tiny, writers

TEXT = "the thin other then there in the wind; is it the winter? "


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Returns the folder of a model, two texts to train on, and a text to select the best weights."""
    for name, text in (("one", TEXT * 8), ("two", "there is the café\n" * 3), ("dev", TEXT * 2)):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
    writers.folder(tmp_path / "model", max_length=32, generation={"eos_token_id": 0, "max_new_tokens": 9})
    return [str(tmp_path / name) for name in ("model", "one.txt", "two.txt", "dev.txt")]


def finetune(files: list[str], out: Path, *more: str) -> int:
    model, *train, dev = files
    options = ["--epochs", "3", "--batch-size", "4", "--learning-rate", "2e-2", "-j", "1", *more]
    return main(["finetune", "-m", model, "--train", *train, "--dev", dev, "-o", str(out), *options])


def test_blocks_have_every_token_as_a_target_once(files: list[str]) -> None:
    """The tokens of all documents are concatenated, with an end token after each document."""
    model = npformer.load(files[0])
    examples = encode_blocks(model, files[1:3])
    texts = [Path(each).read_text(encoding="utf-8") for each in files[1:3]]
    whole = [each for text in texts for each in (*model.tokenizer.encode(text).ids, 0)]
    assert np.concatenate([each.text.ids for each in examples]).tolist() == whole[:-1]
    assert np.concatenate([each.target for each in examples]).tolist() == whole[1:]
    assert {len(each.text) for each in examples[:-1]} == {32}
    assert [len(each.text) for each in encode_blocks(model, files[1:3], 20)[:3]] == [20, 20, 20]


def test_the_measure_of_blocks_is_the_perplexity_of_the_text(files: list[str]) -> None:
    """The text fits in one block. The block ends with the end token, so the end token is appended here."""
    model = npformer.load(files[0])
    Path(files[3]).write_text(TEXT[:40], encoding="utf-8")
    found = evaluate_blocks(model, encode_blocks(model, files[3:]))
    expected = npformer.perplexity(model, TEXT[:40] + writers.END)
    assert found["perplexity"] == pytest.approx(float(expected), rel=1e-6)
    assert found["log_probability"] == -found["dev_loss"] == pytest.approx(-math.log(expected.perplexity), rel=1e-6)


def test_a_model_learns_a_text(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes an ordinary model folder, with generation settings."""
    before = npformer.perplexity(npformer.load(files[0]), TEXT).perplexity
    assert finetune(files, tmp_path / "out") == 0
    shown = capsys.readouterr()
    assert "tokens, " in shown.err
    assert "epoch 3  loss " in shown.err
    assert f"{tmp_path / 'out'}: epoch 3: perplexity " in shown.out
    model = npformer.load(tmp_path / "out")
    assert model.config.head == "causal-lm"
    assert npformer.perplexity(model, TEXT).perplexity < before / 10
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["max_new_tokens"] == 9


def test_a_stopped_training_on_texts_resumes(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npformer.training.optimizer import Adam

    assert finetune(files, tmp_path / "whole") == 0
    step, taken = Adam.step, []

    def stopping(self: Adam, *args: object) -> None:
        taken.append(1)
        if len(taken) == 4:
            raise KeyboardInterrupt
        step(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Adam, "step", stopping)
    assert finetune(files, tmp_path / "out", "--save-every", "2") == 130
    assert finetune(files, tmp_path / "out", "--save-every", "2") == 0
    name = "npformer.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a\nb\xff\n", "one.txt:2: not UTF-8 (byte 1)"), (b" \n", "one.txt: no text"), (None, "one.txt: No such file")],
)
def test_files_that_are_no_text(
    content: bytes | None, message: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(files[1]).unlink()
    if content is not None:
        Path(files[1]).write_bytes(content)
    assert finetune(files, tmp_path / "out") == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_contradictory_options_are_refused(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finetune([files[0], "a.tsv", files[3]], tmp_path / "out") == 1
    assert "one file of labelled texts each, or .txt files" in capsys.readouterr().err
    assert finetune([files[0], "a.tsv", "b.tsv", "c.tsv"], tmp_path / "out") == 1
    assert "one file of labelled texts each, or .txt files" in capsys.readouterr().err
    assert finetune(files, tmp_path / "out", "--labels", "A,B") == 1
    assert "--labels, --text-columns, --as-distilbert: expected labelled texts" in capsys.readouterr().err
    for family, told in (
        ("bert", "a BertForMaskedLM does not, but a BertLMHeadModel does"),
        ("mpnet", "a MPNetForMaskedLM does not; give"),
    ):
        folder = str(tiny.folder(tmp_path / family, family, "masked-lm"))
        assert finetune([folder, *files[1:]], tmp_path / "out") == 1
        assert f".txt files train a model that generates text; {told}" in capsys.readouterr().err


def test_a_text_of_one_token_cannot_be_trained_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(NpformerError, match=r"a\.txt: expected at least two tokens"):
        encode_blocks(writers.model(end_ids=()), [tmp_path / "a.txt"])
    (tmp_path / "a.txt").write_text("ab")
    [pair] = encode_blocks(writers.model(end_ids=()), [tmp_path / "a.txt"])
    assert len(pair.text) == 1


def test_an_end_token_outside_the_vocabulary_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    model = writers.model(end_ids=(50256,))
    with pytest.raises(
        NpformerError, match=f"eos_token_id: expected .* vocab_size {model.config.vocab_size}, got 50256"
    ):
        encode_blocks(model, [tmp_path / "a.txt"])


def test_gpt2_learns_labels_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new head on a model that generates texts reads the last token of each text."""
    folder = writers.folder(tmp_path / "model")
    (tmp_path / "a.tsv").write_text("label\ttext\n" + "A\tthe other in\nB\tis that a wind\n" * 8)
    files = [str(folder), str(tmp_path / "a.tsv"), str(tmp_path / "a.tsv")]
    assert finetune(files, tmp_path / "out", "--epochs", "6", "--dropout", "0") == 0
    assert "A, B: new head" in capsys.readouterr().err
    classify = npformer.pipeline("text-classification", tmp_path / "out")
    assert [each["label"] for each in classify(["the other in", "is that a wind"])] == ["A", "B"]
