"""Evaluate a model on a file: accuracy, F1 and confusion matrix of a classifier,
BLEU of translations, or the perplexity of a text."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from npformer.cli.arguments import add_options, loading, model_options
from npformer.cli.recipes import text_columns
from npformer.cli.texts import read_file
from npformer.common.errors import NpformerError
from npformer.common.extras import lacks
from npformer.tasks.declaration import whole

EPILOG = """examples:
  npformer evaluate --model distilbert-sst2 --data dev.tsv
  npformer evaluate --model Helsinki-NLP/opus-mt-en-de \\
      --source test.en --reference test.de --beams 5
  npformer evaluate --model openai-community/gpt2 --text novel.txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, model_options("distilbert-sst2"))
    parser.add_argument("--data", metavar="FILE", help="labelled texts in .tsv, .csv or .jsonl, as for finetune")
    parser.add_argument("--label-column", metavar="NAME", default="label", help="the column of the label (%(default)s)")
    columns = "the column of the text, or the two columns of a pair of texts"
    parser.add_argument("--text-columns", metavar="A[,B]", help=columns)
    parser.add_argument("--source", metavar="FILE", help="texts to translate, one per line")
    parser.add_argument("--reference", metavar="FILE", help="their translations, one per line")
    parser.add_argument("--text", metavar="FILE", help="a file read as one text, for a causal language model")
    parser.add_argument(
        "--stride",
        type=whole,
        metavar="N",
        help="with --text: tokens between the starts of consecutive windows (default: half a window)",
    )
    parser.add_argument("-b", "--beams", type=whole, metavar="N", help="search with N beams (default: the model's)")
    parser.add_argument("--json", action="store_true", help="write a JSON object, for programs")


def run(args: argparse.Namespace) -> None:
    if sum(map(bool, (args.data, args.source, args.text))) != 1 or bool(args.source) != bool(args.reference):
        raise NpformerError("give --data, or --source and --reference, or --text")
    if args.data:
        _labels(args)
    elif args.text:
        _perplexity(args)
    else:
        _translations(args)


def _labels(args: argparse.Namespace) -> None:
    from npformer.loading import load
    from npformer.training.data import encode, read_labelled
    from npformer.training.metrics import evaluate_labels

    rows = read_labelled(args.data, args.label_column, text_columns(args))
    model = load(args.model, **loading(args))
    if model.config.head != "sequence-classification":
        raise NpformerError(f"--data: expected a text classifier, got a {model.config.head} model")
    problem = model.config.problem_type or "single_label_classification"
    if problem != "single_label_classification" or len(model.config.labels) < 2:
        got = "one label, whose answer is a number" if len(model.config.labels) < 2 else problem
        raise NpformerError(f"--data: expected a classifier that gives each text one of several labels, got {got}")
    found = evaluate_labels(model, encode(model, args.data, rows), progress=sys.stderr.isatty())
    if not args.json:
        print(found)
        return
    by_label = {
        label: {"precision": float(p), "recall": float(r), "f1": float(f)}
        for label, p, r, f in zip(found.labels, found.precision, found.recall, found.f1, strict=True)
    }
    numbers = {"accuracy": found.accuracy, "macro_f1": found.macro_f1, "labels": by_label}
    print(json.dumps({**numbers, "confusion": found.confusion.tolist(), "texts": len(rows)}, ensure_ascii=False))


def _perplexity(args: argparse.Namespace) -> None:
    from npformer.generation.likelihood import perplexity
    from npformer.loading import load

    text = read_file(args.text)
    found = perplexity(load(args.model, **loading(args)), text, args.stride)
    if not args.json:
        print(str(found).replace("   ", "\n"))
        return
    names = ("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
    numbers = {name: getattr(found, name) for name in names}
    print(json.dumps({**numbers, **asdict(found)}))


def _translations(args: argparse.Namespace) -> None:
    try:
        import sacrebleu
    except ImportError:
        raise lacks("BLEU", "sacrebleu", "evaluate") from None
    from npformer.common.progress import with_bar
    from npformer.tasks import pipeline
    from npformer.tasks.task import InputError
    from npformer.text.encoding import warn_of_cuts
    from npformer.training.data import read_pairs

    sources, references = map(list, zip(*read_pairs(args.source, args.reference), strict=True))
    options = {"num_beams": args.beams} if args.beams else {}
    task = pipeline("translation", args.model, long="truncate", **loading(args), **options)
    answers, cut = [], {}
    for number, answer in enumerate(with_bar(task.answers(iter(sources), task.options, quiet=True), len(sources)), 1):
        if isinstance(answer, InputError):
            raise NpformerError(f"{args.source}:{number}: {answer.reason}")
        answers.append(answer["translation_text"])
        if answer.truncated:
            cut[f"{args.source}:{number}"] = answer.n_tokens
    warn_of_cuts(cut, len(sources), task.limit(task.options))
    metric = sacrebleu.metrics.BLEU()
    score = metric.corpus_score(answers, [references])
    if args.json:
        print(json.dumps({"bleu": score.score, "signature": str(metric.get_signature()), "texts": len(answers)}))
    else:
        print(f"{score}\n{metric.get_signature()}")
