"""Runs a module of the tests in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_module(name: str, *arguments: str, **environment: str) -> str:
    """Returns the output of `python -m name`, which must succeed in five minutes and write nothing to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **environment}, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout
