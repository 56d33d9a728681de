"""Arrays into text for a page: rounded where that is asked, planes of bytes, deflate, base64.

Weights are stored as decimals (`round(w * 1000)` for three), never on a binary grid: what the page prints is then the
array itself, correctly rounded to the digits shown, not a near value. Anything that is calculated with in the
browser is stored as the float it is. The reader is `assets/core.js`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BUDGET = 1_400_000  # characters of data; with the page around it a file stays under 1.5 MB
ALWAYS_FITS = 12 * 12 * 128 * 128  # as many weights as this stay within the budget whatever they are


@dataclass(frozen=True)
class Packed:
    """One array as text, with what is needed to read it."""

    name: str
    shape: tuple[int, ...]
    kind: str  # "u2": decimals in 16 bits; "f4", "f8": floats as they are
    decimals: int
    text: str

    def head(self) -> dict[str, Any]:
        """What the page needs to know before it touches the data."""
        return {"shape": list(self.shape), "kind": self.kind, "decimals": self.decimals}


def pack_decimals(name: str, weights: np.ndarray, decimals: int) -> Packed:
    """Numbers in 0..1, rounded to `decimals` (at most 4), keys before queries.

    A column of attention (all that looks at one token) is more alike than a row: this order is 5% smaller.
    """
    units = np.rint(weights.astype(np.float64) * 10**decimals).clip(0, None).astype("<u2")
    return Packed(name, weights.shape, "u2", decimals, _encode(np.ascontiguousarray(units.swapaxes(-1, -2))))


def pack_floats(name: str, array: np.ndarray, decimals: int = 4) -> Packed:
    """Floats, bit for bit (half precision widens); `decimals` is how many the page prints."""
    kind = "f8" if array.dtype == np.float64 else "f4"
    return Packed(name, array.shape, kind, decimals, _encode(np.ascontiguousarray(array, "<" + kind)))


def _encode(array: np.ndarray) -> str:
    """Bytes of equal significance together, then deflate with run lengths and Huffman codes alone.

    The low digits are noise in which looking for repeated strings finds nothing: without the search the result is
    2% smaller than at level 9 (on real attention, 128 tokens), and made 20 to 40 times as fast.
    """
    planes = array.reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize).T.tobytes()
    deflate = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return base64.b64encode(deflate.compress(planes) + deflate.flush()).decode("ascii")


def pack_weights(names: Sequence[str], layers: Sequence[np.ndarray]) -> list[Packed]:
    """Attention weights, one block a layer (the page inflates a layer when it is first looked at).

    Four decimals when they fit `BUDGET`, else three; weights so evenly spread that three do not fit get two. With
    more than `ALWAYS_FITS` of them, on longer texts, two would say nothing: it is three, and the file grows.
    """
    choices = (4, 3, 2) if sum(layer.size for layer in layers) <= ALWAYS_FITS else (3,)
    for decimals in choices:
        blocks = [pack_decimals(name, layer, decimals) for name, layer in zip(names, layers, strict=True)]
        if size(blocks) <= BUDGET:
            break
    return blocks


def size(blocks: Sequence[Packed]) -> int:
    """Characters of data in `blocks`."""
    return sum(len(block.text) for block in blocks)
