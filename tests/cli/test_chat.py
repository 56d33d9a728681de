"""`npformer generate --chat`: single messages, lines from a pipe, and a conversation on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import npformer
from npformer.cli.chat import converse
from npformer.common.errors import NpformerError
from tests.support import chatters
from tests.support.cli_runner import ENVIRONMENT, command, heed_ctrl_c, run

pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
pytestmark = pytest.mark.extra
GREEDY = ("--greedy", "--max-new-tokens", "9")


@pytest.fixture(scope="module", autouse=True)
def rendering_once() -> Iterator[None]:
    with chatters.rendering_once():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatters.folder(tmp_path_factory.mktemp("m") / "m")


@pytest.fixture
def task(folder: Path) -> Any:
    return npformer.pipeline("text-generation", folder, chat=True, do_sample=False, max_new_tokens=9, eos_token_id=[])


def printed(text: str) -> str:
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


@pytest.mark.slow
def test_each_line_is_a_separate_message(folder: Path) -> None:
    """Each line from a pipe is a separate message, as with other commands."""
    task = npformer.pipeline("text-generation", folder, chat=True, do_sample=False, max_new_tokens=9)
    answers = [printed(task(text)[0]["generated_text"]) for text in ("Hi", "there")]
    code, out, _ = run("generate", "-m", folder, "--chat", *GREEDY, stdin=b"Hi\nthere\n")
    assert (code, out) == (0, "".join(f"{each}\n" for each in answers))
    code, out, _ = run("generate", "-m", folder, "--chat", "--system", "Be brief.", "--json", *GREEDY, "Hi")
    assert json.loads(out)["generated_texts"] == [task("Hi", system="Be brief.")[0]["generated_text"]]
    code, _, error = run("generate", "-m", folder, "--chat", *GREEDY, "a" * 500)
    assert code == 1
    assert "argument 1: the conversation has 5" in error
    code, _, error = run("generate", "-m", folder, "--system", "Be brief.", *GREEDY, "Hi")
    assert (code, "system: needs chat=True (--chat)" in error) == (1, True)


def typed(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """Returns a substitute for `input` that returns these lines, and raises exceptions among them, as Ctrl-C does."""
    left = list(lines)

    def read(prompt: str) -> str:
        line = left.pop(0) if left else EOFError
        if isinstance(line, str):
            return line
        raise line

    return read


def test_a_conversation(task: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("builtins.input", typed("Hi", " ", KeyboardInterrupt, "Go on", "a" * 500))
    assert converse(task) == 0
    out, error = capsys.readouterr()
    first = task("Hi")[0]["generated_text"]
    asked = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": first}]
    [second] = task([*asked, {"role": "user", "content": "Go on"}])
    assert out == printed(f"{first}\n\n{second['generated_text']}\n\n")
    assert error.startswith("npformer: Ctrl-C ends an answer, Ctrl-D the conversation\n")
    assert error.count("the answer was cut off after 9 tokens; --max-new-tokens allows more") == 2
    assert "exceed the model's 512; start a new conversation" in error
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"num_return_sequences": 2}])
def test_a_conversation_refuses_beams_and_several_answers(folder: Path, options: dict[str, int]) -> None:
    task = npformer.pipeline("text-generation", folder, chat=True, **options)
    with pytest.raises(NpformerError, match=r"--chat: a conversation has one answer, .*; leave out -b and --best"):
        converse(task)


def test_ctrl_c_ends_an_answer_and_the_model_s_length_is_named(
    task: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, pieces = task("Hi")[0]["generated_text"], []
    write = type(task).prepare

    def interrupted(self: Any, *given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return write(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.input", typed("Hi"))
        patch.setattr(type(task), "prepare", interrupted)
        assert converse(task) == 0
    out, error = capsys.readouterr()
    pieces = out.split("\n")
    assert len(pieces[0]) < len(whole)
    assert "cut off after" not in error
    monkeypatch.setattr("builtins.input", typed("a" * 440))
    assert converse(npformer.pipeline("text-generation", task.model, chat=True, do_sample=False, eos_token_id=[])) == 0
    assert "the conversation has reached the model's limit of 512 tokens" in capsys.readouterr().err


def test_ctrl_c_between_a_message_and_its_answer_ends_the_answer(
    task: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(str):
        def strip(self, *_: Any) -> str:  # called between the return of `input` and the answer
            signal.raise_signal(signal.SIGINT)
            return super().strip()

    monkeypatch.setattr("builtins.input", typed(Interrupting("Hi")))
    assert converse(task) == 0
    assert capsys.readouterr().out == "\n\n"


@pytest.mark.slow
def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C on the terminal ends the answer, which would take minutes, and the prompt appears again."""
    folder = chatters.folder(tmp_path / "m", max_length=100_000)
    given = command("generate", "-m", folder, "--chat", "--seed", "1", "--max-new-tokens", "90000")
    process, terminal = pty.fork()
    if process == 0:
        heed_ctrl_c()
        os.execvpe(given[0], given, ENVIRONMENT)
    screen = b""

    def until(text: bytes) -> None:
        nonlocal screen
        start, end = len(screen), time.monotonic() + 300
        while text not in screen[start:] and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                screen += os.read(terminal, 4096)
        assert text in screen[start:], screen

    until(b"> ")
    os.write(terminal, b"Hi\n")
    until(b"Hi\r\n")
    os.write(terminal, b"\x03")
    until(b"\n> ")
    assert b"cut off after" not in screen
    os.write(terminal, b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)
