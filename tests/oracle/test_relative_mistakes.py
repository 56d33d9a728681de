"""Mistakes with relative positions and gates, planted in transformers' own models: each is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.modernbert import modeling_modernbert
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.nomic_bert.modeling_nomic_bert import NomicBertMLP

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.model import Model
from npformer.runtime.packing import Text
from tests.support import tiny

Plant = Callable[[Any, pytest.MonkeyPatch], None]


def bucket_sign(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = MPNetEncoder.relative_position_bucket
    wrong = staticmethod(lambda distances, **options: right(-distances, **options))
    monkeypatch.setattr(MPNetEncoder, "relative_position_bucket", wrong)


def no_bias(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = MPNetEncoder.compute_position_bias
    monkeypatch.setattr(MPNetEncoder, "compute_position_bias", lambda self, x, **options: 0 * right(self, x, **options))


def pairs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
        half = cos.shape[-1] // 2
        cos, sin = (each[..., :half].repeat_interleave(2, -1).unsqueeze(1) for each in (cos, sin))

        def turned(x: Any) -> Any:
            return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", wrong)


def halves_swapped(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, x: Any) -> Any:
        gate, hidden = self.Wi(x).chunk(2, dim=-1)
        return self.Wo(self.act(hidden) * gate)

    monkeypatch.setattr(modeling_modernbert.ModernBertMLP, "forward", wrong)


def nomic_swapped(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))

    monkeypatch.setattr(NomicBertMLP, "forward", wrong)


def usual_base(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rotary = model.base_model.rotary_emb
    rotary.inv_freq.copy_(rotary.inv_freq ** (np.log(10_000) / np.log(1000)))


def window_off_by_one(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.config.local_attention += 2


def one_base(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rotary = model.base_model.rotary_emb
    rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq


PLANTED: list[tuple[str, Plant, str]] = [
    ("mpnet", bucket_sign, "relative bias with the wrong sign"),
    ("mpnet", no_bias, "relative bias left out"),
    ("modernbert", pairs, "rotation of pairs for halves"),
    ("modernbert", halves_swapped, "gate and hidden swapped"),
    ("modernbert", window_off_by_one, "another local window"),
    ("modernbert", one_base, "rotation with another base"),
    ("nomic_bert", nomic_swapped, "gate and hidden swapped"),
    ("nomic_bert", usual_base, "rotation with another base"),
]


@pytest.mark.parametrize(("family", "plant", "name"), PLANTED, ids=[plant.__name__ for _, plant, _ in PLANTED])
def test_a_planted_mistake_is_named(
    family: str, plant: Plant, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.folder(tmp_path / family, family)
    model = Model(*load_folder(folder), folder=folder)
    random = np.random.default_rng(1)
    texts = [Text(random.integers(5, model.config.vocab_size, length)) for length in (19, 6, 3)]
    recorded = golden.record(model, texts)
    other = golden.load_torch(str(folder), recorded)
    assert golden.compare(recorded, other).ok
    plant(other, monkeypatch)
    comparison = golden.compare(recorded, other)
    diagnosis = golden.diagnose(recorded, other, model, comparison=comparison)
    assert name in diagnosis.causes, f"{diagnosis}\n{comparison}"
