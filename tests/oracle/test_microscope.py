"""Gradients of stages compared with torch's autograd and hooks, and logit attribution compared with torch, in which the
scales of norms are held constant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npformer import load, logit_attribution, trace
from npformer.engine.runtime.packing import Text
from npformer.families import family_of
from npformer.interpret import stages as table
from npformer.model import Model
from tests.support import tiny

IDS = np.array([2, 40, 41, 100, 7, 150, 3])
CASES = [
    ("distilbert", "sequence-classification"),
    ("distilbert", "question-answering"),
    ("bert", "sequence-classification"),
    ("bert", "masked-lm"),
    ("electra", "token-classification"),
]
#: Modules that read the residual stream (blocks) and modules that write to it, by family; `*` is a layer's number.
BLOCKS = {
    "distilbert": ("distilbert.transformer.layer.*.attention", "distilbert.transformer.layer.*.ffn"),
    "bert": ("bert.encoder.layer.*.attention.self", "bert.encoder.layer.*.intermediate"),
    "electra": ("electra.encoder.layer.*.attention.self", "electra.encoder.layer.*.intermediate"),
}


def both(family: str, head: str, path: Path) -> tuple[Model, Any]:
    """Returns npformer's model and transformers' model from one checkpoint, in float64."""
    import transformers

    tiny.folder(path, family, head)
    ours = load(path, dtype="float64")
    theirs = getattr(transformers, family_of(ours.config).architecture(ours.config))
    return ours, theirs.from_pretrained(path, attn_implementation="eager", dtype=torch.float64).eval()


def asked(head: str) -> tuple[Any, int | None, Callable[[Any], Any]]:
    """Returns a label, a position, and a function that reads the same logit from torch's output."""
    if head == "sequence-classification":
        return 1, None, lambda out: out.logits[0, 1]
    if head == "question-answering":
        return "end", 2, lambda out: out.end_logits[0, 2]
    return 3, 4, lambda out: out.logits[0, 4, 3]


def inputs(model: Model) -> Text:
    return Text(IDS, (np.arange(len(IDS)) > 3).astype(np.int64) if model.config.n_token_types else None)


def run(model: Model, theirs: Any) -> Any:
    given = {"input_ids": torch.tensor(IDS[None])}
    if model.config.n_token_types:
        given["token_type_ids"] = torch.tensor(inputs(model).token_type_ids[None])
    return theirs(**given, output_attentions=True)


@pytest.mark.parametrize(("family", "head"), CASES)
def test_gradients_of_stages_match_autograd(family: str, head: str, tmp_path: Path) -> None:
    model, theirs = both(family, head, tmp_path / "model")
    label, position, logit = asked(head)
    kept: dict[str, Any] = {}

    def keep(stage: str) -> Callable[..., None]:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            kept[stage] = output[0] if isinstance(output, tuple) else output
            kept[stage].retain_grad()

        return hook

    there = dict(theirs.named_modules())
    for path, stage in table.modules(model.config).items():
        if there.get(path) is not None and stage not in ("logits", "embeddings.position"):
            theirs.get_submodule(path).register_forward_hook(keep(stage))
    out = run(model, theirs)
    for i, weights in enumerate(out.attentions):
        kept[f"layers.{i}.attention.weights"] = weights
        weights.retain_grad()
    logit(out).backward()
    ours = trace(model, inputs(model), grads=label, position=position)
    compared = 0
    for stage, tensor in kept.items():
        if tensor.grad is None:  # the module does not affect this logit
            assert not ours.grads[stage].any(), stage
            continue
        grad = tensor.grad.numpy()
        np.testing.assert_allclose(
            ours.grads[stage], grad.reshape(ours.grads[stage].shape), rtol=1e-9, atol=1e-12, err_msg=stage
        )
        compared += 1
    assert compared >= 20, sorted(kept)


# --- logit attribution -----------------------------------------------------------------------------------------------


class HeldNorm(torch.nn.Module):
    """A layer norm that divides by a standard deviation without a gradient."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.pow(2).mean(-1, keepdim=True) + self.eps).sqrt().detach()
        return centred / deviation * self.weight + self.bias


class Gate(torch.nn.Module):
    """An activation, computed as h times a factor that has no gradient."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, h: Any) -> Any:
        return h * (self.activation(h) / h).detach()


def hold(theirs: Any, family: str, layers: int) -> None:
    """Makes everything between the blocks' outputs and the logit linear, and detaches the blocks' inputs."""
    for path, module in list(theirs.named_modules()):
        parent, _, last = path.rpartition(".")
        if isinstance(module, torch.nn.LayerNorm):
            setattr(theirs.get_submodule(parent), last, HeldNorm(module))
        if path in ("bert.pooler.activation", "cls.predictions.transform.transform_act_fn"):
            setattr(theirs.get_submodule(parent), last, Gate(module))

    def cut(module: Any, arguments: Any, named: Any) -> Any:
        return tuple(map(detached, arguments)), {name: detached(each) for name, each in named.items()}

    for pattern in BLOCKS[family]:
        for i in range(layers):
            theirs.get_submodule(pattern.replace("*", str(i))).register_forward_pre_hook(cut, with_kwargs=True)


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(("family", "head"), CASES)
def test_parts_of_a_logit_match_autograd_with_the_norms_held(family: str, head: str, tmp_path: Path) -> None:
    model, theirs = both(family, head, tmp_path / "model")
    config = model.config
    label, position, logit = asked(head)
    found = logit_attribution(model, inputs(model), label, position=position)
    hold(theirs, family, config.n_layers)
    read: dict[str, Any] = {}

    def keep(name: str) -> Callable[..., Any]:
        """Replaces the module's input with a detached copy, which gets a gradient, and stores this copy."""

        def hook(module: Any, arguments: Any) -> Any:
            read[name] = arguments[0].detach().requires_grad_()
            return (read[name], *arguments[1:])

        return hook

    for i in range(config.n_layers):
        for block in ("attention", "ffn"):
            path = table.module(config, f"layers.{i}.{block}.output")
            theirs.get_submodule(path).register_forward_pre_hook(keep(f"layers.{i}.{block}.output"))
    embedded: dict[str, Any] = {}
    for path, stage in table.modules(config).items():
        if stage in ("embeddings.token", "embeddings.position", "embeddings.segment"):

            def leaf(module: Any, arguments: Any, output: Any, stage: str = stage) -> Any:
                embedded[stage.rpartition(".")[2]] = output.detach().requires_grad_()
                return embedded[stage.rpartition(".")[2]]

            theirs.get_submodule(path).register_forward_hook(leaf)
    value = logit(run(model, theirs))
    assert found.logit == pytest.approx(value.item(), abs=1e-12)
    value.backward()
    for i in range(config.n_layers):
        attention, ffn = read[f"layers.{i}.attention.output"], read[f"layers.{i}.ffn.output"]
        parts = (attention.grad * attention)[0].reshape(len(IDS), config.n_heads, config.d_head)[found.position].sum(-1)
        np.testing.assert_allclose(found.heads[i].sum(-1), parts.detach().numpy(), rtol=1e-9, atol=1e-12)
        assert found.ffn[i] == pytest.approx(float((ffn.grad * ffn).sum().detach()), abs=1e-12)
    for name, part in found.embeddings.items():
        tensor = embedded[name]
        assert part == pytest.approx(float((tensor.grad * tensor)[..., found.position, :].sum().detach()), abs=1e-12), (
            name
        )
