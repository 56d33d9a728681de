"""Makes the checkpoints of torch's modules and runs them stage by stage, for `make_seq2seq.py`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional

from tests.golden import seq2seq_cases as cases
from tests.golden.make import joined
from tests.golden.orders import ORDERS, errors

DTYPES = {"float32": torch.float32, "float64": torch.float64}
Stages = dict[str, list[np.ndarray]]


def make_torch(folder: Path, case: str) -> None:
    """Writes the checkpoint, and the flattened stages of all texts, one text after another."""
    folder.mkdir(parents=True)
    config = cases.torch_config(case)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    module = Classifier(config) if case == "classifier" else torch_module(config)
    state = {name: torch.from_numpy(cases.drawn(case, name, tuple(t.shape))) for name, t in module.state_dict().items()}
    module.load_state_dict(state)
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=case not in cases.OLD_FORMAT)
    module.eval()
    arrays = {}
    with torch.no_grad():
        for dtype, type_ in DTYPES.items():
            heard = joined(run(module.to(type_), config, type_))
            arrays |= {f"{dtype}/{name}": array for name, array in heard.items()}
        module.to(torch.float32)
        arrays |= errors(lambda: joined(run(module, config, torch.float32)), heard)
    save_file(arrays, folder / "stages.safetensors", {"orders": "; ".join(ORDERS)})


def torch_module(config: dict[str, Any]) -> nn.Module:
    kind = getattr(nn, config["architectures"][0].removeprefix("nn."))
    d, h, f = (config[name] for name in ("d_model", "n_heads", "d_ffn"))
    bias, first = config.get("bias", True), config.get("norm_first", False)
    options = {"batch_first": True, "bias": bias, "norm_first": first, "dropout": 0.0}
    options["activation"] = config.get("activation", "relu")
    if kind is nn.MultiheadAttention:
        return kind(d, h, bias=bias, batch_first=True)
    if kind is nn.Transformer:
        return kind(d, h, config["n_layers"], config["n_decoder_layers"], f, **options)
    if kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        return kind(d, h, f, **options)
    layer = (nn.TransformerEncoderLayer if kind is nn.TransformerEncoder else nn.TransformerDecoderLayer)(
        d, h, f, **options
    )
    norm = nn.LayerNorm(d, bias=bias) if config.get("final_norm") else None
    return kind(layer, config.get("n_layers") or config["n_decoder_layers"], norm)


def run(module: nn.Module, config: dict[str, Any], dtype: torch.dtype) -> Stages:
    """The stages of each text, run alone by torch's functions on the module's own parameters.

    The module itself also runs on all texts in one padded batch, with padding masks for sources and targets and a
    causal mask. The module's output is a stage too, and the functions' results must agree with it.
    """
    heard: Stages = {}
    if isinstance(module, Classifier):
        ids = cases.classifier_ids()
        padded = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
        for row, each in zip(padded, ids, strict=True):
            row[: len(each)] = torch.from_numpy(each)
        mask = torch.arange(padded.shape[1]) < torch.tensor([len(each) for each in ids])[:, None]
        return {
            "logits": list(module(padded, mask.long()).numpy()),
            "positions": [module.encoder.table[:40].numpy()],
        }
    x, y = (
        [torch.from_numpy(text).to(dtype) for text in np.split(cases.rows(name, lengths), np.cumsum(lengths)[:-1])]
        for name, lengths in (("source", cases.LENGTHS), ("target", cases.TARGET_LENGTHS))
    )
    whole = whole_run(module, x, y)
    for i, (source, target) in enumerate(zip(x, y, strict=True)):
        walk = Walk(heard)
        if isinstance(module, nn.Transformer):
            memory = walk.stack("encoder.", module.encoder, source)
            found = walk.stack("decoder.", module.decoder, target, memory)
        elif isinstance(module, nn.TransformerEncoder):
            found = walk.stack("", module, source)
        elif isinstance(module, nn.TransformerDecoder):
            found = walk.stack("", module, target, source)
        elif isinstance(module, nn.TransformerEncoderLayer):
            found = walk.layer("", module, source)
        elif isinstance(module, nn.TransformerDecoderLayer):
            found = walk.layer("", module, target, source)
        else:
            found = walk.attention("", module, target, source, causal=False)
        assert torch.allclose(found, whole[i], atol=1e-5 if dtype == torch.float32 else 1e-13), (
            "the walk is not torch's"
        )
    if not isinstance(module, nn.Transformer):
        heard = {}  # the other modules have the same stages, computed by the same functions
    return heard | {"result": [each.numpy() for each in whole]}


def whole_run(module: nn.Module, x: list[torch.Tensor], y: list[torch.Tensor]) -> list[torch.Tensor]:
    """The module's output for each text, from one padded batch."""
    source, target = (nn.utils.rnn.pad_sequence(each, batch_first=True) for each in (x, y))
    hidden, target_hidden = (
        torch.arange(padded.shape[1])[None] >= torch.tensor([len(each) for each in texts])[:, None]
        for padded, texts in ((source, x), (target, y))
    )
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    masks = {"tgt_mask": causal, "tgt_key_padding_mask": target_hidden, "memory_key_padding_mask": hidden}
    of_target = True
    if isinstance(module, nn.Transformer):
        out = module(source, target, src_key_padding_mask=hidden, **masks)
    elif isinstance(module, nn.TransformerDecoder | nn.TransformerDecoderLayer):
        out = module(target, source, **masks)
    elif isinstance(module, nn.MultiheadAttention):
        out = module(target, source, source, key_padding_mask=hidden)[0]
    else:
        out, of_target = module(source, src_key_padding_mask=hidden), False
    return [row[: len(text)] for row, text in zip(out, y if of_target else x, strict=True)]


