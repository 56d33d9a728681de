"""`learn look` records the stages of the learner's model, and shows them next to npformer's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from npformer.cli.main import main
from npformer.learn import look
from npformer.learn.look import learners_stages
from npformer.learn.whole import TEXT
from tests.learn.test_check import PLAIN, written


@pytest.mark.parametrize(
    "unwritten",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["softmax", "scaled_dot_product_attention", "encoder_layer", "distilbert"],
    ],
    ids=["complete", "in part"],
)
def test_the_stages_are_those_of_the_model(unwritten: list[str], tmp_path: Path) -> None:
    """The stages agree up to the float32 rounding of six layers. The two models use the same weights and text, but
    different code.

    npformer's functions call the learner's functions, and the stages of both models are recorded.
    """
    folder = written(tmp_path, {}, PLAIN)
    stages = learners_stages(folder / "my_transformer.py", unwritten, TEXT)
    right = npformer.trace(npformer.load("distilbert-sst2"), TEXT)
    assert [name for name in right if name not in stages] == [
        "embeddings.token",
        "embeddings.position",
        "probabilities",
    ]
    for name, array in stages.items():
        np.testing.assert_allclose(array, right[name], atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_a_page_has_the_learners_model_and_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner's layer is wrong, and classify is not yet written; attention in layer 0 is correct."""
    wrong = "def feed_forward(x, activation, hidden, output):\n    return x"
    unwritten = "def classify(x, pooler, head):\n    raise NotImplementedError"
    folder = written(tmp_path, {"feed_forward": wrong, "classify": unwritten}, PLAIN)
    pages = []
    monkeypatch.setattr("npformer.learn.look", lambda folder: pages.append(look(folder)) or pages[-1])
    assert main(["learn", "look", "--folder", str(folder)]) == 0
    assert "yours: I love ice cream" in (folder / "look.html").read_text(encoding="utf-8")
    yours, right = pages[0].texts
    assert (
        [view.kind for view in yours]
        == [view.kind for view in right]
        == ["heads", "model", "neurons", "stages", "attribution"]
    )
    mine, true = yours[0].stacks[0].layers, right[0].stacks[0].layers  # type: ignore[attr-defined]
    np.testing.assert_allclose(mine[0], true[0], atol=1e-5)
    assert np.abs(mine[5] - true[5]).max() > 0.1


@pytest.mark.slow
def test_a_model_that_cannot_be_drawn_says_why(tmp_path: Path) -> None:
    broken = "def encoder_layer(x, mask, n_heads, activation, eps, attention, attention_norm, ffn, ffn_norm):\n    return x[100]"
    with pytest.raises(
        NpformerError,
        match=r"your model cannot be run: IndexError: index 100 is out of bounds.*; `npformer learn check` shows",
    ):
        look(written(tmp_path, {"encoder_layer": broken}, PLAIN))
    silent = PLAIN.replace(
        "weights = masked_softmax(scores, mask)", "weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)"
    )
    with pytest.raises(NpformerError, match="attention weights cannot be shown: masked_softmax must call"):
        look(written(tmp_path, {}, silent))
