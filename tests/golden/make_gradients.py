"""Makes the golden gradients with torch's autograd, or with --check makes them again and compares them.

    python tests/golden/make_gradients.py [--check]

It needs the `oracle` group; the tests that read the values do not. Under `gradients_data/`:

    functions.safetensors    all gradients of the single functions of `gradient_calls`, in float32 and float64; and
                             the errors of float32 in each order of `orders.py`
    models.safetensors       for every parameter of the models under `data/`, the gradient of the loss of its head: the
                             largest error in those orders, and the largest entry, the sum and two checksums of the
                             float64 gradient
    training.safetensors     the losses of fifty steps of AdamW with warm-up: a classifier's and a translator's
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from torch.nn import functional

from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import PROJECTION, ties
from npformer.config import Config
from npformer.engine.embeddings import sinusoidal_positions
from npformer.families import family_of, read_config
from tests.golden import gradients
from tests.golden.make import make_or_check
from tests.golden.orders import errors

HERE = Path(__file__).parent
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def make(folder: Path) -> None:
    torch.set_num_threads(1)
    arrays, described = {}, {}
    for name, (function, given, options, grad) in gradient_calls():
        described[name] = options
        arrays |= {f"{name}/{key}": array for key, array in given.items()} | {f"{name}/grad": grad}
        for dtype, type_ in DTYPES.items():
            made = autograd(function, given, options, grad, type_)
            arrays |= {f"{name}/{dtype}/{key}": found for key, found in made.items()}
        run = functools.partial(autograd, function, given, options, grad, torch.float32)
        arrays |= {f"{name}/{key}": found for key, found in errors(run, made).items()}
    save(arrays, folder / "functions.safetensors", {"options": json.dumps(described)})
    arrays, described = {}, {}
    for case in gradients.MODELS:
        truth = model_gradients(case, torch.float64)
        found = errors(functools.partial(model_gradients, case, torch.float32), truth)
        described[case] = list(truth)
        arrays[f"summary/{case}"] = np.array(
            [(found[f"error/{key}"].max(), *gradients.summary(truth[key])) for key in truth]
        )
    save(arrays, folder / "models.safetensors", {"parameters": json.dumps(described)})
    runs = {f"{dtype}/losses": training_losses(type_) for dtype, type_ in DTYPES.items()}
    for dtype, type_ in DTYPES.items():
        state, runs[f"{dtype}/translation losses"] = translation_losses(type_)
        flat = layout.flatten(layout.to_tree(state, gradients.TRANSLATOR, np.float32))
        runs |= {f"translator/{name}": a for name, a in flat.items() if not name.endswith("position.weight")}
    save(runs, folder / "training.safetensors", {})


# --- single functions ------------------------------------------------------------------------------------------------

Made = tuple[Callable[..., torch.Tensor], dict[str, np.ndarray], dict[str, Any], np.ndarray]


def gradient_calls() -> Iterator[tuple[str, Made]]:
    """Yields a name with torch's function, its arguments (floats have gradients), options and the result's gradient."""
    random = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    yield "linear", (
        lambda x, weight, bias: functional.linear(x, weight.T, bias),
        {"x": normal(2, 5, 7), "weight": normal(7, 3), "bias": normal(3)}, {}, normal(2, 5, 3),
    )  # fmt: skip
    yield "embedding", (
        lambda ids, weight: functional.embedding(ids, weight),
        {"ids": random.integers(0, 6, (3, 5)), "weight": normal(9, 4)}, {}, normal(3, 5, 4),
    )  # fmt: skip
    for eps in (1e-12, 1e-5, 0.5):
        yield f"layer_norm {eps}", (
            lambda x, weight, bias, eps: functional.layer_norm(x, x.shape[-1:], weight, bias, eps),
            {"x": normal(3, 4, 11, scale=2), "weight": normal(11), "bias": normal(11)}, {"eps": eps}, normal(3, 4, 11),
        )  # fmt: skip
    for axis in (-1, 0):
        yield f"softmax {axis}", (
            lambda x, axis: functional.softmax(x, dim=axis), {"x": normal(4, 6, scale=3)}, {"axis": axis}, normal(4, 6),
        )  # fmt: skip
    line = np.concatenate([np.linspace(-12, 12, 193), [-0.0, 1e-30, -1e-8]]).astype(np.float32)
    element_wise = {
        "relu": functional.relu, "silu": functional.silu, "tanh": torch.tanh, "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }  # fmt: skip
    for name, function in element_wise.items():
        yield name, (lambda x, function=function: function(x), {"x": line}, {}, normal(len(line)))
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.1):
            yield f"cross_entropy {reduction} {smoothing}", (
                lambda logits, targets, **options: functional.cross_entropy(logits, targets, **options),
                {"logits": normal(6, 5, scale=2), "targets": np.array([0, 4, -100, 2, 2, -100])},
                {"reduction": reduction, "label_smoothing": smoothing},
                normal(6) if reduction == "none" else normal(1)[0],
            )  # fmt: skip
    for name, mask, causal in (
        ("plain", None, False),
        ("causal", None, True),
        ("mask", random.integers(0, 2, (2, 1, 5, 5)).astype(bool), False),
    ):
        given = {key: normal(2, 3, 5, 4) for key in "qkv"} | ({} if mask is None else {"mask": mask})
        yield f"scaled_dot_product_attention {name}", (attention, given, {"is_causal": causal}, normal(2, 3, 5, 4))


def attention(q: Any, k: Any, v: Any, is_causal: bool, mask: Any = None) -> torch.Tensor:
    """Attention from its formula: queries that may attend to nothing give zeros, and have zero gradients."""
    if is_causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
        scores = torch.where(mask.any(-1, keepdim=True), scores, 0)
        return (torch.softmax(scores, -1) * mask) @ v
    return torch.softmax(scores, -1) @ v


def autograd(function: Any, given: Any, options: Any, grad: np.ndarray, dtype: torch.dtype) -> dict[str, np.ndarray]:
    tensors = {key: torch.tensor(array) for key, array in given.items()}
    tensors = {key: each.to(dtype) if each.is_floating_point() else each for key, each in tensors.items()}
    leaves = {key: each.requires_grad_() for key, each in tensors.items() if each.is_floating_point()}
    function(**tensors, **options).backward(torch.tensor(grad).to(dtype))
    return {key: each.grad.numpy() for key, each in leaves.items()}


# --- whole models ----------------------------------------------------------------------------------------------------


def model_gradients(case: str, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The gradients of every parameter of a model under `data/`, with npformer's names and layout."""
    folder = HERE / "data" / case
    config = read_config(json.loads((folder / "config.json").read_text()))
    model = (
        getattr(transformers, family_of(config).architecture(config))
        .from_pretrained(folder, attn_implementation="eager")
        .to(dtype)
    )
    for parameter in model.parameters():
        parameter.requires_grad_()
    answers = model.eval()(**{key: torch.tensor(array) for key, array in gradients.padded(config).items()})
    if config.head == "base":
        wave = gradients.weights_of_answers(config)
        mask = torch.tensor(gradients.padded(config)["attention_mask"]).bool()
        loss = (answers.last_hidden_state[mask] * torch.tensor(wave["last_hidden_state"]).to(dtype)).sum()
        if "pooler_output" in wave:
            loss = loss + (answers.pooler_output * torch.tensor(wave["pooler_output"]).to(dtype)).sum()
    elif config.head == "question-answering":  # only a text's own tokens; transformers' loss also counts padding
        mask = torch.tensor(gradients.padded(config)["attention_mask"]).bool()
        wanted = torch.tensor(gradients.targets(config)).T
        logits = (each.masked_fill(~mask, -torch.inf) for each in (answers.start_logits, answers.end_logits))
        loss = sum(functional.cross_entropy(*pair) for pair in zip(logits, wanted, strict=True)) / 2
    else:
        loss = answers.loss
    loss.backward()
    return ours({name: each.grad for name, each in model.named_parameters() if each.grad is not None}, config)


