"""Runs a task's command on every row of a dataset (--input). Writes rows and answers to --output."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from npformer.cli.process import BAD_INPUT, complain
from npformer.common.errors import NpformerError

if TYPE_CHECKING:
    from npformer.tasks.declaration import Command
    from npformer.tasks.task import Task

SECOND = ("pair_column", "context_column")
#: Options for texts and printed answers, which conflict with --input.
OTHERS = ("texts", "query", "file", "json", "pair", "pairs", "context", "context_file")


def check(args: Namespace, command: Command) -> None:
    """Raises NpformerError for an option that conflicts with --input, and for a missing required option."""
    if args.input is None:
        own = [name for name in ("column", "limit", "prefix", "scheduler", *SECOND) if getattr(args, name, None)]
        if own or (args.output is not None and not command.array):
            raise NpformerError(f"--{(own or ['output'])[0].replace('_', '-')} needs --input; give a dataset")
        if args.output is not None and args.json:
            raise NpformerError("--json: not allowed with --output, which writes an array; leave one of them out")
        return
    for name in OTHERS:
        if getattr(args, name, None):
            shown = {"texts": "a text", "query": "a query"}.get(name, f"--{name.replace('_', '-')}")
            why = "for several files, give their folder" if name == "texts" else "answers go to --output"
            raise NpformerError(f"{shown}: not allowed with --input; {why}; texts come from --column")
    pair = ("pair_column",) if command.reads == "query" else ()
    for name in ("column", *pair, "output"):
        if not getattr(args, name):
            also = "--pair-column NAME " if pair else ""
            raise NpformerError(
                f"--{name.replace('_', '-')}: missing; --input needs --column NAME {also}and --output OUT"
            )


def answer_rows(task: Task, args: Namespace) -> int:
    """Answers the rows, reports errors, and returns the exit code: 0 if every file is read and every row answered."""
    from npformer.dataset import map

    second = next((name for each in SECOND if (name := getattr(args, each, None))), None)
    with _client(args.scheduler) as client:
        if client is not None:
            complain(f"dashboard: {client.dashboard_link}")
        report = map(
            task,
            args.input,
            args.output,
            column=args.column if second is None else (args.column, second),
            limit=args.limit,
            prefix=args.prefix or "",
            client=client,
            progress=sys.stderr.isatty(),
        )
    for each in report.unreadable:
        complain(each)
    if report.unreadable:
        complain("make these files readable, then run the same command to continue")
    if report.truncated:
        complain(f"truncated texts: {report.truncated}; see the column {args.prefix or ''}truncated")
    if report.errors:
        complain(f"{report.errors} of {report.rows} rows have no answer; see the column {args.prefix or ''}error")
    return BAD_INPUT if report.errors or report.unreadable else 0


def _client(scheduler: str | None) -> AbstractContextManager[Any]:
    if scheduler is None:
        return nullcontext()
    from npformer.dataset.cluster import connected

    return connected(scheduler)
