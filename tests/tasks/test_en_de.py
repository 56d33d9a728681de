"""The translator bundled in a source checkout loads, has the stated size, and writes the texts on its card."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.checkpoint.tree import stored
from npformer.cli import main as cli

pytestmark = pytest.mark.numbers

FOLDER = Path(__file__).parents[2] / "weights" / "en-de-multi30k"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\| (\w[^|]+[.!]) \| (\w[^|]+[.!]) \|$", CARD, re.MULTILINE)


@pytest.fixture(scope="module")
def translator() -> npformer.tasks.task.Task:
    return npformer.pipeline("translation", "en-de-multi30k")


def test_the_bundled_translator_writes_the_texts_on_its_card(translator: npformer.tasks.task.Task) -> None:
    """The texts are translated alone and together. One is the example sentence of a well-known introduction to
    Transformers.
    """
    assert len(EXAMPLES) >= 4
    assert "The dog jumped over the green door!" in dict(EXAMPLES)
    sources, targets = zip(*EXAMPLES, strict=True)
    assert [each["translation_text"] for each in translator(list(sources))] == list(targets)
    assert translator(sources[0])["translation_text"] == targets[0]


def test_translate_finds_the_bundled_translator(capsys: pytest.CaptureFixture[str]) -> None:
    source, target = EXAMPLES[0]
    assert cli.main(["translate", "-m", "en-de-multi30k", source]) == 0
    assert capsys.readouterr().out == target + "\n"


def test_the_bundled_translator_s_size(translator: npformer.tasks.task.Task) -> None:
    """The folder uses less than 20 MB, its weights have half precision, and its card states their number."""
    assert sum(each.stat().st_size for each in FOLDER.iterdir()) < 20e6
    arrays = stored(dict(translator.model.weights), translator.model.config)
    assert f"{sum(each.size for each in arrays.values()):,} parameters" in CARD
    assert all(np.array_equal(each, each.astype(np.float16)) for each in arrays.values())
