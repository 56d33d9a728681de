"""The command as a process, started by its script and by `python -m`, with closed, full and broken streams, encodings
with few characters, and Ctrl-C during any import. The exit code is correct, and neither a traceback nor a message of
Python itself is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest

from npformer.checkpoint import load_folder
from tests.support.cli_runner import ENVIRONMENT

SCRIPT = [str(Path(sysconfig.get_path("scripts")) / "npformer")]
MODULE = [sys.executable, "-m", "npformer"]
WAYS = {"script": SCRIPT, "module": MODULE}
TEXT = "I love ice cream"
#: Commands that print. Only `classify --help` is started in every way, because the others would take minutes.
PRINTING = {
    "overview": ["--help"],
    "version": ["--version"],
    "help": ["classify", "--help"],
    "classify": ["classify", TEXT],
    "json": ["classify", "--json", TEXT],
    "trace": ["trace", TEXT],
    "view": ["view", TEXT],
    "info": ["info"],
    "golden": ["golden", "record", "--tiny", "bert", "-o", "tiny"],
}
UNBUFFERED = ("", "1")
STARTED = [
    *product(("help",), WAYS, UNBUFFERED), ("classify", "script", ""), *zip(PRINTING, cycle(WAYS), cycle("1"), strict=False)
]  # fmt: skip


def shell(
    line: str,
    way: list[str],
    arguments: list[str],
    models: dict[str, Path],
    place: Path,
    open: Sequence[int] = (),
    **environment: str,
):
    """Runs `line` in a shell with these descriptors open. In `line`, "$@" is the command with its arguments."""
    model = ["-m", str(models["classify"])] if arguments[0] in ("classify", "trace", "view") else []
    done = subprocess.run(
        ["bash", "-c", line, "bash", *way, *arguments, *model],
        capture_output=True, cwd=place, env={**ENVIRONMENT, **environment}, timeout=300, stdin=subprocess.DEVNULL,
        pass_fds=open,
    )  # fmt: skip
    said = done.stderr.decode(errors="replace")
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    return done.returncode, done.stdout.decode(errors="replace"), said


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "started", "unbuffered"), sorted(set(STARTED)))
def test_a_full_or_closed_output_is_reported_and_a_broken_pipe_is_not(name, started, unbuffered, models, tmp_path):
    """A full or closed output is an error with exit code 1; a broken pipe gives SIGPIPE's code and no message."""
    way, arguments, given = WAYS[started], PRINTING[name], {"PYTHONUNBUFFERED": unbuffered}
    full = shell('"$@" > /dev/full', way, arguments, models, tmp_path, **given)
    assert full == (1, "", "npformer: output: No space left on device\n")
    closed = shell('rm -rf tiny; "$@" >&-', way, arguments, models, tmp_path, **given)
    assert closed == (1, "", "npformer: output: Bad file descriptor\n")
    reads, gone = os.pipe()
    os.close(reads)
    broken = shell(f'rm -rf tiny; "$@" >&{gone}; exit $?', way, arguments, models, tmp_path, open=(gone,), **given)
    os.close(gone)
    assert broken == (128 + signal.SIGPIPE, "", "")


def test_commands_that_write_a_file_need_no_standard_output(models, tmp_path):
    """With closed standard streams, output files are complete, and no file gets a standard stream's descriptor."""
    arguments = ["embed", "-m", str(models["embed"]), TEXT, "-o", "v.npy"]
    assert shell('"$@" <&- >&- 2>&-', SCRIPT, arguments, models, tmp_path) == (0, "", "")
    assert np.load(tmp_path / "v.npy").shape == (1, 32)
    arguments = ["convert", str(models["classify"]), "own"]
    assert shell('"$@" <&- 2>&-', MODULE, arguments, models, tmp_path)[0] == 0
    load_folder(tmp_path / "own")


