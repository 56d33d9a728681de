"""One self-contained HTML file a view: a template, a stylesheet, a script, and the data, all inlined.

The front-end in `assets/` is plain HTML, CSS and JavaScript kept by hand, without a build step: the views need lines,
coloured cells and a list box, which a browser draws by itself; a charting library would weigh more than everything
here and age faster. `core.js` and `base.css` serve every view, and each view adds a stylesheet and a script or two.

The page's content security policy allows its own script and style, by their hashes, and nothing else: it cannot
reach the network, and no token, whatever it says, can become markup or code. The views' classes are in `*_view.py`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from npformer.checkpoint.archive import written_whole
from npformer.errors import NpformerError
from npformer.view.colour import DIVERGING, SEQUENTIAL
from npformer.view.pack import Packed


class View(ABC):
    """A picture of what a model did: shows itself in a notebook, saves as one HTML file, prints as text.

    In a notebook every view stands in an iframe of its own (`srcdoc`), so that any number of them share a page
    without sharing a script, a style or a key press, and what they hold cannot touch the notebook. A shadow root
    would isolate styles alone, and its script would depend on how the notebook inserts output.
    """

    kind: ClassVar[str]
    scripts: ClassVar[tuple[str, ...]]
    styles: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def heading(self) -> str:
        """What kind of picture it is."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What it is a picture of."""

    @property
    def title(self) -> str:
        """What the page and the picture are called."""
        return f"{self.heading}: {self.subject}"

    @abstractmethod
    def _meta(self) -> dict[str, Any]:
        """What the page knows before it reads any array."""

    @abstractmethod
    def _blocks(self) -> Sequence[Packed]:
        """The arrays of the page."""

    @abstractmethod
    def _height(self) -> int:
        """A good height in a notebook, in pixels."""

    @abstractmethod
    def svg(self) -> str:
        """The picture as a standalone SVG document, for papers and slides."""

    @abstractmethod
    def text(self, width: int = 80) -> str:
        """The picture for a terminal, at most `width` columns wide."""

    def html(self) -> str:
        """The whole page as one string."""
        blocks = self._blocks()
        meta = {
            "kind": self.kind,
            "title": self.title,
            "heading": self.heading,
            "scales": {"sequential": SEQUENTIAL, "diverging": DIVERGING},
            "arrays": {block.name: block.head() for block in blocks},
            **self._meta(),
        }
        script = "".join(_asset(f"{name}.js") for name in self.scripts)
        style = "".join(_asset(f"{name}.css") for name in self.styles)
        parts = {
            "title": html.escape(self.title),
            "policy": f"script-src '{_hash(script)}'; style-src '{_hash(style)}'",
            "style": style,
            "meta": _json_in_html(meta),
            "data": "\n".join(f'<script type="text/plain" data-array="{b.name}">{b.text}</script>' for b in blocks),
            "script": script,
        }
        return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to `path` and return it: beside it first, then renamed, so that no half page is ever seen."""
        if not Path(path).name:  # "", "." and "/"
            raise NpformerError(f"{path}: expected a file to write the page to, got a folder; name one, as view.html")
        with written_whole(path) as partial:
            partial.write_text(self.html(), encoding="utf-8", newline="\n")
        return Path(path)

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        style = f"width: 100%; height: {self._height()}px; border: 0; resize: vertical; overflow: auto"
        title = html.escape(self.title, quote=True)
        return f'<iframe sandbox="allow-scripts" title="{title}" style="{style}" srcdoc="{page}"></iframe>'

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<npformer view: {self.title}; print(), .save('view.html') or .svg() it>"


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _json_in_html(value: Any) -> str:
    """JSON that no HTML parser can leave early: `<` never appears as itself, nor do lone surrogates."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
