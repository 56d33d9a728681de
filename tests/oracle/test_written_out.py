"""Transformers models that compute attention in their own modules (MPNet, DeBERTa): every stage of attention, from
scores to context, is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.config import InputConvolution, Positions
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from tests.support import tiny

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("mpnet", {}),
    "deberta-v2": ("deberta-v2", {}),
    "deberta-v2, own distances": ("deberta-v2", {"mechanisms": (tiny.distances(own=True),)}),
    "deberta-v2, convolution": ("deberta-v2", {"convolution": InputConvolution(3)}),
    "deberta-v2, content to distance": ("deberta-v2", {"mechanisms": (tiny.distances(forms=("key",)),), "positions": Positions()}),
    "deberta-v2, distance to content": (
        "deberta-v2", {"mechanisms": (tiny.distances(forms=("query",), own=True),), "n_token_types": 2},
    ),
    "deberta-v2, no distances": ("deberta-v2", {"mechanisms": (tiny.distances(forms=()),), "positions": Positions(), "n_token_types": 2}),
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_every_stage_of_attention_is_heard_and_within_its_budget(option: str, tmp_path: Path) -> None:
    """The batch has masked padding. Only stages outside attention that no module returns are missing."""
    family, fields = OPTIONS[option]
    folder = tiny.folder(tmp_path / "m", family, **fields)
    model, random = Model(*load_folder(folder), folder=folder), np.random.default_rng(1)
    recorded = golden.record(model, [Text(random.integers(5, model.config.vocab_size, length)) for length in (19, 6)])
    other = golden.load_torch(str(folder), recorded)
    comparison = golden.compare(recorded, other)
    assert comparison.ok, str(comparison)
    left = {"convolution.activation"} if "convolution" in fields else set()
    assert set(comparison.missing) == {"probabilities", *left}
    assert max(row.budgets for row in comparison.rows) < 0.5
    kept = {name for module in other.modules() for name in vars(module) if callable(getattr(module, name))}
    assert not kept & {"transpose_for_scores", "disentangled_attention_bias"}  # both are restored
