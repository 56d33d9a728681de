"""Runs loaders after one of their files was replaced with a pipe, device, socket, folder or link.
`python -m tests.support.special_files KIND FOLDER` writes two lines of JSON for each file: [name, whether a link is
followed, whether loading needs the file], and the error.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

import npformer
from npformer import golden, tasks
from npformer.checkpoint import convert
from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.cli import main as cli
from npformer.common.errors import NpformerError
from npformer.interpret.traces import Trace, trace
from npformer.training import Example, HeadLoss, Recipe, Trainable, Trainer, read_labelled
from npformer.training.data import read_pairs
from npformer.training.start import companions, write_model
from tests.golden.make_tokenizer import CASES as TOKENIZERS
from tests.golden.make_tokenizer import write_folder
from tests.support import seq2seq_models, tiny

TEXT = "it was so hot"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zero(path: Path) -> None:
    """Creates a device, or a link to /dev/zero if creating devices is not allowed."""
    try:
        os.mknod(path, 0o20666, os.stat("/dev/zero").st_rdev)
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    """Binds a socket by a relative path, because a socket's path may have at most 108 bytes."""
    before = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(before)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.symlink_to(elsewhere(path))


def elsewhere(path: Path) -> Path:
    return path.parent / ".." / f"elsewhere-{path.name}"


KINDS = {"fifo": fifo, "zero": zero, "socket": unix_socket, "folder": folder, "link": link}


@dataclass
class Case:
    """A file in a folder, with functions that write the folder and read the file."""

    name: str
    make: Callable[[Path], Any]
    use: Callable[[Path], Any]
    follows: bool = False  # a link may lead anywhere, because the user named the file or owns the run's folder


def classify(path: Path) -> None:
    tasks.pipeline("text-classification", str(path))(TEXT)


def embed(path: Path) -> None:
    tasks.pipeline("sentence-embedding", str(path))(TEXT)


def translate(path: Path) -> None:
    tasks.pipeline("translation", str(path))("ab")


def encoder(path: Path, own: bool = False) -> None:
    tiny.folder(path, "bert", own=own)


def own(path: Path) -> None:
    encoder(path, own=True)


def without_weights(path: Path) -> None:
    encoder(path)
    (path / "model.safetensors").unlink()


def sharded(kind: str, index: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        without_weights(path)
        (path / index).write_text(json.dumps({"weight_map": {"a": f"model-00001-of-00001.{kind}"}}))

    return make


def old_tokenizer(path: Path) -> None:
    encoder(path)
    (path / "tokenizer.json").unlink()
    tiny.vocabulary_folder(path)


def older(case: str, model_type: str) -> Callable[[Path], None]:
    """Returns a function that writes a tiny model with the tokenizer files of a case of `make_tokenizer.py`."""

    def make(path: Path) -> None:
        model = tiny.folder(path / "model", model_type, vocab_size=300)
        (model / "tokenizer.json").unlink()
        write_folder(path / "tokenizer", TOKENIZERS[case])
        for each in (*model.iterdir(), *(path / "tokenizer").iterdir()):
            if not (path / each.name).exists():
                each.rename(path / each.name)

    return make


def sentences(path: Path) -> None:
    tiny.folder(path, "bert", "base")
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": each} for kind, each in kinds.items()]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')


def marian(path: Path) -> None:
    shutil.copytree(seq2seq_models.MARIAN_FILES, path)


def marian_of_two(path: Path) -> None:
    marian(path)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "separate_vocabs": True}))


def train(path: Path) -> None:
    model = tiny.model(seed=1)
    weights = Trainable(model.weights, model.config)
    examples = [Example(npformer.Text(np.array([1, 5, 2])), target=0)]
    trainer = Trainer(HeadLoss(model.config), weights, Recipe(epochs=1, average=2, average_every=1), path)
    trainer.train(examples, lambda epoch: {"accuracy": 1.0})
    trainer.choose(lambda epoch: {"accuracy": 0.0})


def write(path: Path) -> None:
    path.mkdir(exist_ok=True)
    model = tiny.model("bert")
    write_model(path, {"tokenizer.json": b"{}"}, model.config, model.weights)


