"""The commands that run a task on texts, as one table.

A new command is one entry, its line in `main.py`, and perhaps a function for output. The commands of models that write
texts are in `writing_commands.py`.

An entry names the task, the options, and the functions that turn an answer into text and JSON. `run_task.py` reads the
texts, runs the task and writes the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from npformer.cli import answers
from npformer.cli.arguments import (
    JSON,
    PAIR,
    STRIDE,
    OneOf,
    Option,
    add_options,
    comma_separated,
    dataset_options,
    model_options,
    option,
    text_options,
    whole,
)
from npformer.cli.texts import paired, read_file
from npformer.common.errors import NpformerError
from npformer.text.inputs import LONG, Pair

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from npformer.tasks.task import Task

Shown = Callable[[str, Any, "Task"], str]  # (text, answer, task) -> the answer as text
AsInput = Callable[[str], Any]


class TaskCommand(NamedTuple):
    """A command that runs a task on each text."""

    task: str
    description: str
    epilog: str
    options: tuple[Option | OneOf, ...]
    shown: Shown  # turns an answer into text
    named: Callable[[Any], dict[str, Any]]  # turns an answer into the fields of its JSON object
    as_input: Callable[[Namespace], AsInput] = lambda args: str  # makes the function from a text to the task's input
    keeps_lines: bool = False  # whether line i of the output belongs to line i of the input; blank lines stay blank
    pieces: Callable[[str, Task], Iterator[str]] | None = None  # an answer piece by piece, for a terminal
    best_first: bool = False  # whether answers are sorted by their scores, and so all wait for the last

    def settings(self) -> dict[str, str]:
        """Returns the task's settings that the command has options for: setting -> option."""
        return {each.sets: each.flags[-1] for each in self.options if isinstance(each, Option) and each.sets}

    def switched_off(self) -> set[str]:
        """Returns the settings that an option sets to False."""
        return {
            each.sets for each in self.options if isinstance(each, Option) and each.how.get("action") == "store_false"
        }

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_options(parser, self.options)
        if self.best_first:
            parser.set_defaults(texts=[])  # read only from files

    def run(self, args: Namespace) -> int:
        from npformer.cli.run_task import answer_all

        return answer_all(self, args)


# --- inputs of the tasks ---------------------------------------------------------------------------------------------


def _one_or_two(args: Namespace) -> AsInput:
    return _split if args.pairs else lambda text: paired(text, args.pair)


def _split(text: str) -> Pair:
    found = text.split("\t")
    if len(found) != 2:
        raise NpformerError(f"expected two texts separated by a tab, got {len(found)}")
    return Pair(*found)


def _after_query(args: Namespace) -> AsInput:
    if args.query is None:
        raise NpformerError("QUERY: missing; give a query and files of texts, or a dataset with --input")
    return lambda text: paired(args.query, text)


def _with_context(args: Namespace) -> AsInput:
    context = args.context if args.context_file is None else read_file(args.context_file)
    return lambda question: Pair(question, context)


# --- the table -------------------------------------------------------------------------------------------------------

PAIR_COLUMN = option("--pair-column NAME", "with --input: the column of the second texts")
LONG_TEXTS = option("--long", "how to handle long texts (truncate; window with --stride)", "long", choices=LONG)
ANSWER = (JSON, LONG_TEXTS, STRIDE)
PROMPT_NAME = option("--prompt-name NAME", "name of the model's prompt to put before each text", "prompt_name")

