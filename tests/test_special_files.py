"""If a pipe, device, socket, folder or outside link replaces a file, its loader reports an error and never hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.special_files import CASES, KINDS

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_replacing_a_file_with_anything_else_is_an_error_that_names_it(kind: str, tmp_path: Path) -> None:
    """The process is limited to 4 GB and two minutes, so waiting or endless reading fails."""
    command = [sys.executable, "-m", "tests.support.special_files", kind, str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode().splitlines()
        pytest.fail(f"{kind}: hangs at {said[-1:]}")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 2 * len(CASES)
    for (name, follows, needed), error in zip(lines[::2], lines[1::2], strict=True):
        if (kind == "link" and follows) or not needed:
            assert "not a regular file" not in error
            assert "a link out" not in error
        elif "needs sentencepiece" not in error:
            assert name in error
            assert ("a link out of the model folder" if kind == "link" else "not a regular file") in error, error
