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
#: Ways to pad: the side, whether the padding is masked, and whether positions count it.
WAYS = (
    ("right", False, False), ("left", False, False), ("left", False, True), ("right", True, False),
    ("left", True, False),
)  # fmt: skip


@dataclass(eq=False)
class Padded(Frame):
    """A call with padded token ids.

    before, after: numbers of padding tokens. masked: whether attention hides them. said: describes the padding
    """

    before: int = 0
    after: int = 0
    masked: bool = False
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
            for side, masked, counted in WAYS:
                if not masked or "mask" in calls[0].arguments:
                    yield [_padded(each, width, token, side, masked, counted) for each in calls]
        if "positions" in calls[0].arguments:
            yield [_shifted(each, width) for each in calls]


def _top(frame: Frame | None) -> Frame | None:
    """The outermost caller of a call, or the call itself, with token ids and layers as arguments; None without one."""
    found = None
    for each in frame.outward() if frame else ():
        ids = each.arguments.get("ids")
        if isinstance(ids, np.ndarray) and ids.ndim == 1 and "layers" in each.arguments:
            found = each
    return found


def _padded(frame: Frame, width: int, token: int, side: str, masked: bool, counted: bool) -> Padded:
    """A text padded to a width. counted: whether positions count the padding."""
    length = len(frame.arguments["ids"])
    before, after = (width - length, 0) if side == "left" else (0, width - length)
    added = {"ids": np.pad(frame.arguments["ids"], (before, after), constant_values=token)}
    for name, value in frame.arguments.items():
        if name != "ids" and isinstance(value, np.ndarray) and value.shape == (length,) and value.dtype.kind == "i":
            added[name] = (
                _continued(value, before, after, counted) if "positions" in name else np.pad(value, (before, after))
            )
    if masked:
        added["mask"] = np.pad(np.ones(length, bool), (before, after))[None, None]
    said = f"{width} tokens on the {side}, with id {token}{', without a mask' * (not masked)}"
    said += ", and positions count the padding" * counted
    return _with(frame, added, before=before, after=after, masked=masked, said=said)


def _continued(positions: np.ndarray, before: int, after: int, counted: bool) -> np.ndarray:
    """The positions of a padded text: padding continues the text's positions on either side, or shifts all of them."""
    first = positions[0] if len(positions) else 0
    if counted:
        return np.arange(first, first + before + len(positions))
    more = np.arange(len(positions), len(positions) + after) + first
    return np.concatenate([np.arange(-before, 0) + first, positions, more])


def _shifted(frame: Frame, width: int) -> Padded:
    """A text padded on the left with a mask: only its positions change, because they count the padding."""
    added = {"positions": frame.arguments["positions"] + width - len(frame.arguments["ids"])}
    return _with(frame, added, masked=True, said=f"{width} tokens on the left, masked, and positions count the padding")


def _with(frame: Frame, arguments: dict[str, Any], **padding: Any) -> Padded:
    """The call with some other arguments, and the fields of its padding."""
    return Padded(**{**vars(frame), "arguments": frame.arguments | arguments}, **padding)
