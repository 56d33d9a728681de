"""The maths on pages: every model in plain NumPy, written to be read. The engine computes the same results faster.

`formulas.py` has the formulas, and `heads.py` has the heads. Every other page is a model, its gradients, its training
or its decoding. Pages take arrays, sizes and dicts of weights, and import only NumPy and other pages.

`page` returns the page of a family, `source` its text, and `run` the answers of a loaded model, computed by its page.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npformer.pages.find import page
    from npformer.pages.run import run
    from npformer.pages.source import source

__all__ = ["page", "run", "source"]
#: Maps each function to its module in `npformer.pages`. These modules import pages, so they are imported on first use.
_MODULES = {"page": "find", "run": "run", "source": "source"}


def __getattr__(name: str) -> Any:
    """Imports a function or a page on first use, so that `npformer.plain.gpt2` needs no separate import."""
    if name in _MODULES:
        return getattr(import_module(f"npformer.pages.{_MODULES[name]}"), name)
    if find_spec(f"npformer.plain.{name}"):
        return import_module(f"npformer.plain.{name}")
    raise AttributeError(f"module 'npformer.plain' has no attribute {name!r}")


def __dir__() -> list[str]:
    names: list[str] = import_module("npformer.pages.find").names()
    return [*__all__, *names]
