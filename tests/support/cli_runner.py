"""Runs the `npformer` command on tiny models: `run` in this process, `run_apart` in a new one, as users do."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import warnings
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from npformer.cli.main import main
from tests.support import tiny

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}
NLI = ("contradiction", "neutral", "entailment")


def make_models(path: Path) -> dict[str, Path]:
    """Writes a folder with a tiny model for each command, and returns the folders by command."""
    return {
        "classify": tiny.folder(path / "classify", "distilbert", "sequence-classification"),
        "zero-shot": tiny.folder(path / "zero-shot", "bert", "sequence-classification", labels=NLI),
        "tag": tiny.folder(path / "tag", "bert", "token-classification", seed=4),
        "answer": tiny.folder(path / "answer", "bert", "question-answering"),
        "fill": tiny.folder(path / "fill", "bert", "masked-lm"),
        "embed": tiny.folder(path / "embed", "bert", "base"),
        "rerank": tiny.folder(path / "rerank", "bert", "sequence-classification", labels=("SCORE",), seed=3),
    }


def heed_ctrl_c() -> None:
    """Lets Ctrl-C end a new process, which ignores it if the tests run as a background job. For `preexec_fn`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "npformer", *map(str, arguments)]


def run(*arguments: object, stdin: bytes = b"", cwd: Path | None = None) -> tuple[int, str, str]:
    """Returns the exit code, stdout and stderr of a command in this process. Raises the command's own exceptions."""
    streams = {name: io.TextIOWrapper(io.BytesIO(given), "utf-8", newline="\n") for name, given in
               (("stdin", stdin), ("stdout", b""), ("stderr", b""))}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), chdir(cwd or "."):
        warnings.resetwarnings()
        warnings.simplefilter("ignore", ResourceWarning)
        patch.setenv("COLUMNS", "80")
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        code = main([os.fsdecode(each) if isinstance(each, bytes) else str(each) for each in arguments])
        for name in ("stdout", "stderr"):
            streams[name].flush()
    out, err = (streams[name].buffer.getvalue().decode() for name in ("stdout", "stderr"))  # type: ignore[attr-defined]
    return code, out, err


def run_apart(
    *arguments: object, stdin: bytes = b"", cwd: Path | None = None, **environment: str
) -> tuple[int, str, str]:
    """Runs a command in a new process, with additional environment variables."""
    done = subprocess.run(
        command(*arguments), input=stdin, capture_output=True, cwd=cwd, env={**ENVIRONMENT, **environment}, timeout=300,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def rows(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]
