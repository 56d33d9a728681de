"""Tasks, which turn texts into answers. `pipeline` makes a task from its name, and `catalogue.py` lists all tasks.

Names, arguments and results follow transformers.pipeline. The class of each task documents any differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npformer.common.lazy_names import lazy_names
from npformer.text.inputs import Pair

if TYPE_CHECKING:
    from npformer.tasks.typed_pipeline import pipeline

__all__ = ["Pair", "pipeline"]

# imports are lazy, so that task declarations can be read without importing model code
__getattr__, __dir__ = lazy_names(__name__, {"pipelines": "pipeline"})
