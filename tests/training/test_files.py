"""Training from files: errors name the faulty row, the commands train and evaluate, and embeddings are plotted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.animation import animate
from npformer.cli import main as cli
from npformer.common.errors import NpformerError
from npformer.loading import load
from npformer.training import LabelledText, label_ids, label_names, read_labelled
from npformer.training.metrics import scores
from npformer.training.translator import learn_tokenizer
from tests.support import tiny
from tests.support.extras import needs

# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", 'label\tsentence\n1\tsay "no\n0\tb c\n'),
        ("a.csv", 'sentence,label\n"say ""no",1\nb c,0\n'),
        ("a.jsonl", '{"label": 1, "sentence": "say \\"no"}\n\n{"sentence": "b c", "label": "0"}\n'),
        ("b.tsv", '\ufefflabel\tcontent\n1\tsay "no\n0\tb c\n'),
    ],
)
def test_rows_of_every_kind_of_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    rows = read_labelled(tmp_path / name)
    assert [(row.label, row.text, row.text_pair) for row in rows] == [("1", 'say "no', None), ("0", "b c", None)]
    assert label_names(rows) == ("0", "1")
    assert label_ids("a", rows, ("bad", "good")) == [1, 0]


def test_rows_of_two_texts(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("premise\thypothesis\tlabel\na\tb\tyes\n", encoding="utf-8")
    row = read_labelled(tmp_path / "a.tsv")[0]
    assert (row.text, row.text_pair, row.label, row.line) == ("a", "b", "yes", 2)
    assert read_labelled(tmp_path / "a.tsv", "label", ["hypothesis"])[0].text == "b"
    (tmp_path / "c.tsv").write_text("text\tsentence\ngood\ta\n", encoding="utf-8")
    assert read_labelled(tmp_path / "c.tsv", "text")[0].text == "a"  # the label's column is not read as the text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"x", r"a\.txt: expected a file name that ends in"),
        ("a.tsv", b"", r"a\.tsv: no rows"),
        ("a.tsv", b"label\ttext\n", r"a\.tsv: no rows"),
        ("a.tsv", b"label\ttext\n1\ta\n1\n", r"a\.tsv:3: expected 2 columns \(label, text\), got 1"),
        ("a.tsv", b"label\ttext\n1\t \n", r"a\.tsv:2: 'text' is empty"),
        ("a.tsv", b"label\ttext\n1\t\xff\n", r"a\.tsv:2: not UTF-8 \(byte 2\)"),
        (
            "a.tsv",
            b"label\tx\ty\n1\ta\tb\n",
            r"a\.tsv:1: expected text columns with one of these names: .*; got label, x, y; choose a column with",
        ),
        ("a.tsv", b"label\tlabel\n1\ta\n", r"a\.tsv:1: duplicate column name"),
        (
            "a.tsv",
            b"kind\ttext\n1\ta\n",
            r"a\.tsv:2: expected a column 'label', got kind, text; choose columns with --label-column",
        ),
        ("a.csv", b'label,text\n1,"a\n', r"a\.csv:2: expected a closing quote within"),
        ("a.jsonl", b'{"label": 1, "text": "a"}\n{"label"\n', r"a\.jsonl:2: not JSON"),
        ("a.csv", b"label,text\n1,a\rb\n", r"a\.csv:2: a carriage return within a line"),
        (
            "a.jsonl",
            b'{"label": 1, "text": "a"}\n{"label": 1, "text": "a", "text_pair": "b"}\n',
            r"a\.jsonl:2: expected texts in text, as in earlier lines, got text and text_pair$",
        ),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: expected a JSON object, got a list"),
        ("a.jsonl", b'{"label": 1, "text": ["a"]}\n', r"a\.jsonl:1: 'text': expected text, got a list"),
        ("a.jsonl", b'{"label": null, "text": "a"}\n', r"a\.jsonl:1: 'label': expected text, got None"),
        ("a.jsonl", b'{"label": 1, "text": "a\\ud800"}\n', r"a\.jsonl:1: 'text' has a lone surrogate"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NpformerError, match=message):
        read_labelled(tmp_path / name)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_a_file_without_line_ends_is_not_read_into_memory(tmp_path: Path, name: str) -> None:
    with open(tmp_path / name, "wb") as file:
        file.truncate(2**40)  # a hole, which uses no space on the disk
    with pytest.raises(NpformerError, match=rf"{name}:1: expected at most 16777216 bytes in a line, got more"):
        read_labelled(tmp_path / name)


def test_bad_labels_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\ttext\ngood\ta\nGOOD\ta\n1\ta\nawful\tb\n", encoding="utf-8")
    rows = read_labelled(tmp_path / "a.tsv")
    assert label_ids("a.tsv", rows[:3], ("bad", "good")) == [1, 1, 1]
    with pytest.raises(NpformerError, match=r"a\.tsv:5: label: expected one of bad \(0\), good \(1\), got 'awful'"):
        label_ids("a.tsv", rows, ("bad", "good"))
    with pytest.raises(NpformerError, match="No such file"):
        read_labelled(tmp_path / "b.tsv")
    with pytest.raises(
        NpformerError, match=r"a\.tsv: labels: expected names that differ by more than case, got Bad, bad"
    ):
        label_ids("a.tsv", rows, ("Bad", "bad"))
    with pytest.raises(NpformerError, match=r"a\.tsv: labels: expected names, got an empty name in 'bad,,good'"):
        label_ids("a.tsv", rows, ("bad", "", "good"))
    with pytest.raises(NpformerError, match=r"line 2: expected label numbers of at most four digits, got 9{80}"):
        label_names([LabelledText("9" * 5000, "a", None, 2), LabelledText("1", "a", None, 3)])


def test_labels_that_are_numbers_are_names(tmp_path: Path) -> None:
    """The labels are named 1, 2 and 3, so 0 is refused. As an index, 0 would mean the label that is named 1."""
    rows = [LabelledText(label, "a", None, line) for line, label in enumerate("312", 2)]
    assert label_ids("a.tsv", rows, ("1", "2", "3")) == [2, 0, 1]
    with pytest.raises(NpformerError, match=r"a\.tsv:5: label: expected one of 1, 2, 3, got '0'$"):
        label_ids("a.tsv", [*rows, LabelledText("0", "a", None, 5)], ("1", "2", "3"))
    assert label_ids("a.tsv", rows, label_names(rows)) == [3, 1, 2]  # digits become indices, which start at 0


def test_scores() -> None:
    found = scores([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], ("a", "b"))
    assert found.confusion.tolist() == [[1, 1], [1, 2]]
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.f1.tolist() == pytest.approx([1 / 2, 2 / 3])
    assert "accuracy 0.6000" in str(found)
    absent = scores([1, 2], [1, 2], ("0", "1", "2"))  # no example has label 0
    assert (absent.accuracy, absent.macro_f1) == (1, 1)


# --- the commands ----------------------------------------------------------------------------------------------------


def test_finetune_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny model learns which of two words occurs, and the saved folder is a model with the same score."""
    tiny.folder(tmp_path / "model", head="base")
    rows = [("warm", "it was so hot"), ("cold", "it was an ice cream")] * 24
    (tmp_path / "train.tsv").write_text(
        "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8"
    )
    command = ["finetune", "-m", str(tmp_path / "model"), "--train", str(tmp_path / "train.tsv")]
    command += ["--dev", str(tmp_path / "train.tsv"), "-o", str(tmp_path / "out"), "--learning-rate", "3e-3"]
    assert cli.main([*command, "--epochs", "2", "--batch-size", "8"]) == 0
    assert "accuracy 1.0000" in capsys.readouterr().out
    model = load(tmp_path / "out")
    assert model.config.labels == ("cold", "warm")
    assert cli.main(["evaluate", "-m", str(tmp_path / "out"), "--data", str(tmp_path / "train.tsv"), "--json"]) == 0
    assert '"accuracy": 1.0' in capsys.readouterr().out
    assert cli.main(command) == 1
    assert "already contains a model; give another folder\n" in capsys.readouterr().err


