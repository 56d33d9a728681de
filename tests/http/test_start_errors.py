"""Errors that end `npformer serve` before it listens: each is one line, and the exit code is 1."""

from __future__ import annotations

import pytest

from tests.support.cli_runner import run_apart


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("./no-such-model",), "./no-such-model: there is no folder of this name"),
        (("./no-such-model", "--workers", 2), "./no-such-model: there is no folder of this name"),
        (("{encoder}", "{encoder}"), "two models are named encoder; rename a folder"),
        (
            ("{encoder}", "--max-texts", 5, "--max-queue", 4),
            "--max-texts: expected at most 4, the size of the queue, got 5; lower --max-texts",
        ),
        (("{encoder}", "--timeout", -1), "--timeout: expected a number from 0 to 1000000"),
        (("{encoder}", "--timeout", 0), "--timeout: expected a number above 0, got 0"),
        (("{encoder}", "--api-key-file", "/no/such/file"), "/no/such/file: cannot be read: No such file or directory"),
        (("{encoder}", "--workers", 2, "--api-key-file", "/dev/null"), "the API key is empty"),
        (("{encoder}", "--api-key-file", "{keys}"), "the API key: expected one line of ASCII characters"),
        (("{encoder}", "--host", "no.such.host.invalid"), "no.such.host.invalid:0: cannot listen: "),
        (("{encoder}", "--port", 70000), "port: expected a whole number from 0 to 65535, got 70000"),
    ],
)
def test_errors_at_the_start_are_one_line(folders, arguments, message, tmp_path):
    (tmp_path / "keys").write_text("one\ntwo\n")
    given = [str(each).format(**folders, keys=tmp_path / "keys") for each in arguments]
    port = () if "--port" in given else ("--port", 0)
    code, _, said = run_apart("serve", *given, *port)
    assert code == 1
    assert said.startswith(f"npformer: {message}")
