"""Heads, which compute a model's answers from the rows of its last layer.

`formulas.py` has the formulas, and `heads.py` the heads as parts of a model.
"""

from typing import TYPE_CHECKING

from npformer.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from npformer.engine.output_heads.capped_logits import CappedLogits
    from npformer.engine.output_heads.formulas import (
        classify,
        mean_rows,
        pool,
        probabilities,
        replaced_tokens,
        spans,
        transform,
    )
    from npformer.engine.output_heads.heads import Head, HiddenStates, Logits, Pooler, ReplacedTokens, Spans, Transform
    from npformer.engine.output_heads.output_scale import OutputScale

__all__ = [
    "CappedLogits",
    "Head",
    "HiddenStates",
    "Logits",
    "OutputScale",
    "Pooler",
    "ReplacedTokens",
    "Spans",
    "Transform",
    "classify",
    "mean_rows",
    "pool",
    "probabilities",
    "replaced_tokens",
    "spans",
    "transform",
]

_FILES = {
    "capped_logits": "CappedLogits",
    "formulas": "pool classify spans mean_rows transform replaced_tokens probabilities",
    "heads": "Head HiddenStates Logits Pooler ReplacedTokens Spans Transform",
    "output_scale": "OutputScale",
}
__getattr__, __dir__ = lazy_names(__name__, _FILES)
