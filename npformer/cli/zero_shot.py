"""Say which of your own labels fit each text, by a model of inference."""

from __future__ import annotations

import argparse
from typing import Any

from npformer.cli.answers import add_answer_arguments, add_model_arguments, make_task, plain, write
from npformer.cli.texts import Line, add_text_arguments

EPILOG = """example:
  npformer zero-shot -m typeform/distilbert-base-uncased-mnli \\
      -l politics,sport "Who won the election?\""""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument("-l", "--labels", required=True, metavar="A,B,...", help="the labels, with commas in between")
    parser.add_argument("--template", metavar="TEXT", help='a sentence with {} for the label ("This example is {}.")')
    parser.add_argument("--multi-label", action="store_true", help="several labels may fit: score each for itself")
    add_answer_arguments(parser)


def run(args: argparse.Namespace) -> int:
    options = {"hypothesis_template": args.template, "multi_label": args.multi_label, "long": args.long}
    task = make_task("zero-shot-classification", args, candidate_labels=args.labels, **options)

    def shown(line: Line, answer: Any) -> str:
        scores = zip(answer["labels"], answer["scores"], strict=True)
        return "\n".join([plain(line.text, 0), *(f"  {score:.4f}  {plain(label)}" for label, score in scores)])

    return write(task, args, shown, lambda answer: {name: answer[name] for name in ("labels", "scores")})
