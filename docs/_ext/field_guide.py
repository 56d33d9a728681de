"""The field guide, `docs/models/`: `{model} PAGE` describes a family, and `{families}` compares all of them.

Both are generated: the text, the difference to the parent and the lines of stages from the pages of `npformer.plain`,
the tables from the families, the conformance suite, the published checkpoints and the known mistakes of ports. The
body of `{model}` adds the rest, such as the reason for a change.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from at_a_glance import example, formula, properties, side, tiny
from config_fields import config_fields, published
from family_tree import PARENTS, drawing, first_line, in_order, members, short_name, title
from markdown import Generated, code, directive, table
from page_differences import differences, marked, page_of, unused
from page_source import address, lines_of_stages, listing
from sphinx.application import Sphinx
from stage_tables import drawings, merged, named, shape
from tables import literal
from tables import rows as fields_of
from weight_tables import of_config

from examples.checkpoints import verdict
from npformer.families import FAMILIES
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes import ANYWHERE, of_model
from npformer.interpret.stages import of_model as stages_of
from npformer.plain import page


class Model(Generated):
    """Shows the page of a family; its body comes after the first paragraph of the page's docstring."""

    has_content = True

    def lines(self, argument: str) -> Iterable[str]:
        first, _, rest = literal((page(argument).__doc__ or "").strip()).partition("\n\n")
        yield from [first, "", *self.content, "", *rest.split("\n"), ""]
        yield from described(argument)


def described(name: str) -> Iterable[str]:
    checkpoint, config = example(name)
    yield "## At a glance"
    yield from table(("part", f"in {checkpoint}" if checkpoint else "in a small model"), properties(name, config))
    if above := PARENTS[name]:
        yield from difference(name, above)
    yield "## The page"
    yield f"`npformer page {name}` prints it, and `npformer page {name} --standalone` one file with everything that it"
    yield "uses. Names that it imports link to their definition."
    yield ""
    yield from listing(name)
    yield from stages(name)
    yield from files(name)
    yield from mistakes(name)


def difference(name: str, above: str) -> Iterable[str]:
    """Returns the difference between a page and its parent's page, function by function."""
    child, parent, titled = page(name), page(above), title(above, inside=True)
    yield f"## What differs from {titled}"
    yield f"The functions that [{titled}]({above}.md) lacks, compared with the functions that they replace. A function"
    yield "that is replaced is shown under the name of its replacement."
    yield ""
    for each, other, lines in differences(child, parent):
        place = "" if page_of(each) == name else f" of `{page_of(each)}.py`"
        says = (inspect.getdoc(each) or "").split("\n\n")[0].replace("\n", " ")
        yield f"**{each.__name__}**{place}, {f'for `{other.__name__}`' if other else 'new'}: {literal(says)}"
        yield ""
        yield f'<pre class="difference">{marked(lines)}</pre>'
        yield ""
    if left := unused(child, parent):
        yield f"Not used, unlike in {titled}: {', '.join(map(code, left))}."
        yield ""


# --- stages, files and mistakes --------------------------------------------------------------------------------------


def stages(name: str) -> Iterable[str]:
    """Returns the drawing of a layer, and the stages with the lines that compute them."""
    config = tiny(name)
    found, lines = stages_of(config), lines_of_stages(config)
    yield "## A layer"
    yield "Each box is a stage of golden files and traces, and links to its line below."
    yield ""
    yield from drawings(name, found)
    yield "## Stages"
    rows = []
    for pattern, each in merged(found).items():
        stage = each.name if each.name in lines else each.name.replace("embeddings.sum", "embeddings.token")
        place = lines.get(stage)
        line = f'<a href="{address(*place)}">{place[0]}.py:{place[1]}</a>' if place else ""
        rows.append((named(name, pattern), line, shape(each), code(each.formula)))
    yield from table(("stage", "line", "shape", "formula"), rows)


