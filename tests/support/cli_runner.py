"""Running the command `npformer` as users do, in a process of its own, on tiny models: for test_cli*.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import tiny

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}
NLI = ("contradiction", "neutral", "entailment")


def make_models(path: Path) -> dict[str, Path]:
    """A folder of a tiny model for each command."""
    return {
        "classify": tiny.folder(path / "classify", "distilbert", "sequence-classification"),
        "zero-shot": tiny.folder(path / "zero-shot", "bert", "sequence-classification", labels=NLI),
        "tag": tiny.folder(path / "tag", "bert", "token-classification", seed=4),
        "answer": tiny.folder(path / "answer", "bert", "question-answering"),
        "fill": tiny.folder(path / "fill", "bert", "masked-lm"),
        "embed": tiny.folder(path / "embed", "bert", "base"),
        "rerank": tiny.folder(path / "rerank", "bert", "sequence-classification", labels=("SCORE",), seed=3),
    }


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "npformer", *map(str, arguments)]


def run(*arguments: object, stdin: bytes = b"", cwd: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """The exit code, what came on stdout and what on stderr, where no traceback may be."""
    environment = {**ENVIRONMENT, **environment}
    done = subprocess.run(command(*arguments), input=stdin, capture_output=True, cwd=cwd, env=environment, timeout=60)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def rows(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]
