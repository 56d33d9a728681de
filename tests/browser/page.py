"""A browser test's actions on a page: show a view, point, press keys, read texts, and wait for a change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npformer.view import View

SECONDS = 60  # timeout for a condition; only a failing test waits this long
_loads = itertools.count()


class Page:
    """A browser window that shows one view, or any page."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def show(
        self, view: View | Path, at: str = "", width: int = 1280, height: int = 900, dark: bool = False,
        wait: bool = True,
    ) -> Page:  # fmt: skip
        """Opens a view or its file, with the selections `at` in the address, and waits until the page is drawn."""
        path = view if isinstance(view, Path) else view.save(self.folder / "view.html")
        self.resize(width, height)
        self.media(dark=dark)
        self.rest()
        # The query differs each time: a browser does not reload a page if only the part after # changes.
        self.driver.get(f"{path.as_uri()}?{next(_loads)}#{at}" if at else path.as_uri())
        if wait:
            self.until_ready()
        return self

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the window in pixels."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def until_ready(self) -> None:
        self.until(lambda: self.js("return document.documentElement.dataset.ready") == "yes")

    def media(self, dark: bool = False, kind: str = "") -> None:
        """Sets the reader's theme and medium (screen or paper)."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", media=kind, features=[scheme])

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        """Returns all text of an element, including text that a stylesheet hides."""
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def texts(self, selector: str) -> list[str]:
        return self.js("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits for a condition, polling every few milliseconds."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, SECONDS, poll_frequency=0.01).until(lambda _: condition())

    def _actions(self) -> Any:
        from selenium.webdriver import ActionChains

        return ActionChains(self.driver, duration=0)

    def hover(self, element: Any, x: float = 0.5, y: float = 0.5) -> None:
        """Moves the pointer into an element, at fractions of its width and height."""
        self.js("arguments[0].scrollIntoView({ block: 'nearest' })", element)
        size = element.size
        offset = round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
        self._actions().move_to_element_with_offset(element, *offset).perform()

    def rest(self) -> None:
        """Moves the pointer to an empty place."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        builder = ActionBuilder(self.driver, duration=0)
        builder.pointer_action.move_to_location(1, 1)
        builder.perform()

    def click(self, element: Any) -> None:
        self.hover(element)
        element.click()

    def double_click(self, element: Any) -> None:
        self._actions().double_click(element).perform()

    def press(self, *keys: str) -> None:
        """Presses keys on the focused element."""
        self._actions().send_keys(*keys).perform()

    def focus(self, element: Any) -> None:
        """Focuses an element as the keyboard does, so that the browser draws the focus outline."""
        self.js("arguments[0].focus({ focusVisible: true })", element)

    def choose(self, label: str, value: Any) -> None:
        """Chooses the option with this text in the select with this label."""
        from selenium.webdriver.support.ui import Select

        field = next(f for f in self.all("label.field") if f.text.startswith(label))
        Select(field.find_element("css selector", "select")).select_by_visible_text(str(value))

    def segment(self, text: str) -> Any:
        """Returns the button labelled `text` in a row of choices."""
        return next(b for b in self.all(".segmented button") if b.text == text)

    def colour(self, selector: str, name: str) -> str:
        return self.js("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name)
