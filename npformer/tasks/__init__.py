"""Tasks, which turn texts into answers. `pipeline` makes a task from its name, and `catalogue.py` lists all tasks.

Names, arguments and results follow transformers.pipeline. The class of each task documents the differences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from npformer.tasks.typed_pipeline import pipeline
    from npformer.text.inputs import Pair

__all__ = ["Pair", "pipeline"]


def __getattr__(name: str) -> Any:
    """Imports `pipeline` or `Pair` on first use, so that task declarations can be read without importing model code."""
    import npformer

    if name in __all__:
        return getattr(npformer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
