"""Families for tests: the package's families with additional mechanisms in their layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from npformer.config import Config
from npformer.engine.blocks import Normed
from npformer.engine.layers.stack import Stack
from npformer.engine.mechanisms import Mechanism
from npformer.families import FAMILIES, Family

Added = Callable[[Config, int], tuple[Mechanism, ...]]


def with_mechanisms(model_type: str, name: str, added: Added) -> Family:
    """Returns the family under a new name; added(config, layer) returns that layer's additional mechanisms."""
    family = FAMILIES[model_type]

    class WithMechanisms(type(family)):  # type: ignore[misc]
        def stack(self, config: Config) -> Stack:
            stack = super().stack(config)
            layers = []
            for i, layer in enumerate(stack.layers):
                (attention, block), *others = layer.blocks
                changed = replace(block.core, mechanisms=(*block.core.mechanisms, *added(config, i)))
                block = replace(block, block=changed) if isinstance(block, Normed) else changed
                layers.append(replace(layer, blocks=((attention, block), *others)))
            return replace(stack, layers=tuple(layers))

    values = {each.name: getattr(family, each.name) for each in fields(family)}
    return WithMechanisms(**values | {"model_type": name})
