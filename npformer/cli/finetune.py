"""Train a classifier on labelled texts, or a causal language model on plain text.
After an interruption, the same command resumes the training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from npformer.checkpoint.read import CONFIG, read_folder, read_tree
from npformer.cli import recipes
from npformer.cli.arguments import KEEP, add_options, limits, model_options
from npformer.cli.process import complain
from npformer.common.checks import listed
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.common.limits import Limits
from npformer.families import family_of, read_config
from npformer.model import Model
from npformer.tasks.declaration import whole
from npformer.training import Example, HeadLoss, Recipe, Trainable, Trainer, standard_rates
from npformer.training.data import encode, encode_blocks, label_keys, label_names, read_labelled
from npformer.training.epoch_lines import Progress
from npformer.training.metrics import evaluate_blocks, evaluate_labels
from npformer.training.start import companions, start, write_model
from npformer.training.trainer import Evaluate

EPILOG = """files of labels: .tsv, .csv or .jsonl with a column "label", and a column of
texts (text or sentence) or two columns of texts (text and text_pair, sentence1
and sentence2, premise and hypothesis, or question and sentence).

files of text: .txt, for a causal language model such as GPT-2. Each file is one
document, followed by the end token. Documents are packed into blocks of the
model's maximum length.

examples:
  npformer finetune --model distilbert/distilbert-base-uncased \\
      --train train.tsv --dev dev.tsv -o mine
  npformer classify --model mine "I love ice cream"
  npformer evaluate --model mine --data test.tsv
  npformer finetune --model openai-community/gpt2 --batch-size 4 \\
      --train one.txt two.txt --dev three.txt -o writer"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, [each for each in model_options() if each is not KEEP])  # training needs float32
    parser.add_argument("--train", metavar="FILE", nargs="+", required=True, help="files to train on")
    parser.add_argument("--dev", metavar="FILE", nargs="+", required=True, help="files used to select the best epoch")
    recipes.add_output_argument(parser)
    parser.add_argument("--labels", metavar="A,B,...", help="names of the labels (default: the model's, or the file's)")
    parser.add_argument("--label-column", metavar="NAME", default="label", help="the column of the label (%(default)s)")
    parser.add_argument("--text-columns", metavar="A[,B]", help="the column of the text, or the two columns of a pair")
    parser.add_argument("--as-distilbert", action="store_true", help="rewrite a BERT as a DistilBERT first")
    parser.add_argument(
        "--max-length", type=whole, metavar="N", help="maximum tokens in a text or block (default: the model's)"
    )
    recipes.add_arguments(parser, Recipe())


def run(args: argparse.Namespace) -> None:
    from npformer.loading import find_folder

    output, recipe = recipes.output(args), recipes.read(args)
    plain = {Path(each).suffix == ".txt" for each in (*args.train, *args.dev)}
    if len(plain) > 1 or (plain == {False} and len(args.train) + len(args.dev) > 2):
        raise NpformerError("--train and --dev: give one file of labelled texts each, or .txt files")
    source = find_folder(args.model, args.revision, args.offline)
    (_texts if plain == {True} else _labelled)(args, source, output, recipe)


