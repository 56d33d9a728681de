"""Fixtures for the views' tests: Debian's chromium, run by selenium without a network.

A test fails if its page writes to the console.

Install `chromium` and `chromium-driver`, and the `browser` group. Without a browser these tests are skipped with a
message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import npformer
from tests.browser.chromium import CHROMIUM, DRIVER, chromium
from tests.browser.live import Live
from tests.browser.page import Page
from tests.support import tiny


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """Yields one chromium for all tests: headless, without name resolution, recording every line of the console."""
    pytest.importorskip("selenium.webdriver", reason="the `browser` group is not installed")
    if not CHROMIUM or not DRIVER:
        pytest.skip("no chromium and chromedriver on this machine")
    browser = chromium()
    try:
        yield browser
    finally:
        browser.quit()


@pytest.fixture
def page(driver: Any, tmp_path: Path) -> Iterator[Page]:
    """Yields a page for views. After the test, its console must be empty, and it must not have fetched anything."""
    shown = Page(driver, tmp_path)
    driver.get_log("browser")
    yield shown
    assert driver.get_log("browser") == []
    assert shown.js("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


@pytest.fixture
def live(driver: Any, tmp_path: Path) -> Iterator[Live]:
    """Yields a page of the explorer, which must log nothing to its console, and send requests only to its server."""
    shown = Live(driver, tmp_path)
    driver.get_log("browser")
    yield shown
    assert driver.get_log("browser") == []
    fetched = shown.js("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    driver.get("about:blank")
    shown.close()
    assert [name for name in fetched if not name.startswith(shown.url)] == []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a tiny classifier, for modules that do not define a model."""
    return npformer.load(tiny.folder(tmp_path_factory.mktemp("models") / "model", "distilbert"))
