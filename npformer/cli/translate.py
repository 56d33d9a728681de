"""Translate each text. A blank line stays one, so that the lines of source and
translation go together."""

from __future__ import annotations

import argparse
from typing import Any

from npformer.cli import BAD_INPUT
from npformer.cli.answers import add_model_arguments, answered, make_task, plain, progress, whole, write_json
from npformer.cli.texts import Line, add_text_arguments

EPILOG = """examples:
  npformer translate -m Helsinki-NLP/opus-mt-en-de \\
      "A dog runs through the snow."
  npformer translate -m Helsinki-NLP/opus-mt-en-ROMANCE \\
      --to fra --file letter.txt > letter.fr.txt
  npformer translate -m Helsinki-NLP/opus-mt-en-de \\
      --beams 4 --best 3 --json < sentences.txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument("--to", metavar="CODE", help="the language, for a model with several (fra, deu, ...)")
    parser.add_argument("-b", "--beams", type=whole, metavar="N", help="search with N beams (the model's own)")
    parser.add_argument("--best", type=whole, metavar="N", help="show the N best translations of a text")
    parser.add_argument("--max-tokens", type=whole, metavar="N", help="the longest translation (the model's own)")
    parser.add_argument("--length-penalty", type=float, metavar="P", help="above 1 favours long translations")
    parser.add_argument("--sample", action="store_true", help="draw words by their probability")
    parser.add_argument("--seed", type=int, metavar="N", help="of --sample: the same seed draws the same words")
    parser.add_argument(
        "--long",
        choices=("error", "truncate"),
        default="error",
        help="texts longer than the model (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="write a JSON object a line, for programs")


def run(args: argparse.Namespace) -> int:
    settings = {
        "to": args.to,
        "num_beams": 1 if args.sample and args.beams is None else args.beams,
        "num_return_sequences": args.best,
        "max_new_tokens": args.max_tokens,
        "length_penalty": args.length_penalty,
        "do_sample": args.sample or None,
        "seed": args.seed,
    }
    task = make_task("translation", args, long=args.long, **settings)
    code = 0
    for line, answer in progress(answered(task, args, blanks=True), args):
        code = BAD_INPUT if line.error else code
        if args.json:
            write_json(_named(line, answer))
        else:
            texts = [each["translation_text"] for each in _several(answer)]
            print("\n".join(map(plain, texts)), flush=task.window == 1)
    return code


def _named(line: Line, answer: Any) -> dict[str, Any]:
    if line.error:
        return {"error": f"{line.where}: {line.error}"}
    if answer is None:  # a blank line
        return {"text": line.text, "translation_text": ""}
    several = _several(answer)
    found = several[0] if len(several) == 1 else {"translations": several}
    return {"text": line.text, **found, "n_tokens": answer.n_tokens, "truncated": answer.truncated}


def _several(answer: Any) -> list[Any]:
    return [] if answer is None else answer if isinstance(answer, list) else [answer]
