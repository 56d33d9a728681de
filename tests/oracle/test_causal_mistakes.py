"""Mistakes of causal models are planted in transformers' GPT-2, and each is named; correct heads have no mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gpt2 import modeling_gpt2

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.checkpoint.archive import load_arrays
from npformer.engine.runtime.packing import Text
from npformer.families import encoders
from npformer.model import Model
from tests.support import tiny

Plant = Callable[[Any, pytest.MonkeyPatch], None]
PAD = 7  # the token also occurs in the texts


def recorded_from(folder: Path) -> tuple[Model, golden.Golden]:
    model, random = Model(*load_folder(folder), folder=folder), np.random.default_rng(1)
    texts = [Text(random.integers(8, model.config.vocab_size, length)) for length in (9, 6, 3)]
    texts[0].ids[4] = texts[1].ids[-1] = PAD
    return model, golden.record(model, texts)


@pytest.mark.parametrize("pad_id", [PAD, None])
@pytest.mark.parametrize("head", dict.fromkeys(encoders()["gpt2"].architectures.values()))
def test_every_head_is_hooked_and_within_every_budget(head: str, pad_id: int | None, tmp_path: Path) -> None:
    """The stages include attention's heads and weights, and the row that the classifier reads. Without a padding token,
    the texts are not run as a batch.
    """
    folder = tiny.folder(tmp_path / "m", "gpt2", head, pad_id=pad_id)
    model, recorded = recorded_from(folder)
    comparison = golden.compare(recorded, golden.load_torch(str(folder), recorded))
    assert comparison.ok, str(comparison)
    assert not comparison.theirs.unused
    assert set(comparison.missing) == {name for name in recorded.stages if name.endswith(("scores", "probabilities"))}
    assert golden.check_weights(model, comparison.theirs.weights) == []


def test_hidden_states_are_known(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", "gpt2", "base")
    model, recorded = recorded_from(folder)
    for i, text in enumerate(recorded.texts):
        with torch.no_grad():
            out = golden.load_torch(str(folder), recorded)(torch.from_numpy(text.ids)[None], output_hidden_states=True)
        states = {f"{i}/hidden_states.{n}": state[0].numpy() for n, state in enumerate(out.hidden_states)}
        alone = golden.record(model, [text])
        comparison = golden.compare(alone, {name.replace(f"{i}/", "0/"): state for name, state in states.items()})
        assert comparison.ok, str(comparison)
        assert [row.stage for row in comparison.rows] == ["embeddings.sum", "layers.0.ffn_residual", "norm"]


def test_the_first_layer_reads_the_sum_of_the_embeddings(tmp_path: Path) -> None:
    """In transformers' OPT, no module returns the sum of tokens and positions."""
    folder = tiny.folder(tmp_path / "m", "opt", "causal-lm")
    _, recorded = recorded_from(folder)
    comparison = golden.compare(recorded, golden.load_torch(str(folder), recorded))
    assert comparison.ok
    assert "embeddings.sum" in [row.stage for row in comparison.rows]


def test_the_tiny_model_of_the_command_is_one_of_transformers(tmp_path: Path) -> None:
    folder = golden.tiny(tmp_path / "m", "gpt2")
    recorded = golden.load(folder / golden.TINY_FILE)
    assert load_arrays(folder / "model.safetensors")[0]["transformer.h.0.attn.c_attn.weight"].shape == (32, 96)
    assert golden.compare(recorded, golden.load_torch(str(folder), recorded)).ok


def test_a_text_of_the_suite_that_ends_in_padding_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    folder = golden.suite(tmp_path / "suite", ["gpt2-ends-in-padding"]) / "gpt2-ends-in-padding"
    recorded = golden.load(folder / golden.TINY_FILE)
    assert [text.ids[-1] for text in recorded.texts] == [recorded.config.pad_id] * 2
    assert golden.compare(recorded, golden.load_torch(str(folder), recorded)).ok


# --- the mistakes ----------------------------------------------------------------------------------------------------


