"""Say which words would stand in place of [MASK]."""

from __future__ import annotations

import argparse
from typing import Any

from npformer.cli.answers import add_answer_arguments, add_model_arguments, make_task, plain, whole, write
from npformer.cli.texts import Line, add_text_arguments

EPILOG = """example:
  npformer fill -m distilbert/distilbert-base-uncased "I love [MASK] cream\""""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument("-k", "--top-k", type=whole, default=5, metavar="K", help="show the K best words (%(default)s)")
    parser.add_argument("--targets", metavar="A,B,...", help="score these words only")
    add_answer_arguments(parser)


def run(args: argparse.Namespace) -> int:
    targets = None if args.targets is None else args.targets.split(",")
    task = make_task("fill-mask", args, top_k=args.top_k, targets=targets, long=args.long)
    return write(task, args, _shown, lambda answer: {"masks": _masks(answer)})


def _masks(answer: Any) -> list[Any]:
    """One list of words a mask, also where there is one mask."""
    return answer if isinstance(answer[0], list) else [answer]


def _shown(line: Line, answer: Any) -> str:
    masks = _masks(answer)
    shown = [plain(line.text, 0)]
    for number, words in enumerate(masks, 1):
        shown += [f"  mask {number}"] if len(masks) > 1 else []
        shown += [f"  {each['score']:.4f}  {plain(each['token_str'])}" for each in words]
    return "\n".join(shown)
