"""examples/port_in_c: the port passes its cases, each planted mistake is named, and its page is correct.

These tests are skipped without a C compiler; `.ci/run` installs one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npformer import golden
from tests.test_documentation import blocks, shape

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "port_in_c"
CASES = ["distilbert-*"]
#: Macro that plants a mistake -> the mistake's name, the first stage that shows it, and the cases that do not show it.
PLANTED = {
    "QUICK_GELU": ("quick GELU", "layers.0.ffn.activation", {"gelu-tanh", "relu", "silu"}),
    "UNBIASED_VARIANCE": ("unbiased variance", "embeddings.norm", set()),
    "INTERLEAVED_HEADS": ("heads interleaved", "layers.0.attention.query_heads", set()),
}

pytestmark = [
    pytest.mark.numbers,
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("cc"), reason="the port was NOT compiled: there is no cc on this machine"),
]


def compiled(folder: Path, *options: str) -> str:
    warnings = ("-std=c11", "-Wall", "-Wextra", "-Werror")
    program = str(folder / "port")
    subprocess.run(["cc", "-O2", *warnings, *options, "-o", program, FOLDER / "port.c", "-lm"], check=True, timeout=300)
    return program


def test_the_port_passes_every_case_of_its_family_and_refuses_others(large_suite: Path, tmp_path: Path) -> None:
    port = compiled(tmp_path)
    verdicts = list(golden.run_suite(large_suite, [port], CASES))
    assert len(verdicts) == 15
    assert {verdict.case: verdict.why for verdict in verdicts if not verdict.ok} == {}
    (other,) = golden.run_suite(large_suite, [port], ["bert-base"])
    assert (other.kind, "is not DistilBERT" in other.why) == ("crash", True)


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_planted_in_the_port_is_named(mistake: str, large_suite: Path, tmp_path: Path) -> None:
    name, stage, unseen = PLANTED[mistake]
    verdicts = list(golden.run_suite(large_suite, [compiled(tmp_path, f"-D{mistake}")], CASES))
    passed = {verdict.case.removeprefix("distilbert-") for verdict in verdicts if verdict.ok}
    assert passed == unseen
    for verdict in verdicts:
        if not verdict.ok:
            assert (verdict.stage, verdict.causes) == (stage, (name,)), verdict.details


def test_a_file_that_is_cut_short_ends_it_with_a_message(large_suite: Path, tmp_path: Path) -> None:
    """The port is compiled with the compiler's memory checks, and passes with the complete file."""
    checks = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    try:
        subprocess.run(["cc", *checks, "-o", tmp_path / "empty", tmp_path / "empty.c"], check=True, timeout=300)
        subprocess.run([tmp_path / "empty"], check=True, timeout=20)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):  # on an emulator even an empty program hangs
        pytest.skip("the port was NOT run with checks of memory: this compiler has none that run here")
    port = compiled(tmp_path, *checks)
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}  # the port frees nothing before it ends
    case = large_suite / "distilbert-masked-lm"
    command = [port, str(case), str(case / "inputs.safetensors"), str(tmp_path / "out")]
    assert subprocess.run(command, env=environment, check=False, timeout=300).returncode == 0
    broken = tmp_path / "broken"
    shutil.copytree(case, broken)
    whole = (case / "model.safetensors").read_bytes()
    for size in (0, 7, 8, 100, len(whole) - 1):
        (broken / "model.safetensors").write_bytes(whole[:size])
        again = [port, str(broken), *command[2:]]
        done = subprocess.run(again, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 1, (size, done.stderr)
        assert done.stderr.startswith("port: "), (size, done.stderr)


def test_the_page_s_commands_run_and_print_the_shown_output(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "port.c", tmp_path)
    found = blocks("examples/port_in_c/README.md")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    printed = ""
    for block in found:
        if block.language == "console":
            script = f'npformer() {{ {sys.executable} -m npformer "$@"; }}\n{block.code}'
            command = ["bash", "-euo", "pipefail", "-c", script]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, f"{block.code}\n{done.stdout}\n{done.stderr}"
            printed = done.stdout
        else:
            lines = [shape(line) for line in block.code.splitlines() if line != "..."]
            assert set(lines) <= {shape(line) for line in printed.splitlines()}, printed
    assert {block.language for block in found} == {"console", "text"}
    assert "<testsuite " in (tmp_path / "verdicts.xml").read_text()


def test_the_page_describes_the_suite_correctly(large_suite: Path) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    each = float(re.search(r"a folder of cases of about ([\d.]+) MB each", page)[1])
    size = sum(path.stat().st_size for path in large_suite.rglob("*") if path.is_file()) / 1e6
    assert abs(size / len(golden.read_suite(large_suite)) - each) < 0.03
    for path in re.findall(r"\]\(([^)]+)\)", page):
        assert (FOLDER / path).exists(), path
