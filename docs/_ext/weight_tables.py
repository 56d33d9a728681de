"""`{weights}`: the weights of each family, with their shapes and their names in checkpoints.

The families are the same as on the stages page, from the same cases of the conformance suite, plus DistilBERT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from config_fields import published
from markdown import code, directive, table
from sphinx.application import Sphinx

from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.tree import sources
from npformer.config import Config
from npformer.golden.suite import cases

#: All sizes differ, so that each identifies its letter. The width of heads, 10, is independent of D / H.
LETTERS = {1000: "V", 600: "L", 602: "L + 2", 100: "F", 72: "D", 36: "G K", 12: "K", 60: "H K", 10: "K", 6: "H", 7: "C"}
LETTERS |= {30: "G K", 20: "E", 8: "buckets"}
LAYER = re.compile(r"\.\d+(?=\.)")


def weights() -> Iterable[str]:
    yield from ("## DistilBERT", *of_case("distilbert-sequence-classification"))
    page = (Path(__file__).parents[1] / "reference" / "stages.md").read_text(encoding="utf-8")
    for title, case in re.findall(r"^## (.+)\n[^#]*?^```\{stages\} (\S+)", page, flags=re.MULTILINE):
        yield from (f"## {title.removeprefix('DistilBERT and ')}", *of_case(case))


def of_case(case: str) -> Iterable[str]:
    """Returns the weights of a case of the conformance suite."""
    return of_config(next(each.config for each in cases() if each.name == case))


def of_config(config: Config, parent: Config | None = None, title: str = "") -> Iterable[str]:
    """Returns the weights of a model with these options; its sizes are replaced by letters.

    parent: config of a family with similar names, whose tensors a column shows where they differ; title: its name
    """
    rows, others = _rows(config), _rows(parent) if parent else {}
    alike = sum(others.get(name) == row for name, row in rows.items())
    if 2 * alike < len(rows):
        yield from table(("weight", "shape", "in checkpoints"), ((code(name), *row) for name, row in rows.items()))
        return
    of_parent = {name: others.get(name, ("", "none")) for name in rows}
    yield from table(
        ("weight", "shape", "in checkpoints", f"in {title}, if different"),
        ((code(name), *row, "" if of_parent[name] == row else of_parent[name][1]) for name, row in rows.items()),
    )


def _rows(config: Config) -> dict[str, tuple[str, str]]:
    """Returns the shape of each weight, and its tensor in checkpoints."""
    config = sized(config)
    found = sources(config)
    rows = {}
    for name, each in parameters(config).items():
        source = found[name]
        sizes = [LETTERS.get(size, str(size)) for size in each.shape]
        tensor, _, part = source.title.partition(", ")
        if source.part and source.part.blocks > 1:
            part += " for each head"
        if LAYER.search(name):
            tensor = LAYER.sub(".*", tensor, count=1)
        notes = [code(tensor), part, "(in, out)" if each.transposed and source.in_out else ""]
        shape = f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"
        rows[LAYER.sub(".*", name)] = shape, ", ".join(filter(None, notes))
    return rows


def sized(config: Config) -> Config:
    """Returns the config with sizes from `LETTERS`."""
    sizes = {"n_heads": 6, "d_ffn": 100, "vocab_size": 1000}
    decoder = replace(config.decoder, **sizes) if config.decoder else config.decoder
    sizes |= {"n_kv_heads": 3} if config.n_kv_heads else {}
    wide = config.head_width or any(each.head_width for _, each in published(config.model_type))
    sizes |= {"head_width": 10} if wide else {}
    sizes |= {"d_embedding": 20} if config.d_embedding else {}
    labels = tuple("ABCDEFG") if config.labels else ()
    return replace(config, d_model=72, max_length=600, labels=labels, decoder=decoder, **sizes)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("weights", directive(weights))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
