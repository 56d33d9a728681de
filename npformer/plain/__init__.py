"""The maths on pages: every model in plain NumPy, to be read. The engine computes the same fast.

`formulas.py` has the formulas and `heads.py` the heads. Each other page is a model, its gradients, its training or its
decoding. Pages take arrays, sizes and dicts of weights, and import NumPy and other pages only.

`page` returns the page of a family, `source` its text, and `run` the answers of a loaded model, computed by its page.
"""

from npformer.plain.pages import page, run
from npformer.plain.source import source

__all__ = ["page", "run", "source"]
