"""`Stage`: the name, shape, formula and parents of an intermediate array that a model computes.

Each part of a model declares its stages by local names, and `within` adds the prefix of the enclosing part.
`transformer.stages` collects the stages of a whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

INPUT = "input"  # the input of a part
SOURCE = "source"  # the rows that cross-attention reads
EMBEDDED = "embedded"  # the input of a stack


class Stage(NamedTuple):
    """The declaration of a stage.

    Shapes are the same as in a trace of one text, with T tokens, S source tokens, width D (E for tables), H heads
    (G of keys and values, if fewer) of width K, F hidden units and C outputs.
    """

    name: str
    shape: str
    formula: str
    function: str  # module and name, relative to npformer.engine
    hook: str = ""  # the name of the hook in TransformerLens's HookedEncoder, if any
    parents: tuple[str, ...] = ()  # the stages from which this stage is computed, or INPUT, SOURCE, EMBEDDED
    kept: bool = True  # whether a backward pass reads the stage


def within(
    scope: str, stages: Iterable[Stage], given: Mapping[str, str], hooks: str | None = "", x: str = "X"
) -> list[Stage]:
    """Prefixes the names of a part's stages with a scope. given: the stages for INPUT, SOURCE and EMBEDDED.

    hooks: prefix of the hooks, or None for a part without hooks. x: the letter of the part's input in formulas.
    """
    prefix = f"{scope}." if scope else ""
    return [
        Stage(
            *(prefix + name, shape, formula.replace("{x}", x), function),
            hooks + hook if hook and hooks is not None else "",
            tuple([given.get(parent, prefix + parent) for parent in parents]),
            kept,
        )
        for name, shape, formula, function, hook, parents, kept in stages
    ]
