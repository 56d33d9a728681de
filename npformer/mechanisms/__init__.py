"""How attention uses the positions of tokens, one mechanism per file. A list of mechanisms combines them.

`mechanism.py` defines the steps of a mechanism; `causal.py` is the shortest of them. ModernBERT has (Rotary, Window),
GPT-2 (Causal,), MPNet (RelativeBias,), DeBERTa (Disentangled,). `placed.py` applies a layer's list in its attention.
"""

from npformer.mechanisms.causal import Causal
from npformer.mechanisms.disentangled import Disentangled
from npformer.mechanisms.mechanism import Mechanism
from npformer.mechanisms.placed import Placed
from npformer.mechanisms.relative_bias import RelativeBias
from npformer.mechanisms.rotary import Rotary
from npformer.mechanisms.window import Window

__all__ = ["Causal", "Disentangled", "Mechanism", "Placed", "RelativeBias", "Rotary", "Window"]
