"""Completion by the Tab key: keys typed into a real bash, and the command's answers for each shell."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from npformer.cli.completion import whole_parser
from npformer.cli.main import COMMANDS, find
from tests.support.cli_runner import ENVIRONMENT, command
from tests.support.slow import slow_after

pytest.importorskip("argcomplete", reason="needs the extra `completion`: argcomplete")
PATH = {**ENVIRONMENT, "PATH": f"{sysconfig.get_path('scripts')}:{ENVIRONMENT['PATH']}"}


def answers(line: str, shell: str = "bash") -> list[str]:
    """Returns the completions that the command offers for a line."""
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": shell, "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line}
    asked |= {"COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    line = f"exec 8>&1 1>/dev/null; exec {sys.executable} -m npformer"
    done = subprocess.run(
        ["bash", "-c", line], env={**ENVIRONMENT, **asked}, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [each.partition("\t")[0].strip() for each in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    slow_after(
        4,
        [
            ("npformer tra", {"trace", "train-translation", "translate"}),
            ("npformer classify --long ", {"error", "truncate", "window"}),
            ("npformer classify -m disti", {"distilbert-sst2"}),
            ("npformer golden suite --c", {"--case"}),
            ("npformer info disti", {"distilbert-sst2"}),
            ("npformer learn hint disti", set()),  # an exercise, not a model
            ("npformer classify --to", {"--top-k"}),
            ("npformer golden sui", {"suite"}),
            ("npformer --print-completion ", {"bash", "zsh", "fish"}),
        ],
    ),
)
def test_commands_options_choices_and_models_are_offered(line: str, expected: set[str]) -> None:
    assert set(answers(line)) == expected


def test_every_command_offers_its_options() -> None:
    for name in COMMANDS:
        parsers = whole_parser([name, ""], COMMANDS, find)._actions[-1].choices
        assert isinstance(parsers, dict)
        assert set(parsers) == set(COMMANDS)
        assert len(parsers[name]._actions) > 1


def test_scripts_for_three_shells() -> None:
    for shell, line in (
        ("bash", "complete -o nospace -o default -o bashdefault -F _python_argcomplete npformer"),
        ("zsh", "compdef _python_argcomplete npformer"),
        ("fish", "complete --command npformer"),
    ):
        done = subprocess.run(command("--print-completion", shell), env=ENVIRONMENT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert line in done.stdout
        if program := shutil.which(shell):
            subprocess.run([program, "-n"], input=done.stdout, text=True, check=True)
    done = subprocess.run(command("--print-completion", "tcsh"), env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--print-completion: expected one of bash, zsh, fish, got 'tcsh'" in done.stderr


def test_tab_in_a_real_bash(tmp_path: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], {**PATH, "PS1": "$ ", "TERM": "dumb"})
    try:
        send(terminal, 'source <(npformer --print-completion bash); echo "re""ady"\n', "ready")
        send(terminal, "npformer classi\t", "npformer classify ")
        send(terminal, "\x15", "")
        send(terminal, "npformer class\t--top\t", "npformer classify --top-k ")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def send(terminal: int, keys: str, expected: str) -> str:
    """Types keys and waits until the screen shows the expected text; returns the output."""
    os.write(terminal, keys.encode())
    said, began = "", time.monotonic()
    while expected not in said:
        assert time.monotonic() - began < 300, said
        if select.select([terminal], [], [], 1)[0]:
            said += re.sub("\x1b\\[[?0-9;]*[a-zA-Z]|\x07", "", os.read(terminal, 4096).decode(errors="replace"))
    return said
