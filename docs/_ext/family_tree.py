"""The family tree of the field guide: the parent of each page, and its drawing. It is independent of Sphinx, for tests.

A page is a module of `npformer.plain`. The first line of its docstring names the page and says what it changes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from types import ModuleType

from npformer.families import FAMILIES
from npformer.plain import page

#: Page -> the page that it changes, in the order of the guide.
PARENTS = {
    "transformer": "",
    "bert": "transformer",
    "distilbert": "bert",
    "roberta": "bert",
    "albert": "bert",
    "electra": "bert",
    "mpnet": "bert",
    "deberta": "bert",
    "modernbert": "bert",
    "nomic_bert": "bert",
    "gpt2": "transformer",
    "opt": "gpt2",
    "bloom": "gpt2",
    "gpt_neox": "gpt2",
    "llama": "gpt2",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "phi3": "llama",
    "smollm3": "llama",
    "olmo2": "llama",
    "gemma": "llama",
    "gemma2": "gemma",
    "gemma3": "gemma2",
    "marian": "transformer",
    "bart": "transformer",
    "t5": "transformer",
}
# in pixels: a row, the indentation of a child, and the greatest width
ROW, STEP, WIDTH = 34, 22, 850
WIDTHS = {"m": 11.6, "M": 11, **dict.fromkeys("ilrtf '", 4.6), "-": 5}  # of bold letters of 13 pixels


def members(name: str) -> list[str]:
    """Returns the families (values of model_type) that a page describes."""
    return [each for each in FAMILIES if short_name(page(each)) == name]


def short_name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def first_line(name: str) -> tuple[str, str]:
    """Returns the title of a page, and what it is: "Mistral", "Llama with a sliding window"."""
    line = (page(name).__doc__ or "").split("\n\n")[0].replace("\n", " ")
    title, _, rest = line.partition(": ")
    if not rest:  # "The Transformer of 2017, an encoder and a decoder for translation."
        title, _, rest = line.partition(", ")
    return title, rest.partition(". ")[0].rstrip(".")


def title(name: str, inside: bool = False) -> str:
    """Returns the title of a page. inside: as it is written inside a sentence."""
    found = first_line(name)[0]
    return found.replace("The ", "the ", 1) if inside else found


def in_order(parent: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yields each page below a parent and its depth, every page directly before its children."""
    for name in (name for name, above in PARENTS.items() if above == parent):
        yield name, depth
        yield from in_order(name, depth + 1)


def drawing() -> Iterable[str]:
    """Draws the tree as SVG, a row for each page; a phone shows the names, and wider screens the changes too."""
    rows = list(in_order())
    place = {name: (8 + STEP * depth, ROW * (i + 0.5)) for i, (name, depth) in enumerate(rows)}
    height = ROW * len(rows)
    yield f'<figure class="tree"><svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"'
    yield ' aria-label="The family tree: each family below the one that it changes">'
    for name, (x, y) in place.items():
        if above := PARENTS[name]:
            from_x, from_y = place[above][0] + STEP / 2, place[above][1] + 12
            yield f'<path d="M{from_x:g} {from_y:g}V{y - 6:g}q0 6 6 6H{x:g}"/>'
    for name, (x, y) in place.items():
        heading, change = first_line(name)
        heading = re.split(r",| for ", heading)[0]
        wide = 16 + sum(WIDTHS.get(each, 9.4 if each.isupper() else 7.4) for each in heading)
        yield f'<a href="{name}.html"><rect x="{x:g}" y="{y - 12:g}" width="{wide:g}" height="24" rx="6"/>'
        yield f'<text x="{x + 8:g}" y="{y:g}">{html.escape(heading)}</text></a>'
        yield f'<text class="change" x="{max(x + wide + 12, 236):g}" y="{y:g}">{html.escape(change)}</text>'
    yield "</svg></figure>"
    yield ""
