"""Causes beyond the known mistakes: edits of a page's source that give another program's first wrong stage.

`operators`, `roundings`, `elsewhere`, `heads`, `blocks`, `chunks`, `cached` and `solved` make the edits, and `padded`
pads texts. `number_formats` has the types to which edits round, and `readings` has ways to read a text in chunks.
`stages` records a page's stages, and `instrumented` runs its calls again. `case` judges an edit, `fitting`
searches, `causes` prints the fitting edits, and `of_model` does all this for a model and a golden file.
"""

from npformer.golden.page_edits.causes import Cause, Causes
from npformer.golden.page_edits.fitting import explain
from npformer.golden.page_edits.of_model import edits_of_model

__all__ = ["Cause", "Causes", "edits_of_model", "explain"]
