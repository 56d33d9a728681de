"""Find the entities in each text, and at which characters they stand."""

from __future__ import annotations

import argparse
from typing import Any

from npformer.cli.answers import add_answer_arguments, add_model_arguments, make_task, plain, write
from npformer.cli.texts import Line, add_text_arguments
from npformer.tasks.token_classification import STRATEGIES

EPILOG = """example:
  npformer tag -m dslim/bert-base-NER "My name is Sarah and I live in London\""""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument(
        "--strategy", choices=STRATEGIES, default="simple",
        help="how tokens become entities; none: not at all, first, average, max: word by word (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--ignore", metavar="A,B,...", help="labels that are left out (O)")
    add_answer_arguments(parser)


def run(args: argparse.Namespace) -> int:
    ignored = None if args.ignore is None else args.ignore.split(",")
    options = {"aggregation_strategy": args.strategy, "ignore_labels": ignored, "long": args.long}
    task = make_task("token-classification", args, **options)
    return write(task, args, _shown, lambda answer: {"entities": answer})


def _shown(line: Line, answer: Any) -> str:
    found = [
        f"  {each.get('entity_group', each.get('entity'))}  {each['score']:.4f}  {each['start']}-{each['end']}  "
        f"{plain(line.text[each['start'] : each['end']])}"
        for each in answer
    ]
    return "\n".join([plain(line.text, 0), *found])