def files(name: str) -> Iterable[str]:
    """Returns the fields of config.json, the tensors and the checkpoints of the families of a page."""
    of_page = members(name)
    known = config_fields(of_page[0], tiny(name))
    if known:
        yield "## Fields of config.json"
        yield "The fields that change the computation, found by changing them. Values that npformer does not support"
        yield f"are errors. The examples are from {example(name)[0]} or, if it lacks a field, from another checkpoint."
        yield "The last columns show what the field sets in npformer's `Config`, which may be half, twice or the"
        yield "opposite of the field."
        yield ""
        rows = [
            (code(each.name), "" if each.value is None else code(_short(each.value)), *_meaning(each.sets))
            for each in known
        ]
        yield from table(("field", "example", "sets", "meaning of what it sets"), rows)
    yield "## Tensors"
    yield "A linear weight is (in, out) here, and its transpose in checkpoints, unless the table says (in, out)."
    yield "[Weights](../reference/weights.md) explains the letters."
    yield from of_config(
        tiny(name), tiny(PARENTS[name]) if PARENTS[name] else None, title(PARENTS[name] or name, inside=True)
    )
    found = [each for member in of_page for each in published(member)]
    if found:
        yield "## Checkpoints that run"
        yield "From the [list of checkpoints](../howto/checkpoints.md):"
        rows = [
            (
                f"[{each['name']}](https://huggingface.co/{each['name']})",
                each["use"],
                code(config.model_type),
                verdict(each["config"])[1],
            )
            for each, config in found
        ]
        yield from table(("checkpoint", "used for", "model_type", "tasks"), rows)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meaning(sets: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Returns the fields of `Config` that a field sets, and what they mean."""
    said, meanings = [], []
    for kind, field in sets:
        said.append(code(field if kind == "Config" else f"{kind}.{field}".rstrip(".")))
        known = _class(kind.removeprefix("local "))
        meaning = _of_fields(known).get(code(field), "") if field else formula(known)
        meanings.append(re.sub(r"^(int|float|bool|str|tuple), ", "", meaning))
    return ", ".join(said), "; ".join(filter(None, dict.fromkeys(meanings)))


@cache
def _of_fields(known: Any) -> dict[str, str]:
    """Returns the meaning of each field of a dataclass."""
    return {name: meaning for name, _, meaning in fields_of(known)}


def _class(name: str) -> Any:
    """Returns the dataclass of a config with this name."""
    modules = [
        import_module(f"npformer.{each}")
        for each in ("config", "engine.mechanisms", "engine.mechanisms.rotary_scaling")
    ]
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def mistakes(name: str) -> Iterable[str]:
    """Returns the mistakes that ports of this family can make. The parent's mistakes come last."""
    mine, above = _mistakes(name), PARENTS[name]
    inherited = {each.name for each in _mistakes(above)} if above else set()
    yield "## What ports get wrong"
    yield "[`npformer golden compare`](../howto/find-a-mistake.md) names these mistakes in a port, in the order of a"
    yield "model's parts. The sentence after each describes the correct form. Ports of"
    yield "[every family](index.md#mistakes-in-every-family) can make others."
    yield ""
    own = [each for each in mine if each.name not in inherited]
    yield from _list(own)
    if left := [each for each in mine if each.name in inherited]:
        yield f"{'Also possible, as' if own else 'As'} in {title(above, inside=True)}:"
        yield ""
        yield from _list(left)


def _list(found: Iterable[Mistake]) -> Iterable[str]:
    yield from (f"- **{literal(each.name)}**: {literal(each.explanation)}" for each in found)
    yield ""


@cache
def _mistakes(name: str) -> list[Mistake]:
    """Returns the mistakes in the parts of a model, without those of every family."""
    return [each for each in _of_parts(name) if each.name not in _everywhere()]


@cache
def _of_parts(name: str) -> list[Mistake]:
    return list(of_model(tiny(name))[: -len(ANYWHERE)])


@cache
def _everywhere() -> dict[str, Mistake]:
    shared = set.intersection(*({each.name for each in _of_parts(name)} for name in PARENTS))
    return {each.name: each for each in (*_of_parts("bert"), *ANYWHERE) if each.name in shared or each in ANYWHERE}


# --- the first page --------------------------------------------------------------------------------------------------


def families() -> Iterable[str]:
    """Returns the family tree, the changes of each family, and a table that compares all families."""
    yield from drawing()
    yield "## What each family changes"
    yield from table(
        ("family", "what it changes"), ((f"[{title(each)}]({each}.md)", changes(each)) for each in PARENTS)
    )
    yield "## Side by side"
    yield "Each row is from a published checkpoint, which the page of the family names, or for the Transformer of 2017"
    yield "from a small model."
    yield from table(
        ("family", "positions", "norm, by each block", "feed-forward", "heads", "a token sees"),
        (side(name, example(name)[1]) for name, _ in in_order()),
    )
    yield "## Mistakes in every family"
    yield "Mistakes in attention, activations, inputs, heads and weights that ports of most families can make."
    yield ""
    yield from _list(_everywhere().values())


def changes(name: str) -> str:
    """Returns the sentences of a page's docstring that describe the family and its changes."""
    sentences = re.findall(r"\S.*?\.(?=\s|$)", " ".join((page(name).__doc__ or "").split()))
    differs = [each for each in sentences if re.match(r"[^,.]{2,40} differs?\b|DistilBERT has", each)]
    return literal(" ".join([f"{first_line(name)[1]}.", *differs]))


def check(app: Sphinx) -> None:
    """Raises LookupError if a family has no page in the guide."""
    described = {path.stem for path in (app.srcdir / "models").glob("*.md")}
    if absent := {short_name(page(family)) for family in FAMILIES} - (described & {*PARENTS}):
        raise LookupError(f"docs/models: these pages have no file, or no parent in family_tree.py: {sorted(absent)}")


def source(name: str) -> Iterable[str]:
    """Returns the text of a page that does not describe a family, such as the formulas."""
    yield from listing(name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", check)
    app.add_directive("model", Model)
    app.add_directive("families", directive(families))
    app.add_directive("page", directive(source))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
