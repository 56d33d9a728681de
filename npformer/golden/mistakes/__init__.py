"""The known mistakes of ports: `of_model` collects the mistakes of a model's family and parts, and `ANYWHERE`.

`parts/` has the mistakes of each part, such as a mechanism. The modules here define mistakes in inputs, embeddings,
heads, weights, the order of a layer's parts, and precision. `diagnose.py` puts them into a `Port`, which is the correct
model without them.

Many of them are also edits of the model's page, which `page_edits` finds without a list. They stay here because a
mistake in a `Port` has a name, explains several stages at once, and lets the diagnosis go on to the next mistake. An
edit of the page cannot make the others: mistakes that depend on the padding of a batch, weights that are moved or
packed, kernels that work in tiles, and precision that is found by simulated rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from npformer.config import Config
from npformer.families import family_of, parts_of
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes import (
    clipped,
    embeddings,
    general,
    heads,
    inputs,
    kinds,
    order,
    packed,
    precision,
    rows,
    sought,
    tiles,
    weight_kinds,
    weights,
)
from npformer.golden.mistakes.parts import of_class

#: Mistakes possible in any model; if several fit equally well, the diagnosis names the first.
ANYWHERE = (
    *embeddings.MISTAKES,
    *inputs.MISTAKES,
    *order.MISTAKES,
    *weights.MISTAKES,
    *heads.MISTAKES,
    *precision.MISTAKES,
)
#: Tried if no mistake of `of_model` fits.
GENERAL = (
    *packed.MISTAKES,
    *sought.MISTAKES,
    *rows.MISTAKES,
    *kinds.MISTAKES,
    *weight_kinds.MISTAKES,
    *tiles.MISTAKES,
    *clipped.MISTAKES,
    *general.MISTAKES,
)

#: Tried after everything else, even after the known mistakes in unusual places (`elsewhere.py`).
LAST = weight_kinds.LAST


def of_model(config: Config) -> tuple[Mistake, ...]:
    """Returns the mistakes that ports of a model can make, beginning with those of its family and parts."""
    kinds = dict.fromkeys((type(family_of(config)), *_classes(parts_of(config))))
    return (*(each for kind in kinds for each in of_class(kind)), *ANYWHERE)


def _classes(part: Any) -> Iterator[type]:
    """Yields the classes of a part and of the parts inside it."""
    if isinstance(part, tuple):
        for each in part:
            yield from _classes(each)
    elif is_dataclass(part):
        yield type(part)
        for field in fields(part):
            yield from _classes(getattr(part, field.name))
