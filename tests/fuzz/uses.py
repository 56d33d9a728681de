"""The functions that load a case's folder and use it in a real call.

Each raises NpformerError if the case is refused. Any other exception is a finding.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import npformer
from npformer import golden as goldens
from npformer.checkpoint import convert, load_folder
from npformer.checkpoint.archive import load_arrays
from npformer.cli import golden as golden_command
from npformer.cli import main as command
from npformer.cli import texts as text_files
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.loading import load
from npformer.model import Model, Seq2Seq
from npformer.tasks.catalogue import TASK_OF
from npformer.tasks.pipelines import pipeline
from npformer.text.tokenizer_class import FILES as TOKENIZER_FILES
from npformer.text.translation_tokenizer import load_tokenizer
from npformer.training.data import encode, encode_pairs, label_names, read_labelled, read_pairs
from npformer.training.losses import HeadLoss, TranslationLoss
from npformer.training.start import companions, start
from npformer.training.trainable import Trainable
from npformer.training.trainer import Recipe, Trainer
from tests.fuzz import records
from tests.fuzz.draw import Draw

TEXTS = ("I love ice cream", "not my music, Paris")
IDS = ([2, 5, 6, 3], [2, 9, 10, 11, 12, 3])
LABELS = ["music", "politics"]


def model(folder: Path, draw: Draw, texts: Sequence[str]) -> None:
    """Loads a model in one of the ways that users load it, and calls it."""
    threads = 1 if draw.below(16) else 2
    dtype = np.float32 if draw.below(6) else np.float64
    match draw.below(12):
        case 0 if not texts:
            found = convert(
                folder, folder / "out", draw.pick(("npformer", "torch")), draw.pick((None, "float16", "float64"))
            )
            call(load(found, threads=1), draw, texts or TEXTS)
        case 1:
            loaded = load(folder, dtype=dtype, threads=threads)
            if isinstance(loaded, Seq2Seq):
                call(loaded, draw, texts or TEXTS)
            else:
                str(npformer.trace(loaded, list(texts or TEXTS)))
        case 2:
            load(folder, head=draw.pick(("base", "masked-lm", "sequence-classification", "translation")), threads=1)
        case 3 if not texts:
            load_folder(folder, dtype)
            info(folder, draw, ())
        case 4 if not texts:
            goldens.record(load(folder, threads=1), list(TEXTS), "logits").save(folder / "out.safetensors")
        case 5 if not texts:
            path = folder / "rows.tsv"
            path.write_text("label\ttext\nPOSITIVE\tI love ice cream\nNEGATIVE\tnot my music\n", encoding="utf-8")
            finetuned(path, Draw("rows"))
        case _:
            call(load(folder, dtype=dtype, threads=threads), draw, texts or TEXTS)


TOKENIZERS = {*TOKENIZER_FILES, "source.spm"}


def call(loaded: Any, draw: Draw, texts: Sequence[str]) -> None:
    """Calls a model's task with texts, or a model without a task with token ids."""
    config: Config = loaded.config
    there = {each.name for each in Path(loaded.folder).iterdir()}
    task = TASK_OF.get(config.head)
    if task is None or config.model_type == "transformer" or not there & TOKENIZERS:
        if isinstance(loaded, Seq2Seq):
            loaded(list(IDS), labels=[[2, 3], [4]])
        else:
            loaded(np.array([[IDS[0]] * 2]) if config.head == "multiple-choice" else list(IDS))
        return
    run = pipeline(
        task, loaded, **({"long": draw.pick(("truncate", "window", "error"))} if task == "text-classification" else {})
    )
    for given in (texts[0], list(texts)):
        if task == "question-answering":
            run(question=texts[0], context=texts[-1])
        elif task == "fill-mask":
            run([f"{each} [MASK]" for each in texts], top_k=3)
        else:
            run(given)
    if draw.chance(8) and task == "text-classification":
        run(npformer.Pair(texts[0], texts[-1]))


def stack(folder: Path, draw: Draw, _: Sequence[str]) -> None:
    """Reads a checkpoint whose input is vectors, not token ids."""
    load_folder(folder, np.float32 if draw.below(6) else np.float64)


def sentence(folder: Path, draw: Draw, texts: Sequence[str]) -> None:
    """Embeds texts with a sentence-transformers folder."""
    embed = pipeline(None if draw.chance(2) else "sentence-embedding", folder, threads=1)
    embed(list(texts or TEXTS), **({"long": "window"} if draw.chance(3) else {}))