@pytest.mark.parametrize(
    ("errors", "way"), [("2>&-", SCRIPT), ("2> /dev/full", MODULE), ("2> >(exec 0<&-; sleep 1)", SCRIPT)]
)
def test_messages_that_cannot_be_written_are_lost(errors, way, models, tmp_path):
    """Without a usable stderr, messages are lost, but answers and exit codes do not change."""
    code, output, _ = shell(f'"$@" {errors}', way, ["classify", TEXT], models, tmp_path)
    assert (code, output[-17:]) == (0, f"{TEXT}\n")
    for arguments, expected in (
        (["classify", "--file", "missing"], 1),
        *([(["clasify"], 2), (["view", "a", "--kind", "stages", "--head", "1"], 1)] if errors == "2>&-" else []),
    ):
        assert shell(f'"$@" {errors}', way, arguments, models, tmp_path) == (expected, "", ""), arguments


def test_a_closed_input_is_an_error_only_if_it_is_read(models, tmp_path):
    """stdin is not needed if texts are given; otherwise the error names stdin."""
    (tmp_path / "texts").write_text("ice\n")
    for way, arguments in ((SCRIPT, ["classify", "ice"]), (MODULE, ["classify", "-f", "texts"])):
        code, output, said = shell('"$@" <&-', way, arguments, models, tmp_path)
        assert (code, said) == (0, "")
        assert output.endswith("  ice\n")
    closed = shell('"$@" <&-', SCRIPT, ["classify"], models, tmp_path)
    assert closed == (1, "", "npformer: stdin: Bad file descriptor\n")


ANSWERING = [
    ["classify", "naïve 我 😀"],
    ["classify", "ice", "--pair", "naïve 我"],
    ["trace", "naïve 我 😀", "--layer", "0"],
    ["trace", "naïve", "--pair", "我", "--json"],
    ["view", "naïve 我 😀", "--kind", "stages"],
    ["view", "naïve 我", "--kind", "attribution"],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "environment", "answering"),
    [
        (SCRIPT, {"LC_ALL": "C", "PYTHONUTF8": ""}, ANSWERING[::2]),
        (MODULE, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ANSWERING[1::2]),
        (SCRIPT, {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, ANSWERING[1::2]),
        (MODULE, {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}, ANSWERING[::2]),
    ],
)
def test_an_encoding_with_few_characters_changes_no_text_that_is_read(environment, way, answering, models, tmp_path):
    """Text is read as UTF-8 in any locale, and characters that the locale lacks are written as escapes. Each command
    that loads a model runs with two of the four encodings."""
    for arguments in answering:
        code, output, said = shell('"$@"', way, arguments, models, tmp_path, **environment)
        assert (code, said) == (0, ""), arguments
        assert output
    for arguments, expected in ((["classify", "-f", "naïve 我"], 1), (["classify", "--naïve"], 2), (["naïve"], 2)):
        code, output, said = shell('"$@"', way, arguments, models, tmp_path, **environment)
        assert (code, output) == (expected, ""), arguments
        assert "na" in said
    assert shell('"$@"', way, ["--help"], models, tmp_path, **environment)[0] == 0


def test_exit_hooks_run_before_the_process_ends(tmp_path):
    """Exit hooks run in order, after all output is written, and the exit code is the command's."""
    for argument, code in (("--version", 0), ("nothing", 2)):
        program = f"""
import atexit, sys
from npformer.cli.process import ended, set_up
set_up()
atexit.register(print, "second")
atexit.register(print, "first")
from npformer.cli.main import main
sys.exit(ended(main([{argument!r}])))
"""
        process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
        assert process.returncode == code
        assert process.stdout.splitlines()[-2:] == ["first", "second"]


def test_exit_functions_registered_earlier_still_run(tmp_path):
    """Functions that were registered before the command begins still run; coverage registers one when Python starts."""
    (tmp_path / "sitecustomize.py").write_text("import atexit; atexit.register(print, 'before')")
    paths = f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"
    for arguments, code in ((["--version"], 0), (["nothing"], 2)):
        process = subprocess.run(
            [*MODULE, *arguments], capture_output=True, text=True, env={**ENVIRONMENT, "PYTHONPATH": paths}
        )
        assert process.returncode == code
        assert process.stdout.splitlines()[-1:] == ["before"]


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------

