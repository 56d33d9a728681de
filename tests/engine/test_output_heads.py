"""Each head on the encoder's last layer, compared with its formula."""

from __future__ import annotations

import numpy as np
import pytest

from npformer.engine import output_heads
from npformer.engine.activations import gelu, relu, tanh
from npformer.engine.functions import layer_norm, linear
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.taps import listen
from tests.support.draw import normal

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]


def group(inputs: int, outputs: int) -> dict[str, np.ndarray]:
    return {"weight": normal(inputs, outputs), "bias": normal(outputs)}


@pytest.mark.parametrize("activation", [tanh, relu])
def test_pool(activation) -> None:
    first, dense = normal(3, 8), group(8, 8)
    assert np.array_equal(output_heads.pool(first, activation, **dense), activation(linear(first, **dense)))


@pytest.mark.parametrize("n_labels", [1, 2, 3, 17])
def test_classify(n_labels: int) -> None:
    rows, output = normal(5, 8), group(8, n_labels)
    logits = output_heads.classify(rows, output)
    assert logits.shape == (5, n_labels)
    assert np.array_equal(logits, linear(rows, **output))


def test_spans() -> None:
    rows, output = normal(5, 8), group(8, 2)
    start, end = output_heads.spans(rows, output)
    assert np.array_equal(np.stack([start, end], axis=-1), linear(rows, **output))


def test_masked_words() -> None:
    rows, hidden, norm, output = normal(5, 8), group(8, 8), {"weight": normal(8), "bias": normal(8)}, group(8, 11)
    logits = output_heads.classify(output_heads.transform(rows, gelu, hidden, norm, normalize=LayerNorm(1e-3)), output)
    assert np.array_equal(logits, linear(layer_norm(gelu(linear(rows, **hidden)), **norm, eps=1e-3), **output))


def test_replaced_tokens() -> None:
    rows, hidden, output = normal(5, 8), group(8, 8), group(8, 1)
    logits = output_heads.replaced_tokens(rows, relu, hidden, output)
    assert np.array_equal(logits[:, None], linear(relu(linear(rows, **hidden)), **output))


def test_stages() -> None:
    """A stage is named after the group of weights that computes it."""
    heard: list[str] = []
    norm = {"weight": normal(8), "bias": normal(8)}
    with listen(lambda name, array: heard.append(name) or array):
        output_heads.pool(normal(3, 8), tanh, **group(8, 8))
        output_heads.classify(normal(3, 8), group(8, 2))
        output_heads.spans(normal(3, 8), group(8, 2))
        output_heads.classify(output_heads.transform(normal(3, 8), gelu, group(8, 8), norm), group(8, 5))
        output_heads.replaced_tokens(normal(3, 8), gelu, group(8, 8), group(8, 1))
    pooling, masked = ["pooler", "pooled"], ["head.hidden", "head.activation", "head.norm", "logits"]
    replaced = ["head.hidden", "head.activation", "logits"]
    assert heard == [*pooling, "logits", "start_logits", "end_logits", *masked, *replaced]
