"""Only the weights on which a stage depends are rounded, each of them once."""

from __future__ import annotations

import numpy as np
import pytest

from npformer import golden
from npformer.engine.runtime.packing import Text
from npformer.golden.rounded import Rounded, unrounded
from tests.support import tiny

TEXT = [Text(np.array([7, 8, 9, 10, 11]))]


def test_a_port_rounds_only_the_weights_that_its_stage_is_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the pooler is wrong, so no weight before it is rounded: rounding all weights of BERT would take minutes."""
    model = tiny.model("bert")
    reference, read = golden.record(model, TEXT), set()  # without padding
    arrays = {f"{i}/{name}": array for name in reference.stages for i, array in enumerate(reference.stages[name])}
    arrays |= {f"{i}/pooler": array * 1.5 for i, array in enumerate(reference.stages["pooler"])}
    rounded = Rounded.__getitem__

    def noted(self: Rounded, name: str) -> np.ndarray:
        made = rounded(self, name)
        if made is not self.weights[name]:
            read.add(name)
        return made

    monkeypatch.setattr(Rounded, "__getitem__", noted)
    told: list[str] = []
    assert golden.diagnose(reference, arrays, model, progress=told.append).stage == "pooler"
    assert read
    assert {name.partition(".")[0] for name in read} <= {"pooler"}
    assert told[0].startswith("pooler: ")
    assert "pooler: quantized weights?" in told


def test_rounded_weights_are_made_once_each_and_keep_their_names() -> None:
    calls: list[float] = []

    def rounding(array: np.ndarray) -> np.ndarray:
        calls.append(float(array[0]))
        return np.rint(array)

    weights = {"a": np.array([0.4]), "b": np.array([1.4]), "c": np.array([2.4])}
    some = Rounded(weights, rounding, frozenset({"a", "b"}))
    assert list(some) == ["a", "b", "c"]
    assert (len(some), "a" in some, "d" in some, calls) == (3, True, False, [])
    assert [float(some[name][0]) for name in ("b", "b", "c")] == [1, 1, 2.4]
    assert calls == [1.4]
    twice = Rounded(some, lambda array: array + 0.25, frozenset({"b"}))
    assert (float(twice["b"][0]), float(unrounded(twice, "b")[0])) == (1.25, 1.4)
