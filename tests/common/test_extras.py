"""npformer is not on PyPI: every command that installs it names a checkout or the repository."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from npformer.common import extras

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDERS = ("npformer", "docs", "examples", ".ci")
KINDS = (".py", ".md", ".ipynb", ".yml", ".yaml", ".sh", ".txt", "")
TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in KINDS and path.is_file()
    ),
]
#: Requirements that name npformer without the repository, with or without an extra.
BY_NAME = re.compile(
    r"""pip install(?: -[\w-]+)* ["'\\]*npformer(?![\w/])(?!(?:\[[\w,{}]+\])? @ )|npformer\[[\w,{}]+\](?! @ git\+)"""
)


def test_no_text_installs_npformer_from_an_index() -> None:
    found = {}
    for path in TEXTS:
        if "_build" in path.parts or "__pycache__" in path.parts:
            continue
        if named := BY_NAME.findall(path.read_text(encoding="utf-8")):
            found[path.relative_to(ROOT).as_posix()] = named
    assert found == {}


@pytest.mark.parametrize(
    ("text", "by_name"),
    [
        ("pip install npformer", True),
        ('pip install "npformer[chat]"', True),
        ("needs `npformer[data]`", True),
        ("pip install -q -U npformer\n", True),
        ('pip install ".[chat]"', False),
        ("pip install ./npformer", False),
        ('pip install "npformer @ git+https://github.com/npformer/npformer"', False),
        (extras.installation("chat"), False),
    ],
)
def test_the_check_knows_a_name_from_a_place(text: str, by_name: bool) -> None:
    assert bool(BY_NAME.search(text)) is by_name


def test_an_error_names_an_extra_of_the_package() -> None:
    named = []
    for path in (ROOT / "npformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lacks":
                named.append(ast.literal_eval(node.args[2]))
    assert len(named) >= 7
    assert set(named) <= PROJECT["optional-dependencies"].keys()


def test_the_sentence() -> None:
    place = 'pip install "npformer[plots] @ git+https://github.com/npformer/npformer"'
    assert str(extras.lacks("t-SNE", "scikit-learn", "plots", '; "pca" needs only NumPy')) == (
        f't-SNE needs scikit-learn: {place}; "pca" needs only NumPy'
    )
    assert PROJECT["urls"]["Homepage"] == extras.REPOSITORY