def seeing(picture: Callable[[Any], Any]) -> Plant:
    """Replaces the causal mask with the mask that `picture` makes from (L, L) ones. Padding stays hidden."""

    def plant(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(module: Any, q: Any, k: Any, v: Any, mask: Any, **_: Any) -> tuple[Any, Any]:
            last = mask[:, :, -1:]  # the mask of the last query hides only padding
            scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + last
            weights = torch.softmax(scores.masked_fill(picture(torch.ones(scores.shape[-2:])) == 0, -1e9), -1)
            return (weights @ v).transpose(1, 2), weights

        monkeypatch.setattr(modeling_gpt2, "eager_attention_forward", wrong)

    return plant


def in_c_attn(change: Callable[[Any], Any]) -> Plant:
    """Changes the columns (..., 3 D) of the fused projection."""

    def plant(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for block in model.base_model.h:
            for parameter in (block.attn.c_attn.weight, block.attn.c_attn.bias):
                parameter.data = change(parameter.data).contiguous()

    return plant


def conv_as_linear(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in model.base_model.h:
        block.attn.c_proj.weight.data = block.attn.c_proj.weight.data.T.contiguous()


def exact_gelu(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in model.base_model.h:
        block.mlp.act = torch.nn.GELU()


def no_final_norm(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.base_model.ln_f = torch.nn.Identity()


def last_column(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.config.pad_token_id = 10**6  # no token has this id, so padding is read


def first_token(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.score.register_forward_hook(lambda module, args, out: out[:, :1].expand_as(out))


def positions_off(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.base_model.wpe.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def by_head(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(module: Any, args: Any, out: Any) -> Any:
        return out.reshape(*out.shape[:-1], 4, 3, -1).transpose(-2, -3).reshape(out.shape)

    for block in model.base_model.h:
        block.attn.c_attn.register_forward_hook(cut)


PLANTED: dict[str, tuple[Plant, str]] = {
    "no causal mask": (seeing(lambda ones: ones), "causal mask left out"),
    "strictly causal": (seeing(lambda ones: ones.tril(-1)), "causal mask off by one"),
    "the next seen": (seeing(lambda ones: ones.tril(1)), "causal mask off by one"),
    "key first": (in_c_attn(lambda w: torch.cat([w[..., 32:64], w[..., :32], w[..., 64:]], -1)), "query and key swapped"),
    "by head": (by_head, "fused query, key and value split wrongly"),
    "conv as linear": (conv_as_linear, "transposed weight"),
    "exact gelu": (exact_gelu, "erf GELU for tanh"),
    "no final norm": (no_final_norm, "norm left out"),
    "last column": (last_column, "wrong pooling"),
    "first token": (first_token, "wrong pooling"),
    "positions off": (positions_off, "positions off by one"),
}  # fmt: skip


@pytest.mark.parametrize("key", PLANTED)
def test_a_planted_mistake_is_named(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.folder(tmp_path / "m", "gpt2", pad_id=PAD)
    model, recorded = recorded_from(folder)
    other = golden.load_torch(str(folder), recorded)
    plant, name = PLANTED[key]
    plant(other, monkeypatch)
    comparison = golden.compare(recorded, other)
    diagnosis = golden.diagnose(recorded, other, model, comparison=comparison)
    assert name in diagnosis.causes, f"{diagnosis}\n{comparison}"


# --- an encoder with is_decoder ---------------------------------------------------------------------------------------

ENCODERS = [
    name for name, family in encoders().items() if "causal-lm" in family.heads and not family.constants.get("causal")
]


def not_a_decoder(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.config, "is_decoder", False)


def relu_below_the_head(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.cls.predictions.transform.transform_act_fn = torch.nn.ReLU()


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_that_predicts_the_next_token_is_hooked(family: str, tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "m", family, "causal-lm")
    model, recorded = recorded_from(folder)
    comparison = golden.compare(recorded, golden.load_torch(str(folder), recorded))
    assert comparison.ok, str(comparison)
    assert golden.check_weights(model, comparison.theirs.weights) == []


@pytest.mark.parametrize(
    ("plant", "name"), [(not_a_decoder, "causal mask left out"), (relu_below_the_head, "wrong activation")]
)
def test_a_mistake_in_such_an_encoder_is_named(
    plant: Plant, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.folder(tmp_path / "m", "bert", "causal-lm")
    model, recorded = recorded_from(folder)
    spoilt = golden.load_torch(str(folder), recorded)
    plant(spoilt, monkeypatch)
    assert name in golden.diagnose(recorded, spoilt, model).causes
