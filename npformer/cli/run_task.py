"""Runs the commands of `task_commands.py`: reads lines, runs a task on them, and writes the answers."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from npformer.cli import dataset
from npformer.cli.answers import as_written, shown
from npformer.cli.arguments import loading
from npformer.cli.process import BAD_INPUT, complain
from npformer.cli.texts import InputLine, check_files, count, interactive, lines, paired, read_file
from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.common.progress import hidden, note, with_bar
from npformer.tasks.catalogue import TASKS
from npformer.tasks.declaration import Command
from npformer.tasks.pipelines import pipeline
from npformer.tasks.task import InputError, Task
from npformer.text.encoding import was_cut
from npformer.text.inputs import Pair

Answered = tuple[InputLine, Any]  # a line, and its answer or None


def answer_all(name: str, command: Command, args: Namespace) -> int:
    """Writes answers as text, as JSON lines (--json) or as an array (--output), and returns the exit code.

    With --input, answers the rows of a dataset instead.
    """
    dataset.check(args, command)
    if args.input is not None:
        return dataset.answer_rows(_task(name, command, args), args)
    as_input = _as_input(command, args)
    task = _task(name, command, args)
    if command.reads == "prompt" and args.chat and interactive(args) and not args.json:
        from npformer.cli.chat import converse

        return converse(task)
    one = interactive(args) or len(args.texts) == 1
    if command.reads == "prompt" and sys.stdout.isatty() and not args.json and one:
        return _write(task, args)
    keeps_lines = task.form.layout == "alone"  # then line i of the output is the answer to line i of the input
    answers = _answered(task, args, as_input, keeps_lines)
    if not interactive(args):
        answers = with_bar(answers, count(args))
    if command.reads == "query":  # the texts are printed in order of score, best first
        answers = iter(sorted(answers, key=lambda each: -np.inf if each[1] is None else each[1]["score"], reverse=True))
    if args.output is not None:
        return _write_array(task, answers, Path(args.output))
    code = 0
    for line, answer in answers:
        code = BAD_INPUT if line.error else code
        if args.json:
            with hidden():
                write_json(_described(task, line, answer))
        elif answer is not None or keeps_lines:
            with hidden():
                print(shown(task, line.text, answer), flush=task.window == 1)
    return code


def _write(task: Task, args: Namespace) -> int:
    """Shows each answer on a terminal piece by piece, while it is generated, and returns the exit code."""
    code = 0
    for line in lines(args):
        try:
            if line.error:
                raise NpformerError(line.error)
            for piece in as_written(task, line.text):
                print(piece, end="", flush=True)
            print()
        except NpformerError as error:
            complain(f"{line.where}: {error}")
            code = BAD_INPUT
    return code


def write_json(value: dict[str, Any]) -> None:
    """Prints a line of JSON, in ASCII unless the encoding of stdout is UTF-8."""
    ascii_only = sys.stdout.encoding.lower() not in ("utf-8", "utf8")
    print(json.dumps(value, ensure_ascii=ascii_only, default=np.ndarray.tolist))


def _described(task: Task, line: InputLine, answer: Any) -> dict[str, Any]:
    if line.error:
        return {"error": f"{line.where}: {line.error}"}
    read = {} if answer is None else {"n_tokens": answer.n_tokens, "truncated": answer.truncated}
    return {"text": line.text, **task.values(answer), **read}


def _as_input(command: Command, args: Namespace) -> Callable[[str], str | Pair]:
    """Returns the function that turns a text into the task's input."""
    if command.reads == "query" and args.query is None:
        raise NpformerError("QUERY: missing; give a query and files of texts, or a dataset with --input")
    if command.reads == "query":
        check_files(args)
        return lambda text: paired(args.query, text)
    if command.reads == "question":
        context = args.context if args.context_file is None else read_file(args.context_file)
        return lambda question: Pair(question, context)
    if command.reads == "pair":
        return _split if args.pairs else lambda text: paired(text, args.pair)
    return str


