"""Points relative links, which also work on GitHub, at the site's pages or at GitHub, and checks every internal link.

A link to a file of the repository outside `docs/` leads to that file on GitHub. When the site is written, each
internal address must be a file of the site, and its anchor an element of that file. An address of a file on GitHub must
be a file of the checkout.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docutils import nodes
from page_source import GITHUB, ROOT
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

logger = logging.getLogger(__name__)


class ToGitHub(SphinxTransform):
    """Turns links to files outside `docs/` into GitHub addresses."""

    default_priority = 5  # before Sphinx collects files to download

    def apply(self) -> None:
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for node in [
            *self.document.findall(addnodes.download_reference),
            *self.document.findall(addnodes.pending_xref),
        ]:
            path, _, anchor = node["reftarget"].partition("#")
            if node.get("refdomain") == "doc":  # MyST removes the suffix of a page's name
                path, anchor = f"{path}.md", node["reftargetid"] or ""
            target = (folder / path).resolve()
            if path and target.is_file() and not target.is_relative_to(ROOT / "docs"):
                address = GITHUB + target.relative_to(ROOT).as_posix() + (f"#{anchor}" if anchor else "")
                node.replace_self(nodes.reference("", "", *node.children, refuri=address, internal=False))


class Page(HTMLParser):
    """Collects the addresses and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def check(app: Sphinx, failed: Exception | None) -> None:
    """Warns about broken links within the site."""
    if failed or app.builder.format != "html":
        return
    site = Path(app.outdir).resolve()
    pages = {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    for path, page in pages.items():
        for link in sorted(page.links):
            address = urlsplit(link)
            if link.startswith(GITHUB) and not (ROOT / unquote(link.removeprefix(GITHUB).partition("#")[0])).exists():
                logger.warning("%s: %s is not in the checkout", path.relative_to(site), link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not target.is_file():
                logger.warning("%s: the link %s leads nowhere", path.relative_to(site), link)
            elif address.fragment and target in pages and unquote(address.fragment) not in pages[target].anchors:
                logger.warning("%s: the link %s has an anchor that does not exist", path.relative_to(site), link)
    logger.info("checked the links of %d pages", len(pages))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(ToGitHub)
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
