"""Finds the texts that another program's arrays belong to, because ports often write the stages of a single text.

Such arrays are named i/STAGE, or have no number and the shapes of one text. `compare.py` uses this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common.errors import NpformerError
from npformer.golden.format import Golden
from npformer.golden.names import Theirs, by_text, numbered, read

Names = Mapping[str, str] | None


def choices(golden: Golden, arrays: Mapping[str, Any], names: Names) -> list[tuple[int, ...]]:
    """Returns the possible choices of texts that the arrays may belong to, each as the texts' indices.

    Raises NpformerError if no array is recognized, or the arrays belong to other token ids.
    """
    everything = tuple(range(len(golden.texts)))
    try:
        theirs = read(golden, arrays, names)
    except NpformerError:
        if found := _alone(golden, arrays, names):  # the arrays have the token ids of a single text
            return found
        raise
    whole = theirs.stages.keys() - theirs.partial.keys()
    if any(not name.endswith("embeddings.position") for name in whole):  # one array of positions fits any text
        return [everything]
    given = theirs.numbers - {-1}
    some = [tuple(sorted(given))] if given < set(everything) else []
    return (some if given else _alone(golden, arrays, names)) or [everything]


def _alone(golden: Golden, arrays: Mapping[str, Any], names: Names) -> list[tuple[int, ...]]:
    """Returns each text that fits all arrays."""
    found: list[tuple[int, ...]] = []
    for i in range(len(golden.texts)):
        try:
            theirs = read(golden.of_texts([i]), arrays, names)
        except NpformerError:
            continue
        if theirs.stages and not theirs.problems:
            found.append((i,))
    return found


def renumbered(arrays: Mapping[str, Any], texts: tuple[int, ...]) -> dict[str, Any]:
    """Renames arrays i/STAGE: the number of a text becomes its index in `texts`."""
    named = {name: (*numbered(name), array) for name, array in by_text(arrays).items()}
    return {
        f"{texts.index(number)}/{rest}" if number in texts else name: array
        for name, (number, rest, array) in named.items()
    }


def has_padding(golden: Golden, theirs: Theirs) -> bool:
    """Returns whether an array has more rows than its text has tokens."""
    widths, lengths = (*theirs.widths, *theirs.source_widths), map(len, (*golden.texts, *golden.sources))
    return any(width > length for width, length in zip(widths, lengths, strict=True))


def said_of(texts: tuple[int, ...], count: int) -> str:
    """Says which of the file's texts are compared, and the numbers that they have in the report."""
    if len(texts) == count:
        return ""
    which = f"text {texts[0]}" if len(texts) == 1 else f"texts {', '.join(map(str, texts))}"
    renamed = "" if texts == tuple(range(len(texts))) else ", numbered from 0 below"
    return f"only {which} of {count} compared{renamed}"
