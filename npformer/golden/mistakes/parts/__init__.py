"""The mistakes that ports make in each part of a model, found by the class of the part.

A part without an entry has the mistakes of the nearest base class with one. So do families, whose mistakes are made in
reading their files.
"""

from __future__ import annotations

from npformer.engine.blocks import Attention, Convolution, CrossAttention, FeedForward, Gated, Normed
from npformer.engine.layers.parallel_layer import ParallelLayer
from npformer.engine.mechanisms import (
    Alibi,
    Causal,
    Disentangled,
    HeadNorm,
    PartialRotary,
    RelativeBias,
    Rotary,
    RowNorm,
    SoftCap,
    Window,
)
from npformer.engine.norms import LayerNorm, RMSNorm, ZeroCentredRMSNorm
from npformer.engine.output_heads import CappedLogits, OutputScale
from npformer.engine.token_projections import ProjectedStack, ProjectedTokens
from npformer.families.interleaved import Interleaved
from npformer.families.smollm3 import SmolLM3
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes.parts import (
    alibi,
    attention,
    causal,
    convolution,
    cross_attention,
    disentangled,
    families,
    ffn,
    head_norm,
    layernorm,
    output_heads,
    output_norm,
    parallel_layer,
    relative_bias,
    root_mean_square,
    rotary,
    soft_cap,
    token_projections,
    window,
)

#: Class of a part or of a family -> its mistakes; if several fit equally well, the diagnosis names the first.
OF_CLASS: dict[type, tuple[Mistake, ...]] = {
    Alibi: alibi.MISTAKES,
    Attention: attention.MISTAKES,
    CappedLogits: output_heads.CAPPED_LOGITS,
    Causal: causal.MISTAKES,
    Convolution: convolution.MISTAKES,
    CrossAttention: cross_attention.MISTAKES,
    Disentangled: disentangled.MISTAKES,
    FeedForward: ffn.MISTAKES,
    Gated: ffn.GATED,
    HeadNorm: head_norm.OF_HEADS,
    LayerNorm: layernorm.MISTAKES,
    Normed: output_norm.MISTAKES,
    OutputScale: output_heads.OUTPUT_SCALE,
    ParallelLayer: parallel_layer.MISTAKES,
    PartialRotary: rotary.PARTIAL,
    ProjectedStack: token_projections.STACK,
    ProjectedTokens: token_projections.TOKENS,
    RelativeBias: relative_bias.MISTAKES,
    RMSNorm: root_mean_square.MISTAKES,
    Rotary: rotary.MISTAKES,
    RowNorm: head_norm.OF_ROWS,
    SoftCap: soft_cap.MISTAKES,
    Window: window.MISTAKES,
    ZeroCentredRMSNorm: root_mean_square.ZERO_CENTRED,
    # families
    Interleaved: families.INTERLEAVED,
    SmolLM3: families.SMOLLM3,
}


def of_class(kind: type) -> tuple[Mistake, ...]:
    """Returns the mistakes of a part or family of this class, or () if neither it nor a base class has any."""
    return next((OF_CLASS[each] for each in kind.__mro__ if each in OF_CLASS), ())
