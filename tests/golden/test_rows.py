"""A mistake in some rows of attention is named, whether or not the port exports stages with heads, (H, T, K)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from npformer import golden
from npformer.interpret.edits import edit
from npformer.interpret.traces import trace
from tests.golden.conftest import texts_for
from tests.support import tiny

pytestmark = pytest.mark.numbers

CONTEXT, SCORES = "layers.0.attention.context", "layers.0.attention.scores"


def with_rows(change: Callable[[np.ndarray], np.ndarray], first: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.concatenate([array[..., :first, :], change(array)[..., first:, :]], axis=-2)


#: Name of a mistake -> the stage, the change of its rows from 3, and the diagnosis.
MADE = {
    "zeros": (CONTEXT, lambda array: 0 * array, "some rows computed differently (the rows from 3: 0"),
    "the row before": (
        CONTEXT,
        lambda array: np.roll(array, 1, axis=-2),
        "some rows computed differently (the rows from 3: values of other rows, 3 is 2, 4 is 3, 5 is 4",
    ),
    "unscaled": (SCORES, lambda array: array * np.float32(8**0.5), "unscaled scores (only in the rows from 3"),
}


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("mistake", MADE)
@pytest.mark.parametrize("with_heads", [True, False])
def test_a_mistake_from_some_row_on_is_named(family: str, mistake: str, with_heads: bool) -> None:
    stage, change, expected = MADE[mistake]
    model = tiny.model(family)
    recorded = golden.record(model, texts_for(model, (9, 6, 5)))
    with edit({stage: with_rows(change, 3)}):
        found = trace(model, recorded.texts)
    ends = () if with_heads else ("_heads", "_rotated", "scores", "weights", "context")
    arrays = {
        f"{i}/{name}": array for name in found if not name.endswith(ends) or not ends
        for i, array in enumerate(found.texts(name))
    }  # fmt: skip
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert diagnosis.stage == (stage if with_heads else "layers.0.attention.combined")
    assert str(diagnosis.fits[0]).startswith(expected), str(diagnosis)
    assert len(diagnosis.causes) == 1
