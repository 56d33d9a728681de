"""The folders of tiny models that the commands read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_runner import make_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory.mktemp("models"))