class Walk:
    """Runs a module on a text stage by stage, with torch's functions."""

    def __init__(self, heard: Stages) -> None:
        self.heard = heard

    def hear(self, name: str, value: torch.Tensor) -> torch.Tensor:
        self.heard.setdefault(name, []).append(value.numpy())
        return value

    def stack(self, scope: str, stack: Any, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        for i, layer in enumerate(stack.layers):
            x = self.layer(f"{scope}layers.{i}.", layer, x, memory)
        return x if stack.norm is None else self.hear(f"{scope}norm", stack.norm(x))

    def layer(self, scope: str, layer: Any, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        norms = [layer.norm1, layer.norm2] if memory is None else [layer.norm1, layer.norm2, layer.norm3]
        causal = memory is not None
        blocks: list[tuple[str, Any]] = [
            ("attention", lambda h: self.attention(f"{scope}attention.", layer.self_attn, h, h, causal))
        ]
        if memory is not None:
            across = layer.multihead_attn
            name = "cross_attention"
            blocks.append((name, lambda h: self.attention(f"{scope}{name}.", across, h, memory, False)))
        blocks.append(("ffn", lambda h: self.ffn(f"{scope}ffn.", layer, h)))
        for (name, block), norm in zip(blocks, norms, strict=True):
            if layer.norm_first:
                x = self.hear(f"{scope}{name}_residual", x + block(self.hear(f"{scope}{name}_norm", norm(x))))
            else:
                x = self.hear(f"{scope}{name}_norm", norm(self.hear(f"{scope}{name}_residual", x + block(x))))
        return x

    def ffn(self, scope: str, layer: Any, h: torch.Tensor) -> torch.Tensor:
        h = self.hear(f"{scope}activation", layer.activation(self.hear(f"{scope}hidden", layer.linear1(h))))
        return self.hear(f"{scope}output", layer.linear2(h))

    def attention(self, scope: str, module: Any, x: torch.Tensor, source: torch.Tensor, causal: bool) -> torch.Tensor:
        weights = module.in_proj_weight.chunk(3)
        biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        heads = []
        for name, rows, weight, bias in zip(
            ("query", "key", "value"), (x, source, source), weights, biases, strict=True
        ):
            projected = self.hear(f"{scope}{name}", functional.linear(rows, weight, bias))
            split = projected.unflatten(1, (module.num_heads, -1)).transpose(0, 1)
            heads.append(split.contiguous())
        q, k, v = heads
        scores = self.hear(f"{scope}scores", (q / math.sqrt(q.shape[-1])) @ k.mT)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        context = self.hear(f"{scope}context", self.hear(f"{scope}weights", scores.softmax(-1)) @ v)
        return self.hear(f"{scope}output", module.out_proj(context.transpose(0, 1).flatten(1)))


class Classifier(nn.Module):
    """An encoder with a classifier on its first row, as a beginner would write it."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        d, f = config["d_model"], config["d_ffn"]
        self.n_heads = config["n_heads"]
        self.encoder = nn.Module()
        self.encoder.embedding = nn.Embedding(config["vocab_size"], d)
        self.encoder.table = torch.zeros(0)
        self.encoder.layers = nn.ModuleList()
        for _ in range(config["n_layers"]):
            layer = nn.Module()
            layer.self_attn = nn.Module()
            for name in ("query", "key", "value", "output"):
                setattr(layer.self_attn, f"{name}_linear", nn.Linear(d, d))
            layer.feed_forward = nn.Module()
            layer.feed_forward.fc1, layer.feed_forward.fc2 = nn.Linear(d, f), nn.Linear(f, d)
            layer.norm1, layer.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.encoder.layers.append(layer)
        self.classifier = nn.Module()
        self.classifier.fc = nn.Linear(d, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.encoder.embedding(ids)
        self.encoder.table = positional_encoding(64, x.shape[-1], x.dtype)
        x = x + self.encoder.table[: ids.shape[1]]
        both = mask.unsqueeze(-1) & mask.unsqueeze(-2)
        for layer in self.encoder.layers:
            attention = layer.self_attn
            q, k, v = (
                getattr(attention, f"{name}_linear")(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(both[:, None] == 0, -1e20)
            context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = layer.norm1(x + attention.output_linear(context))
            x = layer.norm2(x + layer.feed_forward.fc2(layer.feed_forward.fc1(x).relu()))
        return self.classifier.fc(x[:, 0])


def positional_encoding(length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Alternating sines and cosines, computed in `dtype` throughout, as in most positional encoders."""
    table = torch.zeros(length, width, dtype=dtype)
    position = torch.arange(length, dtype=dtype)[:, None]
    step = torch.exp(torch.arange(0, width, 2, dtype=dtype) * -(math.log(10000.0) / width))
    table[:, 0::2], table[:, 1::2] = torch.sin(position * step), torch.cos(position * step)
    return table
