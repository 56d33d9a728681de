"""Tasks: text in, answer out, one file for each task. `pipeline` makes a task by name; `catalogue.py` lists all tasks.

Names, arguments and results are those of transformers.pipeline; each task's class states the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from npformer.tasks.typed_pipeline import pipeline
    from npformer.text.inputs import Pair

__all__ = ["Pair", "pipeline"]


def __getattr__(name: str) -> Any:
    """Imports `pipeline` or `Pair` when it is first used: the declarations of tasks are read without models."""
    import npformer

    if name in __all__:
        return getattr(npformer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