TASK_COMMANDS = {
    "classify": TaskCommand(
        task="text-classification",
        description="Classify each text: its label and score.",
        epilog="""examples:
  npformer classify "I love ice cream"
  npformer classify --file reviews.txt --json > labels.jsonl
  npformer classify -m typeform/distilbert-base-uncased-mnli \\
    "A man sleeps." --pair "Nobody is awake."
  cut -f2 reviews.tsv | npformer classify --top-k 2

whole datasets, with pip install "npformer[data]":
  npformer classify --input reviews.parquet --column review \\
      --output scored.parquet""",
        options=(
            *text_options(),
            *model_options("distilbert-sst2"),
            OneOf(
                (
                    PAIR,
                    option("--pairs", "each text is a pair separated by a tab"),
                    PAIR_COLUMN,
                )
            ),
            option("-k --top-k K", "show the K best labels (default: only the best)", "top_k", type=whole),
            *ANSWER,
            *dataset_options(),
        ),
        shown=answers.labels,
        named=lambda answer: {"labels": answer} if isinstance(answer, list) else answer,
        as_input=_one_or_two,
    ),
    "zero-shot": TaskCommand(
        task="zero-shot-classification",
        description="Score your own labels for each text, with a natural-language inference model.",
        epilog="""example:
  npformer zero-shot -m typeform/distilbert-base-uncased-mnli \\
      -l politics,sport "Who won the election?\"""",
        options=(
            *text_options(),
            *model_options(),
            option("-l --labels A,B,...", "the labels, separated by commas", "candidate_labels", required=True),
            option(
                "--template TEXT", 'a sentence with {} for the label ("This example is {}.")', "hypothesis_template"
            ),
            option("--multi-label", "score each label on its own, since several may fit", "multi_label"),
            *ANSWER,
            *dataset_options(),
        ),
        shown=answers.own_labels,
        named=lambda answer: {name: answer[name] for name in ("labels", "scores")},
    ),
    "tag": TaskCommand(
        task="token-classification",
        description="Find the entities in each text, with their character positions.",
        epilog="""example:
  npformer tag -m dslim/bert-base-NER "My name is Sarah and I live in London\"""",
        options=(
            *text_options(),
            *model_options(),
            option(
                "--strategy",
                "how to group tokens: none keeps tokens; first, average and max label whole words (%(default)s)",
                "aggregation_strategy",
                choices=("none", "simple", "first", "average", "max"),
                default="simple",
            ),
            option("--ignore A,B,...", "labels to leave out (default: O)", "ignore_labels", type=comma_separated),
            *ANSWER,
            *dataset_options(),
        ),
        shown=answers.entities,
        named=lambda answer: {"entities": answer},
    ),
    "answer": TaskCommand(
        task="question-answering",
        description="Answer questions with a span of a text, the context.",
        epilog="""examples:
  npformer answer -m distilbert/distilbert-base-cased-distilled-squad \\
      --context "I live in Berlin." "Where do I live?"
  npformer answer -m distilbert/distilbert-base-cased-distilled-squad \\
      --context-file report.txt --file questions.txt""",
        options=(
            *text_options("question"),
            OneOf(
                (
                    option("-c --context TEXT", "the text that contains the answers"),
                    option("--context-file FILE", "a file with that text"),
                    option("--context-column NAME", "with --input: the column of contexts"),
                ),
                required=True,
            ),
            *model_options(),
            option("-k --top-k K", "show the K best answers (%(default)s)", "top_k", type=whole, default=1),
            option("--no-answer", "allow an empty answer where the context has none", "handle_impossible_answer"),
            option("--max-answer-len N", "most tokens in an answer (15)", "max_answer_len", type=whole),
            JSON,
            STRIDE,
            *dataset_options(),
        ),
        shown=answers.spans,
        named=lambda answer: {"answers": answer} if isinstance(answer, list) else answer,
        as_input=_with_context,
    ),
    "fill": TaskCommand(
        task="fill-mask",
        description="Predict the words for [MASK].",
        epilog="""example:
  npformer fill -m distilbert/distilbert-base-uncased "I love [MASK] cream\"""",
        options=(
            *text_options(),
            *model_options(),
            option("-k --top-k K", "show the K best words (%(default)s)", "top_k", type=whole, default=5),
            option("--targets A,B,...", "score only these words", "targets", type=comma_separated),
            *ANSWER,
            *dataset_options(),
        ),
        shown=answers.words,
        named=lambda answer: {"masks": answers.masks(answer)},
    ),
    "embed": TaskCommand(
        task="sentence-embedding",
        description="Embed each text: a vector for comparing texts by meaning.",
        epilog="""examples:
  npformer embed -m sentence-transformers/all-MiniLM-L6-v2 \\
      --file sentences.txt -o sentences.npy
  npformer embed -m sentence-transformers/all-MiniLM-L6-v2 \\
      --normalize --truncate-dim 32 "what is ice cream made of?"

Row i of the array is the vector of text i; NaN if text i cannot be read.""",
        options=(
            *text_options(),
            *model_options(),
            PROMPT_NAME,
            option("--normalize", "scale each vector to length 1", "normalize_embeddings"),
            option("--truncate-dim N", "keep each vector's first N numbers (Matryoshka)", "truncate_dim", type=whole),
            *ANSWER,
            *dataset_options(option("-o --output OUT", "FILE.npy, for numpy.load; with --input: the answered dataset")),
        ),
        shown=answers.vector,
        named=lambda answer: {"embedding": answer.tolist()},
    ),
    "embed-sparse": TaskCommand(
        task="sparse-embedding",
        description="Embed each text as a sparse vector of weighted words, for an inverted index.",
        epilog="""example:
  npformer embed-sparse -k 8 \\
      -m naver/splade-cocondenser-ensembledistil "I love ice cream\"""",
        options=(
            *text_options(),
            *model_options(),
            PROMPT_NAME,
            option("-k --top-k K", "keep the K words with the largest weights", "max_active_dims", type=whole),
            *ANSWER,
            *dataset_options(),
        ),
        shown=answers.weights,
        named=lambda answer: {
            "indices": answer["indices"].tolist(),
            "values": answer["values"].tolist(),
            "tokens": answer["tokens"],
        },
    ),
    "rerank": TaskCommand(
        task="text-ranking",
        description="""Rank texts, the lines of files, by how well they answer a query, with a
cross-encoder.""",
        epilog="""examples:
  npformer rerank -m cross-encoder/ms-marco-MiniLM-L6-v2 \\
      "Who likes ice cream?" sentences.txt

With --input the rows keep their order: --column names the queries,
--pair-column the texts.""",
        options=(
            Option(("query",), {"nargs": "?", "metavar": "QUERY", "help": "the query that the texts should answer"}),
            Option(
                ("file",), {"nargs": "*", "metavar": "FILE", "help": "files with a text in each line (default: stdin)"}
            ),
            *model_options(),
            PAIR_COLUMN,
            *ANSWER,
            *dataset_options(),
        ),
        shown=answers.score,
        named=dict,
        as_input=_after_query,
        best_first=True,
    ),
}
