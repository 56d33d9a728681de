"""text-ranking compared with sentence-transformers: the scores of `CrossEncoder.predict`, with every activation that
sentence-transformers stores.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from torch import nn

from npformer import Pair, pipeline
from npformer.checkpoint.modules import MODULES
from npformer.tasks.sentence_folder import DESCRIPTION
from npformer.tasks.text_ranking import OLDER
from tests.support import tiny

IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 64,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")},
}
#: An empty text, and pairs in which the first or the second text is truncated.
PAIRS = [
    ("what is good", "ice cream"),
    ("what is good", "not my music"),
    ("what is good", ""),
    ("what is good", "ice " * 90),
    ("what " * 50, "ice " * 30),
]


@pytest.mark.filterwarnings("ignore:input 3")  # the warning that an input is truncated
@pytest.mark.parametrize(
    "stored",
    [
        {},
        {OLDER: IDENTITY},
        {OLDER: SIGMOID},
        {"sentence_transformers": {"activation_fn": IDENTITY}},
        {"sentence_transformers": {"activation_fn": SIGMOID}, OLDER: IDENTITY},
    ],
)
def test_scores_match_a_cross_encoder(stored, tmp_path):
    """Scores agree to 1e-6, ten times the float32 rounding of scores below 2."""
    folder = tiny.folder(tmp_path / "model", "bert", labels=("SCORE",), seed=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **stored}))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    assert_same_scores(folder)


@pytest.mark.filterwarnings("ignore:input 3")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_fn": nn.Identity()},
        {"activation_fn": nn.Sigmoid()},
        {"activation_fn": nn.Identity(), "prompts": {"ask": "what "}, "default_prompt_name": "ask"},
        {"prompts": {"ask": "what "}},
        {"activation_fn": nn.Identity(), "max_length": 24},
    ],
)
def test_scores_match_a_saved_cross_encoder(options, tmp_path):
    """Scores also agree after config.json gets a different activation."""
    folder = tiny.folder(tmp_path / "model", "bert", labels=("SCORE",), seed=3)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    CrossEncoder(str(folder), device="cpu", **options).save_pretrained(str(tmp_path / "saved"))
    assert_same_scores(tmp_path / "saved")
    edit(tmp_path / "saved" / "config.json", sentence_transformers={"activation_fn": IDENTITY})
    assert_same_scores(tmp_path / "saved")


@pytest.mark.filterwarnings("ignore:input 3")
@pytest.mark.parametrize("model_type", ["CrossEncoder", "SentenceTransformer", None])
@pytest.mark.parametrize("activation", [IDENTITY, None])
@pytest.mark.parametrize("with_modules", [True, False])
def test_when_the_newer_file_is_used(model_type, activation, with_modules, tmp_path):
    """The newer file is used if there is a modules.json, as for a CrossEncoder, and if the newer file's activation is
    not null."""
    folder = tiny.folder(tmp_path / "model", "bert", labels=("SCORE",), seed=3)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "saved"))
    edit(tmp_path / "saved" / DESCRIPTION, model_type=model_type, activation_fn=activation)
    if not with_modules:
        (tmp_path / "saved" / MODULES).unlink()
    assert_same_scores(tmp_path / "saved")


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def assert_same_scores(folder):
    theirs = CrossEncoder(str(folder), device="cpu").predict(PAIRS, batch_size=1)
    ours = pipeline("text-ranking", folder)([Pair(*each) for each in PAIRS])
    np.testing.assert_allclose([each["score"] for each in ours], theirs, rtol=0, atol=1e-6)
