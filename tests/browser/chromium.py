"""Starts Debian's chromium with selenium: headless, with network access only to this machine."""

from __future__ import annotations

import shutil
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


def chromium() -> Any:
    """Yields a browser. Exits the program if no browser is installed."""
    from selenium import webdriver

    if not CHROMIUM or not DRIVER:
        raise SystemExit("chromium and chromedriver are needed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
