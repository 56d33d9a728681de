"""Checks token ids in any of three forms: one sequence, a padded array with its mask, or a ragged list.

`as_padded` converts each form to a padded array, `unpadded` removes the padding, and `padded` restores it in the
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text, positions


def as_padded(input_ids: Any, attention_mask: Any, token_type_ids: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, boolean mask and token types, each (B, L) or (B, N, L). A single sequence becomes a batch of one.

    A ragged list of sequences is padded on the right, and its mask is computed from the lengths.
    """
    if _is_ragged(input_ids):
        if attention_mask is not None:
            raise NpformerError("attention_mask: not supported with a ragged list of input_ids, which has no padding")
        lengths = [len(sequence) for sequence in input_ids]
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        ids = _filled("input_ids", input_ids, mask)
        token_types = np.zeros_like(ids) if token_type_ids is None else _filled("token_type_ids", token_type_ids, mask)
        return ids, mask, token_types
    ids = _integers("input_ids", input_ids)
    mask = np.ones(ids.shape, bool) if attention_mask is None else _mask(attention_mask, ids.shape)
    token_types = np.zeros_like(ids) if token_type_ids is None else _integers("token_type_ids", token_type_ids)
    if token_types.shape != ids.shape:
        raise NpformerError(f"token_type_ids: expected the shape of input_ids, {ids.shape}, got {token_types.shape}")
    if ids.ndim == 0:
        raise NpformerError("input_ids: expected a sequence of token ids, got a single number")
    if not mask.any(axis=-1).all():
        row = int(np.flatnonzero(~mask.any(axis=-1))[0])
        raise NpformerError(f"attention_mask: expected at least one token in each row, got all zeros in row {row}")
    return (ids[None], mask[None], token_types[None]) if ids.ndim == 1 else (ids, mask, token_types)


def _is_ragged(input_ids: Any) -> bool:
    if not isinstance(input_ids, list | tuple) or not input_ids:
        return False
    if not all(isinstance(each, list | tuple | np.ndarray) and np.ndim(each[:1]) == 1 for each in input_ids):
        return False
    return len({len(each) for each in input_ids}) > 1


def _integers(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise NpformerError(f"{name}: expected a sequence of whole numbers, or a list of such sequences") from None
    if array.dtype.kind == "U":
        raise NpformerError(
            f"{name}: expected token ids, got text; model.tokenizer.encode(text).ids returns ids, and "
            "npformer.trace(model, text) and npformer.pipeline(model=model)(text) accept text"
        )
    if array.size == 0:
        raise NpformerError(f"{name}: expected at least one token, got shape {array.shape}")
    if isinstance(values, Mapping):
        raise NpformerError(f"{name}: expected token ids, got {type(values).__name__}; use model(**inputs)")
    if hasattr(array.flat[0], "type_ids"):  # an Encoding from the tokenizers library
        raise NpformerError(
            f"{name}: expected token ids, got Encoding; use model(encoding.ids, token_type_ids=encoding.type_ids)"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise NpformerError(f"{name}: expected whole numbers, got {array.dtype}")
    return array


def _filled(name: str, sequences: Sequence[Any], mask: np.ndarray) -> np.ndarray:
    if not isinstance(sequences, list | tuple) or len(sequences) != len(mask):
        raise NpformerError(f"{name}: expected a list of {len(mask)} sequences, one for each sequence of input_ids")
    padded = np.zeros(mask.shape, np.int64)
    for row, (sequence, kept) in enumerate(zip(sequences, mask, strict=True)):
        values = _integers(f"{name}[{row}]", sequence)
        if values.shape != (kept.sum(),):
            raise NpformerError(f"{name}[{row}]: expected {kept.sum()} tokens, got shape {values.shape}")
        padded[row, kept] = values
    return padded


def _mask(attention_mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        mask = np.asarray(attention_mask)
    except ValueError:
        raise NpformerError(f"attention_mask: expected the shape of input_ids, {shape}, got a ragged list") from None
    if mask.shape != shape:
        raise NpformerError(f"attention_mask: expected the shape of input_ids, {shape}, got {mask.shape}")
    if not np.isin(mask, (0, 1)).all():
        raise NpformerError("attention_mask: expected zeros and ones")
    return mask.astype(bool)


def unpadded(
    ids: np.ndarray,
    mask: np.ndarray,
    token_types: np.ndarray | None = None,
    uncounted: int | None = None,
    skips_masked: bool = False,
) -> list[Text]:
    """Converts ids (B, L) to texts without masked tokens, with the positions of the tokens.

    uncounted: as in `pack`. skips_masked: positions do not count masked tokens.
    """
    types = [None] * len(ids) if token_types is None else [row[at] for row, at in zip(token_types, mask, strict=True)]
    if skips_masked:
        return [Text(row[at], each) for row, each, at in zip(ids, types, mask, strict=True)]
    padded = zip(ids, types, positions(ids, uncounted), mask, strict=True)
    return [Text(row[at], each, counted[at], np.flatnonzero(at)) for row, each, counted, at in padded]


def padded(texts: Sequence[np.ndarray], mask: np.ndarray) -> np.ndarray:
    """Puts the rows (L, ...) of each text where the mask (B, L) is True, and zeros elsewhere: (B, L, ...)."""
    rows = np.concatenate(texts)
    table = np.zeros((*mask.shape, *rows.shape[1:]), rows.dtype)
    table[mask] = rows
    return table


def check_texts(
    texts: Sequence[Text],
    max_length: int,
    vocab_size: int,
    n_token_types: int = 0,
    name: str = "input_ids",
    first_position: int = 0,
) -> None:
    """Checks that no text is empty or too long, and that each id, token type and position has a row in its table."""
    tables = (
        (name, "ids", 0, vocab_size, "the vocabulary"),
        ("token_type_ids", "token_type_ids", 0, max(n_token_types, 1), "the token types"),
        ("position", "positions", first_position, max_length, "the model's positions"),
    )
    for index, text in enumerate(texts):
        if len(text) == 0:
            raise NpformerError(f"{name}: text {index} has no tokens")
        if len(text) > max_length:
            raise NpformerError(f"{name}: expected at most {max_length} tokens, got {len(text)} in text {index}")
        for what, field, least, size, where in tables:
            values = getattr(text, field)
            if values is not None and not (values.min() >= least and values.max() < size):
                wrong = values[(values < least) | (values >= size)][0]
                raise NpformerError(f"{what}: {wrong} of text {index} is outside {where}, {least} ... {size - 1}")
