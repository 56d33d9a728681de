"""Multi-head attention: linear layers around the attention of every head, on packed rows.

Attention Is All You Need (Vaswani et al., 2017), section 3.2.2. `packed_attention.py` computes the heads, and
`blocks/attention.py` has the attention of a layer: self-attention with mechanisms, and cross-attention.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npformer.engine.functions import Linear, linear, linear_backward, linears
from npformer.engine.packed_attention import PackedAttention
from npformer.engine.tape import Stages
from npformer.engine.taps import tap


def multi_head_attention(
    x: np.ndarray, source: np.ndarray, attention: PackedAttention, layers: Mapping[str, Linear]
) -> np.ndarray:
    """MultiHead(x, source) = Concat(head_1, ..., head_H) W_O, (T, D), (S, D) -> (T, D). Section 3.2.2.

    attention: computes the heads. layers: the linear layers "query", "key", "value" and "output".
    """
    if x is source:  # x W_Q + b_Q, x W_K + b_K, x W_V + b_V
        q, k, v = linears(x, layers["query"], layers["key"], layers["value"])
    else:
        q, (k, v) = linear(x, **layers["query"]), linears(source, layers["key"], layers["value"])
    combined = tap("combined", attention(tap("query", q), tap("key", k), tap("value", v)))
    return tap("output", linear(combined, **layers["output"]))


def multi_head_attention_backward(
    grad: np.ndarray,
    stages: Stages,
    x: np.ndarray,
    source: np.ndarray,
    attention: PackedAttention,
    layers: Mapping[str, Linear],
) -> tuple[np.ndarray, np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Backward of `multi_head_attention`: dx (T, D), dsource (S, D) and the gradients of the four linear layers.

    In self-attention, x and source are the same rows, and the gradient of these rows is dx + dsource.
    """
    grad, d_output = linear_backward(stages.through_edit("output", grad), stages["combined"], **layers["output"])
    dq, dk, dv = attention.backward(stages.through_edit("combined", grad), stages)
    dx, d_query = linear_backward(stages.through_edit("query", dq), x, **layers["query"])
    dsource, d_key = linear_backward(stages.through_edit("key", dk), source, **layers["key"])
    from_values, d_value = linear_backward(stages.through_edit("value", dv), source, **layers["value"])
    dsource += from_values
    return dx, dsource, {"query": d_query, "key": d_key, "value": d_value, "output": d_output}
