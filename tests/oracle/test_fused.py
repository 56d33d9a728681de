"""A live torch model with one linear layer for query, key and value is compared as three layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

import npformer
from npformer import golden
from tests.support import tiny


class Fused(torch.nn.Module):
    """BERT's attention with one linear layer for query, key and value."""

    def __init__(self, old: torch.nn.Module) -> None:
        super().__init__()
        size = old.query.in_features
        self.heads, self.Wqkv = old.num_attention_heads, torch.nn.Linear(size, 3 * size)
        three = (old.query, old.key, old.value)
        self.Wqkv.weight = torch.nn.Parameter(torch.cat([each.weight for each in three]))
        self.Wqkv.bias = torch.nn.Parameter(torch.cat([each.bias for each in three]))

    def forward(
        self, x: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: object
    ) -> tuple[torch.Tensor, None]:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.Wqkv(x).chunk(3, dim=-1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attention_mask).transpose(1, 2).flatten(
            2
        ), None


@pytest.mark.parametrize("swapped", [False, True])
def test_a_fused_layer_is_compared_as_three(tmp_path: Path, swapped: bool) -> None:
    folder = tiny.folder(tmp_path / "model", "bert", "base")
    recorded = golden.record(npformer.load(folder), [npformer.Text(np.arange(5, 5 + n)) for n in (9, 4)])
    port = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    for layer in port.encoder.layer:
        layer.attention.self = Fused(layer.attention.self)
    if swapped:
        weight = port.encoder.layer[1].attention.self.Wqkv.weight
        weight.data = weight.data.roll(32, dims=0)
    found = golden.compare(recorded, port)
    assert {
        f"layers.{i}.attention.{part}" for i in range(2) for part in ("query", "key", "value")
    } <= found.theirs.stages.keys()
    assert sum("attention.query" in name for name in found.theirs.weights) == 4
    assert found.ok is not swapped, str(found)
    if swapped:
        assert found.first is not None
        assert found.first.stage == "layers.1.attention.query"


@pytest.mark.parametrize(("family", "name"), [("phi3", "mlp.gate_up_proj"), ("modernbert", "mlp.Wi")])
@pytest.mark.parametrize("swapped", [False, True])
def test_gate_and_up_in_one_layer_are_compared_as_two(family: str, name: str, swapped: bool, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model", family, "base")
    model = npformer.load(folder)
    recorded = golden.record(model, [npformer.Text(np.arange(5, 5 + n)) for n in (9, 4)])
    port = golden.load_torch(str(folder), recorded)
    if swapped:
        weight = port.get_parameter(f"layers.1.{name}.weight")
        weight.data = weight.data.roll(len(weight) // 2, dims=0)
    found = golden.compare(recorded, port)
    assert found.theirs.weights.keys() >= {f"layers.1.ffn.{each}.weight" for each in ("gate", "up")}
    stages = {f"layers.{i}.ffn.{each}" for i in range(2) for each in ("gate", "up")}
    assert found.theirs.stages.keys() >= stages
    first = found.first.stage if found.first else None
    assert first == ("layers.1.ffn.gate" if swapped else None)
    said = {str(each) for each in golden.check_weights(model, found.theirs.weights)}
    other = {"gate": "up", "up": "gate"}
    assert said == {f"layers.1.ffn.{a}.weight: has layers.1.ffn.{b}.weight's" for a, b in other.items() if swapped}
