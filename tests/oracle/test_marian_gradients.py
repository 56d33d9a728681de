"""Gradients of a Marian checkpoint equal torch's, also in the padding token's row (torch's `padding_idx`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from npformer.checkpoint import load_folder
from npformer.checkpoint import tree as layout
from npformer.engine.functions import SparseRows
from npformer.engine.runtime.packing import Text
from npformer.training import Example, Trainable, gradients
from npformer.training.losses import TranslationLoss

PAD = 30  # also the start token


@pytest.mark.parametrize("tied", [True, False])
def test_every_gradient_is_torch_s(tied: bool, tmp_path: Path) -> None:
    """Gradients agree in float64 to 1e-12. The padding token's row in the table gets only the gradient of the tied
    projection."""
    torch.manual_seed(0)
    model = MarianMTModel(MarianConfig(
        vocab_size=31, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=16, dropout=0.0,
        pad_token_id=PAD, decoder_start_token_id=PAD, eos_token_id=0, scale_embedding=True, tie_word_embeddings=tied,
    ))  # fmt: skip
    with torch.no_grad():
        for parameter in filter(lambda each: each.requires_grad, model.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(tmp_path / "model")
    model = model.double().eval()
    source, target = [4, 7, PAD, 9, 0], [5, 3, 3, 8]
    model(torch.tensor([source]), labels=torch.tensor([[*target, 0]])).loss.backward()
    config, tree = load_folder(tmp_path / "model", np.float64)
    theirs = {name: each.grad.numpy() for name, each in model.named_parameters() if each.grad is not None}
    expected = layout.flatten(layout.to_tree(theirs, config, np.float64))
    weights = Trainable(tree, config)
    found = gradients(TranslationLoss(config, 0.0), weights, [Example(Text(np.array(source)), np.array(target))]).flat
    for name, grad in found.items():
        dense = np.zeros_like(weights.flat[name])
        if isinstance(grad, SparseRows):
            dense[grad.ids] = grad.values
        else:
            dense[...] = grad
        if name == "head.output.bias":  # a buffer in torch, which has no gradient
            continue
        assert np.abs(dense - expected[name]).max() < 1e-12, name
    tables = [name for name in found if name.endswith("embeddings.token.weight")]
    assert all(bool(expected[name][PAD].any()) == tied for name in tables)
