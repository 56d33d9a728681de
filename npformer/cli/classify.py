"""Say which label fits each text, and how sure the model is."""

from __future__ import annotations

import argparse
from typing import Any

from npformer.cli.answers import add_answer_arguments, add_model_arguments, make_task, plain, whole, write
from npformer.cli.texts import Line, add_pair_argument, add_text_arguments, paired
from npformer.errors import NpformerError
from npformer.tasks import Pair

EPILOG = """examples:
  npformer classify "I love ice cream"
  npformer classify --file reviews.txt --json > labels.jsonl
  npformer classify -m typeform/distilbert-base-uncased-mnli \\
    "A man sleeps." --pair "Nobody is awake."
  cut -f2 reviews.tsv | npformer classify --top-k 2"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser)
    add_model_arguments(parser, default="distilbert-sst2")
    second = parser.add_mutually_exclusive_group()
    add_pair_argument(second)
    second.add_argument("--pairs", action="store_true", help="each text is two for the model, with a tab in between")
    parser.add_argument("-k", "--top-k", type=whole, metavar="K", help="show the K best labels, not only the best one")
    add_answer_arguments(parser)


def run(args: argparse.Namespace) -> int:
    task = make_task("text-classification", args, top_k=args.top_k, long=args.long)
    width = max(map(len, task.model.config.labels))

    def shown(line: Line, answer: Any) -> str:
        best = answer if isinstance(answer, list) else [answer]
        labels = "  ".join(f"{plain(each['label']):{width}}  {each['score']:.4f}" for each in best)
        return f"{labels}  {plain(line.text, (width + 10) * len(best))}"

    return write(task, args, shown, _named, _split if args.pairs else lambda text: paired(text, args.pair))


def _named(answer: Any) -> dict[str, Any]:
    return {"labels": answer} if isinstance(answer, list) else answer


def _split(text: str) -> Pair:
    texts = text.split("\t")
    if len(texts) != 2:
        raise NpformerError(f"expected two texts with a tab in between, got {len(texts)}")
    return Pair(*texts)
