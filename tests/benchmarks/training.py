"""Compares a training step with torch's: `python -m tests.benchmarks.training [--quick] [--json FILE]`.

A step consists of forward pass, backward pass, clipping and AdamW on a batch. The models are DistilBERT-base on 32
texts of 64 tokens, an encoder of width 256 on 32 texts of 256 tokens, and an encoder-decoder of width 128 on 128 pairs
of similar length. Both engines begin with the same weights, have dropout in the same places and take turns in one
process. Without dropout, the engines' first losses must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from npformer.config import Config
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.threads import available_cores
from npformer.families.vaswani import residual_rates
from npformer.training import Example, HeadLoss, Recipe, Trainable, Trainer, gradients, initialize, standard_rates
from npformer.training.losses import TranslationLoss
from npformer.training.translator import translator
from tests.benchmarks import measure, sizes, table, twins
from tests.benchmarks.models import Contender

ENCODER = Config(
    "transformer", "sequence-classification", vocab_size=30522, d_model=256, n_heads=4, n_layers=4, d_ffn=512,
    max_length=256, activation="relu", eps=1e-5, labels=("negative", "positive"), torch_class="nn.TransformerEncoder",
)  # fmt: skip
TRANSLATOR = translator(vocabulary=6000, width=128, heads=4, layers=4, ffn=256, longest=256)
SMOOTHING = 0.1
APART = 1e-5  # tolerance for the first loss, which both engines compute in float32, in different orders

Row = tuple[Config, list[Example], Any, dict[str, float], Callable[[Any, float], Any]]


def texts(config: Config, count: int, length: int) -> list[Example]:
    ids = sizes.random_ids([length] * count, config.vocab_size)
    return [Example(Text(each), i % 2) for i, each in enumerate(ids)]


def pairs(count: int) -> list[Example]:
    """Returns a batch of texts of similar length, as in training: one of twenty batches that are sorted together."""
    random, recipe = np.random.default_rng(0), Recipe(batch_size=count, window=20)
    lengths = random.integers(8, 25, (count * recipe.window, 2))
    found = [Example(Text(random.integers(2, 6000, a)), random.integers(2, 6000, b)) for a, b in lengths]
    objective = TranslationLoss(TRANSLATOR, SMOOTHING)
    return [found[i] for i in recipe.batches([objective.lengths(each) for each in found], 0)[0]]


def rows() -> dict[str, Row]:
    """Returns, for each workload, its config, batch, objective, dropout, and a function that makes torch's module."""
    base = sizes.BASE
    return {
        "DistilBERT-base, 32 x 64": (
            base, texts(base, 32, 64), HeadLoss(base), standard_rates(base, 0.1, head=0.1),
            lambda tree, rate: twins.DistilBert(tree, base, rate),
        ),
        "encoder of width 256, 32 x 256": (
            ENCODER, texts(ENCODER, 32, 256), HeadLoss(ENCODER),
            {"layers.*.attention.output": 0.4, "layers.*.ffn.output": 0.4},
            lambda tree, rate: twins.Classifier(tree, ENCODER, rate),
        ),
        "translator of width 128, 128 pairs": (
            TRANSLATOR, pairs(128), TranslationLoss(TRANSLATOR, SMOOTHING), residual_rates(0.3),
            lambda tree, rate: twins.Translator(tree, TRANSLATOR, rate, SMOOTHING),
        ),
    }  # fmt: skip


def measure_row(row: Row, threads: int, rounds: int) -> dict[str, Any]:
    """Returns each engine's minimum time for a step, and the relative difference between the engines' first losses."""
    config, examples, objective, dropout, twin = row
    tree = initialize(config, 0, "xavier" if config.model_type == "marian" else "normal")
    recipe = Recipe(learning_rate=1e-4, dropout=dropout, lazy=False)
    weights = Trainable(tree, config)
    own = gradients(objective, weights, examples, threads).loss
    with torch.no_grad():
        torchs = twin(tree, 0.0).loss(examples).item()
    apart = abs(own / torchs - 1)
    if not apart < APART:
        raise SystemExit(f"the first loss is {own}, torch's is {torchs}")
    module = twin(tree, max(dropout.values())).train()
    adam = twins.optimizer(module, recipe.learning_rate, recipe.betas, recipe.eps, recipe.weight_decay)
    found, count = {}, sum(sum(objective.lengths(example)) for example in examples)
    for is_lazy, name in ((False, "npformer"), (True, "npformer, lazy")):
        found[name] = Trainer(objective, weights, replace(recipe, lazy=is_lazy), threads=threads)
    contenders = [
        Contender(name, "", lambda run=run: run._step(examples, recipe.learning_rate)) for name, run in found.items()
    ]
    contenders.append(Contender("torch", "", lambda: twins.step(module, examples, adam, recipe.clip)))
    raced = measure.race(contenders, rounds, 0)
    return {"tokens": count, "apart": apart, **{name: each["seconds"] for name, each in raced.items()}}


def main() -> None:
    """Measures and prints all figures, and writes the JSON file if requested."""
    arguments = measure.parser("training", __doc__, "two turns only: a look, not a measurement").parse_args()
    threads = available_cores()
    torch.set_num_threads(threads)
    result: dict[str, Any] = {"machine": measure.machine(), "rows": {}}
    print(measure.described(result["machine"]), flush=True)
    lines = []
    for name, row in rows().items():
        found = result["rows"][name] = measure_row(row, threads, 2 if arguments.quick else 8)
        own, lazy, peer = (found[each] for each in ("npformer", "npformer, lazy", "torch"))
        rate = f"{found['tokens'] / own:,.0f}"
        ratios = [f"{own / peer:.2f}x", f"{lazy / peer:.2f}x"]
        lines.append([name, *map(table.milliseconds, (own, lazy, peer)), *ratios, rate])
        print(f"{name}: first losses differ by {found['apart']:.1e}", flush=True)
    head = ["a step", "npformer", "lazy tables", "torch", "npformer / torch", "lazy / torch", "tokens/s"]
    print(table.markdown(head, lines), flush=True)
    measure.save(result, arguments.json)


if __name__ == "__main__":
    main()
