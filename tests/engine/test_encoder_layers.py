"""The encoder's parts compared with their formulas. A row has the same bits alone, among other rows, and as the only
requested row.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer.checkpoint import load_folder
from npformer.common.errors import NpformerError
from npformer.engine.activations import gelu, relu
from npformer.engine.blocks.ffn import feed_forward
from npformer.engine.embeddings import Embeddings, sinusoidal_positions
from npformer.engine.functions import layer_norm, linear
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.runtime.packing import Batch, Text, pack
from tests.support import tiny, torch_values
from tests.support.bits import alike
from tests.support.draw import normal
from tests.support.packed import encoder, self_attention

pytestmark = [pytest.mark.numbers, pytest.mark.usefixtures("one_blas_thread")]

DTYPES = ("float32", "float64")


def layers(n: int = 2, dtype: str = "float32") -> list[dict]:
    return tiny.weights(tiny.config(head="base", n_layers=n), dtype=dtype)["layers"]


def test_sinusoidal_positions() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos."""
    table = sinusoidal_positions(50, 8, dtype=np.float64)
    assert table[0].tolist() == [0, 1] * 4
    assert table[3, 4] == pytest.approx(np.sin(3 / 10000 ** (4 / 8)), abs=1e-15)
    assert table[3, 5] == pytest.approx(np.cos(3 / 10000 ** (4 / 8)), abs=1e-15)
    assert sinusoidal_positions(4, 5).shape == (4, 5)
    assert sinusoidal_positions(4, 5).dtype == np.float32
    assert sinusoidal_positions(0, 4).shape == (0, 4)


def test_sinusoidal_positions_are_the_checkpoints() -> None:
    """Transformers computes the same table to the last bit, and stores it like a learned table."""
    _, tree = load_folder(torch_values.DATA / "distilbert-sinusoidal")
    table = tree["embeddings"]["position"]["weight"]
    assert np.array_equal(sinusoidal_positions(*table.shape), table)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings(dtype: str) -> None:
    token, position, segment, norm = (normal(9, 4, dtype=dtype, seed=i) for i in range(4))
    ids, positions, token_type_ids = np.array([8, 0, 8]), np.array([0, 1, 5]), np.array([0, 1, 1])
    batch = Batch(ids, positions, token_type_ids, np.array([3]))
    tables = {"token": {"weight": token}, "position": {"weight": position}}
    weights = {**tables, "norm": {"weight": norm[0], "bias": norm[1]}}
    y = Embeddings()(ids, batch, {"embeddings": weights})
    assert y.dtype == dtype
    assert np.array_equal(y, layer_norm(token[ids] + position[positions], norm[0], norm[1], eps=1e-12))
    total = token[ids] + position[positions] + segment[token_type_ids]
    for eps in (1e-12, 0.5):
        y = Embeddings(LayerNorm(eps))(ids, batch, {"embeddings": {**weights, "segment": {"weight": segment}}})
        assert np.array_equal(y, layer_norm(total, norm[0], norm[1], eps=eps))


def test_feed_forward() -> None:
    x, hidden, output = (
        normal(5, 4),
        {"weight": normal(4, 7), "bias": normal(7)},
        {"weight": normal(7, 4), "bias": normal(4)},
    )
    y = feed_forward(x, relu, hidden, output)
    assert np.array_equal(y, linear(relu(linear(x, **hidden)), **output))
    wide = np.maximum(x.astype(float) @ hidden["weight"] + hidden["bias"], 0) @ output["weight"] + output["bias"]
    assert np.allclose(y, wide, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(norm_first: bool, dtype: str) -> None:
    """Y = Normalize(X + Attention(X)), Z = Normalize(Y + FFN(Y)); in pre-norm, each norm precedes its block."""
    weights, lengths = layers(1, dtype)[0], np.array([3, 4])
    x = normal(7, 32, dtype=dtype)
    z = encoder(x, lengths, 4, gelu, [weights], norm_first=norm_first)

    def attend(rows: np.ndarray) -> np.ndarray:
        return self_attention(rows, lengths, 4, **weights["attention"])

    def normalize(rows: np.ndarray, name: str) -> np.ndarray:
        return layer_norm(rows, **weights[name], eps=1e-12)

    if norm_first:
        y = x + attend(normalize(x, "attention_norm"))
        expected = y + feed_forward(normalize(y, "ffn_norm"), gelu, **weights["ffn"])
    else:
        y = normalize(x + attend(x), "attention_norm")
        expected = normalize(y + feed_forward(y, gelu, **weights["ffn"]), "ffn_norm")
    assert z.dtype == dtype
    assert np.array_equal(z, expected)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    dtype=st.sampled_from(DTYPES),
    norm_first=st.booleans(),
)
def test_one_row_of_each_text_is_the_row_among_all(lengths: list[int], dtype: str, norm_first: bool) -> None:
    weights, sizes = layers(2, dtype), np.array(lengths)
    x = normal(sum(lengths), 32, dtype=dtype)
    whole = encoder(x, sizes, 4, gelu, weights, norm_first=norm_first)
    first = np.cumsum(sizes) - sizes
    for rows in (first, first + sizes - 1):
        assert alike(encoder(x, sizes, 4, gelu, weights, row_indices=rows, norm_first=norm_first), whole[rows])


def test_encoder_is_its_layers() -> None:
    weights, lengths, x = layers(3), np.array([2, 5]), normal(7, 32)
    y = x
    for each in weights:
        y = encoder(y, lengths, 4, gelu, [each])
    assert np.array_equal(encoder(x, lengths, 4, gelu, weights), y)
    norm = {"weight": normal(32), "bias": normal(32, seed=1)}
    assert np.array_equal(encoder(x, lengths, 4, gelu, weights, norm=norm), layer_norm(y, **norm, eps=1e-12))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(NpformerError, match=r"linear: weight .*\(32, 32\).*\(3, 16\)"):
        encoder(normal(3, 16), np.array([3]), 4, gelu, layers())
    with pytest.raises(NpformerError, match=r"split_heads.*32.*5"):
        encoder(normal(3, 32), np.array([3]), 5, gelu, layers())
    with pytest.raises(NpformerError, match=r"embedding: ids .*0 \.\.\. 8.*9"):
        Embeddings(norm=None)(
            np.array([9]), pack([Text(np.array([9]))]), {"embeddings": {"token": {"weight": normal(9, 4)}}}
        )
