"""The process that runs a learner's file: `python -m npformer.learn.worker REQUEST`.

The file's code can do anything that the learner's own programs can do. The code runs in a separate process, which ends
when a function exceeds its limit of processor time. `faulthandler` then writes the line being executed, even inside
NumPy. Each verdict is immediately appended to a file as a line of JSON, so that no verdict is lost when the process
ends.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from inspect import Signature
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple, TextIO

import numpy as np

from npformer.checkpoint.archive import save_arrays
from npformer.common.errors import NpformerError
from npformer.interpret.study_inputs import read_inputs
from npformer.learn import exercise, whole
from npformer.learn.chapters import CHAPTERS
from npformer.learn.contents import GIVEN, definition, right
from npformer.learn.exercise import Exercise
from npformer.learn.judge import PASSED, PRINTED, WRONG, Judged, Verdict, judge, raised_at, said_of
from npformer.learn.listening import Listener
from npformer.learn.running import PATIENCE, SHORTEST
from npformer.learn.source import Loaded, loaded
from npformer.learn.template import signatures
from npformer.loading import load

Tell = Callable[..., None]
Within = Callable[[str, float], AbstractContextManager[None]]

LOADING, LOOKING, SEARCHING = "loading", "looking", "searching"


class WorkerRequest(NamedTuple):
    """A request to the worker.

    Parameters
    ----------
    file : str, the learner's file
    results, ended_at : str, files to write: the verdicts, and the stack if the time runs out
    known : the states of functions that need no verdict, by name
    chapters : numbers of the chapters to judge
    limit, run_limit : float, seconds of processor time for a function and for a run of the whole model
    stages : str, a file for the stages of the learner's classifier; if it is "", functions are judged instead
    text : str, the text that the classifier reads
    seed : int, seed for different numbers, to judge functions a second time; 0 to judge only once
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
    seed: int = 0


def main() -> None:
    """Judges the requested functions, one after another."""
    request = WorkerRequest(**json.loads(sys.argv[1]))
    _limit_output()
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    warnings.simplefilter("ignore")
    process = os.getpid()
    with (
        open(request.results, "a", encoding="utf-8") as results,
        open(request.ended_at, "w", encoding="utf-8") as stack,
    ):

        def tell(**fields: Any) -> None:
            if os.getpid() != process:
                os._exit(0)  # this process is a copy, which the learner's file made with os.fork
            print(json.dumps(fields), file=results, flush=True)

        @contextmanager
        def within(name: str, limit: float) -> Iterator[None]:
            tell(began=name)
            _make_room()
            with _limited(limit, stack):
                yield

        with within(LOADING, request.limit):
            found = loaded(request.file)
        tell(problem=found.problem, imports=found.imports, foreign=dict(found.foreign))
        if found.module is not None:
            _complete(found.module)
        if found.module is not None and request.stages:
            with within(LOOKING, request.run_limit):
                _look(request, found.module)
        elif found.module is not None:
            _run(request, found.module, _judged(request, found, tell, within), tell, within)
        tell(end=True)
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # ends without waiting for threads that the learner's file started


def _complete(module: ModuleType) -> None:
    """Adds given definitions that the file lacks. Replaces given functions that have other parameters."""
    for name in GIVEN:
        given, ours = getattr(module, name, None), right(name)
        if not inspect.isfunction(ours):
            vars(module).setdefault(name, ours)
        elif given is None or (inspect.isfunction(given) and inspect.signature(given) != inspect.signature(ours)):
            exec(definition(name), vars(module))


@contextmanager
def _limited(limit: float, stack: TextIO) -> Iterator[None]:
    """Limits the processor time of the block. At the limit, writes the line being executed and ends the process.

    Windows cannot limit processor time, so there the time limit for waiting processes applies.
    """
    if not hasattr(signal, "setitimer"):
        faulthandler.dump_traceback_later(max(SHORTEST, PATIENCE * limit), exit=True, file=stack)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
        return
    faulthandler.register(signal.SIGPROF, file=stack, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _end_with(parent: int) -> None:
    """Ends the process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run(request: WorkerRequest, module: ModuleType, states: dict[str, str], tell: Tell, within: Within) -> None:
    """Runs the parts of the whole model for which all required functions are right."""
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
        problem = f"{place or 'It raises'} {said_of(error)}"
        return whole.WholeRun(run.__name__, False, f"Your whole model cannot run. {problem}")


def _look(request: WorkerRequest, module: ModuleType) -> None:
    """Writes the stages of the learner's classifier. Functions of the pages replace unwritten functions.

    The replacements are executed in the learner's module. They therefore call the learner's functions, and the listener
    records these calls.
    """
    for name in request.known:
        exec(definition(name), vars(module))
    model = load(whole.CLASSIFIER)
    listener, [text] = Listener(model.weights), read_inputs(model, request.text).texts
    with listener.listening(module):
        whole.classified(module, model, text.ids)
    save_arrays(request.stages, {name: array.astype(np.float32) for name, array in listener.stages.items()}, {})


def _judged(request: WorkerRequest, found: Loaded, tell: Tell, within: Within) -> dict[str, str]:
    """Judges functions and returns their states.

    npformer's version then replaces each function that has not passed, so that the functions that call it are judged on
    their own.
    """
    module, expected, states = found.module, signatures(), dict(request.known)
    for number, chapter in enumerate(CHAPTERS, 1):
        for each in chapter.exercises:
            name = each.name
            if name not in states and number in request.chapters:
                with within(name, request.limit):
                    judged = _judged_function(each, found, expected[name], request.file, request.seed)
                tell(verdict=judged.verdict.as_dict())
                states[name] = judged.verdict.state
                if judged.cases:
                    tell(began=f"{SEARCHING} {name}")
                    tell(explained=judged.with_cause().as_dict())
            if states.get(name) != PASSED:
                setattr(module, name, right(name))
    return states


def _judged_function(each: Exercise, found: Loaded, expected: Signature, file: str, seed: int = 0) -> Judged:
    if each.name in found.broken:
        return Judged(each, Verdict(each.name, WRONG, "syntax", found.broken[each.name]))
    if not hasattr(found.module, each.name):
        problem = f"The file has no function {each.name}. `npformer learn reset {each.name}` adds its empty form."
        return Judged(each, Verdict(each.name, WRONG, "missing", problem))
    judged = judge(each, getattr(found.module, each.name), expected, file)
    if not seed or judged.verdict.state != PASSED:
        return judged
    with exercise.seeded(seed):
        again = judge(each, getattr(found.module, each.name), expected, file).verdict
    if again.state == PASSED:
        return judged
    return Judged(each, replace(again, problem=f"With other numbers (seed {seed}): {again.problem}"))


def _make_room() -> None:
    """Discards long output of a function, to leave room for the output of other functions."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        if os.fstat(1).st_size > PRINTED // 4:
            os.ftruncate(1, 0)
            os.lseek(1, 0, os.SEEK_SET)


def _limit_output() -> None:
    with suppress(ImportError, ValueError, OSError):  # Windows has no resource limits
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


if __name__ == "__main__":
    main()
