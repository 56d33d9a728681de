"""Writes formulas as MathML, which browsers draw without scripts, fonts or a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def mathml(node: nodes.Element, block: bool) -> str:
    latex = node.astext()
    try:
        tree = latex2mathml.tex2mathml(latex, as_block=block)
    except MathError as error:
        logger.warning("formula %s: %s", latex, error, location=node)
        return ""
    return str(tree)


def visit_inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def visit_block(writer: Any, node: nodes.Element) -> None:
    writer.body.append(f'<div class="math">{mathml(node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
