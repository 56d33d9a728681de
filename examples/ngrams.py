"""The perplexity of n-gram models, and of a GPT for comparison, on the chapters that train_gpt.py holds out.

    python examples/ngrams.py --text DIR --model GPT [--longest 5]

An n-gram model sees only the last n - 1 tokens, and counts the tokens that followed them. Most sequences of three
tokens and more were never seen, so the probability given a shorter context is mixed in, by interpolated Kneser-Ney
smoothing:

    p(w | context) = max(c(context w) - d, 0) / c(context) + d N(context) / c(context) p(w | context[1:])

N(context) is the number of different tokens that followed. For the longest n-grams, c counts the occurrences of a
sequence; for shorter ones, the different tokens before it. d = n1 / (n1 + 2 n2), from the numbers of n-grams that have
a count of 1 and of 2. Kneser and Ney, 1995; Chen and Goodman, 1999.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from train_gpt import read_books, stream  # next to this file

import npformer


class KneserNey:
    """An interpolated Kneser-Ney model of sequences of `order` tokens, learned from a stream of token ids."""

    def __init__(self, ids: Sequence[int], order: int, vocabulary: int) -> None:
        self.order, self.vocabulary = order, vocabulary
        grams = [Counter(zip(*(ids[i:] for i in range(n)), strict=False)) for n in range(1, order + 1)]
        self.counts = [*(Counter(gram[1:] for gram in longer) for longer in grams[1:]), grams[-1]]
        self.totals: list[Counter] = []  # context -> number of tokens after it
        self.kinds: list[Counter] = []  # context -> number of different tokens after it
        self.discounts: list[float] = []
        for counts in self.counts:
            totals: Counter = Counter()
            for gram, count in counts.items():
                totals[gram[:-1]] += count
            often = Counter(counts.values())
            self.totals.append(totals)
            self.kinds.append(Counter(gram[:-1] for gram in counts))
            self.discounts.append(often[1] / max(1, often[1] + 2 * often[2]))

    def probability(self, gram: tuple[int, ...]) -> float:
        """Returns p(last token | the tokens before it)."""
        found = 1 / self.vocabulary  # level 0: all tokens are equally likely
        for n in range(1, len(gram) + 1):
            level, end = n - 1, gram[-n:]
            total = self.totals[level][end[:-1]]
            if total:
                discount = self.discounts[level]
                kept = max(self.counts[level][end] - discount, 0)
                found = (kept + discount * self.kinds[level][end[:-1]] * found) / total
        return found

    def mean_loss(self, ids: Sequence[int]) -> float:
        """Returns the mean of -log p over all tokens of a stream except the first."""
        grams = (tuple(ids[max(0, i + 1 - self.order) : i + 1]) for i in range(1, len(ids)))
        return -sum(math.log(self.probability(gram)) for gram in grams) / (len(ids) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--longest", type=int, default=5)
    args = parser.parse_args()

    model, books = npformer.load(args.model), read_books(args.text)
    learned, scored = (model.tokenizer.encode(stream(part)).ids for part in (books.train, books.scored))
    found = npformer.perplexity(model, stream(books.scored))

    def show(name: str, loss: float) -> None:
        print(f"{name:20} {math.exp(loss):10.2f} {loss * found.tokens / math.log(2) / found.bytes:12.3f}", flush=True)

    print(f"{found.tokens:,} tokens\n{'':20} {'perplexity':>10} {'bits a byte':>12}")
    for order in range(1, args.longest + 1):
        show(f"{order}-grams", KneserNey(learned, order, model.config.vocab_size).mean_loss(scored))
    show(args.model, -found.log_probability / found.tokens)


if __name__ == "__main__":
    main()
