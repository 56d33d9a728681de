"""Servers of tiny models and of the bundled model, and the same models' answers in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npformer import pipeline
from tests.support import seq2seq_models, tiny
from tests.support.service import Server


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    ranker = tiny.folder(home / "ranker", "bert", labels=("relevance",), seed=3)
    config = json.loads((ranker / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (ranker / "config.json").write_text(json.dumps(config))
    specific = {"summarization": {"prefix": "news: ", "max_length": 12, "num_beams": 2}}
    return {
        "classifier": tiny.folder(home / "classifier", labels=("bad", "fair", "good")),
        "ranker": ranker,
        "encoder": tiny.folder(home / "encoder", "bert", "base", seed=5),
        "translator": seq2seq_models.folder_of_letters(home / "translator"),
        "summarizer": seq2seq_models.bart_folder(home / "summarizer", task_specific_params=specific),
        "rewriter": seq2seq_models.bart_folder(home / "rewriter"),
    }


@pytest.fixture(scope="session")
def server(folders: dict[str, Path]) -> Iterator[Server]:
    """Yields a server of all tiny models."""
    with Server(*folders.values(), "--max-texts", 40, "--max-body", 100_000) as running:
        yield running


@pytest.fixture(scope="session")
def alone(folders: dict[str, Path]) -> Any:
    """Returns a function that makes the pipeline for a task and a model's name."""

    def make(task: str, name: str, **options: Any) -> Any:
        return pipeline(task, folders[name], **options)

    return make
