"""The contents of the course: functions of the plain pages, which are the right answers to the exercises.

From these functions, `template.py` makes the learner's file, and `programs.py` makes programs with mistakes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from npformer.pages.one_file import contents

Function = Callable[..., Any]

#: Title of a chapter -> the definitions that the learner's file already has, and the functions that the learner writes.
CONTENTS = {
    "From words to rows": (
        "formulas.erf formulas.embedding",
        "formulas.linear formulas.layer_norm formulas.gelu distilbert.embed",
    ),
    "Attention": (
        "",
        "formulas.softmax formulas.split_heads formulas.combine_heads formulas.causal_mask formulas.masked_softmax"
        " formulas.scaled_dot_product_attention",
    ),
    "The encoder": (
        "",
        "formulas.multi_head_attention formulas.feed_forward formulas.encoder_layer formulas.encoder",
    ),
    "An answer": ("formulas.relu", "distilbert.distilbert distilbert.classify"),
    "Learning": (
        "gradients.flat gradients.relu_backward gradients.silu_backward gradients.gelu_backward"
        " gradients.gelu_tanh_backward gradients.BACKWARDS gradients.feed_forward_backward gradients.stack_backward"
        " gradients.embed_backward training.adamw training.tree_map training.adamw_of_all training.train",
        "training.cross_entropy training.cross_entropy_backward gradients.linear_backward gradients.embedding_backward"
        " gradients.layer_norm_backward gradients.softmax_backward gradients.scaled_dot_product_attention_backward"
        " gradients.multi_head_attention_backward gradients.encoder_layer_backward gradients.distilbert_backward",
    ),
    "Writing": (
        "decoding.no_past decoding.sample",
        "formulas.gelu_tanh decoding.cached_attention decoding.cached_gpt2_layer decoding.gpt2_step decoding.top_p",
    ),
}
#: Name of a definition -> its page.
PAGES = {
    name: page
    for places in CONTENTS.values()
    for page, _, name in (each.partition(".") for part in places for each in part.split())
}


def names(places: str) -> list[str]:
    """Returns the names in a text such as "formulas.linear distilbert.embed", without the pages."""
    return [each.partition(".")[2] for each in places.split()]


GIVEN = [name for given, _ in CONTENTS.values() for name in names(given)]
LEARNT = [name for _, learnt in CONTENTS.values() for name in names(learnt)]


def given_with(name: str) -> list[str]:
    """Returns the names of the definitions that the learner's file provides in a function's chapter."""
    return next(names(given) for given, learnt in CONTENTS.values() if name in names(learnt))


def right(name: str) -> Function:
    """Returns the function of a page, which is the right answer of an exercise."""
    function: Function = getattr(import_module(f"npformer.plain.{PAGES[name]}"), name)
    return function


def definition(name: str) -> str:
    """Returns the text of a definition on its page, with the comment above it."""
    return contents(PAGES[name]).definitions[name].rstrip()


@lru_cache(maxsize=128)
def split(name: str) -> tuple[str, str, str]:
    """Returns the signature, the docstring and the body of a page's function, as lines of the page."""
    text = definition(name)
    [node] = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    lines, docstring = text.splitlines(), node.body[0]
    first, last = docstring.lineno - 1, docstring.end_lineno
    return "\n".join(lines[:first]), "\n".join(lines[first:last]), "\n".join(lines[last:])
