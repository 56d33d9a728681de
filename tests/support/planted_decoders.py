"""Runs `PlainDecoder` with a planted mistake, and diagnoses it."""

from __future__ import annotations

import numpy as np

from npformer import golden
from npformer.checkpoint import flatten
from npformer.model import Model
from npformer.runtime.packing import Text
from tests.support.plain_decoder import PlainDecoder

TEXTS = (np.arange(5, 14), np.arange(20, 26))
#: Stages that a port exports, besides its layers' outputs, if it exports only hidden states and answers.
ANSWERS = ("embeddings.sum", "embeddings.norm", "norm", "logits", "project")


def diagnosis(model: Model, planted: str, full: bool) -> str:
    """Diagnoses a port with one mistake, from all its stages if `full`. The correct port must pass the comparison."""
    recorded, weights = golden.record(model, [Text(ids) for ids in TEXTS]), flatten(dict(model.weights))

    def exported(*mistakes: str) -> dict[str, np.ndarray]:
        runs = [PlainDecoder(model.config, weights, mistakes).run(ids) for ids in TEXTS]
        return {
            f"{i}/{stage}": array
            for i, stages in enumerate(runs)
            for stage, array in stages.items()
            if full or stage in ANSWERS or stage.endswith(("ffn_residual", "ffn_norm"))
        }

    comparison = golden.compare(recorded, exported())
    assert comparison.ok, comparison
    return str(golden.diagnose(recorded, exported(planted), model)).partition("then")[0]
