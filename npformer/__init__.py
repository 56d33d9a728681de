"""npformer: the Transformer in NumPy that you can read.

The maths: `functions`, `attention`, `encoder`, `decoder`, `heads`. Models and tasks: `load`, `pipeline`. Looking
inside: `trace`, `edit`, `golden`, `view`. Learning: `training`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from npformer.attention import (
    causal_mask,
    combine_heads,
    padding_mask,
    scaled_dot_product_attention,
    self_attention,
    split_heads,
)
from npformer.batch import Text
from npformer.config import Config
from npformer.decoder import decoder, decoder_layer, shift
from npformer.encoder import encoder, encoder_layer, feed_forward, sinusoidal_positions
from npformer.errors import NpformerError
from npformer.functions import (
    cross_entropy,
    embedding,
    gelu,
    layer_norm,
    linear,
    log_softmax,
    relu,
    silu,
    softmax,
)
from npformer.loading import load
from npformer.model import Model
from npformer.tap import scope, tap
from npformer.tasks import Pair, pipeline

if TYPE_CHECKING:
    from npformer import golden as golden
    from npformer import training as training
    from npformer import view as view
    from npformer.edits import ablate_heads, edit, patch
    from npformer.tracing import Trace, trace

__version__ = "0.1.0"

__all__ = [
    "Config",
    "Model",
    "NpformerError",
    "Pair",
    "Text",
    "Trace",
    "ablate_heads",
    "causal_mask",
    "combine_heads",
    "cross_entropy",
    "decoder",
    "decoder_layer",
    "edit",
    "embedding",
    "encoder",
    "encoder_layer",
    "feed_forward",
    "gelu",
    "layer_norm",
    "linear",
    "load",
    "log_softmax",
    "padding_mask",
    "patch",
    "pipeline",
    "relu",
    "scaled_dot_product_attention",
    "scope",
    "self_attention",
    "shift",
    "silu",
    "sinusoidal_positions",
    "softmax",
    "split_heads",
    "tap",
    "trace",
]


_LATER = {"Trace": "tracing", "ablate_heads": "edits", "edit": "edits", "patch": "edits", "trace": "tracing"}


def __getattr__(name: str) -> Any:
    """The parts that few programs need, imported when they are first named."""
    if name in ("golden", "training", "view"):
        return import_module(f"npformer.{name}")
    if name in _LATER:
        return getattr(import_module(f"npformer.{_LATER[name]}"), name)
    raise AttributeError(f"module 'npformer' has no attribute {name!r}")
