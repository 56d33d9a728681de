"""Every code block of the pages, and every example of the help texts, runs as it stands, from another folder.

A page's blocks run in order: python in one process and one namespace, console by bash. Blocks marked `text` are what a
program prints, or commands that need the network, an hour or a file that does not come with npformer: these do not run.
Models that an example names by their id on the hub are tiny ones of the same family and head, from a hub on loopback.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import hub_server
import numpy as np
import pytest
import seq2seq_models
import tiny

import npformer
from npformer.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "examples/README.md", "npformer/golden/FORMAT.md", "tests/benchmarks/README.md")
HOME = "https://github.com/npformer/npformer/blob/main/"
PICTURES = "https://raw.githubusercontent.com/npformer/npformer/main/"
RUN = ("python", "console")
SHOWN = ("text", "json", "rust", "c")  # Rust and C are compiled and run by test_golden_format.py

#: What the hub serves: id -> family, head and settings of a tiny model.
MODELS = {
    "distilbert/distilbert-base-uncased": ("distilbert", "masked-lm", {}),
    "distilbert/distilbert-base-cased-distilled-squad": ("distilbert", "question-answering", {}),
    "dslim/bert-base-NER": ("bert", "token-classification", {}),
    "sentence-transformers/all-MiniLM-L6-v2": ("bert", "base", {}),
    "typeform/distilbert-base-uncased-mnli": (
        "distilbert",
        "sequence-classification",
        {"labels": ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")},
    ),
}
TRANSLATORS = ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-en-ROMANCE")
TEXTS = ("I love ice cream", "not my music")
ROWS = "label\ttext\n" + "POSITIVE\tI love ice cream\nNEGATIVE\tno\n" * 4
#: The files of their own that the help texts' examples read.
FILES = {
    "reviews.txt": "\n".join(TEXTS),
    "reviews.tsv": "".join(f"{number}\t{text}\n" for number, text in enumerate(TEXTS)),
    "sentences.txt": "\n".join(TEXTS),
    "report.txt": "I live in Paris.",
    "questions.txt": "Where do I live?\nWho am I?",
    "letter.txt": "dogs\nnews",
    "names.json": '{"answer": "logits"}',
    **dict.fromkeys(("train.tsv", "dev.tsv", "test.tsv"), ROWS),
    **dict.fromkeys(("train.en", "dev.en", "test.en"), "a dog\nthe news\n" * 4),
    **dict.fromkeys(("train.de", "dev.de", "test.de"), "ein Hund\nNeues\n" * 4),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """That of a user: npformer and python on PATH, a hub, an empty cache, a browser that shows nothing."""
    with hub_server.Hub() as hub:
        for number, (name, (family, head, settings)) in enumerate(MODELS.items()):
            hub.add(name, tiny.folder(tmp_path_factory.mktemp(f"model{number}"), family, head, **settings))
        for name in TRANSLATORS:
            hub.add(name, seq2seq_models.folder_of_letters(tmp_path_factory.mktemp("translator")))
        given = hub_server.environment(hub, tmp_path_factory.mktemp("home"))
        del given["PYTHONPATH"]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        yield given | {"PATH": path, "BROWSER": "true", "PYTHONUTF8": "1"}


def run(command: list[str], cwd: Path, env: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr


def bash(script: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", script]


# --- help texts ------------------------------------------------------------------------------------------------------


def examples(command: str) -> list[str]:
    """The commands under `example:` or `examples:` at the end of a help text; a backslash continues one."""
    epilog = import_module(f"npformer.cli.{COMMANDS[command][0]}").EPILOG
    indented = epilog.partition("example")[2].partition(":\n")[2].partition("\n\n")[0]
    return [re.sub(r"\s*\\\n\s*", " ", line).strip() for line in re.split(r"(?<!\\)\n", indented)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_a_help_text_run(command, environment, tmp_path):
    """In order, in one folder with the files they name, each ending with exit code 0; evaluate's BLEU is an extra."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    logits = [npformer.trace(npformer.load("distilbert-sst2"), text)["logits"] for text in ("I love ice cream", "no")]
    np.savez(tmp_path / "mine.npz", answer=np.stack(logits))
    found = examples(command)
    assert found
    for example in found:
        assert re.search(rf"\bnpformer {command}\b", example) or command in ("finetune", "train-translation"), example
        if "--reference" in example and not importlib.util.find_spec("sacrebleu"):
            continue
        run(bash(example), tmp_path, environment)
    wrote = {path.name for path in tmp_path.iterdir()}
    assert {name for name in re.findall(r"(?:-o|>) (\S+)", " ".join(found))} <= wrote
