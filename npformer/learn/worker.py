"""The process that runs a learner's file: `python -m npformer.learn.worker REQUEST`.

The file is executed, so its code can do everything that the learner's own programs can. It runs in a separate process,
which ends when a function exceeds its time limit. `faulthandler` then writes the line being executed, even inside
NumPy. Each verdict is appended to a file as a line of JSON, so it survives the end of the process.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from inspect import Signature
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from npformer.checkpoint.archive import save_arrays
from npformer.common.errors import NpformerError
from npformer.interpret.study_inputs import read_inputs
from npformer.learn import right, whole
from npformer.learn.chapters import CHAPTERS, EXERCISES
from npformer.learn.doctor import Doctor
from npformer.learn.exercise import Exercise
from npformer.learn.judge import PASSED, WRONG, Judged, Verdict, judge, raised_at
from npformer.learn.listening import Listener
from npformer.learn.template import signatures
from npformer.loading import load

Tell = Callable[..., None]
Within = Callable[[str, float], AbstractContextManager[None]]

LOADING, LOOKING = "loading", "looking"
PRINTED = 2**24  # bytes; otherwise a loop that prints would fill the disk


class WorkerRequest(NamedTuple):
    """A request to the worker.

    Parameters
    ----------
    file : str, the learner's file
    results, ended_at : str, files to write: the verdicts, and the stack if the time runs out
    known : the states of functions that need no verdict, by name
    chapters : numbers of the chapters to judge
    limit, run_limit : float, seconds for a function and for a run of the whole model
    stages : str, a file for the stages of the learner's classifier; if it is "", functions are judged instead
    text : str, the text that the classifier reads
    """

    file: str
    results: str
    ended_at: str
    known: dict[str, str]
    chapters: list[int]
    limit: float
    run_limit: float
    stages: str = ""
    text: str = ""


def main() -> None:
    """Judges the requested functions, one after another."""
    request = WorkerRequest(**json.loads(sys.argv[1]))
    _limit_output()
    warnings.simplefilter("ignore")
    with (
        open(request.results, "a", encoding="utf-8") as results,
        open(request.ended_at, "w", encoding="utf-8") as stack,
    ):

        def tell(**fields: Any) -> None:
            print(json.dumps(fields), file=results, flush=True)

        @contextmanager
        def within(name: str, limit: float) -> Iterator[None]:
            tell(began=name)
            faulthandler.dump_traceback_later(limit, exit=True, file=stack)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()

        with within(LOADING, request.limit):
            module, problem = loaded(request.file)
        if module is None:
            tell(problem=problem)
        elif request.stages:
            with within(LOOKING, request.run_limit):
                _look(request, module)
            tell(end=True)
        else:
            _run(request, module, _judged(request, module, tell, within), tell, within)
            tell(end=True)
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads that the file started


def _run(request: WorkerRequest, module: ModuleType, states: dict[str, str], tell: Tell, within: Within) -> None:
    """Runs those parts of the whole model for which all needed functions are right."""
    for chapter, run in whole.RUNS.items():
        needed = [each.name for i in whole.NEEDS[chapter] for each in CHAPTERS[i - 1].exercises]
        right_all = chapter in request.chapters and all(states.get(name) == PASSED for name in needed)
        if right_all and f"run {chapter}" not in request.known:
            with within(f"run {chapter}", request.run_limit):
                tell(run=_run_of(run, module, request.file).as_dict())


def _run_of(run: Callable[[Any], whole.WholeRun], module: ModuleType, file: str) -> whole.WholeRun:
    try:
        return run(module)
    except NpformerError:
        raise
    except Exception as error:  # the file may raise any exception
        _, place = raised_at(error, file)
        problem = f"{place or 'It raises'} {type(error).__name__}: {error}".rstrip(": ")
        return whole.WholeRun(run.__name__, False, f"Your whole model cannot run. {problem}")


def _look(request: WorkerRequest, module: ModuleType) -> None:
    """Writes the stages of the learner's classifier. npformer's functions replace unwritten ones.

    The replacements call the learner's functions for their own steps, so that the listener records those steps.
    """
    for name in request.known:
        setattr(module, name, getattr(right, name))
    for name in EXERCISES:
        setattr(right, name, partial(_called, module, name))
    model = load(whole.CLASSIFIER)
    listener, [text] = Listener(model.weights), read_inputs(model, request.text).texts
    with listener.listening(module):
        module.classify(text.ids, model.config.n_heads, model.weights)
    save_arrays(request.stages, {name: array.astype(np.float32) for name, array in listener.stages.items()}, {})


def _called(module: ModuleType, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(module, name)(*args, **kwargs)


def _judged(request: WorkerRequest, module: ModuleType, tell: Tell, within: Within) -> dict[str, str]:
    """Returns each function's state. A function that is not right is replaced by npformer's in its callers."""
    expected, states, doctor = signatures(), dict(request.known), Doctor()
    for number, chapter in enumerate(CHAPTERS, 1):
        for exercise in chapter.exercises:
            name = exercise.name
            if name not in states and number in request.chapters:
                with within(name, request.limit):
                    judged = _judged_function(exercise, module, expected[name], request.file)
                verdict = judged.with_cause()
                tell(verdict=verdict.as_dict())
                states[name] = verdict.state
                if verdict.kind == "numbers" and not verdict.cause and doctor.left > 0:
                    with within(name, request.limit):
                        arrays = doctor.answers(name, getattr(module, name))
                    cause, sentence = ("", "") if arrays is None else doctor.cause(name, arrays)
                    tell(verdict=replace(verdict, cause=cause, sentence=sentence).as_dict())
            if states.get(name) != PASSED:
                setattr(module, name, getattr(right, name))
    return states


def _judged_function(exercise: Exercise, module: ModuleType, expected: Signature, file: str) -> Judged:
    if not hasattr(module, exercise.name):
        problem = f"The file has no function {exercise.name}: it was removed or renamed."
        return Judged(exercise, Verdict(exercise.name, WRONG, "missing", problem))
    return judge(exercise, getattr(module, exercise.name), expected, file)


def loaded(file: str) -> tuple[ModuleType | None, str]:
    """Loads the learner's file. Returns the module, or None and a sentence with the reason."""
    path = Path(file)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module, before = importlib.util.module_from_spec(spec), dict(vars(np))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        return None, _not_python(error, path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the file may raise any exception
        _, place = raised_at(error, file)
        return None, f"{place or 'The file raises'} {type(error).__name__}: {error}"
    if changed := [name for name, value in before.items() if vars(np).get(name) is not value]:
        return None, f"The file changes np.{changed[0]} for the whole program. Give your own function a different name."
    return module, ""


def _not_python(error: SyntaxError, path: Path) -> str:
    """Returns a sentence about a syntax error in the learner's file, or in a file that it imports."""
    other = f" of {Path(error.filename).name}" if error.filename and Path(error.filename) != path else ""
    if error.lineno is None:  # the file has null bytes, for example because it is in UTF-16
        return f"The file{other} is not Python: {error.msg}. Save it as UTF-8 text."
    return f"Line {error.lineno}{other}, `{(error.text or '').strip()}`, is not Python: {error.msg}."


def _limit_output() -> None:
    with suppress(ImportError, ValueError, OSError):  # Windows has no resource limits
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


if __name__ == "__main__":
    main()
