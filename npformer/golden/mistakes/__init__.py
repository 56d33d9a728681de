"""The known mistakes of ports, each as a change to npformer's own forward pass.

A mistake takes a `Port`, the correct model, and yields ports with the mistake, one for each way to make it. A new one
is a function and a line in the `MISTAKES` of its file. `diagnose.py` runs them.
"""

from npformer.golden.mistakes import (
    activation,
    attention,
    convolution,
    cross_attention,
    distances,
    embeddings,
    general,
    heads,
    inputs,
    masks,
    order,
    positions,
    precision,
    weights,
)

#: In the order in which they are told where several fit.
MISTAKES = (
    *activation.MISTAKES,
    *embeddings.MISTAKES,
    *inputs.MISTAKES,
    *attention.MISTAKES,
    *masks.MISTAKES,
    *cross_attention.MISTAKES,
    *convolution.MISTAKES,
    *positions.MISTAKES,
    *distances.MISTAKES,
    *order.MISTAKES,
    *weights.MISTAKES,
    *heads.MISTAKES,
    *precision.MISTAKES,
)
#: Those that may depend on the padding of a batch.
IN_A_BATCH = tuple(each for each in MISTAKES if each not in precision.ALIKE_IN_A_BATCH)
#: Tried when none of the above fits.
GENERAL = general.MISTAKES

__all__ = ["GENERAL", "IN_A_BATCH", "MISTAKES"]
