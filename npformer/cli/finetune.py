"""Train a model to give texts the labels of a file. Stopped at any point, the same command goes on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from npformer.cli import complain
from npformer.cli.answers import add_model_arguments, whole
from npformer.errors import NpformerError

EPILOG = """files: .tsv, .csv or .jsonl with a column "label" and a text (text, sentence), or two (text and text_pair,
sentence1 and sentence2, premise and hypothesis, question and sentence).

examples:
  npformer finetune --model distilbert/distilbert-base-uncased --train train.tsv --dev dev.tsv -o mine
  npformer classify --model mine "I love ice cream"
  npformer evaluate --model mine --data test.tsv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--train", metavar="FILE", required=True, help="labelled texts to learn")
    parser.add_argument("--dev", metavar="FILE", required=True, help="labelled texts to choose the best epoch by")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder of the result")
    parser.add_argument("--labels", metavar="A,B,...", help="names of the labels (default: the model's, or the file's)")
    parser.add_argument("--label-column", metavar="NAME", default="label", help="the column of the label (%(default)s)")
    parser.add_argument("--text-columns", metavar="A[,B]", help="the column of the text, or of the two")
    parser.add_argument("--as-distilbert", action="store_true", help="rewrite a BERT as a DistilBERT first")
    parser.add_argument("--epochs", type=whole, default=3, metavar="N", help="passes over the texts (%(default)s)")
    parser.add_argument("--batch-size", type=whole, default=32, metavar="N", help="texts a step (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=5e-5, metavar="R", help="AdamW's largest (%(default)s)")
    parser.add_argument("--schedule", choices=("linear", "constant"), default="linear", help="(%(default)s)")
    parser.add_argument(
        "--warmup", type=float, default=0.06, metavar="W", help="steps, or a share of them (%(default)s)"
    )
    parser.add_argument("--weight-decay", type=float, default=0.01, metavar="D", help="(%(default)s)")
    parser.add_argument("--betas", default="0.9,0.999", metavar="B1,B2", help="Adam's (%(default)s)")
    parser.add_argument("--eps", type=float, default=1e-8, metavar="E", help="Adam's (%(default)s)")
    parser.add_argument(
        "--clip", type=float, default=1.0, metavar="N", help="the gradients' largest norm (%(default)s)"
    )
    parser.add_argument("--dropout", type=float, default=0.1, metavar="P", help="where the family has it (%(default)s)")
    parser.add_argument("--label-smoothing", type=float, default=0.0, metavar="E", help="(%(default)s)")
    parser.add_argument("--max-length", type=whole, metavar="N", help="tokens a text is cut to (the model's)")
    parser.add_argument("--dense-embeddings", action="store_true", help="move every row of the tables at every step")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of order, dropout and a new head (%(default)s)"
    )
    parser.add_argument("--save-every", type=whole, default=500, metavar="N", help="steps between saves (%(default)s)")


def run(args: argparse.Namespace) -> None:
    from npformer.loading import find_folder
    from npformer.model import Model
    from npformer.training import HeadLoss, Run, Trainable
    from npformer.training.classify import encode, evaluate
    from npformer.training.data import label_names, read_rows
    from npformer.training.progress import Progress
    from npformer.training.start import start, write_model

    output = Path(args.output)
    if (output / "config.json").exists():
        raise NpformerError(f"{output}: a model is there already; give another folder")
    recipe_of = _recipe(args)
    columns = (args.label_column, args.text_columns.split(",") if args.text_columns else ())
    train, dev = read_rows(args.train, *columns), read_rows(args.dev, *columns)
    source = find_folder(args.model, args.revision, args.offline)
    labels = args.labels.split(",") if args.labels else _labels(source, label_names([*train, *dev]))
    config, tree, kept = start(source, labels, args.seed, args.as_distilbert)
    complain(f"{', '.join(labels)}: {'the model has a head for them' if kept else 'a new head'}")
    weights = Trainable(tree, config)
    model = Model(config, weights.tree, source, args.threads)
    examples = encode(model, args.train, train, args.max_length)
    held_out = encode(model, args.dev, dev, args.max_length)

    def numbers(epoch: int) -> dict[str, float]:
        found = evaluate(model, held_out)
        return {"accuracy": found.accuracy, "f1": float(found.f1.mean())}

    training = Run(
        HeadLoss(config, args.label_smoothing), weights, recipe_of(config), output / "training", model.threads,
        args.save_every, Progress(),
    )  # fmt: skip
    training.train(examples, numbers)
    training.load_best()
    write_model(output, source, config, weights.tree)
    print(evaluate(model, held_out))


def _recipe(args: argparse.Namespace) -> Any:
    """Config -> recipe; what is wrong in the options is said before anything is read."""
    from npformer.training import Recipe, standard_rates

    try:
        first, second = map(float, args.betas.split(","))
    except ValueError:
        raise NpformerError(f"--betas: expected two numbers with a comma, got {args.betas!r:.80}") from None
    settings = {
        "epochs": args.epochs, "batch_size": args.batch_size, "learning_rate": args.learning_rate,
        "schedule": args.schedule, "warmup": args.warmup, "betas": (first, second), "eps": args.eps,
        "weight_decay": args.weight_decay, "clip": args.clip, "lazy": not args.dense_embeddings, "seed": args.seed,
    }  # fmt: skip
    Recipe(**settings)
    if not 0 <= args.dropout < 1:
        raise NpformerError(f"--dropout: expected a number from 0 to below 1, got {args.dropout}")
    return lambda config: Recipe(**settings, dropout=standard_rates(config, args.dropout, head=args.dropout))


def _labels(source: Path, found: tuple[str, ...]) -> tuple[str, ...]:
    """The model's own labels where they name or count those of the file, else the file's."""
    from npformer.checkpoint.folder import CONFIG, read_json
    from npformer.config import Config

    own = Config.from_dict(read_json(source / CONFIG)).labels
    names = {each.lower() for each in own} | {str(i) for i in range(len(own))}
    return own if own and {each.lower() for each in found} <= names and len(own) == len(found) else found
