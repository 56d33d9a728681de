"""Train a model to label texts as a file does. If it is stopped, the same command
continues it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from npformer.cli import recipes
from npformer.cli.arguments import add_options, limits, model_options, whole
from npformer.cli.process import complain
from npformer.errors import NpformerError
from npformer.families import read_config
from npformer.limits import Limits
from npformer.training import HeadLoss, Recipe, Trainable, Trainer, standard_rates
from npformer.training.data import encode, label_keys, label_names, read_labelled
from npformer.training.metrics import evaluate_labels
from npformer.training.progress import Progress
from npformer.training.start import companions, start, write_model

EPILOG = """files: .tsv, .csv or .jsonl with a column "label" and a text (text, sentence),
or two (text and text_pair, sentence1 and sentence2, premise and hypothesis,
question and sentence).

examples:
  npformer finetune --model distilbert/distilbert-base-uncased \\
      --train train.tsv --dev dev.tsv -o mine
  npformer classify --model mine "I love ice cream"
  npformer evaluate --model mine --data test.tsv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, model_options())
    parser.add_argument("--train", metavar="FILE", required=True, help="labelled texts to learn")
    parser.add_argument("--dev", metavar="FILE", required=True, help="labelled texts to choose the best epoch by")
    recipes.add_output_argument(parser)
    parser.add_argument("--labels", metavar="A,B,...", help="names of the labels (default: the model's, or the file's)")
    parser.add_argument("--label-column", metavar="NAME", default="label", help="the column of the label (%(default)s)")
    parser.add_argument("--text-columns", metavar="A[,B]", help="the column of the text, or of the two")
    parser.add_argument("--as-distilbert", action="store_true", help="rewrite a BERT as a DistilBERT first")
    parser.add_argument("--max-length", type=whole, metavar="N", help="tokens a text is cut to (the model's)")
    recipes.add_arguments(parser, Recipe())


def run(args: argparse.Namespace) -> None:
    from npformer.checkpoint.load import find_folder
    from npformer.model import Model

    output, recipe = recipes.output(args), recipes.read(args)
    columns = (args.label_column, recipes.text_columns(args))
    train, dev = read_labelled(args.train, *columns), read_labelled(args.dev, *columns)
    if {row.text_pair is None for row in train} != {row.text_pair is None for row in dev}:
        raise NpformerError(f"{args.train} and {args.dev}: one has a text in each row, the other two")
    source = find_folder(args.model, args.revision, args.offline)
    given = [each.strip() for each in args.labels.split(",")] if args.labels else None
    allowed = limits(args)
    labels = given or _labels(source, label_names([*train, *dev]), allowed)
    config, tree, kept = start(source, labels, args.seed, args.as_distilbert, allowed)
    complain(f"{', '.join(labels)}: {'the model has a head for them' if kept else 'a new head'}")
    weights = Trainable(tree, config)
    model = Model(config, weights.tree, source, args.threads, limits=allowed)
    examples = encode(model, args.train, train, args.max_length)
    held_out = encode(model, args.dev, dev, args.max_length)

    def numbers(epoch: int) -> dict[str, float]:
        found = evaluate_labels(model, held_out)
        return {"accuracy": found.accuracy, "f1": found.macro_f1}

    recipe = replace(recipe, dropout=standard_rates(config, args.dropout, head=args.dropout))
    training = Trainer(
        HeadLoss(config, args.label_smoothing), weights, recipe, output / "training", model.threads,
        args.save_every, Progress(),
    )  # fmt: skip
    training.train(examples, numbers, held_out=held_out)
    found = training.choose(numbers)
    write_model(output, companions(source, config, args.max_length), config, weights.tree)
    print(f"{output}: {recipes.chosen(found)}\n\n{evaluate_labels(model, held_out)}")


def _labels(source: Path, found: tuple[str, ...], limits: Limits) -> tuple[str, ...]:
    """Returns the model's own labels if those of the file name or count them, else the file's labels."""
    from npformer.checkpoint.read import CONFIG
    from npformer.files import read_json

    own = read_config(read_json(source / CONFIG, limits, "config"), limits=limits).labels
    return own if {each.lower() for each in found} <= label_keys(own).keys() and len(own) == len(found) else found
