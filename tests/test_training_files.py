"""Training from files: rows that are wrong are named, the commands learn and measure, embeddings become pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

from npformer import cli
from npformer.errors import NpformerError
from npformer.loading import load
from npformer.training import label_ids, label_names, project, read_rows
from npformer.training.animation import animate
from npformer.training.metrics import scores

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
    rows = read_rows(tmp_path / name)
    assert [(row.label, row.text, row.text_pair) for row in rows] == [("1", 'say "no', None), ("0", "b c", None)]
    assert label_names(rows) == ("0", "1")
    assert label_ids("a", rows, ("bad", "good")) == [1, 0]


def test_rows_of_two_texts(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("premise\thypothesis\tlabel\na\tb\tyes\n", encoding="utf-8")
    row = read_rows(tmp_path / "a.tsv")[0]
    assert (row.text, row.text_pair, row.label, row.line) == ("a", "b", "yes", 2)
    assert read_rows(tmp_path / "a.tsv", "label", ["hypothesis"])[0].text == "b"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"x", r"a\.txt: expected a file that ends in"),
        ("a.tsv", b"", r"a\.tsv: no rows"),
        ("a.tsv", b"label\ttext\n", r"a\.tsv: no rows"),
        ("a.tsv", b"label\ttext\n1\ta\n1\n", r"a\.tsv:3: expected 2 columns \(label, text\), got 1"),
        ("a.tsv", b"label\ttext\n1\t \n", r"a\.tsv:2: 'text' is empty"),
        ("a.tsv", b"label\ttext\n1\t\xff\n", r"a\.tsv:2: not UTF-8 \(byte 2\)"),
        ("a.tsv", b"label\tx\ty\n1\ta\tb\n", r"a\.tsv:2: columns label, x, y; expected the text in one of"),
        ("a.tsv", b"label\tlabel\n1\ta\n", r"a\.tsv:1: a column's name is there twice"),
        ("a.tsv", b"kind\ttext\n1\ta\n", r"a\.tsv:2: no 'label'; the row has kind, text"),
        ("a.csv", b'label,text\n1,"a\n', r"a\.csv:2: unexpected end of data"),
        ("a.jsonl", b'{"label": 1, "text": "a"}\n{"label"\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1: expected a JSON object, got a list"),
        ("a.jsonl", b'{"label": 1, "text": ["a"]}\n', r"a\.jsonl:1: 'text': expected text, got a list"),
        ("a.jsonl", b'{"label": null, "text": "a"}\n', r"a\.jsonl:1: no 'label'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NpformerError, match=message):
        read_rows(tmp_path / name)


def test_bad_labels_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\ttext\ngood\ta\nGOOD\ta\n1\ta\nawful\tb\n", encoding="utf-8")
    rows = read_rows(tmp_path / "a.tsv")
    assert label_ids("a.tsv", rows[:3], ("bad", "good")) == [1, 1, 1]
    with pytest.raises(NpformerError, match=r"a\.tsv:5: label 'awful'; expected one of bad \(0\), good \(1\)"):
        label_ids("a.tsv", rows, ("bad", "good"))
    with pytest.raises(NpformerError, match="No such file"):
        read_rows(tmp_path / "b.tsv")


def test_scores() -> None:
    found = scores([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], ("a", "b"))
    assert found.confusion.tolist() == [[1, 1], [1, 2]]
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.f1.tolist() == pytest.approx([1 / 2, 2 / 3])
    assert "accuracy 0.6000" in str(found)


# --- the commands ----------------------------------------------------------------------------------------------------


def test_finetune_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tiny model learns which of two words is there; the folder that it leaves is a model, and scores the same."""
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
    assert "a model is there already" in capsys.readouterr().err


def test_finetune_names_a_bad_row_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.folder(tmp_path / "model")
    (tmp_path / "train.tsv").write_text("label\ttext\n1\ta\n0\n", encoding="utf-8")
    command = ["finetune", "-m", str(tmp_path / "model"), "--train", str(tmp_path / "train.tsv")]
    assert cli.main([*command, "--dev", str(tmp_path / "train.tsv"), "-o", str(tmp_path / "out")]) == 1
    assert "train.tsv:3: expected 2 columns" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- pictures --------------------------------------------------------------------------------------------------------


def test_principal_components() -> None:
    """The first coordinate has the largest variance; distances in as many dimensions as there are stay."""
    random = np.random.default_rng(0)
    x = random.standard_normal((30, 5)) * [5, 1, 1, 1, 1]
    points = project(x)
    assert points.shape == (30, 2)
    assert np.abs(points.mean(axis=0)).max() < 1e-12
    assert points[:, 0].std() > 2 * points[:, 1].std()
    whole = project(x, dimensions=5)
    distances = [np.linalg.norm(each[:, None] - each, axis=-1) for each in (x, whole)]
    assert np.abs(distances[0] - distances[1]).max() < 1e-12
    with pytest.raises(NpformerError, match="project: 9 dimensions"):
        project(x, dimensions=9)
    with pytest.raises(NpformerError, match="method"):
        project(x, "umap")


def test_an_animation_is_one_page(tmp_path: Path) -> None:
    frames = list(np.random.default_rng(0).standard_normal((3, 4, 2)))
    titles = ["epoch 0", "epoch 1", "epoch </script> 2"]
    animate(tmp_path / "a.html", frames, [0, 1, 1, 0], ("good & bad", "ugly"), titles)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 1
    assert "good &amp; bad" in page
    assert "http" not in page
    assert [each.name for each in tmp_path.iterdir()] == ["a.html"]
    with pytest.raises(NpformerError, match=r"a\.png: expected a file that ends"):
        animate(tmp_path / "a.png", frames, [0, 1, 1, 0], ("a", "b"), titles)
    with pytest.raises(NpformerError, match="animate: expected frames"):
        animate(tmp_path / "a.html", frames, [0, 1], ("a", "b"), titles)
