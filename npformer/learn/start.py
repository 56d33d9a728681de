"""Writes the file to fill in, and shows hints and right functions."""

from __future__ import annotations

import os
from pathlib import Path

from npformer.common.checks import nearest
from npformer.common.errors import NpformerError
from npformer.common.files import new_folder, written_whole
from npformer.common.progress import note
from npformer.learn import progress
from npformer.learn.chapters import EXERCISES
from npformer.learn.checking import learners_file
from npformer.learn.contents import GIVEN, definition
from npformer.learn.exercise import Exercise
from npformer.learn.template import FILE, template


def start(folder: str | os.PathLike[str] = ".") -> Path:
    """Writes the learner's file, my_transformer.py, in a new or existing folder.

    Parameters
    ----------
    folder : folder, by default the working directory

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    NpformerError
        The folder already has this file, or cannot be written to.

    Examples
    --------
    >>> sorted(path.name for path in npformer.learn.start("my_transformer").iterdir())
    ['my_transformer.py']
    """
    path = Path(folder)
    if not path.is_dir():
        with new_folder(path) as partial:
            (partial / FILE).write_text(template(), encoding="utf-8")
        return path
    if os.path.lexists(path / FILE):
        raise NpformerError(f"{path / FILE}: already exists; expected a folder without it")
    with written_whole(path / FILE) as file:
        file.write_text(template(), encoding="utf-8")
    return path


def hint(name: str, folder: str | os.PathLike[str] = ".") -> list[str]:
    """Returns the hints for a function: one hint at the first call, and one more hint at each later call.

    Parameters
    ----------
    name : str, the function
    folder : the learner's folder, where the number of hints shown is stored; if this fails, all hints are returned

    Returns
    -------
    list of str

    Raises
    ------
    NpformerError
        The course has no such function, or there is no such folder.

    Examples
    --------
    >>> folder = npformer.learn.start("hints")
    >>> npformer.learn.hint("linear", folder)
    ['@ multiplies matrices.']
    """
    exercise, place = exercise_of(name), Path(folder)
    place = place if place.is_dir() else learners_file(place).parent
    shown, problem = progress.hinted(place, name, len(exercise.hints))
    if problem:
        note(problem)
    return list(exercise.hints[:shown])


def solution(name: str) -> str:
    """Returns the function of npformer's page, which passes the check if pasted into the learner's file.

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
    >>> print(npformer.learn.solution("linear").splitlines()[-1].strip())
    return x @ weight + bias
    """
    return definition(exercise_of(name).name)


def exercise_of(name: str) -> Exercise:
    if name in GIVEN:
        raise NpformerError(f"learn: {name} is complete in {FILE}; the course asks for other functions")
    if name not in EXERCISES:
        near = nearest(name, EXERCISES)
        meant = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(EXERCISES)}"
        raise NpformerError(f"learn: the course has no function {name!r}{meant}")
    return EXERCISES[name]
