"""The code on the course's page runs with a finished file. `test_documentation.py` runs all other pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from npformer.learn import whole
from tests.learn.test_check import PLAIN, written

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "weights" / whole.WRITER).exists(), reason="a source distribution has no GPT")
def test_a_finished_file_answers_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code runs in the folder of the file, with the checkout next to it under its usual name."""
    page = (ROOT / "docs" / "learn" / "course.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^## Your own sentences$.*?^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert "../npformer/weights" in code
    monkeypatch.delitem(sys.modules, "my_transformer", raising=False)  # another test may have imported it
    monkeypatch.syspath_prepend(str(written(tmp_path, {}, PLAIN)))
    try:
        exec(compile(code.replace("../npformer", ROOT.as_posix()), "course.md", "exec"), {})
    finally:
        sys.modules.pop("my_transformer", None)
    answer, text = capsys.readouterr().out.split("\n", 1)
    assert re.fullmatch(r"POSITIVE 0\.99\d+", answer)
    assert text.startswith("Elizabeth walked into the room,")
    assert len(text.split()) > 15
