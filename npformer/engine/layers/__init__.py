"""Combines blocks into layers, and layers into a stack. A family chooses the blocks and layers."""

from typing import TYPE_CHECKING

from npformer.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from npformer.engine.layers.layer import Layer
    from npformer.engine.layers.parallel_layer import ParallelLayer
    from npformer.engine.layers.stack import Stack

__all__ = ["Layer", "ParallelLayer", "Stack"]

_FILES = {
    "layer": "Layer",
    "parallel_layer": "ParallelLayer",
    "stack": "Stack",
}
__getattr__, __dir__ = lazy_names(__name__, _FILES)
