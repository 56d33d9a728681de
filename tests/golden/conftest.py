"""Fixtures of the conformance suite, written once per run: all cases for slow tests, and a few for quick ones."""

from pathlib import Path

import pytest

from npformer import golden

#: Cases that quick tests name.
READ = ["bert-sequence-classification", "bert-lengths", "bert-masked-lm", "bert-bfloat16", "bert-float16"]
READ += ["electra-untied", "electra-bfloat16", "transformer-base", "marian-two-vocabularies", "marian-relu"]
#: One case for each feature, alternating between families.
SHOWN = ["distilbert-gelu-tanh", "bert-relu", "electra-silu", "gpt2-gelu", "modernbert-eps", "roberta-padding"]
SHOWN += ["llama-ends-in-padding", "albert-multi-label", "bart-scaled", "transformer-pre-norm"]
SHOWN += ["transformer-translation-tied", "transformer-translation-pre-norm"]


@pytest.fixture(scope="session")
def whole_suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.suite(tmp_path_factory.mktemp("suite") / "suite")


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.suite(tmp_path_factory.mktemp("suite") / "suite", READ)


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.suite(tmp_path_factory.mktemp("suite") / "suite", SHOWN)
