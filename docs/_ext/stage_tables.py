"""`{stages} CASE`: the stages of a model in the conformance suite, and a diagram of a layer that links to each stage.

Both follow from the declarations of the model's parts (`npformer/engine/descriptions/stage.py`): the rows from their
names, shapes and formulas, and the diagram from their parents.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from importlib import import_module

from markdown import code, directive, table
from repository_links import GITHUB
from sphinx.application import Sphinx

from npformer.engine.descriptions.stage import Stage
from npformer.golden.suite import cases
from npformer.interpret.stages import of_model

# in pixels: the size of a box, the distances between boxes, and the width of the lane on the left
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 104, 36, 116, 56, 26
LAYER = re.compile(r"(?<=layers\.)\d+(?=\.)")
HOOK = re.compile(r"(?<=blocks\.)\d+(?=\.)")
LAST = re.compile(r"\blayers\.\d+\.")  # in the formula of a stage after the layers


def stages(case: str) -> Iterable[str]:
    config = next(each.config for each in cases() if each.name == case)
    found = of_model(config)
    yield from drawings(case, found)
    yield from table(
        ("stage", "shape", "formula", "computed by", "in TransformerLens"),
        (
            (
                named(case, name),
                shape(each),
                code(each.formula),
                source(each.function),
                code(each.hook) if each.hook else "",
            )
            for name, each in merged(found).items()
        ),
    )


def merged(found: Mapping[str, Stage]) -> dict[str, Stage]:
    """Returns the stages in order. A stage of every layer is listed once, with `*` for the layer's number."""
    patterns = {name: LAYER.sub("*", name) for name in found}
    kinds: dict[str, set[tuple[str, ...]]] = {}
    for name, each in found.items():
        kinds.setdefault(patterns[name], set()).add((each.shape, each.formula, each.function))
    rows = {}
    for name, each in found.items():
        alike = len(kinds[patterns[name]]) == 1
        if name == patterns[name]:
            each = each._replace(formula=LAST.sub("layers.-1.", each.formula))
        rows.setdefault(
            patterns[name] if alike else name, each._replace(hook=HOOK.sub("*", each.hook)) if alike else each
        )
    return rows


def source(function: str) -> str:
    """Returns a function's name, linked to the file that defines it, which may be in the folder that exports it."""
    module, _, name = function.rpartition(".")
    defined = getattr(import_module(f"npformer.engine.{module}"), name).__module__
    return f"[`{name}`]({GITHUB}{defined.replace('.', '/')}.py)"


def named(case: str, name: str) -> str:
    """Returns the name of a stage for the first cell of its row, to which its box links."""
    return f'<span id="{anchor(case, name)}"></span>`{name}`'


def shape(stage: Stage) -> str:
    return " or ".join(map(code, stage.shape.split(" or ")))


def anchor(case: str, name: str) -> str:
    return f"{case}-{re.sub(r'[^a-z0-9]+', '-', LAYER.sub('any', name).replace('*', 'any').lower())}"


def drawings(case: str, found: Mapping[str, Stage]) -> Iterable[str]:
    """Draws a layer of each stack of a model."""
    for stack in ("", "encoder.", "decoder."):
        layer = {name: each for name, each in found.items() if name.startswith(f"{stack}layers.1.")}
        if layer:
            yield from drawing(case, f"{stack}layers.1.", layer)


def drawing(case: str, scope: str, layer: Mapping[str, Stage]) -> Iterable[str]:
    """Draws a layer from top to bottom as SVG: a box for each stage, below the stages that it is computed from."""
    rank: dict[str, int] = {}
    for name, each in layer.items():
        for parent in each.parents:
            rank.setdefault(parent, 0)  # inputs of the layer
        rank[name] = 1 + max((rank[parent] for parent in each.parents), default=0)
    rows: dict[int, list[str]] = {}
    for name, row in rank.items():
        rows.setdefault(row, []).append(name)
    most = max(map(len, rows.values()))
    width, height = MARGIN + most * ACROSS, (max(rows) + 1) * DOWN
    place = {
        name: (MARGIN + (most - len(names) + 2 * column + 1) * ACROSS / 2, row * DOWN + DOWN / 2)
        for row, names in rows.items()
        for column, name in enumerate(names)
    }
    edges = [(parent, name) for name, each in layer.items() for parent in each.parents]
    parts = [
        edge(place[parent], place[name], rank[name] - rank[parent], len(rows[rank[parent]]) == 1)
        for parent, name in edges
    ]
    parts += [box(case, scope, name, layer.get(name), *at) for name, at in place.items()]
    pattern = LAYER.sub("*", scope)[:-1]
    yield '<figure class="layer">'
    yield f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" aria-label="The stages of {pattern}">'
    yield from parts
    yield f"</svg><figcaption><code>{pattern}</code></figcaption></figure>"
    yield ""


def edge(start: tuple[float, float], end: tuple[float, float], rows: int, alone: bool) -> str:
    """Draws a line downwards. The line goes around boxes, on the left if its start is alone in its row."""
    (x, y), (to_x, to_y) = start, end
    if rows > 1 and abs(x - to_x) < 1:
        y, to_y = y + 6, to_y - 6  # a line may end where the next begins
        turn, side = (8, x - WIDTH / 2) if alone else (-4, x + WIDTH / 2)
        lane = MARGIN / 3 if alone else x + ACROSS / 2
        by, bend = abs(turn), lane + turn
        down = f"H{bend:g}Q{lane:g} {y:g} {lane:g} {y + by:g}V{to_y - by:g}Q{lane:g} {to_y:g} {bend:g} {to_y:g}"
        return f'<path d="M{side:g} {y:g}{down}H{side:g}"/>'
    y, to_y = y + HEIGHT / 2, to_y - HEIGHT / 2
    straight = to_y - DOWN + HEIGHT if rows > 1 else y
    middle = (straight + to_y) / 2
    return f'<path d="M{x:g} {y:g}V{straight:g}C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"/>'


def box(case: str, scope: str, name: str, stage: Stage | None, x: float, y: float) -> str:
    """Draws the last part of a stage's name, and its shape, linked to its row; a stage outside the layer has no box."""
    if stage is None:
        source = scope.startswith("decoder") and name.startswith("encoder")
        return f'<text x="{x:g}" y="{y:g}">{"source" if source else "X"}</text>'
    short = re.sub(r"^(attention|ffn)\.", "", name.removeprefix(scope)).replace("cross_attention.", "cross ")
    return (
        f'<a href="#{anchor(case, name)}"><title>{html.escape(f"{name} {stage.shape}: {stage.formula}")}</title>'
        f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x:g}" y="{y - 6:g}" class="{"long" if len(short) > 15 else "name"}">{short}</text>'
        f'<text x="{x:g}" y="{y + 9:g}" class="shape">{stage.shape}</text></a>'
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("stages", directive(stages))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
