"""Write your own Transformer in one file of plain NumPy, and have it checked.

learn start FOLDER      write my_transformer.py, with the functions to fill
                        in, to a folder (default: this one)
learn check             run the file in this folder, and report what is
                        right, what is wrong and why
learn hint NAME         a hint for a function; repeat for more, up to three
learn solution NAME     the function of npformer's page, which passes if you
                        paste it
learn reset NAME        reset a function to its empty form, and save its code
                        in another file
learn look              draw your model next to npformer's, on one page
learn grade FOLDER      check the files of a class, and write a table"""

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
from npformer.common.files import named, written_whole
from npformer.common.progress import bar, note
from npformer.learn import grading
from npformer.learn.chapters import EXERCISES
from npformer.learn.checking import learners_file, unstored
from npformer.learn.gradescope import gradescope
from npformer.learn.grading import SECONDS
from npformer.learn.report import next_help
from npformer.learn.running import LIMIT
from npformer.learn.template import FILE

EPILOG = """check executes your file in a separate process. A function may take --limit
seconds of processor time. check exits with 0 if every function passes, 3 if
a function does not pass yet, and 1 for bad input. check also accepts a folder
or a file: `npformer learn check my_transformer`. In the folder of your file,
`npformer learn check --watch` checks the file again whenever you save, and
`npformer learn check --chapter 2 --json` prints the functions of the first two
chapters as JSON, and writes nothing to the folder.

grade checks each Python file and each folder in FOLDER. --csv writes a row for
each submission. --feedback and --gradescope write a report for each submission
to a folder with the name of the CSV file. Grade in a container, because the
files are executed.

examples:
  npformer learn start my_transformer
  npformer learn hint layer_norm --folder my_transformer
  npformer learn solution layer_norm
  npformer learn grade submissions --csv grades.csv --feedback --seed 2026"""

ACTIONS = ("start", "check", "hint", "solution", "reset", "look", "grade")
OF_A_FUNCTION = ("hint", "solution", "reset")
PAUSE = 0.3  # seconds between checks for changes to the file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    name = "for hint, solution and reset, the function; for other actions, a folder or file (default: this folder)"
    parser.add_argument("name", nargs="?", metavar="FOLDER or NAME", help=name)
    parser.add_argument("--folder", default=".", metavar="DIR", help="the folder of your file (default: this one)")
    check = parser.add_argument_group("check and grade")
    check.add_argument("--chapter", type=int, metavar="N", help="check only the functions up to chapter N")
    check.add_argument("--watch", action="store_true", help="check again whenever the file changes, until Ctrl-C")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    limit = f"processor time for each function ({LIMIT:g})"
    check.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help=limit)
    seed = "check with other numbers too, so that answers cannot be copied into a file"
    check.add_argument("--seed", type=int, default=0, metavar="N", help=seed)
    scope = "print the report in Gradescope's format; for grade, write such a file for each submission"
    check.add_argument("--gradescope", action="store_true", help=scope)
    grade = parser.add_argument_group("grade")
    grade.add_argument("--csv", metavar="FILE", help="the table to write (default: print it)")
    grade.add_argument("--feedback", action="store_true", help="write the report of each submission")
    grade.add_argument("--jobs", type=int, metavar="N", help="files to check at a time (default: one per processor)")
    seconds = f"time for each file ({SECONDS:g})"
    grade.add_argument("--seconds", type=float, default=SECONDS, metavar="SECONDS", help=seconds)
    look = parser.add_argument_group("look")
    look.add_argument("-o", "--output", metavar="FILE", help="the page to write (default: look.html in the folder)")
    look.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int | None:
    if args.name is None and args.action in OF_A_FUNCTION:
        raise NpformerError(f"learn {args.action}: expected the name of a function")
    return {
        "start": _start, "check": _check, "hint": _hint, "solution": _solution, "reset": _reset, "look": _look,
        "grade": _grade,
    }[args.action](args)  # fmt: skip


def _place(args: argparse.Namespace) -> Path:
    """Returns the folder or file named in the command."""
    return Path(args.folder, args.name or "")


def _start(args: argparse.Namespace) -> None:
    folder = learn.start(_place(args))
    here = "here" if folder.resolve() == Path().resolve() else f"in {folder}"
    note(f"wrote {folder / FILE}; open it in your editor, and run `npformer learn check` {here}")


def _check(args: argparse.Namespace) -> int:
    try:
        file = learners_file(_place(args))
    except NpformerError as error:
        if not args.gradescope:
            raise
        print(json.dumps(gradescope({}, str(error)), indent=1))  # a report with no points, for a missing file
        return DIVERGES
    seen = file.stat().st_mtime_ns  # read before the check, because the file may change during the check
    code = _checked(args)
    while args.watch:
        time.sleep(PAUSE)
        if file.exists() and (now := file.stat().st_mtime_ns) != seen:
            seen = now
            print(f"\n{'-' * 80}")
            code = _checked(args)
    return code


def _checked(args: argparse.Namespace) -> int:
    given = (_place(args), args.chapter, args.limit, args.seed)
    if args.json or args.gradescope:
        report = unstored(*given)
        fields = report.as_dict()
        print(json.dumps(gradescope(fields) if args.gradescope else fields, indent=1))
    else:
        report = learn.check(*given)
        print(report)
    sys.stdout.flush()
    return 0 if report.ok else DIVERGES


def _grade(args: argparse.Namespace) -> None:
    if args.csv is None and (args.feedback or args.gradescope):
        raise NpformerError("learn grade: expected --csv FILE; the reports are written to a folder named after FILE")
    found = grading.submissions(_place(args))
    given = (_place(args), args.chapter, args.limit, args.seed, args.seconds, args.jobs)
    grades: list[learn.Grade] = []
    try:
        with bar(len(found), "files") as add:
            for each in learn.grade(*given):
                grades.append(each)
                add(1)
    finally:  # an interrupted run writes the grades computed so far
        text = grading.table(grades, args.chapter)
        if args.csv is None:
            print(text, end="")
        else:
            _write_grades(args, Path(args.csv), grades, text)


def _write_grades(args: argparse.Namespace, path: Path, grades: list[learn.Grade], text: str) -> None:
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
    folder = path.with_suffix("") if path.suffix else Path(f"{path}.reports")
    for wanted, ending, content in (
        (args.feedback, ".txt", grading.feedback),
        (args.gradescope, ".json", grading.results),
    ):
        for each in grades if wanted else ():
            with named(folder):
                folder.mkdir(exist_ok=True)
            with written_whole(folder / f"{each.name}{ending}") as partial:
                partial.write_text(content(each), encoding="utf-8")
    note(f"wrote {path}; {grading.summary(grades)}")


def _reset(args: argparse.Namespace) -> None:
    copy = learn.reset(args.name, args.folder)
    added = copy == learners_file(args.folder)
    note(f"added {args.name} to {copy.name}" if added else f"{args.name} is empty again; its code is in {copy.name}")


def _hint(args: argparse.Namespace) -> None:
    hints = learn.hint(args.name, args.folder)
    for i, each in enumerate(hints, 1):
        print(f"{i}. {each}")
    if len(hints) == len(EXERCISES[args.name].hints):
        print(f"That was the last hint. {next_help(args.name, len(hints))}")


def _solution(args: argparse.Namespace) -> None:
    print(learn.solution(args.name))


def _look(args: argparse.Namespace) -> None:
    path = Path(args.output or learners_file(_place(args)).parent / "look.html")
    learn.look(_place(args)).save(path)
    note(f"wrote {path}")
    if args.open:
        webbrowser.open(path.resolve().as_uri())
