"""Fixtures: a tiny model of each of five families with its golden values, and the conformance suite.

The suite is written once per run: all cases for slow tests, and a few for quick tests.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import golden
from npformer.config import Positions
from npformer.engine.runtime.packing import Text
from npformer.golden.suite import SIZES, cases
from npformer.model import Model
from tests.support import tiny

FAMILIES = ("distilbert", "bert", "electra", "roberta", "gpt2")
LENGTHS = (9, 6, 3)

CASES = {case.name: case for case in cases()}
#: Feature that a case tests -> config fields that turn the feature off.
WITHOUT: dict[str, dict[str, Any]] = {
    "gelu-tanh": {"activation": "gelu"},
    "relu": {"activation": "gelu"},
    "silu": {"activation": "gelu"},
    "gelu": {"activation": "relu"},
    "eps": {"eps": 1e-12},
    "padding": {"positions": Positions(), "max_length": SIZES["max_length"] + 4},
    "ends-in-padding": {"pad_id": None},
    "multi-label": {"problem_type": None},
    "convolution": {"convolution": None},
    "scaled": {"scale_embedding": False},
    "pre-norm": {"norm_first": False},
    "translation-tied": {"scale_embedding": False},
    "translation-pre-norm": {"norm_first": False},
}

#: Cases that quick tests use by name.
READ = ["bert-sequence-classification", "bert-lengths", "bert-masked-lm", "bert-bfloat16", "bert-float16"]
READ += ["electra-untied", "electra-bfloat16", "transformer-base", "marian-two-vocabularies", "marian-relu"]
#: One case for each feature, alternating between families.
SHOWN = ["distilbert-gelu-tanh", "bert-relu", "electra-silu", "gpt2-gelu", "modernbert-eps", "roberta-padding"]
SHOWN += ["llama-ends-in-padding", "albert-multi-label", "bart-scaled", "transformer-pre-norm"]
SHOWN += ["transformer-translation-tied", "transformer-translation-pre-norm"]
#: The other cases of these features.
OF_FEATURES = [name for name in CASES if name.partition("-")[2] in WITHOUT and name not in SHOWN]
#: A case for each family, head, activation and dtype. The same code writes and reads all cases.
OF_EACH = sorted(
    {
        *{case.config.model_type: name for name, case in CASES.items()}.values(),
        *{case.config.head: name for name, case in CASES.items()}.values(),
        *{case.config.activation: name for name, case in CASES.items()}.values(),
        *{case.dtype: name for name, case in CASES.items()}.values(),
    }
)


def texts_for(model: Model, lengths: tuple[int, ...] = LENGTHS) -> list[Text]:
    random = np.random.default_rng(0)
    return [Text(random.integers(5, model.config.vocab_size, length)) for length in lengths]


@pytest.fixture(scope="session", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return tiny.model(request.param)


@pytest.fixture(scope="session")
def recorded(model: Model) -> golden.Golden:
    return golden.record(model, texts_for(model))


@pytest.fixture(scope="session")
def large_suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.suite(tmp_path_factory.mktemp("suite") / "suite")


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.suite(tmp_path_factory.mktemp("suite") / "suite", READ)


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.suite(tmp_path_factory.mktemp("suite") / "suite", SHOWN)
