"""Repeats npformer's training runs in torch, from the same weights on the same batches.

    python -m tests.benchmarks.torch_run encoder --train train.tsv --test test.tsv -o DIR
    python -m tests.benchmarks.torch_run translation --train a.en a.de --dev b.en b.de --like MODEL -o DIR

The first command repeats `examples/train_encoder.py` and prints each epoch's accuracy on the test texts. The second
repeats a run of `npformer train-translation` with its tokenizer, prints each epoch's loss on the dev pairs, and
writes a folder for `npformer evaluate`. After an interruption, the same command continues. Needs the group `oracle`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npformer.checkpoint.archive import load_arrays
from npformer.checkpoint.read import CONFIG
from npformer.common.files import read_json
from npformer.common.limits import LIMITS
from npformer.engine.runtime.threads import available_cores
from npformer.families import read_config
from npformer.loading import find_folder
from npformer.model import Model
from npformer.text.tokenizer import load_tokenizer
from npformer.text.translation_tokenizer import FILE, read_tokenizer
from npformer.training import Example, HeadLoss, Recipe, initialize, read_labelled
from npformer.training.data import encode, encode_pairs, read_pairs
from npformer.training.losses import TranslationLoss
from npformer.training.run_folder import LAST
from tests.benchmarks import twins

sys.path.append(str(Path(__file__).parents[2] / "examples"))


def train(
    module: Any, objective: Any, examples: Sequence[Example], recipe: Recipe, folder: Path, watch: Callable[[], str]
) -> None:
    """Trains with the order, batches and learning rates of `Trainer.train`; prints each epoch and saves the state."""
    adam = twins.optimizer(module, recipe.learning_rate, recipe.betas, recipe.eps, recipe.weight_decay)
    per_epoch = -(-len(examples) // recipe.batch_size)
    factor = recipe.factors(per_epoch * recipe.epochs, objective.config.d_model)
    lengths = [objective.lengths(example) for example in examples]
    first, state = 0, folder / "state.pt"
    folder.mkdir(parents=True, exist_ok=True)
    if state.exists():
        first, weights, moments = torch.load(state)
        module.load_state_dict(weights)
        adam.load_state_dict(moments)
    for epoch in range(first, recipe.epochs):
        torch.manual_seed(epoch)
        start, losses = time.perf_counter(), []
        for index, chosen in enumerate(recipe.batches(lengths, epoch)):
            for group in adam.param_groups:
                group["lr"] = recipe.learning_rate * factor(epoch * per_epoch + index)
            losses.append(twins.step(module.train(), [examples[i] for i in chosen], adam, recipe.clip))
            if (step := epoch * per_epoch + index + 1) in recipe.averaged(per_epoch):
                torch.save(module.state_dict(), folder / f"step-{step}.pt")
        seconds = time.perf_counter() - start
        with torch.no_grad():
            print(f"epoch {epoch + 1}  loss {np.mean(losses):.4f}  {watch()}  {seconds:.0f} s", flush=True)
        torch.save((epoch + 1, module.state_dict(), adam.state_dict()), folder / "state.partial")
        (folder / "state.partial").rename(state)


def encoder(args: argparse.Namespace) -> None:
    from train_encoder import CONFIG as SETUP
    from train_encoder import RECIPE

    tree = initialize(SETUP, RECIPE.seed, "torch")
    model = Model(SETUP, tree)
    model.tokenizer = load_tokenizer(find_folder("distilbert-sst2"), SETUP)
    examples, held_out = (encode(model, path, read_labelled(path)) for path in (args.train, args.test))
    module = twins.Classifier(tree, SETUP, max(RECIPE.dropout.values()))

    def watch() -> str:
        module.eval()
        right = 0
        for start in range(0, len(held_out), RECIPE.batch_size):
            batch = held_out[start : start + RECIPE.batch_size]
            logits = module(*twins.padded([each.text.ids for each in batch], 0))
            right += int((logits.argmax(-1) == torch.tensor([each.target for each in batch])).sum())
        return f"accuracy {right / len(held_out):.4f}"

    train(module, HeadLoss(SETUP), examples, RECIPE, args.output, watch)


def translation(args: argparse.Namespace) -> None:
    described = json.loads(load_arrays(args.like / "training" / LAST)[1]["run"])
    recipe, smoothing = Recipe(**described["recipe"]), described["settings"]["label_smoothing"]
    config = read_config(read_json(args.like / CONFIG))
    tokenizer, *_ = read_tokenizer(args.like / FILE, config.vocab_size, LIMITS)
    examples, held_out = (
        encode_pairs(tokenizer, files, read_pairs(*files), config.max_length) for files in (args.train, args.dev)
    )
    tree = initialize(config, recipe.seed, "xavier")
    module = twins.Translator(tree, config, max(recipe.dropout.values()), smoothing)

    def dev_loss() -> float:
        module.eval()
        total, count = 0.0, 0
        for start in range(0, len(held_out), recipe.batch_size):
            batch = held_out[start : start + recipe.batch_size]
            tokens = sum(len(each.target) + 1 for each in batch)
            total += float(module.loss(batch)) * tokens
            count += tokens
        return total / count

    train(module, TranslationLoss(config), examples, recipe, args.output, lambda: f"dev loss {dev_loss():.4f}")
    last = {name: each.clone() for name, each in module.state_dict().items()}
    steps = recipe.averaged(-(-len(examples) // recipe.batch_size))
    kept = [torch.load(args.output / f"step-{step}.pt") for step in steps]
    with torch.no_grad():
        loss = dev_loss()
        module.load_state_dict({name: sum(each[name] for each in kept) / len(kept) for name in last})
        if (mean := dev_loss()) > loss:
            module.load_state_dict(last)
    print(f"dev loss: last epoch {loss:.4f}, mean of the last {len(kept)} states {mean:.4f}; the lower is kept")
    module.model.save_pretrained(args.output / "model")
    for name in (FILE, "tokenizer_config.json", "generation_config.json", CONFIG):
        shutil.copyfile(args.like / name, args.output / "model" / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    for run in (encoder, translation):
        kind = kinds.add_parser(run.__name__)
        kind.set_defaults(run=run)
        kind.add_argument("-o", "--output", required=True, type=Path)
        files: dict[str, Any] = {"nargs": 2} if run is translation else {}
        kind.add_argument("--train", required=True, **files)
        kind.add_argument("--dev" if run is translation else "--test", required=True, **files)
    kinds.choices["translation"].add_argument("--like", required=True, type=Path)
    torch.set_num_threads(available_cores())
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
