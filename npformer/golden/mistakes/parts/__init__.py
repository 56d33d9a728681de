"""The mistakes that ports make in each part of a model, found by the class of the part.

A part without an entry has the mistakes of the nearest base class with one. The same holds for families: their mistakes
are made in reading their files.
"""

from __future__ import annotations

from npformer.engine import blocks, mechanisms, norms
from npformer.engine.layers import ParallelLayer
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
    CappedLogits: soft_cap.OF_LOGITS,
    OutputScale: token_projections.OUTPUT_SCALE,
    ParallelLayer: parallel_layer.MISTAKES,
    ProjectedStack: token_projections.STACK,
    ProjectedTokens: token_projections.TOKENS,
    blocks.Attention: attention.MISTAKES,
    blocks.Convolution: convolution.MISTAKES,
    blocks.CrossAttention: cross_attention.MISTAKES,
    blocks.FeedForward: ffn.MISTAKES,
    blocks.Gated: ffn.GATED,
    blocks.Normed: output_norm.MISTAKES,
    mechanisms.Alibi: alibi.MISTAKES,
    mechanisms.Causal: causal.MISTAKES,
    mechanisms.Disentangled: disentangled.MISTAKES,
    mechanisms.HeadNorm: head_norm.OF_HEADS,
    mechanisms.PartialRotary: rotary.PARTIAL,
    mechanisms.RelativeBias: relative_bias.MISTAKES,
    mechanisms.Rotary: rotary.MISTAKES,
    mechanisms.RowNorm: head_norm.OF_ROWS,
    mechanisms.SoftCap: soft_cap.MISTAKES,
    mechanisms.Window: window.MISTAKES,
    norms.LayerNorm: layernorm.MISTAKES,
    norms.RMSNorm: root_mean_square.MISTAKES,
    norms.ZeroCentredRMSNorm: root_mean_square.ZERO_CENTRED,
    # families
    Interleaved: families.INTERLEAVED,
    SmolLM3: families.SMOLLM3,
}


def of_class(kind: type) -> tuple[Mistake, ...]:
    """Returns the mistakes of a part or family of this class, or () if neither it nor a base class has any."""
    return next((OF_CLASS[each] for each in kind.__mro__ if each in OF_CLASS), ())
