"""Writes one self-contained HTML file of views: a template, stylesheets, scripts and data, all inlined.

The front end in `assets/` is plain HTML, CSS and JavaScript without a build step. The views need lines, coloured cells
and a list box, which browsers draw natively. A charting library would be larger than the whole front end, and would
need updates.
All views use `core.js`, `widgets.js`, `picture.js`, `answer.js`, `shell.js` and STYLES. A view adds a stylesheet and
scripts, which are isolated from other views. A document has one view, or all views of one or more texts
(`page_view.py`).

The content security policy of the page allows only the page's own script and style, identified by hashes. The page
cannot access the network, and no token can become markup or code. The classes of views are in `*_view.py`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Protocol

from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.view.colour import DIVERGING, SEQUENTIAL
from npformer.view.pack import Packed

STYLES = ("base.css", "pieces.css", "answer.css", "tables.css")  # in every page, before the stylesheets of views


class View(ABC):
    """A picture that displays itself in a notebook, can be saved as an HTML file, and prints as text.

    In a notebook each view is in an iframe (`srcdoc`). Views in a notebook thus share no scripts, styles or key
    presses, and cannot change the notebook. A shadow root would isolate only styles, and would need a script that
    depends on how the notebook inserts output.

    Examples
    --------
    >>> view = npformer.view.heads(npformer.load("distilbert-sst2"), "I love ice cream")
    >>> view.save("heads.html").name  # one file, without dependencies
    'heads.html'
    >>> view.svg()[:4]  # for papers and slides
    '<svg'
    >>> print(view)  # on a terminal
    Self-attention, layer 0, all 12 heads
    ...
    """

    kind: ClassVar[str]
    scripts: ClassVar[tuple[str, ...]]  # files in assets/; the last one returns the view

    @property
    @abstractmethod
    def heading(self) -> str:
        """The heading of the picture, such as `Attention heads`."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """The subject of the picture, usually the text."""

    @property
    def title(self) -> str:
        """The title of the page and the picture."""
        return f"{self.heading}: {self.subject}"

    @abstractmethod
    def _meta(self) -> dict[str, Any]:
        """Returns the data of the page, except its arrays."""

    def _blocks(self) -> Sequence[Packed]:
        """Returns the arrays of the page. A view without large arrays has all its data in `_meta`."""
        return []

    @abstractmethod
    def _height(self) -> int:
        """Returns the height in a notebook, in pixels."""

    @abstractmethod
    def svg(self) -> str:
        """Returns the picture as a standalone SVG document, for papers and slides."""

    @abstractmethod
    def text(self, width: int = 80) -> str:
        """Returns the picture for a terminal, at most `width` columns wide."""

    def _texts(self) -> Sequence[tuple[str, Sequence[View]]]:
        """Returns the texts of the page with their views; here a single text with this view."""
        return [(self.subject, [self])]

    def _answers(self) -> Sequence[dict[str, Any] | None]:
        """Returns the data of the model's answer to each text, shown above the views; empty without answers."""
        return ()

    def html(self) -> str:
        """Returns the whole page as one string."""
        return _document(self.title, self._texts(), self._answers())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page to `path` atomically, and returns the path."""
        if not Path(path).name:  # "", "." and "/" are not names of files
            raise NpformerError(f"{path}: expected a file for the page, such as view.html, got a folder")
        with written_whole(path) as partial:
            partial.write_text(self.html(), encoding="utf-8", newline="\n")
        return Path(path)

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        style = f"width: 100%; height: {self._height()}px; border: 0; resize: vertical; overflow: auto"
        title = html.escape(self.title, quote=True)
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" style="{style}" srcdoc="{page}"></iframe>'
        )

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<npformer view: {self.title}; print(), .save('view.html') or .svg() it>"


def _document(title: str, texts: Sequence[tuple[str, Sequence[View]]], answers: Sequence[dict[str, Any] | None]) -> str:
    """Makes a page from a list of views for each text, with equal arrays stored once."""
    stored: dict[str, int] = {}  # data of an array -> its index in the page
    described = [
        [described_view(view, text, lambda data: stored.setdefault(data, len(stored))) for view in views]
        for text, views in texts
    ]
    kinds = {view.kind: view for _, views in texts for view in views}
    data = "\n".join(f'<script type="text/plain" data-array="{at}">{text}</script>' for text, at in stored.items())
    return page_of_views(title, {"texts": described, "answers": answers}, list(kinds.values()), data=data)


def described_view(view: View, text: str, stored: Callable[[str], Any]) -> dict[str, Any]:
    """Returns the data of a view. `stored` takes the data of an array, and returns the key of the stored data."""
    arrays = {b.name: b.head() | {"data": stored(b.text)} for b in view._blocks()}
    about = {"kind": view.kind, "heading": view.heading, "subtitle": text, "title": f"{view.heading}: {text}"}
    return {**about, "arrays": arrays, **view._meta()}


class Scripted(Protocol):
    """A view or a class of views, with the name of its kind and of the scripts that draw it."""

    @property
    def kind(self) -> str: ...
    @property
    def scripts(self) -> tuple[str, ...]: ...


def page_of_views(
    title: str,
    meta: dict[str, Any],
    views: Sequence[Scripted],
    *,
    data: str = "",
    more_styles: Sequence[str] = (),
    more_scripts: Sequence[str] = (),
    policy: str = "",
) -> str:
    """Makes a page that shows the views in `meta`.

    more_styles, more_scripts: additional assets. policy: additions to the content security policy.
    """
    style = "".join(
        [
            *map(_asset, STYLES),
            *(f"body[data-view={view.kind}] {{\n{_asset(f'{view.kind}.css')}}}\n" for view in views),
            *map(_asset, more_styles),
        ]
    )
    script = "".join(
        [
            *map(_asset, ("core.js", "widgets.js", "picture.js")),
            *map(_view_script, views),
            *map(_asset, ("answer.js", "shell.js", *more_scripts, "start.js")),
        ]
    )
    parts = {
        "title": html.escape(title),
        "policy": f"script-src '{_hash(script)}'; style-src '{_hash(style)}'{policy}",
        "style": style,
        "meta": _json_in_html({"scales": {"sequential": SEQUENTIAL, "diverging": DIVERGING}, **meta}),
        "data": data,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _view_script(view: Scripted) -> str:
    """Wraps the scripts of a view in a function of its data and the page, so that their names are local."""
    body = "".join(_asset(f"{name}.js") for name in view.scripts)
    return f"VIEWS.{view.kind} = (meta, page) => {{\n{body}}};\n"


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _json_in_html(value: Any) -> str:
    """Writes JSON with `<` and lone surrogates escaped, so that it cannot close the enclosing HTML element."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
