"""Summaries of a tiny BART equal those of transformers' `generate`; transformers 5 has no pipeline for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BartForConditionalGeneration

import npformer
from tests.golden.make_tasks import LONG, TOKENIZER
from tests.support.seq2seq_models import bart_folder

TEXTS = ["I love ice cream", LONG[:60], "the people of Paris are not bad at all!"]
OWN: dict[str, Any] = {
    "max_length": 14,
    "min_length": 9,
    "num_beams": 3,
    "no_repeat_ngram_size": 2,
    "length_penalty": 2.0,
}
CALLS: list[dict[str, Any]] = [
    {},
    {"min_length": 40},
    {"max_length": 8},
    {"num_beams": 1, "sequence_bias": [[[30], 3.0], [[30, 31], 6.0]]},
    {"exponential_decay_length_penalty": (3, 1.3), "min_length": 0},
]


@pytest.mark.filterwarnings("ignore:Unfeasible length", "ignore:min_length or min_new_tokens")
@pytest.mark.parametrize("given", CALLS, ids=str)
def test_summaries_match_transformers(given: dict[str, Any], tmp_path: Path) -> None:
    """The caller's settings override the task's settings; the task also has a prefix."""
    specific = {"summarization": {**OWN, "prefix": "news: "}}
    folder = bart_folder(tmp_path / "bart", task_specific_params=specific, forced_eos_token_id=3)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BartForConditionalGeneration.from_pretrained(folder)
    expected = []
    for text in TEXTS:
        ids = tokenizer(f"news: {text}", return_tensors="pt", return_token_type_ids=False)
        written = model.generate(**ids, **{**OWN, **given})[0]
        expected.append({"summary_text": tokenizer.decode(written, skip_special_tokens=True)})
    assert npformer.pipeline(model=folder)(TEXTS, **given) == expected
