"""If the extra `serve` is not installed, errors name it."""

from __future__ import annotations

import pytest

import npformer
from npformer import serve
from npformer.cli.main import main
from npformer.common.extras import installation


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())


def test_an_app_names_the_extra_to_install():
    with pytest.raises(npformer.NpformerError, match=r'serve needs uvicorn: pip install "npformer\[serve\] @ git'):
        npformer.serve.app("distilbert-sst2")


def test_the_command_names_the_extra_to_install(capsys):
    assert main(["serve", "distilbert-sst2"]) == 1
    assert capsys.readouterr().err == f"npformer: serve needs uvicorn: {installation('serve')}\n"
