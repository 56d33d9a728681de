"""SentencePiece's character map is refused if a reader could read past its end."""

from __future__ import annotations

import numpy as np
import pytest

from npformer.common.errors import NpformerError
from npformer.text.tokenizer_checks import check_charsmap


def charsmap(units: int = 256, texts: bytes = b"a\0", **changed: int) -> bytes:
    """Returns a map with this many units. changed: values of single units, such as `at_3=...` for unit 3."""
    table = np.zeros(units, "<u4")
    for name, value in changed.items():
        table[int(name.removeprefix("at_"))] = value
    return (4 * units).to_bytes(4, "little") + table.tobytes() + texts


def test_a_map_with_an_index_out_of_bounds_is_refused() -> None:
    assert check_charsmap("here", charsmap(texts=b"abc\0" + "é".encode() + b"\0")) == 3
    assert check_charsmap("here", charsmap(512, at_0=256 << 10)) == 1
    value = {"at_0": 1 << 8 | 5 << 10, "at_5": 1 << 31 | 1}  # the root's value, in unit 5, is the text at offset 1
    assert check_charsmap("here", charsmap(**value)) == 1
    for wrong in (
        b"", b"\0\0\0\0", charsmap()[:-1], charsmap(texts=b""), charsmap(250), charsmap(at_0=256 << 10),
        charsmap(at_0=1 << 10 | 1 << 9), charsmap(**value | {"at_5": 1 << 31 | 2}), charsmap(**value | {"at_5": 900}),
    ):  # fmt: skip
        with pytest.raises(NpformerError, match="here: precompiled_charsmap"):
            check_charsmap("here", wrong)
