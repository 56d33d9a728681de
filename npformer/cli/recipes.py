"""The options of the commands that train: what a `Recipe` holds, and how often a run is saved."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from npformer.cli.arguments import whole
from npformer.errors import NpformerError
from npformer.training import Recipe
from npformer.training.trainer import SCHEDULES


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    what = "the folder of the result; in its training/ is what a stopped run goes on from, needed no more at the end"
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help=what)


def output(args: argparse.Namespace) -> Path:
    """The folder of the result; NpformerError where a model is there already."""
    folder = Path(args.output)
    if (folder / "config.json").exists():
        raise NpformerError(f"{folder}: a model is there already; give another folder")
    return folder


def add_arguments(parser: argparse.ArgumentParser, default: Recipe, label_smoothing: float = 0.0) -> None:
    """Options for every field of a recipe, `default`'s where they are not given."""

    def add(name: str, kind: Callable[[str], object], meta: str, value: object, what: str) -> None:
        parser.add_argument(name, type=kind, metavar=meta, default=value, help=f"{what} (%(default)s)")

    add("--epochs", whole, "N", default.epochs, "passes over the texts")
    add("--batch-size", whole, "N", default.batch_size, "texts a step")
    add("--learning-rate", float, "R", default.learning_rate, "AdamW's largest; a factor with noam")
    parser.add_argument("--schedule", choices=SCHEDULES, default=default.schedule, help="(%(default)s)")
    add("--warmup", float, "W", default.warmup, "steps, or a share of them")
    add("--weight-decay", float, "D", default.weight_decay, "AdamW's")
    add("--betas", str, "B1,B2", ",".join(map(str, default.betas)), "Adam's")
    add("--eps", float, "E", default.eps, "Adam's")
    add("--clip", float, "N", default.clip, "the gradients' largest norm; 0: as it comes")
    add("--dropout", float, "P", 0.1, "the rate at the sites that the family has")
    add("--label-smoothing", float, "E", label_smoothing, "the share of the target spread over all")
    add("--window", whole, "N", default.window, "batches of like lengths, sorted in so many batches' worth")
    add("--average", whole, "N", default.average, "last states whose mean is tried beside the best epoch's")
    parser.add_argument("--average-every", type=whole, metavar="N", default=0, help="steps between them (an epoch)")
    parser.add_argument("--dense-embeddings", action="store_true", help="move every row of the tables at every step")
    add("--seed", int, "N", default.seed, "of order, dropout and new weights")
    add("--save-every", whole, "N", 500, "steps between saves")


def read(args: argparse.Namespace) -> Recipe:
    """The recipe, without its dropout, which depends on the model; NpformerError for an option that makes no sense."""
    try:
        first, second = map(float, args.betas.split(","))
    except ValueError:
        raise NpformerError(f"--betas: expected two numbers with a comma, got {args.betas!r:.80}") from None
    if args.average_every and args.average == 1:
        raise NpformerError("--average-every: says how far apart the states of --average are; give --average too")
    for name in ("dropout", "label_smoothing"):
        if not 0 <= getattr(args, name) <= 1 - 2**-16:  # what `Dropout` can tell from 1
            option = f"--{name.replace('_', '-')}"
            raise NpformerError(f"{option}: expected a number from 0 to below 1, got {getattr(args, name)}")
    return Recipe(
        epochs=args.epochs, batch_size=args.batch_size, learning_rate=args.learning_rate, schedule=args.schedule,
        warmup=args.warmup, betas=(first, second), eps=args.eps, weight_decay=args.weight_decay, clip=args.clip or None,
        lazy=not args.dense_embeddings, average=args.average,
        average_every=args.average_every, window=args.window, seed=args.seed,
    )  # fmt: skip


def chosen(found: dict[str, float]) -> str:
    """Which weights `Trainer.choose` took."""
    return f"epoch {found['epoch']:.0f}" if "epoch" in found else f"the mean of the last {found['states']} states"


def text_columns(args: argparse.Namespace) -> list[str]:
    """The columns that --text-columns names, one or two, or none."""
    names = args.text_columns.split(",") if args.text_columns else []
    if len(names) > 2 or not all(names):
        raise NpformerError(f"--text-columns: expected one name, or two with a comma, got {args.text_columns!r:.80}")
    return names
