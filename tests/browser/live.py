"""A browser test's actions on a page of the explorer, with the server in this process."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlencode

from npformer import view
from tests.browser.page import Page


class Live(Page):
    """A browser window that shows the explorer."""

    explorer: view.Explorer | None = None
    url = ""

    def explore(
        self, models: Any, text: Any = None, state: dict[str, Any] | None = None, at: str = "", *, width: int = 1440,
        height: int = 900, dark: bool = False,
    ) -> Live:  # fmt: skip
        """Starts the explorer and opens its page, with a state and the selections `at` in the address."""
        self.close()
        self.explorer = view.explore(models, text)
        self.url = self.explorer.url
        self.open(state, at, width=width, height=height, dark=dark)
        return self

    def open(self, state: dict[str, Any] | None, at: str = "", **size: Any) -> None:
        """Opens the page of the running explorer."""
        self.resize(size.get("width", 1440), size.get("height", 900))
        self.media(dark=size.get("dark", False))
        self.driver.get("about:blank")
        words = [each for each in (at, state and urlencode({"state": json.dumps(state)})) if each]
        self.driver.get(self.url + ("#" + "&".join(words) if words else ""))
        self.until_ready()
        self.settle()

    def close(self) -> None:
        if self.explorer is not None:
            self.explorer.close()
        self.explorer = None

    def settle(self) -> None:
        """Waits until the page shows everything that it requested."""
        settled = """const { settled, busy } = document.documentElement.dataset;
        return settled !== undefined && busy === undefined"""
        self.until(lambda: self.js(settled))

    def act(self, work: Any) -> None:
        """Runs `work`, which changes the state, and waits until the page shows the new state."""
        before = self.js("return document.documentElement.dataset.settled")
        work()
        self.until(lambda: self.js("return document.documentElement.dataset.settled") != before)
        self.settle()

    def type(self, text: str, field: str = "0 0") -> None:
        """Replaces the text of a field as a keyboard would, and waits until the page is updated."""
        area = self.one(f"textarea[data-text='{field}']")

        def work() -> None:
            self.js("arguments[0].focus(); arguments[0].select()", area)
            self.press(text)

        self.act(work)

    def outcomes(self) -> list[str]:
        """Returns the outcomes with their numbers, such as `POSITIVE 99.94%`."""
        return [" ".join(each.split()) for each in self.texts(".answer .outcomes li")]

    def state(self) -> Any:
        """Returns the state in the address."""
        return json.loads(parse_qs(self.js("return location.hash").lstrip("#"))["state"][0])

    def fits(self) -> bool:
        """Returns whether everything is at most as wide as the window."""
        return self.js("return document.documentElement.scrollWidth <= innerWidth")
