"""What the commands that answer texts share: their options, the way from lines to answers, and how answers look."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from npformer.cli import BAD_INPUT, complain
from npformer.cli.texts import Line, count, interactive, lines
from npformer.errors import NpformerError
from npformer.tasks import pipeline
from npformer.tasks.progress import with_bar
from npformer.tasks.task import InputError, Task
from npformer.text.encoding import LONG

Answered = tuple[Line, Any]  # a line and its answer; None where it has none

#: A task's setting -> the option that gives it, where that has another name: errors name what was given.
OPTIONS = {
    "aggregation_strategy": "--strategy",
    "candidate_labels": "--labels",
    "do_sample=True": "--sample",
    "do_sample=False": "no --sample",
    "hypothesis_template": "--template",
    "ignore_labels": "--ignore",
    "length_penalty": "--length-penalty",
    "max_answer_len": "--max-answer-len",
    "max_new_tokens": "--max-tokens",
    "num_beams": "--beams",
    "num_return_sequences": "--best",
}


def add_model_arguments(parser: argparse.ArgumentParser, default: str = "", named: bool = True) -> None:
    """Which model, and how it is loaded. named: by --model, which is required where there is no default."""
    if named:
        what = f"a bundled model, a folder or a Hugging Face id ({default or 'required'})"
        required = not default
        parser.add_argument("-m", "--model", metavar="MODEL", help=what, required=required, default=default or None)
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit of a model on the hub")
    parser.add_argument("--offline", action="store_true", help="use no network, only what is in the cache")
    parser.add_argument("-j", "--threads", type=whole, metavar="N", help="cores to use (default: all)")


def add_answer_arguments(parser: argparse.ArgumentParser, long: bool = True) -> None:
    parser.add_argument("--json", action="store_true", help="write a JSON object a line, for programs")
    if long:
        parser.add_argument("--long", choices=LONG, help="texts longer than the model (truncate; with --stride window)")
    parser.add_argument("--stride", type=whole, metavar="N", help="tokens that two windows of a long text share")


def whole(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


whole.__name__ = "whole number above 0"  # argparse says "invalid ... value"


def make_task(name: str, args: argparse.Namespace, **options: Any) -> Task:
    """The pipeline of a task, with what its command was told."""
    if getattr(args, "stride", None) is not None:
        options["stride"] = args.stride
    try:
        return pipeline(
            name, args.model, threads=args.threads, revision=args.revision, offline=args.offline,
            **{key: value for key, value in options.items() if value is not None},
        )  # fmt: skip
    except NpformerError as error:
        setting = "|".join(map(re.escape, OPTIONS))
        raise NpformerError(re.sub(rf"\b({setting})", lambda found: OPTIONS[found[1]], str(error))) from error


def answered(
    task: Task, args: argparse.Namespace, as_input: Callable[[str], Any] = str, blanks: bool = False
) -> Iterator[Answered]:
    """Each line with its answer, in order. A line without one is complained of here, but with `blanks` a blank one."""
    waiting: deque[Line] = deque()

    def is_asked(line: Line) -> bool:
        return not line.error and not (blanks and not line.text.strip())

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
    for answer in task.stream(inputs(), task.options, quiet=True):
        while not is_asked(waiting[0]):
            yield _without_answer(waiting.popleft())
        line = waiting.popleft()
        if isinstance(answer, InputError):
            line.error = answer.reason
            yield _without_answer(line)
            continue
        cut += answer.truncated
        if answer.truncated and cut == 1:
            hint = " (--long window reads it whole)" if task.has_windows else ""
            complain(f"{line.where}: {answer.n_tokens} tokens, cut to the model's length{hint}")
        yield line, answer
    while waiting:
        yield _without_answer(waiting.popleft())
    if cut > 1:
        complain(f"{cut} texts were cut to the model's length")


def _without_answer(line: Line) -> Answered:
    if line.error:
        complain(f"{line.where}: {line.error}")
    return line, None


def write(
    task: Task,
    args: argparse.Namespace,
    shown: Callable[[Line, Any], str],
    named: Callable[[Any], dict[str, Any]],
    as_input: Callable[[str], Any] = str,
) -> int:
    """Write every answer, as `shown` says or with --json as a line of what `named` names; the exit code."""
    code = 0
    for line, answer in progress(answered(task, args, as_input), args):
        if answer is None:
            code = BAD_INPUT
            if args.json:
                write_json({"error": f"{line.where}: {line.error}"})
        elif args.json:
            write_json({"text": line.text, **named(answer), "n_tokens": answer.n_tokens, "truncated": answer.truncated})
        else:
            print(shown(line, answer), flush=task.window == 1)
    return code


def write_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() not in ("utf-8", "utf8")))


def progress(items: Iterator[Answered], args: argparse.Namespace) -> Iterator[Answered]:
    """The items, with a bar on stderr if they are many, someone watches, and the answers go elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty() or not (args.file or not args.texts):
        return items
    return with_bar(items, count(args), delay=1)


def plain(text: str, width: int | None = None) -> str:
    """A text in one line that cannot move a terminal's cursor, cut to the terminal where output goes to one."""
    text = "".join(each if each.isprintable() else " " for each in text)
    if width is not None and sys.stdout.isatty():
        from shutil import get_terminal_size

        room = max(get_terminal_size().columns - width, 20)
        text = text if len(text) <= room else text[: room - 1] + "…"
    return text
