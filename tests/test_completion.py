"""Names that editors and shells complete. Jedi (in Spyder, Vim, Emacs and IPython) reads the source, and other tools
call dir()."""

from __future__ import annotations

import subprocess
import sys

import jedi
import pytest

import npformer
from tests.support import tiny


def completed(code: str) -> list[str]:
    line, column = code.count("\n") + 1, len(code.split("\n")[-1])
    return [each.name for each in jedi.Script(code).complete(line, column)]


def test_jedi_completes_every_public_name() -> None:
    assert set(npformer.__all__) <= set(completed("import npformer\nnpformer."))


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import npformer\nnpformer.load('x').", {"config", "run", "tokenizer", "weights"}),
        ("import npformer\nnpformer.golden.", {"compare", "diagnose", "load", "record"}),
        ("import npformer\nnpformer.trace(1, 'a').", {"grads", "select", "table"}),
        ("from npformer import soft", {"softmax"}),
    ],
)
def test_jedi_knows_the_results(code: str, names: set[str]) -> None:
    assert names <= set(completed(code))


def test_jedi_shows_the_arguments_and_the_documentation() -> None:
    script = jedi.Script("import npformer\nnpformer.softmax(")
    [signature] = script.get_signatures(2, 17)
    assert [each.name for each in signature.params] == ["x", "axis"]
    assert "prevents overflow" in signature.docstring()


def test_dir_has_only_public_names() -> None:
    """Importing modules and using names does not add names."""
    code = "import npformer, npformer.model; npformer.softmax([1]); print(*sorted(dir(npformer)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == sorted(["__version__", *npformer.__all__])
    assert {"golden", "training", "view"} <= set(found)
    for module in (npformer.golden, npformer.training, npformer.view):
        assert dir(module) == sorted(module.__all__)


def test_ipython_completes_the_stages_of_a_trace() -> None:
    stages = npformer.trace(tiny.model(), "no")
    assert stages._ipython_key_completions_() == list(stages)