def golden(folder: Path, draw: Draw, texts: Sequence[str]) -> None:
    """Compares another program's arrays with a golden file, and finds what is wrong with them."""
    reference = goldens.load(folder / "golden.safetensors")
    arrays, _ = load_arrays(named(folder, "theirs."))
    names = folder / "names.json"
    comparison = goldens.compare(reference, arrays, golden_command._names(str(names)) if names.exists() else None)
    str(comparison)
    loaded = load(folder, threads=1)
    goldens.check_weights(loaded, comparison.theirs.weights)
    if draw.chance(4):
        copy = folder / "copy.safetensors"
        reference.save(copy)
        goldens.load(copy)
    if comparison.first is not None and draw.chance(4):
        str(goldens.diagnose(reference, arrays, loaded, comparison=comparison))


def trace(folder: Path, draw: Draw, texts: Sequence[str]) -> None:
    """Reads a trace and shows it."""
    found = npformer.Trace.load(folder / "trace.safetensors")
    for show in (str, repr, lambda each: each._repr_html_(), lambda each: each.label, lambda each: each.token_type_ids):
        show(found)
    found.save(folder / "copy.safetensors")


def table(folder: Path, draw: Draw, texts: Sequence[str]) -> None:
    """Reads labelled texts, and runs one training step on the first of them."""
    finetuned(named(folder, "data."), draw)


def finetuned(path: Path, draw: Draw) -> None:
    folder = path.parent
    rows = read_labelled(path)
    labels = label_names(rows)
    if len(labels) > 50:
        return
    config, tree, _ = start(folder, labels)
    weights = Trainable(tree, config)
    made = Model(config, weights.tree, folder, threads=1)
    examples = encode(made, path, rows[:6])
    Trainer(
        HeadLoss(config), weights, Recipe(epochs=1, batch_size=8), folder / "training" if draw.chance(8) else None
    ).train(examples)
    companions(folder, config, 9)


def training(folder: Path, draw: Draw, texts: Sequence[str]) -> None:
    """Resumes a training run, and chooses the best weights."""
    config, tree = load_folder(folder)
    weights = Trainable(tree, config)
    run = Trainer(HeadLoss(config), weights, records.RECIPE, folder / "training")
    run.train(records.EXAMPLES, lambda epoch: {"accuracy": 0.5})
    run.choose(lambda epoch: {"accuracy": 0.5})


def texts(folder: Path, draw: Draw, _: Sequence[str]) -> None:
    """Classifies the lines of a file with the command. Skips a FIFO, which the command would wait for."""
    if (folder / "texts.txt").is_fifo():
        return
    commanded(
        "classify",
        "--model",
        folder,
        "--file",
        folder / "texts.txt",
        "--threads",
        1,
        *(["--json"] if draw.chance(2) else []),
    )


def context(folder: Path, draw: Draw, _: Sequence[str]) -> None:
    """Answers a question about a file's text. Skips a FIFO, which the reader would wait for."""
    if (folder / "context.txt").is_fifo():
        return
    text = text_files.read_file(str(folder / "context.txt"))
    pipeline(None, folder, threads=1)(question=TEXTS[0], context=text[:5000])


def info(folder: Path, draw: Draw, _: Sequence[str]) -> None:
    """Runs `npformer info`, which describes a model and shows its card."""
    commanded("info", folder)


def pairs(folder: Path, draw: Draw, _: Sequence[str]) -> None:
    """Reads sentences and their translations, and runs one training step on them."""
    files = (folder / "source.txt", folder / "target.txt")
    found = read_pairs(*files)[:4]
    config, tree = load_folder(folder)
    tokenizer: Any = load_tokenizer(folder, config)
    longest = config.max_length
    examples = encode_pairs(tokenizer.source, files, [(a[:20], b[:20]) for a, b in found], longest)
    Trainer(TranslationLoss(config), Trainable(tree, config), Recipe(epochs=1, batch_size=8)).train(examples)


def named(folder: Path, start: str) -> Path:
    """Returns the file whose name has this prefix, or a missing file's path if a mutation has removed the file."""
    return next((each for each in sorted(folder.iterdir()) if each.name.startswith(start)), folder / f"{start}tsv")


def commanded(*arguments: object) -> None:
    """Runs the command in this process, and raises its errors."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        code = command.main([str(each) for each in arguments])
    if code:
        raise NpformerError(max(err.getvalue().splitlines(), key=len, default=""))


USES: dict[str, Callable[[Path, Draw, Sequence[str]], None]] = {
    each.__name__: each
    for each in (model, stack, sentence, golden, trace, table, training, texts, context, info, pairs)
}