#: Interrupts the process at the import of a module or at the process's end, or stops it at the import.
INTERRUPTING = """
import atexit, os, signal, sys
where, number = os.environ["INTERRUPT_AT"], getattr(signal, os.environ.get("INTERRUPT_BY", "SIGINT"))
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == where:
            os.kill(os.getpid(), number)
        if name == "argparse" and where == "exit":
            atexit.register(signal.raise_signal, signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
COMMANDS = {
    "classify": (SCRIPT, ["classify", TEXT]),
    "trace": (MODULE, ["trace", TEXT]),
    "embed": (SCRIPT, ["embed", TEXT, "-o", "v.npy"]),
}
#: NumPy's compiled part imports `datetime`, and turns any error there into an ImportError.
PLACES = ("argparse", "numpy", "datetime", "npformer.engine.taps", "npformer.model", "tokenizers", "exit")


def started(way: list[str], arguments: list[str], models: dict[str, Path], place: Path, **more):
    """Starts the command in `place`, with a module that interrupts it."""
    (place / "sitecustomize.py").write_text(INTERRUPTING)
    model = models["embed" if arguments[0] == "embed" else "classify"]
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{place}:{ENVIRONMENT['PYTHONPATH']}", **more.pop("environment")}
    return subprocess.Popen(
        [*way, *arguments, "-m", str(model)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        cwd=place, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("place", PLACES)
def test_ctrl_c_while_a_module_is_imported_ends_quietly(name, place, models, tmp_path):
    """Ctrl-C during an import or at the end of the process prints nothing and leaves no half-written output."""
    process = started(*COMMANDS[name], models, tmp_path, environment={"INTERRUPT_AT": place})
    output, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (128 + signal.SIGINT, b"")
    assert bool(output) == (place == "exit" and name != "embed")
    assert {path.name for path in tmp_path.iterdir()} <= {"sitecustomize.py", "__pycache__", "v.npy"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [(name, (0, *range(i, 11, 3))) for i, name in enumerate(COMMANDS, 1)])
def test_ctrl_c_at_any_time_ends_quietly(name, steps, models, tmp_path):
    """Interrupts each command after set-up and at several tenths of its run time; together, the cases cover all tenths.

    The process stops itself after set-up, so the first interrupt is never too late.
    """
    taken = None
    codes = []
    for step in (None, *steps):
        environment = {"INTERRUPT_AT": "argparse", "INTERRUPT_BY": "SIGSTOP"}
        process = started(*COMMANDS[name], models, tmp_path, environment=environment)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if step == 0:
            process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        process.send_signal(signal.SIGCONT)
        if step:
            time.sleep(taken * step / 10)
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
        assert said == b""
        if step is None:
            taken = time.monotonic() - begun
            assert process.returncode == 0
        else:
            codes.append(process.returncode)
    assert set(codes) <= {0, 128 + signal.SIGINT, -signal.SIGINT}
    assert codes[0] == 128 + signal.SIGINT


def test_an_interrupt_that_compiled_code_prints_is_not_shown():
    """If Ctrl-C interrupts an import of NumPy, `import_array` calls PyErr_Print, which calls `sys.excepthook`."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from npformer.cli.process import set_up; set_up()\n"
        "sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)\n"
        "sys.excepthook(ValueError, ValueError('shown'), None)\n"
        "import npformer.cli.process as process; process._interrupted = True\n"
        "sys.excepthook(ImportError, ImportError('for an interrupt'), None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "ValueError: shown\n")


def test_a_background_job_ignores_ctrl_c(models, tmp_path):
    """A shell starts background jobs with SIGINT ignored, and the command must not change that."""
    code, output, said = shell('trap "" INT; "$@"', SCRIPT, ["classify", TEXT], models, tmp_path)
    assert (code, said) == (0, "")
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    environment = {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}", "INTERRUPT_AT": "numpy"}
    assert shell('trap "" INT; "$@"', SCRIPT, ["classify", TEXT], models, tmp_path, **environment) == (0, output, "")
