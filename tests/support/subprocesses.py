"""Running a module of the tests in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_module(name: str, *arguments: str, **environment: str) -> str:
    """What `python -m name` prints; it must succeed within minutes, and print no error."""
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **environment}, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout
