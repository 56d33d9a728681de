"""Mistakes that ports make around the token table: in projections to and from its width, and in scaled rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from npformer.golden.mistake import Mistake


def _other(table: str) -> Any:
    """A rule that projects with the transposed weight `table` instead."""
    return lambda y, at: at.source @ at.weight(table).T


TOKENS = (
    Mistake(
        "missing projection of the token rows",
        "token rows are projected to the width of the layers by project_in before positions are added",
        {
            "padded with zeros": {
                "embeddings.project": lambda y, at: np.pad(at.source, ((0, 0), (0, y.shape[1] - at.source.shape[1])))
            },
            "project_out, transposed": {"embeddings.project": _other("project")},
        },
    ),
)
STACK = (
    Mistake(
        "missing projection of the last layer's rows",
        "the rows of the last layer are projected to the width of the token table by project_out",
        {
            "its first columns": {"project": lambda y, at: at.source[:, : y.shape[1]]},
            "project_in, transposed": {"project": _other("embeddings.project")},
        },
    ),
)
OUTPUT_SCALE = (
    Mistake(
        "rows before the projection not scaled",
        "the decoder's rows are divided by sqrt(d_model) before they are projected with the token table",
        {
            "": {"head.scaled": lambda y, at: at.source},
            "multiplied by sqrt(d_model)": {"head.scaled": lambda y, at: at.source * at.config.d_model**0.5},
            "divided by d_model": {"head.scaled": lambda y, at: at.source / at.config.d_model},
            "divided by sqrt(d_head)": {"head.scaled": lambda y, at: at.source * at.d_head**-0.5},
        },
    ),
)