def ours(grads: dict[str, torch.Tensor], config: Config) -> dict[str, np.ndarray]:
    arrays = {name: grad.numpy() for name, grad in grads.items()}
    flat = layout.flatten(layout.to_tree(arrays, config, next(iter(arrays.values())).dtype))
    if ties(config):
        flat.pop(PROJECTION)
    return flat


def training_losses(dtype: torch.dtype) -> np.ndarray:
    """Trains a tiny DistilBERT for 50 steps without dropout: AdamW, 10 warm-up steps, clipping; only matrices decay."""
    off = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    folder = HERE / "data" / gradients.TRAINED
    model = transformers.DistilBertForSequenceClassification.from_pretrained(folder, **off).to(dtype).train()
    kept = [each for name, each in model.named_parameters() if name.endswith("bias") or "norm" in name.lower()]
    decayed = [each for each in model.parameters() if not any(each is other for other in kept)]
    settings = gradients.SETTINGS
    groups = [{"params": decayed, "weight_decay": settings["weight_decay"]}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings["learning_rate"])
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, settings["warmup"], settings["steps"])
    losses = []
    for ids, labels in gradients.batches():
        lengths = [len(each) for each in ids]
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        padded = np.zeros(mask.shape, np.int64)
        padded[mask] = np.concatenate(ids)
        given = {"input_ids": padded, "attention_mask": mask.astype(np.int64), "labels": labels}
        loss = model(**{key: torch.tensor(array) for key, array in given.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return np.array(losses)


def translation_losses(dtype: torch.dtype) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Trains nn.Transformer with tables and a projection in the same way. Returns its initial weights and 50 losses."""
    config, settings = gradients.TRANSLATOR, gradients.SETTINGS
    torch.manual_seed(0)
    stack = torch.nn.Transformer(
        config.d_model, config.n_heads, config.n_layers, config.decoder.n_layers, config.d_ffn, 0.0, batch_first=True
    )
    source = torch.nn.Embedding(config.vocab_size, config.d_model)
    target = torch.nn.Embedding(config.decoder.vocab_size, config.d_model)
    head = torch.nn.Linear(config.d_model, config.decoder.vocab_size)
    state = {
        **stack.state_dict(), "encoder.embedding.weight": source.weight, "decoder.embedding.weight": target.weight,
        "head.weight": head.weight, "head.bias": head.bias,
    }  # fmt: skip
    before = {name: each.detach().numpy().copy() for name, each in state.items()}
    whole = torch.nn.ModuleList([stack, source, target, head]).to(dtype).train()
    positions = torch.tensor(sinusoidal_positions(config.max_length, config.d_model)).to(dtype)
    kept = [each for name, each in whole.named_parameters() if name.endswith("bias") or "norm" in name]
    decayed = [each for each in whole.parameters() if not any(each is other for other in kept)]
    groups = [{"params": decayed, "weight_decay": settings["weight_decay"]}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings["learning_rate"])
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, settings["warmup"], settings["steps"])
    losses = []
    for batch in gradients.pairs():
        x, x_mask = pad([ids for ids, _ in batch])
        given, y_mask = pad([np.concatenate([[config.decoder.start_id], ids]) for _, ids in batch])
        wanted, _ = pad([np.concatenate([ids, config.decoder.end_ids]) for _, ids in batch])
        length = given.shape[1]
        rows = stack(
            source(x) + positions[: x.shape[1]], target(given) + positions[:length],
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=~x_mask, memory_key_padding_mask=~x_mask,
        )  # fmt: skip
        loss = functional.cross_entropy(head(rows)[y_mask], wanted[y_mask], label_smoothing=gradients.SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), settings["clip"])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return before, np.array(losses)


def pad(sequences: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads each sequence with zeros; returns the array, and a mask that is True for entries that are not padding."""
    mask = np.arange(max(map(len, sequences))) < np.array([len(each) for each in sequences])[:, None]
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate(sequences)
    return torch.tensor(padded), torch.tensor(mask)


def save(arrays: dict[str, np.ndarray], path: Path, metadata: dict[str, str]) -> None:
    save_file({name: np.array(array, order="C") for name, array in arrays.items()}, path, metadata)


if __name__ == "__main__":
    told = f"gradients of {len(gradients.MODELS)} models"
    sys.exit(make_or_check(__doc__, make, HERE / "gradients_data", told))
