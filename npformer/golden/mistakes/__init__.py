"""The known mistakes of ports, each as a change to npformer's own forward pass.

A mistake takes a `Port`, the correct model, and yields ports with the mistake, one for each way to make it. A new one
is a function and a line in the `MISTAKES` of its file. `diagnose.py` runs them.
"""

from npformer.golden.mistakes import (
    activation,
    attention,
    embeddings,
    general,
    heads,
    inputs,
    order,
    precision,
    weights,
)

#: In the order in which they are told where several fit.
MISTAKES = (
    *activation.MISTAKES,
    *embeddings.MISTAKES,
    *inputs.MISTAKES,
    *attention.MISTAKES,
    *order.MISTAKES,
    *weights.MISTAKES,
    *heads.MISTAKES,
    *precision.MISTAKES,
)
#: Tried when none of the above fits.
GENERAL = general.MISTAKES

__all__ = ["GENERAL", "MISTAKES"]
