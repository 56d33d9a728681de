"""The models that npformer trains, as torch modules with the same initial weights. Each returns a padded batch's loss.

Dropout is in the same places as in npformer. `training.py` races the models' steps, and `torch_run.py` trains them to
the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from npformer.checkpoint import tree as layout
from npformer.config import Config
from npformer.engine.embeddings import shift_right, sinusoidal_positions
from npformer.families import write_config
from npformer.training import Example

IGNORED = -100


def load_weights(module: nn.Module, tree: layout.Tree, config: Config) -> nn.Module:
    """Loads npformer's weights into the module. Exits if a trainable parameter has no weight."""
    state = {name: torch.from_numpy(np.array(a, order="C")) for name, a in layout.to_torch(tree, config).items()}
    missing = set(module.load_state_dict(state, strict=False).missing_keys)
    if lost := sorted(missing & {name for name, each in module.named_parameters() if each.requires_grad}):
        raise SystemExit(f"{lost[0]}: would keep its random start")
    return module


def padded(rows: Sequence[np.ndarray], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (B, L) ids with `fill` after shorter texts, and a mask that is true at tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, fill)
    ids[mask] = np.concatenate(rows)
    return torch.from_numpy(ids), torch.from_numpy(mask)


class DistilBert(nn.Module):
    """Transformers' classifier, with its own dropout."""

    def __init__(self, tree: layout.Tree, config: Config, rate: float) -> None:
        super().__init__()
        from transformers import DistilBertConfig, DistilBertForSequenceClassification

        sizes = {"dim": config.d_model, "n_heads": config.n_heads, "n_layers": config.n_layers}
        rates = {"dropout": rate, "attention_dropout": rate, "seq_classif_dropout": rate}
        settings = DistilBertConfig(**sizes, **rates, hidden_dim=config.d_ffn, vocab_size=config.vocab_size)
        self.model = load_weights(DistilBertForSequenceClassification(settings), tree, config)

    def loss(self, examples: Sequence[Example]) -> torch.Tensor:
        ids, mask = padded([example.text.ids for example in examples], 0)
        labels = torch.tensor([example.target for example in examples])
        return self.model(ids, attention_mask=None if mask.all() else mask.long(), labels=labels).loss


class Classifier(nn.Module):
    """The encoder with a classifier on its first row, and dropout on the outputs of attention and the FFN."""

    def __init__(self, tree: layout.Tree, config: Config, rate: float) -> None:
        super().__init__()
        sizes = (config.d_model, config.n_heads, config.d_ffn)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(*sizes, dropout=rate, batch_first=True) for _ in range(config.n_layers)
        )
        for layer in self.layers:
            layer.self_attn.dropout, layer.dropout = 0.0, nn.Identity()
        self.head = nn.Linear(config.d_model, len(config.labels))
        load_weights(self, tree, config)
        positions = sinusoidal_positions(config.max_length, config.d_model).astype(np.float32)
        self.register_buffer("positions", torch.from_numpy(positions), persistent=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        padding = None if mask.all() else ~mask
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        return self.head(x[:, 0])

    def loss(self, examples: Sequence[Example]) -> torch.Tensor:
        ids, mask = padded([example.text.ids for example in examples], 0)
        return functional.cross_entropy(self(ids, mask), torch.tensor([example.target for example in examples]))


class Translator(nn.Module):
    """Transformers' MarianMTModel with dropout on the embeddings and on the output of each block."""

    def __init__(self, tree: layout.Tree, config: Config, rate: float, smoothing: float) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        settings = MarianConfig(**write_config(config), dropout=rate, attention_dropout=0.0, activation_dropout=0.0)
        self.model = load_weights(MarianMTModel(settings), tree, config)
        # a buffer in Transformers, but a trained parameter in npformer
        self.model.final_logits_bias = nn.Parameter(self.model.final_logits_bias)
        self.config, self.smoothing = config, smoothing

    def loss(self, examples: Sequence[Example]) -> torch.Tensor:
        shifted = [
            shift_right(each.target, self.config.decoder.start_id, self.config.decoder.end_ids[0]) for each in examples
        ]
        pad = self.config.decoder.start_id
        source, mask = padded([each.text.ids for each in examples], pad)
        given, wanted = padded([a for a, _ in shifted], pad)[0], padded([b for _, b in shifted], IGNORED)[0]
        logits = self.model(source, attention_mask=mask.long(), decoder_input_ids=given, use_cache=False).logits
        flat = logits.reshape(-1, logits.shape[-1])
        return functional.cross_entropy(flat, wanted.reshape(-1), label_smoothing=self.smoothing)


def optimizer(module: nn.Module, rate: float, betas: tuple[float, float], eps: float, decay: float) -> Any:
    """Returns torch's AdamW, which decays only matrices and tables, like npformer's."""
    decayed = [p for p in module.parameters() if len(p.squeeze().shape) > 1]
    others = [p for p in module.parameters() if len(p.squeeze().shape) < 2]
    groups = [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=eps)


def step(module: Any, examples: Sequence[Example], adam: Any, clip: float | None) -> float:
    """Makes one update; returns the loss before the update."""
    adam.zero_grad()
    loss = module.loss(examples)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(module.parameters(), clip)
    adam.step()
    assert math.isfinite(loss.item())
    return loss.item()
