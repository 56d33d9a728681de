"""The options of training commands: the output folder, the fields of a `Recipe`, and the steps between saves."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from npformer.common.errors import NpformerError
from npformer.common.locks import in_use
from npformer.common.progress import wrapped
from npformer.tasks.declaration import whole
from npformer.training import Recipe, Trainer
from npformer.training.trainer import SCHEDULES

TRAINING = "training"  # folder of checkpoints inside the result's folder


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    what = "folder for the result; while training runs, its subfolder training/ stores checkpoints for resuming"
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help=what)
    parser.add_argument(
        "--keep-state", action="store_true", help="keep the folder training/, about four times the model's size"
    )


def output(args: argparse.Namespace) -> Path:
    """Returns the folder of the result. Raises NpformerError if it contains a model or is in use by another run."""
    folder = Path(args.output)
    if (folder / "config.json").exists():
        left = f"; {folder / TRAINING} can be deleted" if (folder / TRAINING).exists() else ""
        raise NpformerError(f"{folder}: already contains a model; give another folder{left}")
    if (folder / TRAINING).exists():
        with in_use(folder / TRAINING):  # fails early if the folder is in use; the training locks the folder again
            pass
    return folder


def add_arguments(parser: argparse.ArgumentParser, default: Recipe, label_smoothing: float = 0.0) -> None:
    """Adds an option for each field of a recipe, with the values of `default` as defaults except for dropout."""

    def add(name: str, kind: Callable[[str], object], meta: str, value: object, what: str) -> None:
        parser.add_argument(name, type=kind, metavar=meta, default=value, help=f"{what} (%(default)s)")

    add("--epochs", whole, "N", default.epochs, "passes over the texts")
    add("--batch-size", whole, "N", default.batch_size, "texts per step")
    add("--learning-rate", float, "R", default.learning_rate, "peak learning rate (for noam: a factor)")
    parser.add_argument(
        "--schedule", choices=SCHEDULES, default=default.schedule, help="learning rate schedule (%(default)s)"
    )
    add("--warmup", float, "W", default.warmup, "warm-up steps; below 1: a fraction of all steps")
    add("--weight-decay", float, "D", default.weight_decay, "weight decay of AdamW")
    add("--betas", str, "B1,B2", ",".join(map(str, default.betas)), "decay rates of Adam's moments")
    add("--eps", float, "E", default.eps, "epsilon of Adam")
    add("--clip", float, "N", default.clip, "largest gradient norm; 0: no limit")
    add("--dropout", float, "P", 0.1, "dropout rate, at the family's usual stages")
    add("--label-smoothing", float, "E", label_smoothing, "probability moved from the target to all classes")
    add("--window", whole, "N", default.window, "sort the texts of N batches by length before batching")
    add("--average", whole, "N", default.average, "average the last N checkpoints if that scores higher")
    parser.add_argument(
        "--average-every",
        type=whole,
        metavar="N",
        default=0,
        help="steps between the averaged checkpoints (default: an epoch)",
    )
    parser.add_argument(
        "--dense-embeddings", action="store_true", help="update every row of the embedding tables at every step"
    )
    add("--seed", int, "N", default.seed, "seed for the order of texts, dropout and new weights")
    add("--save-every", whole, "N", 500, "steps between saves")


def read(args: argparse.Namespace) -> Recipe:
    """Makes the recipe without dropout rates, which depend on the model. Raises NpformerError for an invalid option."""
    try:
        first, second = map(float, args.betas.split(","))
    except ValueError:
        raise NpformerError(f"--betas: expected two numbers separated by a comma, got {args.betas!r:.80}") from None
    if args.average_every and args.average == 1:
        raise NpformerError("--average-every: needs --average")
    for name in ("dropout", "label_smoothing"):
        if not 0 <= getattr(args, name) <= 1 - 2**-16:  # `Dropout` rounds rates to multiples of 2^-16
            option = f"--{name.replace('_', '-')}"
            raise NpformerError(f"{option}: expected a number in [0, 1), got {getattr(args, name)}")
    own: dict[str, Any] = {"betas": (first, second), "clip": args.clip or None, "lazy": not args.dense_embeddings}
    as_given = [each.name for each in fields(Recipe) if each.name not in (*own, "dropout")]
    return Recipe(**{name: getattr(args, name) for name in as_given}, **own)


def chosen(found: dict[str, float]) -> str:
    """Describes the weights chosen by `Trainer.choose`."""
    return f"epoch {found['epoch']:.0f}" if "epoch" in found else f"the mean of the last {found['states']} states"


def finish(args: argparse.Namespace, training: Trainer) -> str:
    """Removes the checkpoints unless --keep-state is set, and returns a summary of the result's folder."""
    folder = Path(args.output)
    if not args.keep_state:
        training.remove_checkpoints()
    sizes = {each.name: each.stat().st_size for each in sorted(folder.iterdir()) if each.is_file()}
    wrote = wrapped(f"wrote {', '.join(sizes)} ({sum(sizes.values()) / 1e6:.1f} MB)", "  ")
    return f"{wrote}\nfor transformers: npformer convert {shlex.quote(str(folder))} NEW_FOLDER --to torch"


def text_columns(args: argparse.Namespace) -> list[str]:
    """Returns the one or two columns that --text-columns names, or an empty list without the option."""
    names = args.text_columns.split(",") if args.text_columns else []
    if len(names) > 2 or not all(names):
        raise NpformerError(
            f"--text-columns: expected one name, or two separated by a comma, got {args.text_columns!r:.80}"
        )
    return names
