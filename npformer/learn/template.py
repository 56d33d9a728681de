"""The learner's file before it is filled in: the text of the pages, without the bodies of the functions to write."""

from __future__ import annotations

import inspect

from npformer.learn.contents import CONTENTS, LEARNT, definition, names, right, split

FILE = "my_transformer.py"
EMPTY = "    raise NotImplementedError"
WIDTH = 120

HEAD = '''"""My own Transformer, in plain NumPy.

Fill in one function after another: replace `raise NotImplementedError` with your code. Then run, in this folder,

    npformer learn check                  which functions are right, and why one is wrong
    npformer learn hint layer_norm        a hint; repeat for more, up to three
    npformer learn solution layer_norm    the function of npformer's page
    npformer learn reset layer_norm       empty a function again, and save your code in another file
    npformer learn look                   draw your model next to npformer's, on one page

After chapter 4 your file classifies a sentence, after chapter 5 it learns, and after chapter 6 it writes. The other
functions of a chapter are complete: your functions may call them.

Rules for every function:

* A function returns a new array. It does not write to its arguments.
* float32 in, float32 out. You may compute in float64 inside.
* "..." in a shape is any number of further axes, such as an axis of texts: compute over the last axes.
* Use your own functions in later ones. You may add helpers of your own, and import from Python's standard library.

Sizes: L tokens of a text, S keys, P earlier tokens, D width of a model, H heads (G in `no_past`), K = D / H width of a
head, F hidden units, V words, C labels. A linear layer is a dict {"weight": (in, out), "bias": (out,)}, so
that `linear(x, **layer)` applies it. A norm is a dict {"weight": (D,), "bias": (D,)}, a table {"weight": (V, D)}, and a
layer {"attention": {"query", "key", "value", "output"}, "attention_norm", "ffn": {"hidden", "output"}, "ffn_norm"}.
A mask is True where a query may attend to a key.

Section and equation numbers without a paper are those of Vaswani et al., 2017, Attention Is All You Need.
"""

import math

import numpy as np
'''

#: Title of a chapter -> a comment below it.
COMMENTS = {
    "Learning": """\
# A backward function takes grad, the gradient of the loss with respect to the result of its function, and then the
# arguments of its function. It returns the gradients of x and of the weights, the latter structured like the weights.
""",
}


def template() -> str:
    """Returns the file that `learn start` writes, in which the functions to write have a docstring but no body."""
    parts = [HEAD]
    for number, (title, (given, learnt)) in enumerate(CONTENTS.items(), 1):
        line = f"# --- Chapter {number}: {title} "
        parts.append(f"{line}{'-' * (WIDTH - len(line))}\n{COMMENTS.get(title, '')}")
        parts += [f"{definition(name)}\n" for name in names(given)]
        parts += [f"{empty(name)}\n" for name in names(learnt)]
    return _spaced(parts)


def _spaced(parts: list[str]) -> str:
    """Joins the parts of a file, with two empty lines around functions and one empty line after the imports."""
    return "\n\n".join(parts).replace("import numpy as np\n\n\n#", "import numpy as np\n\n#")


def empty(name: str) -> str:
    """Returns the text of a function with an empty body."""
    signature, docstring, _ = split(name)
    return "\n".join([signature, docstring, EMPTY])


def signatures() -> dict[str, inspect.Signature]:
    """Returns the signature of every function to write."""
    return {name: inspect.signature(right(name)) for name in LEARNT}
