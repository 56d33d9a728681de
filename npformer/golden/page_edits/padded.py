"""Texts that a program pads to one length without a mask, or with positions that count the padding.

Here the page is not edited: its functions run with padded token ids, positions and masks, and the padding is cut off
the stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npformer.golden.page_edits.instrumented import Frame

#: How many tokens longer than the longest text the padded texts may be, and common lengths to which programs pad.
MORE = range(9)
LENGTHS = (16, 32, 64, 128, 256, 512)
IDS = (0, 1, 2, 3)  # usual ids of padding


@dataclass(eq=False)
class Padded(Frame):
    """A call with padded token ids. before, after: numbers of padding tokens. said: describes the padding."""

    before: int = 0
    after: int = 0
    said: str = ""

    def cut(self, made: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Removes the padding from each axis that is longer than the axis of `like`."""
        if made.ndim != like.ndim:
            return made
        added = self.before + self.after
        own = [
            slice(self.before, self.before + n) if width == n + added else slice(None)
            for width, n in zip(made.shape, like.shape, strict=True)
        ]
        return made[tuple(own)]


def paddings(frames: Sequence[Frame]) -> Iterator[list[Padded]]:
    """Yields the outermost calls of all texts, padded in each usual way that adds padding to some text."""
    tops = [_top(each) for each in frames]
    if any(each is None for each in tops):
        return
    calls = [each for each in tops if each is not None]
    lengths = [len(each.arguments["ids"]) for each in calls]
    longest = max(lengths)
    widths = dict.fromkeys([*(longest + more for more in MORE), *(each for each in LENGTHS if each > longest)])
    for width in widths:
        if all(each == width for each in lengths):
            continue
        for token in IDS:
            for how in ("right", "left", "left, positions from its first token", "right, masked", "left, masked"):
                if "masked" not in how or "mask" in calls[0].arguments:
                    made = [_padded(each, width, token, how) for each in calls]
                    yield made
        if "positions" in calls[0].arguments:
            yield [_shifted(each, width) for each in calls]


def _top(frame: Frame | None) -> Frame | None:
    """The outermost caller of a call, or the call itself, with token ids and layers as arguments; None without one."""
    found = None
    while frame is not None:
        ids = frame.arguments.get("ids")
        if isinstance(ids, np.ndarray) and ids.ndim == 1 and "layers" in frame.arguments:
            found = frame
        frame = frame.caller
    return found


def _padded(frame: Frame, width: int, token: int, how: str) -> Padded:
    length = len(frame.arguments["ids"])
    n, left = width - length, how.startswith("left")
    before, after = (n, 0) if left else (0, n)
    added = {"ids": np.pad(frame.arguments["ids"], (before, after), constant_values=token)}
    for name, value in frame.arguments.items():
        if name != "ids" and isinstance(value, np.ndarray) and value.shape == (length,) and value.dtype.kind == "i":
            added[name] = (
                _continued(value, before, after, how) if "positions" in name else np.pad(value, (before, after))
            )
    if "mask" in frame.arguments and "masked" in how:
        added["mask"] = np.pad(np.ones(length, bool), (before, after))[None, None]
    said = f"{width} tokens on the {'left' if left else 'right'}, with id {token}"
    if "positions" in how:
        said += ", without a mask, and positions count the padding"
    elif "masked" not in how:
        said += ", without a mask"
    return Padded(**_fields(frame, added), before=before, after=after, said=said)


def _continued(positions: np.ndarray, before: int, after: int, how: str) -> np.ndarray:
    """The positions of a padded text: padding continues the text's positions on either side, or shifts all of them."""
    first = positions[0] if len(positions) else 0
    if "positions" in how:
        return np.arange(first, first + before + len(positions))
    more = np.arange(len(positions), len(positions) + after) + first
    return np.concatenate([np.arange(-before, 0) + first, positions, more])


def _shifted(frame: Frame, width: int) -> Padded:
    """A text padded on the left with a mask: only its positions change, because they count the padding."""
    n = width - len(frame.arguments["ids"])
    added = {"positions": frame.arguments["positions"] + n}
    said = f"{width} tokens on the left, masked, and positions count the padding"
    return Padded(**_fields(frame, added), said=said)


def _fields(frame: Frame, changed: dict[str, Any]) -> dict[str, Any]:
    return {
        "function": frame.function, "arguments": frame.arguments | changed, "caller": frame.caller,
        "line": frame.line, "scope": frame.scope, "layers": frame.layers,
    }  # fmt: skip
