"""The maths on pages: every model in plain NumPy, written to be read. The engine computes the same results faster.

`formulas.py` has the formulas, and `heads.py` has the heads. Every other page is a model, its gradients, its training
or its decoding. Pages take arrays, sizes and dicts of weights, and import only NumPy and other pages.

`page` returns the page of a family, `source` its text, and `run` the answers of a loaded model, computed by its page.
"""

from importlib import import_module
from types import ModuleType

from npformer.plain.pages import names, page, run
from npformer.plain.source import source

__all__ = ["page", "run", "source"]


def __getattr__(name: str) -> ModuleType:
    """Imports a page on first use, so that `npformer.plain.gpt2` needs no separate import."""
    if name in names():
        return import_module(f"npformer.plain.{name}")
    raise AttributeError(f"module 'npformer.plain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *names()]
