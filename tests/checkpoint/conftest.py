"""Fixtures for the hub's tests: a hub on loopback, an environment that uses only that hub, and a model to serve."""

import pytest

from tests.support import hub_server, tiny


@pytest.fixture
def hub():
    with hub_server.Hub() as server:
        yield server


@pytest.fixture
def env(hub, tmp_path):
    return hub_server.environment(hub, tmp_path / "home")


@pytest.fixture
def folder(tmp_path):
    return tiny.folder(tmp_path / "model")
