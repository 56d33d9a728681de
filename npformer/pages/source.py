"""The text of a page, either unchanged or as one file that needs only NumPy."""

from __future__ import annotations

from typing import Any

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.pages.find import name_of, page, page_of, text_of
from npformer.pages.one_file import contents, one_file
from npformer.pages.standalone import standalone_model


def source(model: Any, standalone: bool = False) -> str:
    """The text of a page.

    Parameters
    ----------
    model : the name of a family, such as "llama", or a loaded model
    standalone : bool, return one file with everything that the page uses, which then needs only NumPy. For a loaded
        model, the file ends with a `main` that prints answers. It reads the arrays that `standalone_model` also
        returns.

    Returns
    -------
    str

    Raises
    ------
    NpformerError
        No page has this name, or model is not a loaded model.

    Examples
    --------
    >>> "def bert(" in npformer.plain.source("bert")
    True
    """
    if not isinstance(model, str) and not hasattr(model, "config"):
        raise NpformerError(f"source: expected the name of a page or a loaded model, got {shown(model)}")
    if standalone and not isinstance(model, str):
        return standalone_model(model)[0]
    name = name_of(page(model) if isinstance(model, str) else page_of(model.config))
    if not standalone:
        return text_of(name)
    return one_file(contents(name).docstring, [(name, each) for each in contents(name).definitions])
