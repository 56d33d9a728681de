"""Builds, installs and type-checks the package.

    python tests/check_package.py

Needs the `package` group. Each environment is new, with Python's bundled pip. `.ci/run suite` runs the tests in the
source distribution.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
IN_THE_CHECKOUT = ("en-de-multi30k", "gpt2-austen")  # models that are not part of the package
PROGRAM = """
import npformer, sys
try:
    print("loaded", npformer.load(sys.argv[1]).folder)
except npformer.NpformerError as error:
    print(error)
"""
EXPLORER = """
import json, urllib.request, npformer
with npformer.view.explore(npformer.load("distilbert-sst2"), "I love ice cream") as explorer:
    page = urllib.request.urlopen(explorer.url).read().decode()
    state = {"texts": [["I love ice cream"]]}
    body = json.dumps({"page": "p", "number": 1, "state": state, "parts": ["answer", "step"]}).encode()
    request = urllib.request.Request(explorer.url + "parts", body, {"Content-Type": "application/json"})
    found = json.load(urllib.request.urlopen(request))
print("VIEWS.step" in page, found["answer"]["answer"]["outcomes"][0][0], len(found["step"]["view"]["source"]) > 80)
"""
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NPFORMER_DEMO")}


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        check_wheel(folder, build(folder))
        check_install_without_the_model(folder)
    say("the package is as it should be")


def build(folder: Path) -> Path:
    """Builds the source distribution and the wheel from it, and checks their metadata; returns the wheel."""
    say("wheel and source distribution")
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
    (wheel,), (source,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    check_assets(wheel)
    return wheel


def check_assets(wheel: Path) -> None:
    """Checks that the wheel contains every file from which pages are built, including the explorer's files."""
    assets = {path.relative_to(ROOT).as_posix() for path in (ROOT / "npformer" / "view" / "assets").iterdir()}
    assert "npformer/view/assets/step_edit.js" in assets
    missing = sorted(assets - set(zipfile.ZipFile(wheel).namelist()))
    assert not missing, f"the wheel has no {missing}"


def check_wheel(folder: Path, wheel: Path) -> None:
    """Checks that the command and a user's program run with the wheel, that the program type-checks, and that the
    course starts."""
    say("a user's program, run and type-checked")
    python = environment(folder / "user", wheel, "mypy")
    run(python.with_name("npformer"), "classify", "I love ice cream", cwd=folder)
    run(python.with_name("npformer"), "info", cwd=folder)
    expect(output(python, folder, "-c", EXPLORER), "True POSITIVE True")
    shutil.copy(ROOT / "tests" / "support" / "user_program.py", folder)
    run(python, "user_program.py", cwd=folder)
    run(python, "-m", "mypy", "--strict", "user_program.py", cwd=folder)
    run(python, "-m", "npformer", "learn", "start", "course", cwd=folder)
    report = run_for_json(python, "-m", "npformer", "learn", "check", "--folder", "course", "--json", cwd=folder)
    assert {each["state"] for each in report["functions"]} == {"not yet written"}, report
    for name in IN_THE_CHECKOUT:
        expect(load(python, name, folder), "git clone https://github.com/")


def check_install_without_the_model(folder: Path) -> None:
    """Checks that NPFORMER_DEMO=0 leaves the model out, and that its name is then an error outside the checkout."""
    say("pip install . without the bundled model")
    python = environment(folder / "small", ROOT, NPFORMER_DEMO="0")
    size = sum(path.stat().st_size for path in (folder / "small").rglob("npformer/**/*") if path.is_file())
    print(f"npformer alone: {size / 1e6:.1f} MB with its compiled Python")
    assert size < 8e6, size  # measured: 7.2 MB; the bundled model would add 46 MB
    for name in ("distilbert-sst2", *IN_THE_CHECKOUT):
        model = ROOT / "weights" / name
        expect(load(python, name, folder), f"use its path: {model}")
        expect(load(python, name, ROOT / "examples"), f"loaded {model}")
        expect(load(python, str(model), folder), f"loaded {model}")


def environment(folder: Path, *packages: str | Path, cwd: Path = ROOT, **variables: str) -> Path:
    """Returns the Python of a new virtual environment with these packages."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "-q", *packages, cwd=cwd, **variables)
    return python


def load(python: Path, name: str, cwd: Path) -> str:
    """Loads the model of this name in a program that runs in `cwd`; returns the program's output."""
    return output(python, cwd, "-c", PROGRAM, name)


def output(python: Path, cwd: Path, *arguments: str) -> str:
    """Runs a program in `cwd`; returns its output."""
    return subprocess.run([python, *arguments], cwd=cwd, env=CLEAN, check=True, capture_output=True, text=True).stdout


def run_for_json(*command: str | Path, cwd: Path) -> dict[str, Any]:
    """Runs a program; returns the JSON that it prints, whatever its exit code."""
    return json.loads(subprocess.run(command, cwd=cwd, env=CLEAN, check=False, capture_output=True, text=True).stdout)


def expect(printed: str, part: str) -> None:
    print(printed, end="")
    assert part in printed, f"expected {part!r} in {printed!r}"


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> None:
    result = subprocess.run(command, cwd=cwd, env=CLEAN | variables, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {result.returncode}")


def say(what: str) -> None:
    print(f"\n-- {what}", flush=True)


if __name__ == "__main__":
    main()
