"""Writes the file to fill in, and shows hints and npformer's own functions."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from textwrap import dedent

from npformer.common.checks import nearest
from npformer.common.errors import NpformerError
from npformer.common.extras import REPOSITORY
from npformer.common.files import new_folder
from npformer.learn import progress
from npformer.learn.chapters import EXERCISES
from npformer.learn.exercise import Exercise
from npformer.learn.template import FILE, template

SOURCE = f"{REPOSITORY}/blob/main/"


def start(folder: str | os.PathLike[str]) -> Path:
    """Writes a new folder with the learner's file, my_transformer.py.

    Parameters
    ----------
    folder : folder to create

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    NpformerError
        The folder already exists.

    Examples
    --------
    >>> sorted(path.name for path in npformer.learn.start("my_transformer").iterdir())
    ['my_transformer.py']
    """
    with new_folder(Path(folder)) as partial:
        (partial / FILE).write_text(template(), encoding="utf-8")
    return Path(folder)


def hint(name: str, folder: str | os.PathLike[str] = ".") -> list[str]:
    """Returns the hints for a function: one at the first call, and one more at each later call.

    Parameters
    ----------
    name : str, the function
    folder : the learner's folder, which stores the number of hints shown

    Returns
    -------
    list of str

    Raises
    ------
    NpformerError
        The course has no such function.

    Examples
    --------
    >>> folder = npformer.learn.start("hints")
    >>> npformer.learn.hint("linear", folder)
    ['@ multiplies matrices.']
    """
    exercise = _exercise(name)
    shown = progress.hinted(Path(folder), name, len(exercise.hints))
    return list(exercise.hints[:shown])


def solution(name: str) -> str:
    """Returns the source of npformer's corresponding functions, with links.

    Parameters
    ----------
    name : str, the function

    Returns
    -------
    str

    Raises
    ------
    NpformerError
        The course has no such function.

    Examples
    --------
    >>> print(npformer.learn.solution("causal_mask").splitlines()[0])
    # npformer/masks.py, line 32: https://github.com/npformer/npformer/blob/main/npformer/masks.py#L32
    """
    return "\n\n".join(_source(place) for place in _exercise(name).solution)


def _source(place: str) -> str:
    module, _, path = place.partition(":")
    found = inspect.unwrap(attrgetter(path)(import_module(module)))
    lines, line = inspect.getsourcelines(found)
    file = found.__module__.replace(".", "/") + ".py"  # `module` may only export it
    return f"# {file}, line {line}: {SOURCE}{file}#L{line}\n{dedent(''.join(lines)).rstrip()}"


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        near = nearest(name, EXERCISES)
        meant = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(EXERCISES)}"
        raise NpformerError(f"learn: the course has no function {name!r}{meant}")
    return EXERCISES[name]
