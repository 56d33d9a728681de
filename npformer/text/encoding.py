"""From texts to token ids that fit the model: too long a text is cut, read in windows, or refused.

The cuts are those that Transformers makes, so that the ids are the same. `task.py` runs the model on the pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from npformer.errors import NpformerError
from npformer.model import Model
from npformer.runtime.batch import Text
from npformer.text.inputs import Part
from npformer.text.tokenizer import longest_text

if TYPE_CHECKING:
    from tokenizers import Encoding


@dataclass
class Encoded:
    """One text for the model, in one piece or, with overlaps, in several."""

    pieces: list[Encoding]
    n_tokens: int  # of the whole text, special tokens and all
    truncated: bool = False
    starts: list[int] = field(default_factory=lambda: [0])  # the first token of each piece, counted in the whole text

    def rows(self) -> list[slice]:
        """The rows of each piece that together are the whole text, once: an overlap is cut in its middle.

        So each token is taken from the piece in which it has more context, [CLS] from the first, [SEP] from the last.
        """
        before = self.pieces[0].special_tokens_mask.index(0) if len(self.pieces) > 1 else 0
        after = len(self.pieces[0]) - before - sum(1 - each for each in self.pieces[0].special_tokens_mask)
        edges = [0]
        for (start, piece), (next_start, _) in pairwise(zip(self.starts, self.pieces, strict=True)):
            end = start + len(piece) - before - after
            edges.append((next_start + end) // 2 + before)
        edges.append(self.starts[-1] + len(self.pieces[-1]))
        return [slice(a - start, b - start) for start, (a, b) in zip(self.starts, pairwise(edges), strict=True)]


class Encoder:
    """A model's tokenizer, and how long its texts may be."""

    def __init__(self, model: Model, limit: int | None = None) -> None:
        self.tokenizer = model.tokenizer
        self.threads = model.threads
        self.has_segments = model.config.reads_token_types
        self.limit = min(longest_text(model.folder, model.config), limit or model.config.max_length)

    def encode(self, parts: Sequence[Part]) -> list[Encoding]:
        """The whole texts' tokens, special tokens and all."""
        if len(parts) == 1 or self.threads == 1:
            return [self._whole(part, special=True) for part in parts]
        return list(self.tokenizer.encode_batch(parts))

    def text(self, piece: Encoding) -> Text:
        """What the model is given of a piece."""
        segments = np.array(piece.type_ids, np.int64) if self.has_segments else None
        return Text(np.array(piece.ids, np.int64), segments)

    def fit(
        self,
        part: Part,
        encoding: Encoding,
        long: str,
        cut: str = "longest",
        limit: int | None = None,
        stride: int | None = None,
    ) -> Encoded:
        """An encoding in pieces that the model takes.

        cut: which of two texts gives way, "first", "second" or "longest". limit: the tokens of a piece, where they are
        to be fewer than the model takes. stride: the tokens that two windows share, by default a quarter of a window.
        """
        limit, n_tokens = min(limit or self.limit, self.limit), len(encoding)
        if n_tokens <= limit:
            return Encoded([encoding], n_tokens)
        if long == "error":
            most = f"the model takes {limit}" if limit == self.limit else f"at most {limit} are wanted"
            raise NpformerError(f"{n_tokens} tokens, and {most}; long='truncate' reads the first, long='window' all")
        texts = [self._whole(each, special=False) for each in ([part] if isinstance(part, str) else part)]
        room = limit - self.tokenizer.num_special_tokens_to_add(len(texts) == 2)
        if room < 1:
            raise NpformerError(f"a text has {limit} tokens at most, which is too few for any text")
        if long == "truncate":
            for text, length in zip(texts, _lengths([len(each) for each in texts], room, cut), strict=True):
                text.truncate(length)
            return Encoded([self.tokenizer.post_process(*texts)], n_tokens, truncated=True)
        return self._windows(texts, n_tokens, room, stride, cut)

    def _windows(self, texts: list[Encoding], n_tokens: int, room: int, stride: int | None, cut: str) -> Encoded:
        """One text moves past, `stride` tokens of it shown twice; the other, if there is one, stays whole beside it."""
        moving = _giving_way([len(text) for text in texts], cut)
        width = room - sum(len(text) for i, text in enumerate(texts) if i != moving)
        if width < 1:
            raise NpformerError(f"one text of the pair has {room - width} tokens, which leaves no room for the other")
        stride = width // 4 if stride is None else stride
        if not 0 <= stride < width:
            raise NpformerError(f"stride: windows of {width} tokens can share 0 to {width - 1}, not {stride}")
        texts[moving].truncate(width, stride=stride)
        windows = [texts[moving], *texts[moving].overflowing]
        pieces = [self.tokenizer.post_process(*texts[:moving], window, *texts[moving + 1 :]) for window in windows]
        return Encoded(pieces, n_tokens, starts=[i * (width - stride) for i in range(len(pieces))])

    def _whole(self, part: Part, special: bool) -> Encoding:
        first, second = (part, None) if isinstance(part, str) else part
        encoding: Encoding = self.tokenizer.encode(first, second, add_special_tokens=special)
        return encoding


def _giving_way(lengths: Sequence[int], cut: str) -> int:
    return {"first": 0, "second": len(lengths) - 1}.get(cut, int(np.argmax(lengths)))


def _lengths(lengths: Sequence[int], room: int, cut: str) -> list[int]:
    """How much of each text is kept: all of the one that does not give way; "longest": shares as equal as can be."""
    kept = list(lengths)
    moving = _giving_way(lengths, cut)
    others = sum(lengths) - lengths[moving]
    if cut == "longest" and len(lengths) == 2:
        others = kept[1 - moving] = min(others, room // 2)
    kept[moving] = room - others
    if kept[moving] < 0:
        raise NpformerError(f"one text of the pair has {others} tokens, more than the {room} there is room for")
    return kept
