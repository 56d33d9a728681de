"""A task that is declared only in these tests has all features that follow from a declaration. tests/dataset and
tests/http test its datasets and its route."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.cli.main import main
from npformer.tasks.pipelines import tasks_of
from tests.support import label_entropy, tiny

TEXTS = ["I love ice cream", "not my music"]


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    label_entropy.declare(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.folder(tmp_path / "model", labels=("bad", "fair", "good"))


def test_the_pipeline_makes_it_by_its_name(folder: Path) -> None:
    found = npformer.pipeline("label-entropy", folder, unit="bits")(TEXTS)
    for answer, scores in zip(found, npformer.pipeline("text-classification", folder, top_k=None)(TEXTS), strict=True):
        p = np.array([each["score"] for each in scores])
        assert answer["label"] == scores[0]["label"]
        np.testing.assert_allclose(answer["entropy"], -(p * np.log2(p)).sum(), rtol=1e-5)
    assert tasks_of(npformer.load(folder).config)[:2] == ["text-classification", "label-entropy"]


def test_models_and_options_are_checked(folder: Path) -> None:
    with pytest.raises(
        npformer.NpformerError, match="label-entropy: expected a sequence-classification model, got a base model"
    ):
        npformer.pipeline("label-entropy", tiny.model("bert", "base"))
    with pytest.raises(npformer.NpformerError, match=r"no default model; .* of a classifier$"):
        npformer.pipeline("label-entropy")
    with pytest.raises(npformer.NpformerError, match=r"unit: .*'pounds'"):
        npformer.pipeline("label-entropy", folder, unit="pounds")


def test_the_command_line_has_its_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = npformer.pipeline("label-entropy", folder, unit="bits")(TEXTS)
    given = ["-m", str(folder), "--unit", "bits", *TEXTS]
    assert main(["entropy", *given]) == 0
    shown = [f"{each['entropy']:.4f}  {each['label']}  {text}" for each, text in zip(found, TEXTS, strict=True)]
    assert capsys.readouterr().out.splitlines() == shown
    assert main(["entropy", "--json", *given]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["text"], row["entropy"]) for row in rows] == [
        (text, each["entropy"]) for each, text in zip(found, TEXTS, strict=True)
    ]
    assert main(["--help"]) == 0
    assert "  entropy            how unsure a classifier is of each text\n" in capsys.readouterr().out
    assert main(["entropy", "--help"]) == 0
    assert "the unit of entropies (nats)" in capsys.readouterr().out
