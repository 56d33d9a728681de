"""Mechanisms, one per file, which make attention depend on the places of tokens.

`mechanism.py` defines the steps of a mechanism, and `causal.py` is the shortest example. `blocks/attention.py` applies
mechanisms. A model has a tuple of mechanisms: ModernBERT (Rotary, Window), GPT-2 (Causal,), Llama (Rotary, Causal),
Qwen3 (HeadNorm, Rotary, Causal), Gemma 2 (Rotary, SoftCap, Window, Causal), MPNet and T5's encoder (RelativeBias,),
T5's decoder (RelativeBias, Causal), DeBERTa (Disentangled,), GPT-NeoX (PartialRotary, Causal), OLMo 2 (RowNorm, Rotary,
Causal), and BLOOM (Alibi, Causal).
"""

from typing import TYPE_CHECKING

from npformer.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from npformer.engine.mechanisms.alibi import Alibi
    from npformer.engine.mechanisms.causal import Causal
    from npformer.engine.mechanisms.disentangled import Disentangled
    from npformer.engine.mechanisms.head_norm import HeadNorm, ZeroCentredHeadNorm
    from npformer.engine.mechanisms.mechanism import Mechanism
    from npformer.engine.mechanisms.partial_rotary import PartialRotary
    from npformer.engine.mechanisms.relative_bias import RelativeBias
    from npformer.engine.mechanisms.rotary import Rotary
    from npformer.engine.mechanisms.row_norm import RowNorm
    from npformer.engine.mechanisms.soft_cap import SoftCap
    from npformer.engine.mechanisms.window import Window

__all__ = [
    "Alibi",
    "Causal",
    "Disentangled",
    "HeadNorm",
    "Mechanism",
    "PartialRotary",
    "RelativeBias",
    "Rotary",
    "RowNorm",
    "SoftCap",
    "Window",
    "ZeroCentredHeadNorm",
]

_FILES = {
    "alibi": "Alibi",
    "causal": "Causal",
    "disentangled": "Disentangled",
    "head_norm": "HeadNorm ZeroCentredHeadNorm",
    "mechanism": "Mechanism",
    "partial_rotary": "PartialRotary",
    "relative_bias": "RelativeBias",
    "rotary": "Rotary",
    "row_norm": "RowNorm",
    "soft_cap": "SoftCap",
    "window": "Window",
}
__getattr__, __dir__ = lazy_names(__name__, _FILES)
