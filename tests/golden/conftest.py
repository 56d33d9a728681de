"""The conformance suite, written once for all tests of it."""

from pathlib import Path

import pytest

from npformer import golden


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.suite(tmp_path_factory.mktemp("suite") / "suite")
