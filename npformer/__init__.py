"""npformer: the Transformer in NumPy that you can read.

The maths on readable pages: `plain`. Models and tasks: `load`, `pipeline`. Vectors: `search`. Inspection: `trace`,
`edit`, `golden`, `view`. Training: `training`. A course in which you write your own Transformer: `learn`.

Names are imported on first use, because the command `npformer` must set up its process before it imports NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npformer.version import __version__ as __version__

if TYPE_CHECKING:
    from typing import Any

    from npformer import golden as golden
    from npformer import learn as learn
    from npformer import plain as plain
    from npformer import training as training
    from npformer import view as view
    from npformer.common.errors import NpformerError, NpformerWarning
    from npformer.common.limits import Limits
    from npformer.config import Config
    from npformer.engine.embeddings import shift_right
    from npformer.engine.functions import cross_entropy, log_softmax
    from npformer.engine.masks import padding_mask
    from npformer.engine.runtime.packing import Text
    from npformer.engine.taps import scope, tap
    from npformer.generation.likelihood import perplexity
    from npformer.interpret.direct_attribution import logit_attribution
    from npformer.interpret.edits import edit
    from npformer.interpret.patching import ablate_heads, patch
    from npformer.interpret.traces import Trace, trace
    from npformer.loading import load
    from npformer.model import Model
    from npformer.plain.formulas import (
        causal_mask,
        combine_heads,
        embedding,
        encoder,
        encoder_layer,
        feed_forward,
        gated_feed_forward,
        gelu,
        gelu_tanh,
        layer_norm,
        linear,
        multi_head_attention,
        relu,
        rms_norm,
        rotary_angles,
        rotate,
        scaled_dot_product_attention,
        self_attention,
        silu,
        softmax,
        split_heads,
    )
    from npformer.plain.llama import grouped_query_attention
    from npformer.plain.rotary import rotary_frequencies
    from npformer.plain.transformer import decoder, decoder_layer, sinusoidal_positions
    from npformer.tasks.typed_pipeline import pipeline
    from npformer.tasks.vector_search import search
    from npformer.text.inputs import Pair

__all__ = [
    "Config",
    "Limits",
    "Model",
    "NpformerError",
    "NpformerWarning",
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
    "gated_feed_forward",
    "gelu",
    "gelu_tanh",
    "golden",
    "grouped_query_attention",
    "layer_norm",
    "learn",
    "linear",
    "load",
    "log_softmax",
    "logit_attribution",
    "multi_head_attention",
    "padding_mask",
    "patch",
    "perplexity",
    "pipeline",
    "plain",
    "relu",
    "rms_norm",
    "rotary_angles",
    "rotary_frequencies",
    "rotate",
    "scaled_dot_product_attention",
    "scope",
    "search",
    "self_attention",
    "shift_right",
    "silu",
    "sinusoidal_positions",
    "softmax",
    "split_heads",
    "tap",
    "trace",
    "training",
    "view",
]

#: Maps each module to the public names that it defines.
_NAMES = {
    "plain.formulas": "causal_mask combine_heads embedding encoder encoder_layer feed_forward "
    "gated_feed_forward gelu gelu_tanh layer_norm linear multi_head_attention relu rms_norm rotary_angles rotate "
    "scaled_dot_product_attention self_attention silu softmax split_heads",
    "plain.llama": "grouped_query_attention",
    "plain.rotary": "rotary_frequencies",
    "plain.transformer": "decoder decoder_layer sinusoidal_positions",
    "engine.embeddings": "shift_right",
    "engine.runtime.packing": "Text",
    "config": "Config",
    "interpret.edits": "edit",
    "interpret.direct_attribution": "logit_attribution",
    "interpret.patching": "ablate_heads patch",
    "common.errors": "NpformerError NpformerWarning",
    "engine.functions": "cross_entropy log_softmax",
    "loading": "load",
    "common.limits": "Limits",
    "engine.masks": "padding_mask",
    "model": "Model",
    "generation.likelihood": "perplexity",
    "tasks.vector_search": "search",
    "engine.taps": "scope tap",
    "text.inputs": "Pair",
    "tasks.pipelines": "pipeline",
    "interpret.traces": "Trace trace",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Imports a public name or a module of the package on first use."""
    from importlib import import_module
    from importlib.util import find_spec

    if name in _MODULE_OF:
        value = getattr(import_module(f"npformer.{_MODULE_OF[name]}"), name)
        if _MODULE_OF[name].startswith("plain."):
            from npformer.common.public_formulas import public

            value = public(value)
        else:
            from npformer.common.arraylike import takes_array_likes
            from npformer.common.other_libraries import answering

            value = answering(takes_array_likes(value))
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"npformer.{name}"):
        return import_module(f"npformer.{name}")
    from npformer.common.other_libraries import MODULE

    if name in MODULE:  # not an AttributeError, because `from npformer import` replaces its message
        from npformer.common.errors import NpformerError

        raise NpformerError(f"npformer has no {name}: {MODULE[name]}")
    raise AttributeError(f"module 'npformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
