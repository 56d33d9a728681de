"""Norms as parts of a model, one per file.

`norm.py` has the base class, and `root_mean_square.py` is an example. The formulas are in `functions.py`.
"""

from typing import TYPE_CHECKING

from npformer.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from npformer.engine.norms.layernorm import LayerNorm
    from npformer.engine.norms.norm import Norm
    from npformer.engine.norms.root_mean_square import RMSNorm
    from npformer.engine.norms.zero_centred import ZeroCentredRMSNorm

__all__ = ["LayerNorm", "Norm", "RMSNorm", "ZeroCentredRMSNorm"]

_FILES = {
    "layernorm": "LayerNorm",
    "norm": "Norm",
    "root_mean_square": "RMSNorm",
    "zero_centred": "ZeroCentredRMSNorm",
}
__getattr__, __dir__ = lazy_names(__name__, _FILES)
