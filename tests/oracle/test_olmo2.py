"""Mistakes planted in transformers' OLMo 2 are named, and the correct model has none. Hooks read the stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.olmo2 import modeling_olmo2 as modeling

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.engine.runtime.packing import Text
from npformer.families import FAMILIES
from npformer.model import Model
from tests.support import tiny

Plant = Callable[[Any, pytest.MonkeyPatch], None]


def recorded_from(folder: Path) -> tuple[Model, golden.Golden]:
    model, random = Model(*load_folder(folder), folder=folder), np.random.default_rng(1)
    return model, golden.record(model, [Text(random.integers(8, model.config.vocab_size, n)) for n in (9, 6, 3)])


@pytest.mark.parametrize("head", dict.fromkeys(FAMILIES["olmo2"].architectures.values()))
def test_every_head_is_hooked_and_within_every_budget(head: str, tmp_path: Path) -> None:
    """The stages include the normalized queries and keys."""
    folder = tiny.folder(tmp_path / "m", "olmo2", head, pad_id=7)
    model, recorded = recorded_from(folder)
    comparison = golden.compare(recorded, golden.load_torch(str(folder), recorded))
    assert comparison.ok, str(comparison)
    assert not comparison.theirs.unused
    made_between_modules = ("embeddings.sum", "_rotated", "scores", "attention_residual", "probabilities")
    assert all(name.endswith(made_between_modules) for name in comparison.missing), comparison.missing
    assert golden.check_weights(model, comparison.theirs.weights) == []


def pre_norm(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, x: Any, **rest: Any) -> Any:
        y = x + self.self_attn(hidden_states=self.post_attention_layernorm(x), **rest)[0]
        return y + self.mlp(self.post_feedforward_layernorm(y))

    monkeypatch.setattr(modeling.Olmo2DecoderLayer, "forward", wrong)


def norms_of_the_sums(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, x: Any, **rest: Any) -> Any:
        y = self.post_attention_layernorm(x + self.self_attn(hidden_states=x, **rest)[0])
        return self.post_feedforward_layernorm(y + self.mlp(y))

    monkeypatch.setattr(modeling.Olmo2DecoderLayer, "forward", wrong)


def norm_before_the_ffn(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, x: Any, **rest: Any) -> Any:
        y = x + self.self_attn(hidden_states=x, **rest)[0]
        return y + self.post_feedforward_layernorm(self.mlp(self.post_attention_layernorm(y)))

    monkeypatch.setattr(modeling.Olmo2DecoderLayer, "forward", wrong)


def norms_of_heads(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling.Olmo2RMSNorm.forward

    def wrong(self: Any, x: Any) -> Any:
        if not self.of_heads:
            return own(self, x)
        heads = x.unflatten(-1, (-1, model.config.hidden_size // model.config.num_attention_heads))
        scaled = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return scaled.flatten(-2) * self.weight

    for name, module in model.named_modules():
        module.of_heads = name.endswith(("q_norm", "k_norm"))
    monkeypatch.setattr(modeling.Olmo2RMSNorm, "forward", wrong)


def no_norms_of_queries_and_keys(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in model.base_model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()


PLANTED: dict[Plant, str] = {
    pre_norm: "norm before a block, not after it",
    norms_of_the_sums: "norm of the sum, not of a block's output",
    norm_before_the_ffn: "norm before a block, not after it",
    norms_of_heads: "norms of heads instead of norms of rows",
    no_norms_of_queries_and_keys: "norms of queries and keys left out",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_the_only_cause(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.folder(tmp_path / "m", "olmo2", pad_id=7)
    model, recorded = recorded_from(folder)
    other = golden.load_torch(str(folder), recorded)
    plant(other, monkeypatch)
    comparison = golden.compare(recorded, other)
    diagnosis = golden.diagnose(recorded, other, model, comparison=comparison)
    assert set(diagnosis.causes) == {PLANTED[plant]}, f"{diagnosis}\n{comparison}"
