"""Docstrings of public names have an example and describe all parameters, and examples print exactly what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer import loading

PACKAGE = Path(npformer.__file__).parent
WITH_EXAMPLES = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))

#: Modules whose examples are slow, and run only with the slow tests.
LONG = ("golden/compare.py", "golden/diagnose.py", "golden/format.py", "interpret/patching.py", "view/page_view.py")
NAMES = {path.relative_to(PACKAGE).as_posix(): path for path in WITH_EXAMPLES}
EXAMPLES = [pytest.param(NAMES[name], id=name, marks=[pytest.mark.slow] * (name in LONG)) for name in NAMES]


@pytest.fixture(scope="module", autouse=True)
def bundled_weights() -> Iterator[None]:
    """Reads each bundled model only once, because reading takes longer than most examples. The examples can share the
    weights, which are read-only.
    """
    read, once = loading.load_folder, lru_cache(2)(loading.load_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loading, "load_folder", lambda folder, *a, **k: (once if folder.is_absolute() else read)(folder, *a, **k)
        )
        yield


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_examples_of_a_module(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ["npformer", *path.relative_to(PACKAGE).with_suffix("").parts]
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    monkeypatch.chdir(tmp_path)  # files that examples write
    names = {"np": np, "npformer": npformer}
    with np.printoptions(precision=4, suppress=True):
        found = doctest.testmod(module, extraglobs=names, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert found.attempted
    assert found.failed == 0


FORMULAS = {name for name, module in npformer._MODULE_OF.items() if module.startswith("plain.")}
WITH_SECTIONS = [
    each for each in npformer.__all__ if not inspect.ismodule(getattr(npformer, each)) and each not in FORMULAS
]


@pytest.mark.parametrize("name", WITH_SECTIONS)
def test_a_public_name_has_an_example_and_describes_every_parameter(name: str) -> None:
    public = getattr(npformer, name)
    doc = inspect.getdoc(public) or ""
    assert "\nExamples\n--------\n>>> " in doc
    (section,) = re.findall(r"\nParameters\n-+\n(.+?)\n\n", doc, re.DOTALL)
    described = {name for line in section.splitlines() for name in re.findall(r"\w+", line.partition(":")[0])}
    given = [] if public is npformer.NpformerError else list(inspect.signature(public).parameters)
    assert set(given) <= described


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_a_formula_declares_its_shapes(name: str) -> None:
    """A docstring has shapes, unless the formula works on any array, and an example, unless it takes many weights."""
    doc = inspect.getdoc(getattr(npformer, name)) or ""
    assert name in ("relu", "gelu", "gelu_tanh", "silu") or re.search(r"\(\.\.\., |\([A-Z]|\(length", doc)
    weights = {"query", "attention", "layers"} & set(inspect.signature(getattr(npformer, name)).parameters)
    assert weights or name == "rotary_angles" or "\n>>> " in doc
