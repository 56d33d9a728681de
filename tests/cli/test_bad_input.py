"""The command `npformer` with bad input, closed pipes, signals and terminals: an error is one line, the exit code is
correct, and there is never a traceback or a half-written file."""

import contextlib
import os
import signal
import subprocess

import pytest

from tests.support.cli_runner import ENVIRONMENT, command, heed_ctrl_c, rows, run, run_apart

ASCII = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def test_lines_that_are_not_utf_8_are_named_and_the_rest_answered(models, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"ice\n\xff\xfe\ncream\nab\xc3\n")
    code, output, errors = run("classify", "-m", models["classify"], "--json", "-f", "bad.txt", cwd=tmp_path)
    assert code == 1
    assert errors.splitlines() == ["npformer: bad.txt:2: not UTF-8 (byte 0)", "npformer: bad.txt:4: not UTF-8 (byte 2)"]
    assert [row.get("text") for row in rows(output)] == ["ice", None, "cream", None]
    assert rows(output)[3] == {"error": "bad.txt:4: not UTF-8 (byte 2)"}


def test_an_argument_that_is_not_utf_8_is_named_and_the_rest_answered(models):
    code, output, errors = run("classify", "-m", models["classify"], b"\xff".decode(errors="surrogateescape"), "ice")
    assert code == 1
    assert "argument 1: not UTF-8" in errors
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", "no-such-folder/at/all", "x"), "no-such-folder"),
        (("-m", "distilbert-sst3", "x"), "distilbert-sst2"),
        (("-f", "missing.txt"), "missing.txt: No such file or directory"),
        (("-f", "."), "Is a directory"),
        (("ice", "-f", "missing.txt"), "missing.txt: No such file or directory"),
        (("--stride", "600", "long " * 600), "argument 1: stride: expected 0 to 61 for windows of 62 tokens"),
    ],
)
def test_bad_input_is_exit_code_1(models, arguments, message, tmp_path):
    given = arguments if "-m" in arguments else ("-m", models["classify"], *arguments)
    code, output, errors = run("classify", *given, cwd=tmp_path)
    assert (code, output) == (1, "")
    assert errors.startswith("npformer: ")
    assert message in errors


@pytest.mark.parametrize("command", ["embed", "embed-sparse"])
def test_a_missing_model_is_bad_input(command):
    """These commands name their options after a task's settings, but report a missing model like other commands."""
    code, _, errors = run(command, "-m", "no-such-folder/at/all", "x")
    assert code == 1
    assert errors.startswith("npformer: no-such-folder/at/all: there is no folder of this name")


def test_a_model_of_another_task_is_bad_input(models):
    code, _, errors = run("tag", "-m", models["classify"], "x")
    assert code == 1
    assert "expected a token-classification model" in errors


def test_truncated_texts_are_named(models):
    text = "ice cream " * 60
    code, output, errors = run("classify", "-m", models["classify"], "--json", text, "ice", text)
    assert code == 0
    assert "argument 1: 122 tokens, cut" in errors
    assert "2 texts were truncated" in errors
    assert [row["truncated"] for row in rows(output)] == [True, False, True]
    code, output, errors = run("classify", "-m", models["classify"], "--long", "error", text, "ice")
    assert code == 1
    assert "argument 1: expected at most 64 tokens, got 122" in errors
    assert len(output.splitlines()) == 1
    assert run("classify", "-m", models["classify"], "--long", "window", text)[2] == ""


def test_a_command_that_fails_leaves_its_output_file_alone(models, tmp_path):
    (tmp_path / "v.npy").write_bytes(b"before")
    code, _, errors = run("embed", "-m", models["embed"], "-o", "v.npy", "-f", "missing.txt", cwd=tmp_path)
    assert code == 1
    assert "missing.txt" in errors
    assert (tmp_path / "v.npy").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]
    code, _, errors = run("embed", "-m", models["embed"], "-o", tmp_path / "no" / "v.npy", "ice")
    assert code == 1
    assert "cannot be written" in errors


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device that is always full")
def test_a_full_disk_is_reported_in_one_line(models):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("classify", "-m", models["classify"], "ice"), stdout=full, stderr=-1, env=ENVIRONMENT, timeout=300
        )
    assert done.returncode == 1
    assert done.stderr == b"npformer: output: No space left on device\n"


def test_a_closed_pipe_ends_quietly(models, tmp_path):
    (tmp_path / "many.txt").write_bytes(b"ice cream\n" * 5000)
    process = subprocess.Popen(
        command("classify", "-m", models["classify"], "-f", tmp_path / "many.txt"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    with process:
        assert process.stdout.readline().endswith(b"ice cream\n")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_ends_quietly(models, tmp_path):
    os.mkfifo(tmp_path / "slow")
    process = subprocess.Popen(
        command("classify", "-m", models["classify"], "-f", tmp_path / "slow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        preexec_fn=heed_ctrl_c,
    )
    with open(tmp_path / "slow", "wb"), process:  # `open` returns when the command reads the file
        while process.poll() is None:
            process.send_signal(signal.SIGINT)  # repeated, because Python may miss a signal just before the read
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    assert process.returncode == 128 + signal.SIGINT


@pytest.mark.slow
def test_a_character_that_the_encoding_lacks_is_written_as_its_number(models):
    code, output, _ = run_apart("classify", "-m", models["classify"], "naïve 😀", **ASCII)
    assert code == 0
    assert r"na\xefve \U0001f600" in output
    done = run_apart("classify", "-m", models["classify"], "--json", "naïve", **ASCII)
    assert rows(done[1])[0]["text"] == "naïve"


def test_control_characters_of_a_text_are_not_printed(models):
    _, output, _ = run("classify", "-m", models["classify"], "red \x1b[31m alarm \x07")
    assert "\x1b" not in output
    assert "\x07" not in output


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals that a program can play")
def test_texts_typed_on_a_terminal_are_answered_one_by_one(models):
    user, terminal = os.openpty()
    process = subprocess.Popen(
        command("classify", "-m", models["classify"]),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    with process:
        os.write(user, b"ice\n")
        assert process.stdout.readline().endswith(b"  ice\n")  # answered before the input ends
        os.write(user, b"cream\n\x04")
        assert process.stdout.read().endswith(b"  cream\n")
        assert process.stderr.read() == b"npformer: one text per line; Ctrl-D to finish\n"
    os.close(user)
    os.close(terminal)
    assert process.returncode == 0


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs terminals that a program can play")
@pytest.mark.parametrize("watched", ["stdout", "stderr"])
def test_lines_are_truncated_only_if_stdout_is_a_terminal(watched, models, tmp_path):
    (tmp_path / "texts").write_bytes(b"ice cream " * 30 + b"\n")
    user, terminal = os.openpty()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, watched: terminal}
    done = subprocess.run(
        command("classify", "-m", models["classify"], "-f", tmp_path / "texts"), env=ENVIRONMENT, timeout=300, **streams
    )
    os.close(terminal)
    assert done.returncode == 0
    if watched == "stdout":
        assert os.read(user, 1000).decode().rstrip().endswith("…")
        assert done.stderr == b""
    else:
        assert done.stdout.endswith(b"ice cream ice cream \n")
    os.close(user)
