"""Rerankers that are causal language models: scores from the logits of two tokens, with a chat template."""

from __future__ import annotations

import json

import numpy as np
import pytest

from npformer import NpformerError, Pair, load, pipeline
from npformer.checkpoint.convert import convert
from npformer.cli.main import main
from tests.support import byte_level, reranker

pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
pytestmark = pytest.mark.extra
QUERY, TEXTS = "what is good", ["ice cream", "", "not my music"]
PAIRS = [Pair(QUERY, text) for text in TEXTS]


def rendered(query, text, instruction="Find it"):
    """Returns a prompt as the template of `reranker` renders it."""
    return (
        f'<|im_start|>system\nJudge. Answer "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n'
        f"<Query>: {query}\n<Document>: {text}<|im_end|><|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.numbers
@pytest.mark.parametrize("false_id", [reranker.NO, None])
def test_a_score_is_the_difference_of_two_logits_at_the_last_token(false_id, tmp_path):
    """In float64, the score and the difference agree only to 1e-12, because x (w_yes - w_no) and x w_yes - x w_no round
    differently.
    """
    folder = reranker.write(tmp_path / "model", false_id)
    model, rank = load(folder, dtype=np.float64), pipeline(None, folder, dtype=np.float64, function_to_apply="none")
    for options, instruction in (({}, "Find it"), ({"prompt_name": "query"}, reranker.INSTRUCTION)):
        expected = []
        for pair in PAIRS:
            ids = model.tokenizer.encode(rendered(*pair, instruction), add_special_tokens=False).ids
            logits = model([ids]).logits[0, -1]
            expected.append(logits[reranker.YES] - (0 if false_id is None else logits[false_id]))
        np.testing.assert_allclose([each["score"] for each in rank(PAIRS, **options)], expected, rtol=0, atol=1e-12)
    assert rank(PAIRS[1]) == rank(PAIRS)[1]


def test_a_tokenizer_that_adds_tokens_adds_none_to_a_template(tmp_path):
    folder = reranker.write(tmp_path / "model")
    plain = pipeline(None, folder)(PAIRS)
    byte_level.tokenizer(ends=True).save(str(folder / "tokenizer.json"))
    model = load(folder)
    assert pipeline("text-ranking", model)(PAIRS) == plain
    assert model.tokenizer.num_special_tokens_to_add(False) == 1  # the task uses its own copy of the tokenizer


def test_a_truncated_text_keeps_the_end_of_the_template(tmp_path):
    rank = pipeline(None, reranker.write(tmp_path / "model"))
    with pytest.warns(UserWarning, match="cut to 400"):
        cut = rank([Pair(QUERY, "ice " * 150)])
    ids = rank.tokenizer.encode(rendered(QUERY, "ice " * 150)).ids
    end = len(rank.tokenizer.encode("<|im_end|><|im_start|>assistant\n<think>\n\n</think>\n\n").ids)
    logit = float(rank.model([ids[: 400 - end] + ids[-end:]]).logits[0, 0])
    assert cut[0]["score"] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-6)
    with pytest.raises(NpformerError, match="long: texts in a chat template are not read in windows"):
        rank(PAIRS, long="window")


@pytest.mark.filterwarnings("ignore")
def test_commands_and_converted_folders(tmp_path, capsys):
    folder = reranker.write(tmp_path / "model")
    expected = pipeline(None, folder)(PAIRS[0])["score"]
    convert(folder, tmp_path / "converted")
    (tmp_path / "texts").write_text(TEXTS[0])
    for made in (folder, tmp_path / "converted"):
        assert main(["rerank", "-m", str(made), QUERY, str(tmp_path / "texts"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["score"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"true_token_id": "yes"}, r"1_LogitScore/config\.json: true_token_id: expected"),
        ({"true_token_id": 10_000}, "LogitScore: token id 10000 is outside the vocabulary of 262"),
        ({"true_token_id": 1, "module_input_name": "logits"}, "module_input_name: expected one of causal_logits"),
    ],
)
def test_invalid_settings_are_refused(described, message, tmp_path):
    folder = reranker.write(tmp_path / "model")
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(described))
    with pytest.raises(NpformerError, match=message):
        pipeline(None, folder)


def test_a_causal_language_model_without_the_module_is_refused(tmp_path):
    folder = reranker.write(tmp_path / "model")
    (folder / "modules.json").unlink()
    with pytest.raises(NpformerError, match="causal-lm model needs a LogitScore module"):
        pipeline("text-ranking", folder)
