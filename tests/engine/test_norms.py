"""Every norm: the gradients of `backward`, and the direction of `pull`. Other tests compare the norms with torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from npformer import families
from npformer.engine.direction import Direction
from npformer.engine.norms.norm import Norm

WIDTH = 6


def classes(base: type[Norm] = Norm) -> Iterator[type[Norm]]:
    for each in base.__subclasses__():
        yield each
        yield from classes(each)


assert all(families.FAMILIES.values())  # imports every family, and so every norm
NORMS = sorted({each for each in classes() if each.__module__.startswith("npformer.")}, key=lambda each: each.__name__)


def weights_of(norm: Norm) -> dict[str, np.ndarray]:
    random, group = np.random.default_rng(1), norm.group(WIDTH)
    weights = {"weight": random.standard_normal(group.shape)}
    return weights if group.bias is None else weights | {"bias": random.standard_normal(group.bias)}


@pytest.mark.parametrize("kind", NORMS)
def test_gradients_are_finite_differences(kind: type[Norm]) -> None:
    norm, random = kind(), np.random.default_rng(0)
    x, grad = random.standard_normal((2, 3, WIDTH)), random.standard_normal((2, 3, WIDTH))
    weights = weights_of(norm)
    dx, grads = norm.backward(grad, x, **weights)
    assert grads.keys() == weights.keys()
    for name, array in {"x": x, **weights}.items():
        given = dx if name == "x" else grads[name]
        assert given.shape == array.shape
        for index in np.ndindex(array.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = {"x": x, **weights, name: array.copy()}
                moved[name][index] += step
                ends.append(np.sum(grad * norm(moved.pop("x"), **moved)))
            # Central differences with this step have an error near 1e-10; a wrong term is larger than 1e-3.
            assert given[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-7), (name, index)


@pytest.mark.parametrize("kind", NORMS)
def test_a_direction_pulled_back_gives_the_same_number(kind: type[Norm]) -> None:
    """u . Normalize(x) = u' . x + u . bias, where the scale of the row is a constant."""
    norm, random = kind(), np.random.default_rng(2)
    x, u, weights = random.standard_normal((3, WIDTH)), random.standard_normal(WIDTH), weights_of(norm)
    direction = Direction(u, 1, {"x": x, "y": norm(x, **weights)}, "x", np.arange(3))
    norm.pull(direction, "y", "x", **weights)
    assert direction.u @ x[1] + sum(direction.biases.values()) == pytest.approx(u @ norm(x, **weights)[1], rel=1e-12)
