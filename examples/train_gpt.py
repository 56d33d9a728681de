"""Trains a small GPT on books, or continues to train an existing one on other books.

    python examples/train_gpt.py --text DIR -o GPT [--start FOLDER] [--epochs 10] [--learning-rate 3e-3]

DIR has a text file for each book. Chapters begin with lines such as CHAPTER 12 or Chapter XII; text before the first
chapter is omitted. The last two chapters of each book are not used for training: the perplexity on them is printed at
the end. The perplexity on the chapter before them is measured after each epoch, but only for information: the last
weights are kept. Without --start, a vocabulary is learned and weights are drawn at random; with --start, both are read
from the folder of a GPT-2. After an interruption the same command resumes. The learning rate rises over the first
twentieth of the steps and falls to 0 at the last, so a run with more epochs differs from the first step on.

Jane Austen's six novels are in the R package janeaustenr (in Debian: r-cran-janeaustenr):

    Rscript -e 'library(janeaustenr); for (name in data(package = "janeaustenr")$results[, "Item"])
        writeLines(get(name), paste0(name, ".txt"))'
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import npformer
from npformer import perplexity
from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.families.gpt2 import END_OF_TEXT, GPT2
from npformer.model import Model
from npformer.training import HeadLoss, Recipe, Trainable, Trainer, initialize, standard_rates
from npformer.training.data import blocks
from npformer.training.epoch_lines import Progress
from npformer.training.start import companions, write_model

CHAPTER = re.compile(r"chapter (\d+|[ivxlc]+)\.?", re.IGNORECASE)
NO_TEXT = re.compile(r"volume [ivx]+\.?|finis|the end|\[.*|\*.*", re.IGNORECASE)  # paragraphs that the edition adds
NOTE = "A NOTE ON THE TEXT"  # the text after this line is by an editor

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 2048, 128, 4, 5, 256
RECIPE = Recipe(
    epochs=10, batch_size=8, learning_rate=3e-3, warmup=0.05, betas=(0.9, 0.95), weight_decay=0.1, lazy=False,
)  # fmt: skip


class Books(NamedTuple):
    """The chapters for training, for monitoring it, and for the final score. Each line of a chapter is a paragraph."""

    train: list[str]
    watched: list[str]
    scored: list[str]


def read_books(folder: Path) -> Books:
    """Reads every .txt file of a folder."""
    books = Books([], [], [])
    for path in sorted(folder.glob("*.txt")):
        found = chapters(path.read_text(encoding="utf-8"))
        if len(found) < 4:
            raise NpformerError(f"{path}: expected at least 4 chapters that begin like CHAPTER 12, got {len(found)}")
        for part, chosen in zip(books, (found[:-3], found[-3:-2], found[-2:]), strict=True):
            part += chosen
    if not books.train:
        raise NpformerError(f"{folder}: expected a .txt file for each book, got none")
    return books


def chapters(book: str) -> list[str]:
    """Splits a book into chapters, with one paragraph per line. Empty lines separate the book's paragraphs.

    Underscores, which mark italics, are removed.
    """
    found: list[list[str]] = []
    for block in re.split(r"\n\s*\n", book):
        paragraph = " ".join(block.replace("_", "").split())
        if paragraph == NOTE:
            break
        if CHAPTER.fullmatch(paragraph):
            found.append([])
        elif found and paragraph and not NO_TEXT.fullmatch(paragraph):
            found[-1].append(paragraph)
    return ["\n".join(each) for each in found]


def learn_tokenizer(texts: Sequence[str], size: int) -> Any:
    """Learns a byte-level BPE vocabulary in GPT-2's form (Radford et al., 2019); its first token marks a text's end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def new_model(texts: Sequence[str], seed: int) -> tuple[Model, dict[str, bytes]]:
    """Draws a model's weights, learns its vocabulary, and writes the files of its tokenizer."""
    tokenizer = learn_tokenizer(texts, VOCABULARY)
    config = GPT2.config(
        "causal-lm", vocab_size=tokenizer.get_vocab_size(), d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS,
        d_ffn=4 * WIDTH, max_length=LONGEST, tied=True, start_id=0, end_ids=(0,),
    )  # fmt: skip
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT),
        "add_prefix_space": False,
        "model_max_length": LONGEST,
    }
    generation = {
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
        "do_sample": True, "temperature": 0.8, "top_p": 0.9, "max_new_tokens": 100,
    }  # fmt: skip
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(settings, indent=2),
        "generation_config.json": json.dumps(generation, indent=2),
    }
    model = Model(config, initialize(config, seed))
    model.tokenizer = tokenizer
    return model, {name: (text.rstrip() + "\n").encode() for name, text in files.items()}


def started(folder: str) -> tuple[Model, dict[str, bytes]]:
    """Loads a model and the files of its tokenizer."""
    model = npformer.load(folder)
    if model.config.head != "causal-lm":
        raise NpformerError(f"{folder}: expected a model with the head causal-lm, got {model.config.head}")
    return model, companions(model.folder, model.config)


def stream(texts: Sequence[str]) -> str:
    """Concatenates texts, with the end-of-text token before, between and after them."""
    return END_OF_TEXT.join(["", *texts, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path)
    parser.add_argument("--start")
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--learning-rate", type=float, default=RECIPE.learning_rate)
    parser.add_argument("--dropout", type=float, default=0.1, help="rate for the embeddings and each block's output")
    parser.add_argument("--seed", type=int, default=RECIPE.seed)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()

    books = read_books(args.text)
    first, files = started(args.start) if args.start else new_model(books.train, args.seed)
    config = first.config
    weights = Trainable(first.weights, config)
    model = Model(config, weights.tree, threads=args.threads)
    model.tokenizer = first.tokenizer
    ids = np.array(model.tokenizer.encode(stream(books.train)).ids)
    count = sum(array.size for array in weights.flat.values())
    print(f"{count:,} weights, {len(ids):,} training tokens")

    def watch(epoch: int) -> dict[str, float]:
        return {"perplexity": float(perplexity(model, stream(books.watched)))}

    rates = standard_rates(config, args.dropout, attention=0.0)
    recipe = replace(RECIPE, epochs=args.epochs, learning_rate=args.learning_rate, dropout=rates, seed=args.seed)
    trainer = Trainer(HeadLoss(config), weights, recipe, args.output / "training", model.threads, 100, Progress())
    history = trainer.train(blocks(ids, config.max_length), watch)
    write_model(args.output, files, config, weights.tree)
    with written_whole(args.output / "history.json") as partial:
        partial.write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")
    print(f"{args.output}: {perplexity(model, stream(books.scored))}")


if __name__ == "__main__":
    try:
        main()
    except NpformerError as error:
        raise SystemExit(f"train_gpt: {error}") from None
