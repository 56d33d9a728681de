"""Projections of texts onto a plane, computed from rows or from a trace."""

from __future__ import annotations

import numpy as np
import pytest

import npformer
from npformer.common.errors import NpformerError
from npformer.families.torch_nn import TORCH_MODULES
from npformer.interpret.plane import project
from npformer.model import Model
from npformer.training import initialize
from tests.support import tiny
from tests.support.extras import needs


def test_principal_components() -> None:
    """The first coordinate has the largest variance. With all dimensions, distances are unchanged."""
    random = np.random.default_rng(0)
    x = random.standard_normal((30, 5)) * [5, 1, 1, 1, 1]
    model = tiny.model("distilbert", "base")
    trace = npformer.trace(model, [[5, 6, 7], [8, 9], [5, 9]])
    firsts = np.stack([rows[0] for rows in trace.texts("layers.1.ffn_norm")])
    assert np.array_equal(project(trace), project(firsts))
    points = project(x)
    assert points.shape == (30, 2)
    assert np.abs(points.mean(axis=0)).max() < 1e-12
    assert points[:, 0].std() > 2 * points[:, 1].std()
    whole = project(x, dimensions=5)
    distances = [np.linalg.norm(each[:, None] - each, axis=-1) for each in (x, whole)]
    assert np.abs(distances[0] - distances[1]).max() < 1e-12
    with pytest.raises(NpformerError, match=r"project: expected .* at least 9 \(dimensions=\)"):
        project(x, dimensions=9)
    with pytest.raises(NpformerError, match="method"):
        project(x, "umap")


def test_a_causal_model_s_points_are_its_last_rows() -> None:
    trace = npformer.trace(tiny.model("gpt2", "base"), [[5, 6, 7], [5, 9], [5, 9, 8]])
    lasts = np.stack([rows[-1] for rows in trace.texts("norm")])
    assert np.array_equal(project(trace), project(lasts))
    assert project(trace).std(axis=0).all()


def test_a_pre_norm_layer_ends_in_its_residual() -> None:
    config = TORCH_MODULES.config(
        "base", vocab_size=30, d_model=16, n_heads=2, n_layers=2, d_ffn=24, max_length=16,
        activation="relu", norm_first=True, torch_class="nn.TransformerEncoder",
    )  # fmt: skip
    trace = npformer.trace(Model(config, initialize(config, 0, "torch")), [[5, 6, 7], [8, 9], [5, 9]])
    firsts = np.stack([rows[0] for rows in trace.texts("layers.1.ffn_residual")])
    assert np.array_equal(project(trace), project(firsts))


@pytest.mark.slow
@needs("plots", "sklearn")
def test_neighbours_stay_neighbours_in_t_sne() -> None:
    """Two clouds that are far apart in 20 dimensions remain two clouds in the plane."""
    x = np.random.default_rng(0).standard_normal((60, 20))
    x[30:] += 20
    points = project(x, "tsne")
    assert points.shape == (60, 2)
    nearest = np.argsort(np.linalg.norm(points[:, None] - points, axis=-1), axis=1)[:, 1]
    assert ((nearest < 30) == (np.arange(60) < 30)).all()
