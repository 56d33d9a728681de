"""Mistakes with relative positions and gates, planted in transformers' models, are named."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.modernbert import modeling_modernbert
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.nomic_bert.modeling_nomic_bert import NomicBertMLP

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.config import InputConvolution
from npformer.engine.runtime.packing import Text
from npformer.model import Model
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
        up, gate = self.Wi(x).chunk(2, dim=-1)
        return self.Wo(self.act(gate) * up)

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


def distances_reversed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = modeling_deberta_v2.build_relative_position
    wrong = lambda *args, **options: -right(*args, **options)  # noqa: E731
    monkeypatch.setattr(modeling_deberta_v2, "build_relative_position", wrong)


def convolved(change: Callable[[Any], None]) -> Plant:
    """Returns a function that changes a model's convolution, which runs in parallel to the first layer."""

    def plant(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        change(model.base_model.encoder.conv)

    return plant


def kernel_reversed(conv: Any) -> None:
    conv.conv.weight.data = conv.conv.weight.data.flip(-1).contiguous()


def no_activation(conv: Any) -> None:
    conv.conv_act = "linear"


def added_before_activation(conv: Any) -> None:
    def wrong(x: Any, layer: Any, mask: Any) -> Any:
        return conv.LayerNorm(torch.tanh(layer + conv.conv(x.mT).mT)) * mask[..., None]

    conv.forward = wrong


def reads_the_layer(conv: Any) -> None:
    right = conv.forward
    conv.forward = lambda x, layer, mask: right(layer, layer, mask)


def replaces_the_layer(conv: Any) -> None:
    right = conv.forward
    conv.forward = lambda x, layer, mask: right(x, x, mask)


def padding_counted(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = model.base_model.embeddings.forward
    model.base_model.embeddings.forward = lambda *args, mask=None, **given: right(*args, **given)


PLANTED: list[tuple[str, Plant, str]] = [
    ("mpnet", bucket_sign, "relative bias with the wrong sign"),
    ("mpnet", no_bias, "relative bias left out"),
    ("modernbert", pairs, "rotation of pairs instead of halves"),
    ("modernbert", halves_swapped, "gate and up swapped"),
    ("modernbert", window_off_by_one, "wrong local window"),
    ("modernbert", one_base, "rotation with the wrong base"),
    ("nomic_bert", nomic_swapped, "gate and up swapped"),
    ("nomic_bert", usual_base, "rotation with the wrong base"),
    ("deberta-v2", distances_reversed, "distances reversed"),
]
CONVOLUTIONS: list[tuple[Plant, str]] = [
    (convolved(kernel_reversed), "convolution's kernel misread"),
    (convolved(no_activation), "wrong activation of the convolution"),
    (convolved(added_before_activation), "convolution in the wrong place"),
    (convolved(reads_the_layer), "convolution in the wrong place"),
    (convolved(replaces_the_layer), "convolution in the wrong place"),
    (padding_counted, "padding convolved"),
]


PLANTED += [("deberta-v2 convolution", *each) for each in CONVOLUTIONS]
IDS = [f"{family}-{i}" for i, (family, _, _) in enumerate(PLANTED)]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Model, golden.Golden]]:
    """Returns a function that makes a family's model and golden values, and checks transformers' model against them."""

    @cache
    def made(family: str) -> tuple[Model, golden.Golden]:
        name, *option = family.split()
        options = {"convolution": InputConvolution(3)} if option else {}
        folder = tiny.folder(tmp_path_factory.mktemp("models") / name, name, **options)
        model, random = Model(*load_folder(folder), folder=folder), np.random.default_rng(1)
        texts = [Text(random.integers(5, model.config.vocab_size, length)) for length in (19, 6, 3)]
        recorded = golden.record(model, texts)
        assert golden.compare(recorded, golden.load_torch(str(folder), recorded)).ok
        return model, recorded

    return made


@pytest.mark.parametrize(("family", "plant", "name"), PLANTED, ids=IDS)
def test_a_planted_mistake_is_named(
    family: str,
    plant: Plant,
    name: str,
    right: Callable[[str], tuple[Model, golden.Golden]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, recorded = right(family)
    other = golden.load_torch(str(model.folder), recorded)
    plant(other, monkeypatch)
    comparison = golden.compare(recorded, other)
    diagnosis = golden.diagnose(recorded, other, model, comparison=comparison)
    assert name in diagnosis.causes, f"{diagnosis}\n{comparison}"