def _labelled(args: argparse.Namespace, source: Path, output: Path, recipe: Recipe) -> None:
    """Trains a classifier."""
    [train_file], [dev_file] = args.train, args.dev
    columns = (args.label_column, recipes.text_columns(args))
    train, dev = read_labelled(train_file, *columns), read_labelled(dev_file, *columns)
    if {row.text_pair is None for row in train} != {row.text_pair is None for row in dev}:
        raise NpformerError(f"{train_file} and {dev_file}: expected one text per row in both, or two in both")
    given = [each.strip() for each in args.labels.split(",")] if args.labels else None
    allowed = limits(args)
    labels = given or _labels(source, label_names([*train, *dev]), allowed)
    if len(labels) < 2:
        raise NpformerError(f"{train_file}: labels: expected at least two, got only {listed(labels):.200}")
    config, tree, kept = start(source, labels, args.seed, args.as_distilbert, allowed)
    complain(f"{', '.join(labels)}: {'existing head' if kept else 'new head'}")
    weights = Trainable(tree, config)
    model = Model(config, weights.tree, source, args.threads, limits=allowed)
    examples = encode(model, train_file, train, args.max_length)
    held_out = encode(model, dev_file, dev, args.max_length)

    def numbers(epoch: int) -> dict[str, float]:
        found = evaluate_labels(model, held_out)
        return {"accuracy": found.accuracy, "f1": found.macro_f1}

    training, found = _train(args, model, weights, recipe, output, examples, held_out, numbers, "accuracy")
    write_model(output, companions(source, config, args.max_length), config, weights.tree)
    wrote = recipes.finish(args, training)
    print(f"{output}: {recipes.chosen(found)}\n\n{evaluate_labels(model, held_out)}\n\n{wrote}")


def _texts(args: argparse.Namespace, source: Path, output: Path, recipe: Recipe) -> None:
    """Trains a causal language model to predict the next token at each position of a block."""
    if args.labels or args.text_columns or args.as_distilbert:
        raise NpformerError("--labels, --text-columns, --as-distilbert: expected labelled texts, got .txt files")
    allowed = limits(args)
    stored = read_folder(source, allowed)
    described = read_config(stored.config, limits=allowed)
    if not described.causal:
        family = family_of(described)
        writer = next((name for name, head in family.architectures.items() if head == "causal-lm"), "")
        raise NpformerError(
            f"{source}: .txt files train a model that generates text; a {family.architecture(described)} does not"
            f"{f', but a {writer} does' if writer else ''}; give labelled texts in .tsv, .csv or .jsonl"
        )
    config, tree = read_tree(stored, np.dtype(np.float32), "causal-lm")
    weights = Trainable(tree, config)
    model = Model(config, weights.tree, source, args.threads, limits=allowed)
    examples, held_out = (encode_blocks(model, paths, args.max_length) for paths in (args.train, args.dev))
    count = sum(len(each.target) for each in examples)
    complain(f"{len(examples)} blocks of up to {len(examples[0].text)} tokens, {count} in all")

    def numbers(epoch: int) -> dict[str, float]:
        return evaluate_blocks(model, held_out)

    training, found = _train(args, model, weights, recipe, output, examples, held_out, numbers, "log_probability")
    write_model(output, companions(source, config), config, weights.tree)
    shares = f"perplexity {found['perplexity']:.4f}, next-token accuracy {found['accuracy']:.4f}"
    print(f"{output}: {recipes.chosen(found)}: {shares}\n{recipes.finish(args, training)}")


def _train(
    args: argparse.Namespace, model: Model, weights: Trainable, recipe: Recipe, output: Path,
    examples: Sequence[Example], held_out: Sequence[Example], numbers: Evaluate, score: str,
) -> tuple[Trainer[Example], dict[str, float]]:  # fmt: skip
    """Runs or resumes the training, and selects the best weights. Returns the trainer and the best metrics."""
    recipe = replace(recipe, dropout=standard_rates(model.config, args.dropout, head=args.dropout))
    training = Trainer(
        HeadLoss(model.config, args.label_smoothing), weights, recipe, output / recipes.TRAINING, model.threads,
        args.save_every, Progress(),
    )  # fmt: skip
    training.train(examples, numbers, score, held_out)
    return training, training.choose(numbers, score)


def _labels(source: Path, found: tuple[str, ...], limits: Limits) -> tuple[str, ...]:
    """Returns the labels of the model if the files use all of them, by name or number, else the labels in the files."""
    own = read_config(read_json(source / CONFIG, limits, "config"), limits=limits).labels
    return own if {each.lower() for each in found} <= label_keys(own).keys() and len(own) == len(found) else found