def golden_file(path: Path) -> None:
    golden.tiny(path, "bert")
    save_arrays(path / "theirs.safetensors", {"a": np.zeros(3)}, {})
    np.savez(path / "theirs.npz", a=np.zeros(3))
    (path / "names.json").write_text("{}")
    trace(tiny.model("bert"), TEXT).save(path / "trace.safetensors")


def command(*arguments: object) -> None:
    said = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(said):
        code = cli.main([str(each) for each in arguments])
    if code == 1:
        raise NpformerError(said.getvalue())


def data(path: Path) -> None:
    path.mkdir()
    (path / "train.tsv").write_text("label\ttext\nwarm\tso hot\n")
    (path / "train.en").write_text("so hot\n")


def show(path: Path) -> None:
    """Runs `npformer info`, which ignores a card that is not a regular file."""
    command("info", path)


CASES = [
    *(Case(name, encoder, classify) for name in ("config.json", "model.safetensors", "tokenizer.json")),
    Case("tokenizer_config.json", encoder, classify),
    Case("npformer.safetensors", own, classify),
    *(Case(name, without_weights, classify) for name in ("pytorch_model.bin", "pytorch_model.bin.index.json")),
    Case("model.safetensors.index.json", without_weights, classify),
    Case("model-00001-of-00001.safetensors", sharded("safetensors", "model.safetensors.index.json"), classify),
    Case("model-00001-of-00001.bin", sharded("bin", "pytorch_model.bin.index.json"), classify),
    *(Case(name, old_tokenizer, classify) for name in ("vocab.txt", "special_tokens_map.json", "added_tokens.json")),
    *(Case(name, older("merges", "roberta"), classify) for name in ("vocab.json", "merges.txt")),
    Case("sentencepiece.bpe.model", older("XLM-RoBERTa's pieces", "xlm-roberta"), classify),
    *(Case(name, sentences, embed) for name in ("modules.json", "sentence_bert_config.json")),
    *(Case(name, sentences, embed) for name in ("config_sentence_transformers.json", "1_Pooling/config.json")),
    *(Case(name, marian, translate) for name in ("vocab.json", "source.spm", "target.spm")),
    Case("target_vocab.json", marian_of_two, translate),
    Case("generation_config.json", seq2seq_models.folder_of_letters, translate),
    Case("tokenizer.json", seq2seq_models.folder_of_letters, translate),
    Case("target_tokenizer.json", seq2seq_models.folder_of_letters, translate),
    Case("vocab.txt", encoder, lambda path: convert(path, path / "converted")),
    Case("vocab.txt", encoder, lambda path: companions(path, tiny.config("bert"))),
    Case("1_Pooling/config.json", sentences, lambda path: convert(path, path / "converted")),
    Case("README.md", encoder, show),
    *(Case(name, train, train, True) for name in ("last.safetensors", "best.safetensors", "step-1.safetensors")),
    *(Case(name, write, write, True) for name in ("npformer.safetensors", "tokenizer.json", "config.json")),
    Case("golden.safetensors", golden_file, lambda path: golden.load(path / "golden.safetensors"), True),
    Case("trace.safetensors", golden_file, lambda path: Trace.load(path / "trace.safetensors"), True),
    Case("theirs.safetensors", golden_file, lambda path: load_arrays(path / "theirs.safetensors"), True),
    Case("theirs.npz", golden_file, lambda path: load_arrays(path / "theirs.npz"), True),
    Case(
        "names.json",
        golden_file,
        lambda path: command(
            "golden", "compare", path / "golden.safetensors", path / "theirs.npz", "--names", path / "names.json"
        ),
        True,
    ),
    Case("train.tsv", data, lambda path: read_labelled(path / "train.tsv"), True),
    Case("train.en", data, lambda path: read_pairs(path / "train.en", path / "train.en"), True),
]


def main(kind: str, place: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    for number, case in enumerate(CASES):
        path = place / str(number) / case.name
        case.make(place / str(number))
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            path.rename(elsewhere(path))
        elif kind == "link":
            elsewhere(path).write_text("{}")
        KINDS[kind](path)
        print(json.dumps([case.name, case.follows, case.use is not show]), flush=True)
        try:
            case.use(place / str(number))
            said = ""
        except NpformerError as error:
            said = str(error)
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
