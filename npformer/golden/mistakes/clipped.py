"""Values that a port clips at a bound, in a stage or in the stages that lead to it."""

from __future__ import annotations

import numpy as np

from npformer.golden.mistake import Mistake, Ways
from npformer.golden.mistakes.kinds import changing, in_all_layers, inside, is_single, places
from npformer.golden.port import Port

BOUNDS = (1.0, 2.0, 3.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 1e3, 1e4)


def clipped(port: Port) -> Ways:
    """Clips the stage or an earlier one at a bound.

    If stages in between are missing, only scores and activations are tried as earlier stages.
    """
    numbers = np.concatenate([np.ravel(array) for array in port.theirs])
    low, high = numbers.min(), numbers.max()
    cut_below, cut_above = ((numbers == bound).sum() > 1 for bound in (low, high))  # clipped values are equal
    if cut_below and not cut_above:
        yield f"to at least {low:.4g}", {in_all_layers(port.stage): lambda y, at: np.maximum(y, low)}
    elif cut_above and not cut_below:
        yield f"to at most {high:.4g}", {in_all_layers(port.stage): lambda y, at: np.minimum(y, high)}
    else:
        yield f"from {low:.4g} to {high:.4g}", {in_all_layers(port.stage): lambda y, at: y.clip(low, high)}
    across = not is_single(port)
    for name in inside(port) if across else ():
        for bound in (1.0, 6.0) if name.endswith("activation") else ():
            yield f"{name} to at most {bound:g}", changing(port, name, lambda y, at, b=bound: np.minimum(y, b))
    for name in places(port):
        if name == port.stage or (across and not name.endswith("scores")):
            continue
        for bound in BOUNDS:
            yield f"{name} from {-bound:g} to {bound:g}", changing(port, name, lambda y, at, b=bound: y.clip(-b, b))
            if not across:
                yield f"{name} to {bound:g}", changing(port, name, lambda y, at, b=bound: np.minimum(y, b))


MISTAKES = (Mistake("clipped", "values are clipped at a bound that the model does not have", clipped),)
