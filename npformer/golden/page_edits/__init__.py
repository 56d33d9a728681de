"""Causes that no list has: edits of a page's source that give another program's values of its first wrong stage.

`operators`, `roundings`, `elsewhere`, `chunks` and `solved` make the edits, `instrumented` runs a page and records its
stages, `case` judges an edit, `fitting` tries all of them, `causes` prints those that fit, and `of_model` does it for a
model and a golden file.
"""

from npformer.golden.page_edits.causes import Cause, Causes
from npformer.golden.page_edits.fitting import explain
from npformer.golden.page_edits.of_model import edits_of_model

__all__ = ["Cause", "Causes", "edits_of_model", "explain"]
