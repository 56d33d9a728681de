"""A gallery: three texts, each in every view, on one page of less than 2 MB that needs no network.

    python examples/gallery.py gallery.html

The model is the bundled `distilbert-sst2`. The selection is part of the page's address, so
`gallery.html#view=heads&text=1&layer=0&head=2` links to one head.
"""

from __future__ import annotations

import sys

import npformer
from npformer import view

TEXTS = [
    "It was the best of times",  # Dickens, A Tale of Two Cities, 1859
    "time flies like an arrow",  # after Oettinger, 1966: "flies" and "like" could be other parts of speech
    "good food, awful service",  # the label depends on one word
]
NUMBERS = 100_000  # numbers per text in the stage view; with more, the page would exceed 2 MB


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/gallery.py FILE.html")
    page = view.page(npformer.load("distilbert-sst2"), TEXTS, numbers=NUMBERS)
    path = page.save(sys.argv[1])
    print(f"{path}: {len(TEXTS)} texts, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