def _split(text: str) -> Pair:
    found = text.split("\t")
    if len(found) != 2:
        raise NpformerError(f"expected two texts separated by a tab, got {len(found)}")
    return Pair(*found)


def _task(name: str, command: Command, args: Namespace) -> Task:
    """Makes the pipeline of a command. Errors refer to options of the command, not to options of the task."""
    if args.model is None:
        raise NpformerError(f"--model: missing; give the folder or Hugging Face id of {TASKS[name].wanted}")
    options = (*command.options, *command.long)
    flags = {each.sets: each.flags[-1] for each in options}
    switched_off = {each.sets for each in options if each.how.get("action") == "store_false"}
    settings = {each: getattr(args, each) for each in flags if getattr(args, each) is not None}
    try:
        return pipeline(name, args.model, **loading(args), **settings)
    except NpformerError as error:
        renamed = "|".join(each for each, flag in flags.items() if flag != f"--{each}")
        if not renamed:
            raise

        def option(found: re.Match[str]) -> str:
            refused = "=True" if found[1] in switched_off else "=False"
            return f"{'no ' if found[2] == refused else ''}{flags[found[1]]}"

        raise NpformerError(re.sub(rf"\b({renamed})(=True|=False)?\b", option, str(error))) from error


def _answered(task: Task, args: Namespace, as_input: Callable[[str], Any], skip_blanks: bool) -> Iterator[Answered]:
    """Yields each line with its answer, in order. Reports lines that cannot be answered.

    skip_blanks: blank lines get no answer.
    """
    waiting: deque[InputLine] = deque()

    def is_asked(line: InputLine) -> bool:
        return not line.error and not (skip_blanks and not line.text.strip())

    if interactive(args):
        task.window = 1

    def inputs() -> Iterator[Any]:
        for line in lines(args):
            try:
                text = as_input(line.text)
            except NpformerError as error:
                line.error = line.error or str(error)
            waiting.append(line)
            if is_asked(line):
                yield text

    cut = 0
    for answer in task.answers(inputs(), task.options, quiet=True):
        while not is_asked(waiting[0]):
            yield _without_answer(waiting.popleft())
        line = waiting.popleft()
        if isinstance(answer, InputError):
            line.error = answer.reason
            yield _without_answer(line)
            continue
        cut += answer.truncated
        if answer.truncated and cut == 1:
            hint = " (--long window reads all of it)" if task.has_windows else ""
            complain(f"{was_cut(line.where, answer.n_tokens, task.limit(task.options))}{hint}")
        yield line, answer
    while waiting:
        yield _without_answer(waiting.popleft())
    if cut > 1:
        complain(f"{cut} texts were truncated")


def _without_answer(line: InputLine) -> Answered:
    if line.error:
        complain(f"{line.where}: {line.error}")
    return line, None


# --- vectors as an array ---------------------------------------------------------------------------------------------


def _write_array(task: Task, answers: Iterator[Answered], path: Path) -> int:
    """Writes a .npy file row by row, in constant memory. The header, with the number of rows, is written last."""
    code = rows = 0
    empty = task.collect([])[:0]
    with written_whole(path) as partial, open(partial, "wb") as file:
        _write_header(file, 0, empty)
        for _, answer in answers:
            row = np.full(empty.shape[1], np.nan, empty.dtype) if answer is None else np.asarray(answer)
            code = BAD_INPUT if answer is None else code
            file.write(row.tobytes())
            rows += 1
        file.seek(0)
        _write_header(file, rows, empty)
    note(f"wrote {path}: {rows} vector{'s' * (rows != 1)} of {empty.shape[1]} numbers")
    return code


def _write_header(file: BinaryIO, rows: int, like: np.ndarray) -> None:
    """Writes the header of a .npy file, which has the same length for any number of rows."""
    described = {"descr": like.dtype.str, "fortran_order": False, "shape": (rows, like.shape[1])}
    np.lib.format.write_array_header_1_0(file, described)