@pytest.mark.slow
def test_finetune_that_makes_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], translator_folder: Path
) -> None:
    tiny.folder(tmp_path / "model", head="base")
    (tmp_path / "one.tsv").write_text("label\ttext\nyes\thot\nno\tcold\n", encoding="utf-8")
    (tmp_path / "two.tsv").write_text("label\ttext\ttext_pair\nyes\ta\tb\nno\tb\ta\n", encoding="utf-8")
    (tmp_path / "all.tsv").write_text("label\ttext\nyes\thot\nyes\tcold\n", encoding="utf-8")
    model, one, two, alike = (str(tmp_path / name) for name in ("model", "one.tsv", "two.tsv", "all.tsv"))
    command = ["finetune", "-m", model, "--train", alike, "--dev", alike, "-o", str(tmp_path / "out")]
    assert cli.main(command) == 1
    assert "all.tsv: labels: expected at least two, got only yes" in capsys.readouterr().err
    assert cli.main([*command, "--keep", "bfloat16"]) == 2  # training needs float32 weights
    for source, dev, more, message in (
        (model, two, (), "expected one text per row in both, or two in both"),
        (model, one, ("--average-every", "3"), "--average-every: needs --average"),
        (model, one, ("--labels", "no, maybe"), "label: expected one of no (0), maybe (1), got 'yes'"),
        (
            str(translator_folder / "out"),
            one,
            (),
            "expected an encoder to fine-tune for labels, got a marian model, which has a decoder",
        ),
        (model, one, ("--learning-rate", "999", "--weight-decay", "1e30", "--warmup", "0"), "smaller learning rate"),
    ):
        command = ["finetune", "-m", source, "--train", one, "--dev", dev, "-o", str(tmp_path / "out"), *more]
        assert cli.main(command) == 1, message
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"labels": ("a", "b"), "problem_type": "multi_label_classification"}, "got multi_label_classification"),
        ({"labels": ("a", "b"), "problem_type": "regression"}, "got regression"),
        ({"labels": ("a",)}, "got one label, whose answer is a number"),
    ],
)
def test_accuracy_is_for_one_of_several_labels(
    fields: dict[str, Any], got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accuracy assumes that the largest logit is the answer. With only one label, every text would count as correct."""
    tiny.folder(tmp_path / "model", **fields)
    (tmp_path / "a.tsv").write_text("label\ttext\na\tit was so hot\n", encoding="utf-8")
    assert cli.main(["evaluate", "-m", str(tmp_path / "model"), "--data", str(tmp_path / "a.tsv")]) == 1
    said = capsys.readouterr().err
    assert f"--data: expected a classifier that gives each text one of several labels, {got}\n" in said


@pytest.mark.filterwarnings("default")
def test_texts_that_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of truncated texts is reported, and the saved model truncates at the same length."""
    tiny.folder(tmp_path / "model", head="base")
    (tmp_path / "a.tsv").write_text("label\ttext\nyes\t" + "hot " * 30 + "\nno\tcold\n", encoding="utf-8")
    files = ["--train", str(tmp_path / "a.tsv"), "--dev", str(tmp_path / "a.tsv"), "-o", str(tmp_path / "out")]
    command = ["finetune", "-m", str(tmp_path / "model"), *files, "--epochs", "1", "--max-length", "9"]
    assert cli.main([*command, "--clip", "0"]) == 0
    assert "a.tsv:2: 32 tokens, cut to 9; 1 of 2 texts were cut" in capsys.readouterr().err
    assert cli.main(["evaluate", "-m", str(tmp_path / "out"), "--data", str(tmp_path / "a.tsv")]) == 0
    assert "a.tsv:2: 32 tokens, cut to 9; 1 of 2 texts were cut" in capsys.readouterr().err


# --- translation -----------------------------------------------------------------------------------------------------

WORDS = {"the": "der", "a": "ein", "dog": "Hund", "man": "Mann", "runs": "läuft", "sits": "sitzt", ".": "."}
needs_sacrebleu = needs("evaluate", "sacrebleu")


def sentences(folder: Path) -> list[str]:
    """Writes sentences of a small language and their word-by-word translations to two files; returns the paths."""
    found = [f"{a} {b} {c}." for a in ("the", "a") for b in ("dog", "man") for c in ("runs", "sits")]
    found += [f"{a} and {b}" for a in found for b in found]
    translated = [" ".join(WORDS.get(each, "und") for each in text.replace(".", " .").split()) for text in found]
    names = []
    for name, lines in (("a.en", found), ("a.de", [text.replace(" .", ".") for text in translated])):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        names.append(str(folder / name))
    return names


def train_translation(folder: Path, names: list[str], *more: str) -> int:
    sizes = ["--vocabulary", "300", "--width", "32", "--heads", "2", "--ffn", "64", "--layers", "1"]
    recipe = [
        "--keep-state",
        "--epochs",
        "40",
        "--batch-size",
        "8",
        "--learning-rate",
        "5e-3",
        "--dropout",
        "0",
        "--average",
        "2",
    ]
    command = ["train-translation", "--train", *names, "--dev", *names, "-o", str(folder / "out")]
    return cli.main([*command, *sizes, *recipe, *more])


@pytest.fixture(scope="module")
def translator_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the files `a.en` and `a.de`, and a translator in `out` that has learnt them."""
    folder = tmp_path_factory.mktemp("translator")
    assert train_translation(folder, sentences(folder)) == 0
    return folder


@pytest.mark.slow
def test_train_translation_learns_a_language(translator_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result is a model for the command `translate`, which translates more than nine in ten sentences exactly."""
    lines = (translator_folder / "a.en").read_text(encoding="utf-8").splitlines()
    wanted = (translator_folder / "a.de").read_text(encoding="utf-8").splitlines()
    assert cli.main(["translate", "-m", str(translator_folder / "out"), *lines]) == 0
    found = capsys.readouterr().out.splitlines()
    assert len(found) == len(wanted)
    assert sum(a == b for a, b in zip(found, wanted, strict=True)) > 0.9 * len(wanted)
    config = load(translator_folder / "out").config
    assert (config.model_type, config.max_length, config.d_model, config.n_layers) == ("marian", 256, 32, 1)
    kept = sorted(each.name for each in (translator_folder / "out" / "training").glob("step*"))
    assert kept == [f"step-{epoch * -(-len(lines) // 8)}.safetensors" for epoch in (39, 40)]
    assert train_translation(translator_folder, sentences(translator_folder)) == 1
    assert "already contains a model" in capsys.readouterr().err


@pytest.mark.slow
@needs_sacrebleu
@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_evaluate_names_the_line_of_a_pair(translator_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, model = translator_folder, str(translator_folder / "out")
    files = [str(folder / "some.en"), str(folder / "some.de")]
    (folder / "some.de").write_text("ein Hund\nein Mann\n", encoding="utf-8")
    (folder / "some.en").write_text("a dog\n\n", encoding="utf-8")
    assert cli.main(["evaluate", "-m", model, "--source", files[0], "--reference", files[1]]) == 1
    assert "some.en:2: expected a sentence in each line, got an empty line" in capsys.readouterr().err
    (folder / "some.en").write_text("a dog\n" + "a man " * 300 + "\n", encoding="utf-8")
    assert cli.main(["evaluate", "-m", model, "--source", files[0], "--reference", files[1]]) == 0
    assert "some.en:2: 602 tokens, cut to 256; 1 of 2 texts were cut" in capsys.readouterr().err


@needs_sacrebleu
@pytest.mark.slow
def test_evaluate_measures_bleu(translator_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BLEU is 100 for the model's own translations, and lower for other texts. The output includes
    sacrebleu's signature, which describes the method."""
    model, reference = str(translator_folder / "out"), translator_folder / "answers.de"
    assert cli.main(["translate", "-m", model, "--file", str(translator_folder / "a.en")]) == 0
    reference.write_text(capsys.readouterr().out, encoding="utf-8")
    files = ["--source", str(translator_folder / "a.en"), "--reference", str(reference)]
    command = ["evaluate", "-m", str(translator_folder / "out"), *files]
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bleu"] == pytest.approx(100)
    assert found["texts"] == 72
    assert "tok:13a" in found["signature"]
    command[-1] = command[-3]
    assert cli.main(command) == 0
    assert float(re.match(r"BLEU = ([\d.]+)", capsys.readouterr().out)[1]) < 20  # type: ignore[index]


@pytest.mark.parametrize(
    ("target", "more", "message"),
    [
        (b"ein\n\n", (), r"a\.de:2: expected a sentence in each line, got an empty line"),
        (b"ein\n", (), r"a\.de: expected 2 lines, as in .*a\.en, got 1"),
        (b"ein\n\xff\n", (), r"a\.de:2: not UTF-8"),
        (b"ein\nzwei\n", ("--vocabulary", "100"), "expected a vocabulary of 258 to 1000000 tokens, got 100"),
        (b"ein\n1 2 3 4 5 6 7 8 9\n", ("--max-length", "9"), r"a\.de:2: expected at most 9 tokens, got [0-9]+"),
        (b"ein\nzwei\n", ("--vocabulary", "9" * 30), "expected a vocabulary of 258 to 1000000 tokens, got 9"),
        (b"ein\nzwei\n", ("--seed", "-1"), "seed: expected a whole number of at least 0, got -1"),
        (b"ein\nzwei\n", ("--warmup", "nan"), "warmup: expected a number of at least 0, got nan"),
        (b"ein\nzwei\n", ("--clip", "-1"), "clip: expected a number above 0, got -1"),
        (b"ein\nzwei\n", ("--learning-rate", "1e30"), "learning_rate: expected a number from 0 to 1000"),
        (b"ein\nzwei\n", ("--eps", "inf"), "eps: expected a number above 0, got inf"),
        (b"ein\nzwei\n", ("--dropout", "0.9999999"), "--dropout: expected a number in .0, 1."),
        (b"ein\nzwei\n", ("--width", "33"), "n_heads: 2 does not divide d_model 33"),
        (b"ein\nzwei\n", ("--dropout", "1"), "--dropout: expected a number in .0, 1."),
        (b"ein\nzwei\n", ("--betas", "0.9"), "--betas: expected two numbers"),
    ],
)
def test_pairs_that_cannot_be_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: bytes, more: tuple[str, ...], message: str
) -> None:
    (tmp_path / "a.en").write_bytes(b"one\ntwo\n")
    (tmp_path / "a.de").write_bytes(target)
    assert train_translation(tmp_path, [str(tmp_path / "a.en"), str(tmp_path / "a.de")], *more) == 1
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_same_texts_give_the_same_vocabulary(translator_folder: Path) -> None:
    """A vocabulary is learnt deterministically, so a resumed run does not need a stored one."""
    texts = (translator_folder / "a.en").read_text(encoding="utf-8").splitlines()
    assert learn_tokenizer(texts, 290).to_str() == learn_tokenizer(texts, 290).to_str()


def test_a_vocabulary_on_bytes_has_every_character() -> None:
    tokenizer = learn_tokenizer(["a dog", "ein Hund"], 270)
    for text in ("a dog", "Grüße, 你好 \U0001f600!", "x  y"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("a").ids[-1] == tokenizer.token_to_id("</s>") == 0


@pytest.mark.slow
def test_pieces_of_bytes_are_shown_as_text(translator_folder: Path) -> None:
    tokenizer = load(translator_folder / "out").tokenizer
    assert tokenizer.tokens(tokenizer.encode("the dog läuft."), True) == ["▁the", "▁dog", "▁läuft", ".", "</s>"]


# --- pictures --------------------------------------------------------------------------------------------------------


def test_an_animation_is_one_page(tmp_path: Path) -> None:
    frames = list(np.random.default_rng(0).standard_normal((3, 4, 2)))
    titles = ["epoch 0", "epoch 1", "epoch </script> 2"]
    animate(tmp_path / "a.html", frames, [0, 1, 1, 0], ("good & bad", "ugly"), titles)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 1
    assert "good &amp; bad" in page
    assert "http" not in page
    assert [each.name for each in tmp_path.iterdir()] == ["a.html"]
    with pytest.raises(NpformerError, match=r"a\.png: expected a file name that ends"):
        animate(tmp_path / "a.png", frames, [0, 1, 1, 0], ("a", "b"), titles)
    with pytest.raises(NpformerError, match="animate: expected frames"):
        animate(tmp_path / "a.html", frames, [0, 1], ("a", "b"), titles)


@needs("plots", "matplotlib", "sklearn")
def test_an_animation_is_a_gif_too(tmp_path: Path) -> None:
    """The animation is a GIF with one frame per epoch."""
    frames = list(np.random.default_rng(0).standard_normal((3, 4, 2)))
    animate(tmp_path / "a.gif", frames, [0, 1, 1, 0], ("good", "bad"), ["0", "1", "2"])
    from PIL import Image

    with Image.open(tmp_path / "a.gif") as picture:
        assert (picture.format, picture.n_frames) == ("GIF", 3)
