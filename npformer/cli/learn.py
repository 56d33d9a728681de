"""Write your own Transformer in one file of plain NumPy, and have it checked.

learn start FOLDER      write FOLDER/my_transformer.py, with the functions to
                        fill in
learn check             run the file in this folder, and report what is
                        right, what is wrong and why
learn hint NAME         a hint for a function; repeat for more, up to three
learn solution NAME     npformer's own function
learn look              a page of views of your model and of npformer's"""

from __future__ import annotations

import argparse
import json
import sys
import time
import webbrowser
from pathlib import Path

from npformer import learn
from npformer.cli.process import DIVERGES
from npformer.common.errors import NpformerError
from npformer.common.progress import note
from npformer.learn.chapters import EXERCISES
from npformer.learn.checking import learners_file
from npformer.learn.report import next_help
from npformer.learn.running import LIMIT
from npformer.learn.template import FILE

EPILOG = """check executes your file in a process of its own, with a time limit for every
function. It exits with 0 if every function passes, 3 if one does not yet, and
1 for bad input. In the folder of your file, `npformer learn check --watch`
checks it again whenever you save, and `npformer learn check --chapter 2 --json`
prints the functions of the first two chapters as JSON.

examples:
  npformer learn start my_transformer
  npformer learn hint layer_norm --folder my_transformer
  npformer learn solution layer_norm"""

ACTIONS = ("start", "check", "hint", "solution", "look")
PAUSE = 0.3  # seconds between looks at whether the file has changed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    name = "for start, the new folder; for hint and solution, the function"
    parser.add_argument("name", nargs="?", metavar="FOLDER or NAME", help=name)
    parser.add_argument("--folder", default=".", metavar="DIR", help="the folder of your file (default: this one)")
    check = parser.add_argument_group("check")
    check.add_argument("--chapter", type=int, metavar="N", help="check only the functions up to chapter N")
    check.add_argument("--watch", action="store_true", help="check again whenever the file changes, until Ctrl-C")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.add_argument(
        "--limit", type=float, default=LIMIT, metavar="SECONDS", help=f"time limit for each function ({LIMIT:g})"
    )
    look = parser.add_argument_group("look")
    look.add_argument("-o", "--output", metavar="FILE", help="the page to write (default: look.html in the folder)")
    look.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int | None:
    if (args.name is None) != (args.action in ("check", "look")):
        takes = {"start": "the name of a new folder", "check": "--folder DIR", "look": "--folder DIR"}
        raise NpformerError(f"learn {args.action}: expected {takes.get(args.action, 'the name of a function')}")
    return {"start": _start, "check": _check, "hint": _hint, "solution": _solution, "look": _look}[args.action](args)


def _start(args: argparse.Namespace) -> None:
    folder = learn.start(args.name)
    note(f"wrote {folder / FILE}; open it in your editor, and run `npformer learn check` in {folder}")


def _check(args: argparse.Namespace) -> int:
    file = learners_file(args.folder)
    seen = file.stat().st_mtime_ns  # read before the check, because the file may change during it
    code = _checked(args)
    while args.watch:
        time.sleep(PAUSE)
        if file.exists() and (now := file.stat().st_mtime_ns) != seen:
            seen = now
            print(f"\n{'-' * 80}")
            code = _checked(args)
    return code


def _checked(args: argparse.Namespace) -> int:
    report = learn.check(args.folder, args.chapter, args.limit)
    print(json.dumps(report.as_dict(), indent=1) if args.json else report)
    sys.stdout.flush()
    return 0 if report.ok else DIVERGES


def _hint(args: argparse.Namespace) -> None:
    hints = learn.hint(args.name, args.folder)
    for i, each in enumerate(hints, 1):
        print(f"{i}. {each}")
    if len(hints) == len(EXERCISES[args.name].hints):
        print(f"That was the last hint. {next_help(args.name, len(hints))}")


def _solution(args: argparse.Namespace) -> None:
    print(learn.solution(args.name))


def _look(args: argparse.Namespace) -> None:
    path = Path(args.output or Path(args.folder) / "look.html")
    learn.look(args.folder).save(path)
    note(f"wrote {path}")
    if args.open:
        webbrowser.open(path.resolve().as_uri())
