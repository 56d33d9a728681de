"""`npformer explore`: its address, Ctrl-C, and its errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from npformer import Pair, load, view
from npformer.cli.main import main
from tests.support import tiny
from tests.support.cli_runner import command
from tests.support.explorer_client import Client, state
from tests.support.service import Server

STARTED = r"(http://127\.0\.0\.1:\d+/\S+/)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("models") / "model", "bert")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_serves_and_ends_by_a_signal(number: signal.Signals, folder: Path) -> None:
    started = command("explore", "I love ice cream", "-m", folder, "--no-browser")
    with Server(program=started, started=STARTED) as server:
        with urllib.request.urlopen(server.url) as reply:
            assert b"I love ice cream" in reply.read()
        server.process.send_signal(number)
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log


def test_the_browser_opens_the_address(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("npformer.view.explorer.session.Explorer.wait", lambda explorer: None)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["explore", "-m", str(folder), "-m", str(folder)]) == 0
    signal.signal(signal.SIGTERM, before)
    assert opened == [capsys.readouterr().out.strip()]


def test_what_the_page_asks_for_first_is_computed_while_the_browser_loads_it(folder: Path) -> None:
    with view.explore(load(folder), Pair("I love", "ice cream")) as explorer:
        explorer.prepare()
        parts = explorer._server.parts
        kept = [name for _, name in parts._kept]
        assert kept == ["answer", "heads"]
        client = Client(explorer)
        usual = {id(part) for part in parts._kept.values()}
        assert client.parts(state(["I love", "ice cream"]), "answer", "heads")["answer"]["answer"]
        assert {id(part) for part in parts._kept.values()} == usual  # the page's request computes nothing new


def test_the_first_answer_imports_no_other_families(folder: Path) -> None:
    """Importing all families would take a quarter of the time from the command to a usable page."""
    program = (
        "import sys, npformer\n"
        f"with npformer.view.explore(npformer.load({str(folder)!r}), 'I love ice cream') as explorer:\n"
        "    explorer.prepare()\n"
        "    assert explorer._server.parts._kept\n"
        "print([name for name in sys.modules if name.startswith('npformer.families.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "npformer.families.bert'" in done.stdout
    assert "npformer.families.bloom" not in done.stdout
    assert "npformer.families.deberta" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pair", "b"), "--pair: expected TEXT, the first text of the pair"),
        (("a", "--port", "70000"), "port: expected a number from 0 to 65535, got 70000"),
        (("a", "-m", "/nowhere"), "/nowhere"),
    ],
)
def test_wrong_arguments_are_errors_of_one_line(arguments: tuple[str, ...], message: str, folder: Path, capsys) -> None:
    given = arguments if "-m" in arguments else (*arguments, "-m", str(folder))
    assert main(["explore", *given, "--no-browser"]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
