"""Replayed steps of generation: the same tokens and scores, and no memory for texts that have ended."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from npformer.engine.replay import replays
from npformer.families import FAMILIES
from npformer.generation import kv_cache
from tests.support import tiny

pytestmark = pytest.mark.numbers

GENERATING = [
    (name, head) for name, each in FAMILIES.items() for head in ("causal-lm", "translation") if head in each.all_heads
]
SETTINGS: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"do_sample": True, "seed": 1}]


def generated(model: Any, settings: dict[str, Any]) -> list[tuple[tuple[int, ...], float]]:
    """Returns the tokens and scores for two prompts. With beams, one of the prompts ends earlier."""
    found = model.generate([[7, 8, 9], [11, 12, 13, 14, 15]], max_new_tokens=24, min_new_tokens=20, **settings)
    return [(tuple(each.ids), each.score) for some in found for each in some]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("family", "head"), GENERATING)
def test_steps_have_the_bits_of_the_engine(
    family: str, head: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(family, head)
    with monkeypatch.context() as patch:
        patch.setattr(replays.Replays, "run", lambda self, each: each())
        expected = generated(model, settings)
    for _ in range(3):
        assert generated(model, settings) == expected
    steps = [each for name, each in model.replays._shapes.items() if name[0][0] == "step"]
    cached = not any(type(each).__name__ in ("RelativeBias", "ALiBi", "Alibi") for each in model.parts.stack.mechanisms)
    assert any(each.tested for each in steps) or not cached or model.config.decoder


def test_a_listener_hears_the_steps() -> None:
    import npformer

    model = tiny.model("llama", "causal-lm")
    for _ in range(3):
        expected = generated(model, {})
    with npformer.trace() as stages:
        assert generated(model, {}) == expected
    assert "layers.1.attention.scores" in stages


def test_no_program_keeps_the_keys_of_a_text_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[np.ndarray]] = []
    make_room = kv_cache.SelfAttentionCache._make_room

    def watched(self: Any, like: np.ndarray) -> None:
        make_room(self, like)
        alive.append(weakref.ref(self.keys))

    monkeypatch.setattr(kv_cache.SelfAttentionCache, "_make_room", watched)
    model = tiny.model("llama", "causal-lm")
    for _ in range(4):
        generated(model, {})
    gc.collect()
    assert len(alive) > 4
    assert not any(each() is not None for each in alive)
