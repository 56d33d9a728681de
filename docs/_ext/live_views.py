"""`{view} KIND`: a page that `npformer view` writes when the site is built, embedded in the site's page.

```{view} heads
:text: time flies like an arrow
:pair: fruit flies like a banana
```
"""

from __future__ import annotations

import html
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import npformer


@cache
def model(name: str) -> Any:
    return npformer.load(name)


class View(SphinxDirective):
    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "text": directives.unchanged_required,
        "pair": directives.unchanged,
        "model": directives.unchanged,
        "height": directives.positive_int,
    }

    def run(self) -> list[nodes.Node]:
        kind, text = self.arguments[0], self.options["text"]
        given = npformer.Pair(text, self.options["pair"]) if "pair" in self.options else text
        view = getattr(npformer.view, kind)(model(self.options.get("model", "distilbert-sst2")), given)
        name = f"{self.env.docname.replace('/', '-')}-{kind}-{self.env.new_serialno('view')}.html"
        folder = Path(self.env.app.outdir) / "_static" / "views"
        folder.mkdir(parents=True, exist_ok=True)
        view.save(folder / name)
        up = "../" * self.env.docname.count("/")
        frame = (
            f'<iframe class="view" title="{html.escape(view.title, quote=True)}" src="{up}_static/views/{name}" '
            f'style="height: {self.options.get("height", 560)}px" loading="lazy"></iframe>'
            f'<p class="view"><a href="{up}_static/views/{name}">Open this view in a separate page</a></p>'
        )
        return [nodes.raw("", frame, format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("view", View)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
