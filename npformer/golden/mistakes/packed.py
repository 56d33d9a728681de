"""Texts of a packed batch that attend to one another, because attention ignores the boundaries between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npformer.engine.runtime.packing import Text
from npformer.golden.mistake import Mistake, Ways
from npformer.golden.port import Port

MOST = 1 << 22  # maximum number of tokens in a run times d_model


def without_borders(port: Port) -> Ways:
    """Appends the other texts to each text, so that each token sees all texts, as far away as in the packed batch."""
    total = sum(map(len, port.texts))
    if port.config.decoder or len(port.texts) < 2 or total * len(port.texts) * port.config.d_model > MOST:
        return
    longer = port.with_config(max_length=max(total, port.config.max_length))
    start = np.cumsum([0, *map(len, port.texts)])
    position = np.concatenate([np.arange(len(text)) for text in port.texts])
    ids = np.concatenate([text.ids for text in port.texts])
    types = [text.token_type_ids for text in port.texts if text.token_type_ids is not None]
    token_type_ids = np.concatenate(types) if len(types) == len(port.texts) else None

    def in_batch(text: Text, i: int, from_0: bool) -> Text:
        order = np.roll(np.arange(total), -start[i])
        return Text(
            ids[order],
            None if token_type_ids is None else token_type_ids[order],
            position[order] if from_0 else order,
            order,
        )

    for way, from_0 in (("", True), ("positions counted across the batch", False)):
        batch = longer.reading(lambda text, i, from_0=from_0: in_batch(text, i, from_0))
        yield way, replace(batch, touched=port.touched | {"*.attention.weights" if from_0 else "*"})


MISTAKES = (
    Mistake(
        "texts attend to one another",
        "in a packed batch, a token attends only to tokens of its own text",
        without_borders,
    ),
)
