"""The known mistakes of ports: `of_model` collects the mistakes that a model's parts declare, and `ANYWHERE`.

Each part, such as a mechanism, declares its own mistakes in `mistakes`. The modules here define mistakes in inputs,
embeddings, heads, weights, the order of a layer's parts, and precision. `diagnose.py` puts them into a `Port`, which is
the correct model without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from npformer.config import Config
from npformer.engine.descriptions.mistake import Mistake
from npformer.families import family_of, parts_of
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


def of_model(config: Config) -> tuple[Mistake, ...]:
    """Returns the mistakes that ports of a model can make, beginning with those that its family and parts declare."""
    kinds = dict.fromkeys(_parts(parts_of(config)))
    return (*family_of(config).mistakes, *(each for kind in kinds for each in kind.mistakes), *ANYWHERE)


def _parts(part: Any) -> Iterator[Any]:
    """Yields the classes inside a part that declare mistakes."""
    if isinstance(part, tuple):
        for each in part:
            yield from _parts(each)
    elif is_dataclass(part):
        if hasattr(part, "mistakes"):
            yield type(part)
        for field in fields(part):
            yield from _parts(getattr(part, field.name))
