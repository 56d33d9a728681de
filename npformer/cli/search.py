"""Find the lines of text files that are nearest to a query, by their vectors.

The vectors are stored next to each file, in FILE.vectors.safetensors, and are
computed again when the file or the model changes."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.checkpoint.safetensors import CHECKSUM, checksum
from npformer.checkpoint.tree import stored
from npformer.cli.arguments import JSON, add_options, loading, model_options
from npformer.cli.process import BAD_INPUT, complain
from npformer.cli.run_task import write_json
from npformer.cli.texts import InputLine, check_files, lines, paired, plain
from npformer.common.errors import NpformerError
from npformer.common.files import place_in_folder
from npformer.common.limits import Limits
from npformer.common.progress import with_bar
from npformer.tasks import pipeline
from npformer.tasks.declaration import option, whole
from npformer.tasks.task import InputError
from npformer.tasks.vector_search import search
from npformer.text.encoding import was_cut

EPILOG = """examples:
  npformer search "frozen dessert" sentences.txt
  npformer search -k 3 --json \\
      -m sentence-transformers/all-MiniLM-L6-v2 "sweets" sentences.txt

The bundled model is trained on sentiment, so it finds lines of the same mood. A
sentence-embedding model, as above, finds lines of the same meaning."""

SUFFIX = ".vectors.safetensors"
DOCUMENTS = ("document", "passage", "corpus")  # possible names of the prompt for the searched texts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help="text to search for")
    parser.add_argument("file", nargs="*", metavar="FILE", help="files with one text per line (default: stdin)")
    best = option("-k --top-k K", "show the K nearest lines (%(default)s)", type=whole, default=10)
    add_options(parser, [*model_options("distilbert-sst2"), best, JSON])


def run(args: argparse.Namespace) -> int:
    query = str(paired(args.query, None))
    check_files(args)
    files = args.file or ["-"]
    task: Any = pipeline("sentence-embedding", args.model, **loading(args))
    prompts, similarity = task.recipe.prompts, task.similarity_fn_name
    vector = task(query, prompt_name="query")
    name = next((each for each in DOCUMENTS if prompts.get(each)), DOCUMENTS[0])
    task.options = task.settle(task.options, {"prompt_name": name})
    model = _digest(task)
    found: list[tuple[float, InputLine]] = []
    code = 0
    for file in files:
        read = list(lines(argparse.Namespace(file=[file], texts=[])))
        hits = search(vector, _vectors(task, model, file, read), args.top_k, similarity, task.model.threads)
        pairs = zip(hits.scores.tolist(), hits.indices.tolist(), strict=True)
        found += [(score, read[index]) for score, index in pairs if index >= 0]
        for line in read:
            if line.error:
                complain(f"{line.where}: {line.error}")
                code = BAD_INPUT
    for score, line in sorted(found, key=lambda each: -each[0])[: args.top_k]:
        if args.json:
            write_json({"text": line.text, "score": score, "line": line.where})
        else:
            shown = f"{score:.4f}  {plain(line.where)}"
            print(f"{shown}  {plain(line.text, len(shown) + 2)}")
    return code


def _vectors(task: Any, model: str, file: str, read: list[InputLine]) -> np.ndarray:
    """Reads or computes the vectors (N, D) of the lines in a file, with NaN for lines without text."""
    content = hashlib.sha256(json.dumps([[line.text, bool(line.error)] for line in read]).encode()).hexdigest()
    described = {"lines": content, "model": model}
    place = Path(file + SUFFIX)
    keeps = os.path.isfile(file) and not os.path.islink(place)
    if keeps and os.path.exists(place):
        blank = np.array([bool(line.error) or not line.text.strip() for line in read], bool)
        kept = _kept(place, described, task.collect([]).shape[1], blank, task.model.limits)
        if kept is not None:
            return kept
    unread = sum(bool(line.error) for line in read)
    vectors = _computed(task, read)
    # Vectors are not stored if a line has no answer, because each search must report that line.
    if keeps and unread == sum(bool(line.error) for line in read):
        with suppress(NpformerError, OSError):  # without stored vectors, the next search computes them again
            save_arrays(place_in_folder(place), {"vectors": vectors}, described)
    return vectors


def _kept(place: Path, described: dict[str, str], width: int, blank: np.ndarray, limits: Limits) -> np.ndarray | None:
    """Returns the stored vectors (N, D) of a file, or None if they are outdated or damaged. Reports damage."""
    try:
        arrays, metadata = load_arrays(place, limits)
        if not described.items() <= metadata.items():
            return None
        kept = arrays.get("vectors", np.empty(0))
        if CHECKSUM not in metadata or kept.dtype != np.float32 or kept.shape != (len(blank), width):
            raise NpformerError(f"{place}: damaged: expected float32 vectors {len(blank), width} with a checksum")
        if (np.isfinite(kept).all(axis=1) == blank).any():
            raise NpformerError(f"{place}: damaged: expected NaN for blank lines, and finite numbers for the rest")
    except NpformerError as error:
        complain(f"{error}. The vectors are computed again")
        return None
    return kept


def _computed(task: Any, read: list[InputLine]) -> np.ndarray:
    vectors = np.full((len(read), task.collect([]).shape[1]), np.nan, np.float32)
    asked = [index for index, line in enumerate(read) if not line.error and line.text.strip()]
    answers = task.answers((read[index].text for index in asked), task.options, quiet=True)
    cut = 0
    for index, answer in zip(asked, with_bar(answers, len(asked)), strict=True):
        if isinstance(answer, InputError):
            read[index].error = answer.reason
            continue
        vectors[index] = answer
        cut += bool(answer.truncated)
        if answer.truncated and cut == 1:
            complain(was_cut(read[index].where, answer.n_tokens, task.limit(task.options)))
    if cut > 1:
        complain(f"{cut} texts were truncated")
    return vectors


def _digest(task: Any) -> str:
    """Returns the SHA-256 of everything that determines the vectors of a text."""
    model = task.model
    parts = {
        "weights": checksum(stored(dict(model.weights), model.config), {}),
        "modules": task.module_sums,
        "config": repr(model.config),
        "recipe": asdict(task.recipe),
        "options": asdict(task.options),
        "tokenizer": model.tokenizer.to_str(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
