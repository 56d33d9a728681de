"""Answer questions with words of a text, the context."""

from __future__ import annotations

import argparse
from typing import Any

from npformer.cli.answers import add_answer_arguments, add_model_arguments, make_task, plain, whole, write
from npformer.cli.texts import Line, add_text_arguments, read_file
from npformer.tasks import Pair

EPILOG = """examples:
  npformer answer -m distilbert/distilbert-base-cased-distilled-squad \\
      --context "I live in Berlin." "Where do I live?"
  npformer answer -m distilbert/distilbert-base-cased-distilled-squad \\
      --context-file report.txt --file questions.txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser, "question")
    context = parser.add_mutually_exclusive_group(required=True)
    context.add_argument("-c", "--context", metavar="TEXT", help="the text that the answers are in")
    context.add_argument("--context-file", metavar="FILE", help="the same, from a file")
    add_model_arguments(parser)
    parser.add_argument(
        "-k", "--top-k", type=whole, default=1, metavar="K", help="show the K best answers (%(default)s)"
    )
    parser.add_argument("--no-answer", action="store_true", help="say nothing where the context has no answer")
    parser.add_argument("--max-answer-len", type=whole, metavar="N", help="the most tokens of an answer (15)")
    add_answer_arguments(parser, long=False)


def run(args: argparse.Namespace) -> int:
    context = args.context if args.context_file is None else read_file(args.context_file)
    options = {"top_k": args.top_k, "handle_impossible_answer": args.no_answer, "max_answer_len": args.max_answer_len}
    task = make_task("question-answering", args, **options)
    return write(task, args, _shown, _named, lambda question: Pair(question, context))


def _shown(line: Line, answer: Any) -> str:
    found = [
        f"  {each['score']:.4f}  {each['start']}-{each['end']}  {plain(each['answer'])}" for each in _several(answer)
    ]
    return "\n".join([plain(line.text, 0), *found])


def _named(answer: Any) -> dict[str, Any]:
    return {"answers": answer} if isinstance(answer, list) else answer


def _several(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]
