"""The page on the golden format: its manifest is from a real file, which its JavaScript, Rust and C code reads."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from npformer import golden
from npformer.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/reference/golden-format.md").read_text(encoding="utf-8")
SOURCES = {"javascript": "reader.mjs", "rust": "reader.rs", "c": "reader.c"}
HOWTO = (Path(__file__).parents[2] / "docs/howto/golden-test.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The page's only code block in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the file that the page's command writes, and with the page's readers."""
    path = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(shlex.split(block("console"))[1:]) == 0
    for language, name in SOURCES.items():
        (path / name).write_text(block(language), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_manifest_on_the_page_is_the_file_s(folder):
    """Everything is equal except the versions and the budgets. Budgets agree within a factor of 2, because they are
    sampled and rounding depends on the BLAS kernels."""
    with open(folder / "golden.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    real, shown = json.loads(header["__metadata__"]["manifest"]), json.loads(block("json"))
    assert list(shown) == list(real)
    assert shown["versions"].keys() == real["versions"].keys()
    assert shown["budgets"].keys() == real["budgets"].keys()
    assert all(0.5 < budget / real["budgets"][name] < 2 for name, budget in shown["budgets"].items())
    for key in set(real) - {"versions", "budgets"}:
        assert shown[key] == real[key], key


@pytest.mark.parametrize("compiler", ["node", "rustc", "cc"])
def test_the_page_s_reader_prints_the_page_s_output(compiler, folder):
    """The reader is compiled and run with the page's command. It prints the line that the page shows, which also
    matches the file.
    """
    if shutil.which(compiler) is None:
        pytest.skip(f"the reader was NOT run: there is no {compiler} on this machine")
    command, printed = re.search(rf"^\$ ({compiler} .*)\n(.*)$", PAGE, re.M).groups()
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout == printed + "\n"
    recorded = golden.load(folder / "golden.safetensors")
    stage = command.rpartition("0/")[2]
    first = recorded.stages[stage][0].flat[:4]
    shape = ",".join(map(str, recorded.stages[stage][0].shape))
    assert done.stdout == f"0/{stage} F32 [{shape}] [{', '.join(f'{number:.4f}' for number in first)}]\n"


def test_the_test_in_javascript_passes_what_is_right_and_names_the_stage_that_is_not(folder, tmp_path):
    if shutil.which("node") is None:
        pytest.skip("the test in JavaScript was NOT run: there is no node on this machine")
    (source,) = re.findall(r"^```javascript\n(.*?)^```$", HOWTO, re.M | re.S)
    (tmp_path / "golden.test.mjs").write_text(source, encoding="utf-8")

    def run(stages):
        save_file(stages, tmp_path / "port.safetensors")
        command = ["node", "golden.test.mjs", folder / "golden.safetensors", "port.safetensors"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    right = {f"0/{name}": arrays[0] for name, arrays in golden.load(folder / "golden.safetensors").stages.items()}
    assert run(right).returncode == 0
    wrong = run(right | {"0/embeddings.norm": right["0/embeddings.norm"] * np.float32(1.01)})
    assert wrong.returncode
    assert "embeddings.norm: off by" in wrong.stderr
    assert "no answer" in run({"0/embeddings.norm": right["0/embeddings.norm"]}).stderr
