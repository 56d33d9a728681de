"""`explore`: starts the explorer's server for loaded models, in a thread of this process."""

from __future__ import annotations

import html
import webbrowser
from collections.abc import Mapping
from threading import Thread
from typing import Any

from npformer.base_model import BaseModel, check_model
from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.text.inputs import as_text_or_pair

#: Head -> the text that is shown if the caller gives none.
TEXTS = {
    "causal-lm": "It is a truth universally acknowledged",
    "masked-lm": "I love [MASK] cream",
    "translation": "A man is riding a bike.",
}
TEXT = "I love ice cream"


def explore(
    model: BaseModel | Mapping[str, BaseModel], text: Any = None, *, port: int = 0, browser: bool = False
) -> Explorer:
    """Starts a local page where you can type texts and change the model. This process computes the results.

    The page has the views of `page` for any text, and recomputes them as you type. The server listens on 127.0.0.1
    only, and answers only the page that has the token in its address. It runs until this process ends or `close` is
    called.

    Parameters
    ----------
    model : Model or Seq2Seq, or several in a dict by name
    text : str or Pair, optional
        The text that is shown first.
    port : int
        The port; 0 chooses a free port.
    browser : bool
        Open the page in the browser.

    Returns
    -------
    Explorer
        Shows itself in a notebook. `url` is the address of the page.

    Raises
    ------
    NpformerError
        If `model` is not a model, the text is not a text or a pair, or the port is in use.

    Examples
    --------
    >>> with explore(npformer.load("distilbert-sst2"), "I love ice cream") as explorer:
    ...     explorer.url.startswith("http://127.0.0.1:")
    True
    """
    from npformer.view.explorer.live_page import live_page  # imported here, because it loads all views and the server
    from npformer.view.explorer.parts import Parts
    from npformer.view.explorer.server import ExplorerServer

    models = dict(model) if isinstance(model, Mapping) else {_name(model): model}
    if not models:
        raise NpformerError("explore: expected at least one model, got none")
    for each in models.values():
        check_model("explore", each)
    head = next(iter(models.values())).config.head
    given = as_text_or_pair(TEXTS.get(head, TEXT) if text is None else text)
    parts = [given] if isinstance(given, str) else [*given]
    if type(port) is not int or not 0 <= port < 2**16:
        raise NpformerError(f"explore: port: expected a number from 0 to 65535, got {shown(port)}")
    try:
        writes = [each.config.head in ("causal-lm", "translation") for each in models.values()]
        page = live_page(list(models), [parts], any(writes), not any(writes))
        server = ExplorerServer(Parts(models), page, port)
    except OSError as error:
        raise NpformerError(f"explore: port {port}: {error.strerror or error}; port=0 picks a free port") from None
    explorer = Explorer(server, tuple(parts))
    if browser:
        webbrowser.open(explorer.url)
    return explorer


class Explorer:
    """The server of a page, as started by `explore`. It runs until `close` or the end of the process."""

    def __init__(self, server: Any, first: tuple[str, ...]) -> None:
        self._server, self._first = server, first
        self._thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True, name="npformer explore")
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return str(self._server.url)

    @property
    def computed(self) -> int:
        """The number of requests that were computed, excluding requests that newer ones replaced."""
        return int(self._server.latest.computed)

    def prepare(self) -> None:
        """Computes the first parts that the page requests: the answer to its first text, and the first view."""
        from npformer.view.explorer.state import State

        parts, state = self._server.parts, State((self._first,))
        self._server.latest.run("", 0, lambda check: [parts.part(state, name) for name in ("answer", "heads")])

    def wait(self) -> None:
        """Waits until the server is closed."""
        while self._thread.is_alive():
            self._thread.join(0.2)  # a join without a limit would not notice Ctrl-C on Windows

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 1000px; border: 0; resize: vertical; overflow: auto"
        return f'<iframe title="npformer explore" style="{style}" src="{html.escape(self.url, quote=True)}"></iframe>'

    def __repr__(self) -> str:
        return f"<npformer explorer: {self.url}>"


def _name(model: Any) -> str:
    folder = getattr(model, "folder", None)
    return str(folder) if folder is not None else "MODEL"
