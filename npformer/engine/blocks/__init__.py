"""The blocks of a layer, one per file: attention, feed-forward networks and a convolution. `layers/` combines blocks.

A block is an object with options, and is called with rows, their texts and weights. `backward` is below `__call__`.
"""

from typing import TYPE_CHECKING

from npformer.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from npformer.engine.blocks.attention import Attention, CrossAttention
    from npformer.engine.blocks.block import Block
    from npformer.engine.blocks.convolution import Convolution
    from npformer.engine.blocks.ffn import FeedForward
    from npformer.engine.blocks.gated import Gated
    from npformer.engine.blocks.output_norm import Normed
    from npformer.engine.blocks.packed_texts import PackedTexts, Source

__all__ = [
    "Attention", "Block", "Convolution", "CrossAttention", "FeedForward", "Gated", "Normed", "PackedTexts", "Source",
]  # fmt: skip

_FILES = {
    "attention": "Attention CrossAttention",
    "block": "Block",
    "convolution": "Convolution",
    "ffn": "FeedForward",
    "gated": "Gated",
    "output_norm": "Normed",
    "packed_texts": "PackedTexts Source",
}
__getattr__, __dir__ = lazy_names(__name__, _FILES)
