"""The name under which a model is served: the name that is given, even if it is a link, or the name from --name."""

from __future__ import annotations

import pytest

from npformer.cli.main import main
from npformer.serve.models import serve_all
from tests.support import tiny

supervisor = pytest.importorskip("npformer.serve.supervisor", reason="needs the extra `serve`")
pytestmark = pytest.mark.extra


def test_a_model_is_served_under_the_name_that_is_given(tmp_path, monkeypatch):
    folder = tiny.folder(tmp_path / "run-2026-11-28", "bert")
    link = tmp_path / "current"
    link.symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for given, name in (
        (link, "current"),
        ("current/", "current"),
        ("./run-2026-11-28", folder.name),
        (folder, folder.name),
    ):
        assert list(serve_all(given)) == [name]
    monkeypatch.chdir(folder)
    assert list(serve_all(".")) == [folder.name]
    assert sorted(serve_all([link, folder])) == ["current", folder.name]


def test_the_option_name_sets_it(tmp_path, monkeypatch, capsys):
    folder = str(tiny.folder(tmp_path / "m", "bert"))
    served = []
    monkeypatch.setattr(supervisor, "run", served.append)
    assert main(["serve", folder, "distilbert-sst2", "--name", "mine", "--name", "sentiment"]) == 0
    [settings] = served
    assert settings.models == {"mine": folder, "sentiment": "distilbert-sst2"}
    assert list(settings.loaded()) == ["mine", "sentiment"]
    for names in (["one"], ["one", "one"], ["one", ""]):
        options = [each for name in names for each in ("--name", name)]
        assert main(["serve", folder, "distilbert-sst2", *options]) == 1
        assert "--name: expected a different name for each of 2 models, got" in capsys.readouterr().err
