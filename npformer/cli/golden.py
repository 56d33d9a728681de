"""Record the stages of a model, or of a suite of tiny models, as golden values,
or compare a port's stages with them and find the first stage that diverges.

golden record TEXT ... -o FILE      every stage of the texts, in float32 and
                                    float64, and the error allowed for a port
golden record --tiny FAMILY -o DIR  a tiny random model and its golden file,
                                    reproducible
golden compare FILE THEIRS          THEIRS: a .safetensors or .npz file of the
                                    port's arrays, a folder of .npy files, a
                                    folder of its weights, or --torch MODEL
golden suite DIR                    tiny models and golden files of every
                                    family, head and option (33 MB)
golden run DIR -- COMMAND ...       run a port's program on each tiny model:
                                    COMMAND ... MODEL IDS OUTPUT, a model's
                                    folder, a file of token ids, and the
                                    .safetensors file of stages to write
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from npformer import golden
from npformer.checkpoint.archive import load_arrays, load_npy_folder
from npformer.checkpoint.read import CONFIG, load_folder
from npformer.checkpoint.tree import flatten
from npformer.cli.arguments import KEEP, LOADING, add_options, limits, loading
from npformer.cli.process import DIVERGES
from npformer.common.checks import positive
from npformer.common.errors import NpformerError
from npformer.common.files import as_given, is_stream, read_json, written_whole
from npformer.common.progress import status
from npformer.golden import reports
from npformer.golden.conformance import TIMEOUT
from npformer.golden.reports import FORMATS
from npformer.golden.suite import MANIFEST
from npformer.loading import load
from npformer.model import Model, Seq2Seq

COMPARED = """compare exits with 3 if a stage or a weight diverges, or if the port's stages
lack the model's answer, and with 1 for bad input. It finds the causes too if it
has the model: --model, the model next to the file, or the model named in the
file if it is on this machine. It compares weights first, then computes each
stage again from the port's own inputs."""
RUN = "run exits with 0 if every case passes, 3 if one fails, 1 if nothing can be run."


class Action(NamedTuple):
    """The help of an action: its arguments, description and epilog."""

    takes: str
    what: str
    description: str
    examples: str
    notes: str = ""

    @property
    def epilog(self) -> str:
        return "\n\n".join(filter(None, [self.notes, f"examples:\n{self.examples}"]))


ACTIONS = {
    "record": Action(
        "TEXT",
        "texts to record",
        "Write every stage of the texts, its float64 reference, and the error allowed for\na correct port.",
        """\
  npformer golden record "I love ice cream" "no" -o golden.safetensors
  npformer golden record --tiny distilbert -o tiny""",
    ),
    "compare": Action(
        "FILE",
        "the golden file, then the port's arrays (.safetensors, .npz, a folder of .npy) or a folder of its weights,"
        " unless --torch",
        "Compare a port's stages and weights with a golden file, and find the\nfirst stage or weight that diverges.",
        "  npformer golden compare golden.safetensors mine.npz --names names.json",
        COMPARED,
    ),
    "suite": Action(
        "DIR",
        "the folder to write",
        "Write tiny models and golden files of every family, head and option (33 MB).",
        '  npformer golden suite suite --case "distilbert-*"',
    ),
    "run": Action(
        "DIR -- COMMAND",
        "the suite's folder, then the program and its arguments",
        """Run a port's program on each case of a suite, as COMMAND ... MODEL IDS OUTPUT:
a model's folder, a file of token ids, and the .safetensors file to write.""",
        "  npformer golden run suite --junit all.xml -- ./port",
        RUN,
    ),
}
EPILOG = f"""npformer golden ACTION --help shows the options of one action.

{COMPARED}
{RUN}

examples:
{chr(10).join(each.examples for each in ACTIONS.values())}"""

RECORDED = "distilbert-sst2"  # the default model of `record`

#: Option -> the actions that take it.
TAKEN_BY = {
    **dict.fromkeys(("output", "tiny", "seed", "head", "stages"), ("record",)),
    **dict.fromkeys(("torch", "names"), ("compare",)),
    **dict.fromkeys(("model", "revision", "offline", "threads", "allow", "keep"), ("record", "compare")),
    **dict.fromkeys(("dtype", "format"), ("compare", "run")),
    "case": ("suite", "run"),
    **dict.fromkeys(("timeout", "junit"), ("run",)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument(
        "given",
        nargs="*",
        metavar="TEXT or FILE",
        help="record: texts; compare: golden file, port's arrays; suite: new folder; run: suite, program",
    )
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help=f"a bundled model, a folder or a Hugging Face id (record: {RECORDED})"
    )
    add_options(parser, LOADING)
    record = parser.add_argument_group("record")
    record.add_argument("-o", "--output", metavar="FILE", help="the golden file to write, or the folder for --tiny")
    record.add_argument("--stages", action="append", metavar="GLOB", help="keep only stages such as '*.query'")
    record.add_argument("--tiny", metavar="FAMILY", help="write a tiny random model of a family such as bert to -o")
    record.add_argument("--head", metavar="HEAD", help="head of the tiny model (causal-lm or sequence-classification)")
    record.add_argument("--seed", type=int, metavar="N", help="seed of the tiny model (0)")
    compare = parser.add_argument_group("compare")
    compare.add_argument("--torch", metavar="MODEL", help="run this model with transformers instead of reading a file")
    compare.add_argument(
        "--dtype", choices=golden.DTYPES, help="the precision of the port (default: inferred from its stages)"
    )
    compare.add_argument("--names", metavar="JSON", help='a file of {"name in the port": "stage", ...}')
    compare.add_argument("--format", choices=FORMATS, help="output format: text, json, or GitHub annotations")
    suite = parser.add_argument_group("suite and run")
    suite.add_argument("--case", action="append", metavar="GLOB", help="only these cases, such as 'bert-*'")
    run = parser.add_argument_group("run (and --dtype, --format)")
    run.add_argument("--timeout", type=float, metavar="SECONDS", help=f"time limit for each case ({TIMEOUT:g})")
    run.add_argument("--junit", metavar="FILE", help="also write the verdicts as JUnit XML")


def narrow(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Limits the help to one action's options if the arguments begin with an action."""
    action = arguments[0] if arguments else ""
    if action not in ACTIONS:
        return
    own = ACTIONS[action]
    parser.prog, parser.description, parser.epilog = f"npformer golden {action}", own.description, own.epilog
    for each in parser._actions:
        if each.dest == "given":
            each.metavar, each.help = own.takes, own.what
        elif each.dest == "action" or action not in TAKEN_BY.get(each.dest, ACTIONS):
            each.help = argparse.SUPPRESS
    for group in parser._action_groups[2:]:
        group.title = None  # the title lists actions, which is redundant in the help of one action


def run(args: argparse.Namespace) -> int:
    for option, actions in TAKEN_BY.items():
        usual = KEEP.how["default"] if option == "keep" else None
        if getattr(args, option) not in (None, False, [], usual) and args.action not in actions:
            raise NpformerError(f"--{option} is an option of {' and '.join(f'golden {each}' for each in actions)}")
    return {"record": _record, "compare": _compare, "suite": _suite, "run": _run}[args.action](args)


def _record(args: argparse.Namespace) -> int:
    if args.output is None:
        raise NpformerError("golden record: expected -o FILE")
    if args.tiny is not None:
        if args.given or args.model or args.stages:
            raise NpformerError("--tiny makes its own model and texts: leave out --model, --stages and the texts")
        print(f"{golden.tiny(args.output, args.tiny, args.seed or 0, args.head)}: a model and its {golden.TINY_FILE}")
        return 0
    for option in ("seed", "head"):
        if getattr(args, option) is not None:
            raise NpformerError(f"--{option}: needs --tiny")
    if not args.given:
        raise NpformerError("golden record: expected at least one text")
    name = args.model or RECORDED
    model = load(name, **loading(args))
    recorded = golden.record(model, args.given, args.stages or "*", name=name)
    recorded.save(args.output)
    if not is_stream(Path(args.output)):  # a stream, such as stdout, has no size
        size = Path(args.output).stat().st_size
        texts = "1 text" if len(recorded.texts) == 1 else f"{len(recorded.texts)} texts"
        print(f"{args.output}: {len(recorded.stages)} stages of {texts}, {size / 1e6:.1f} MB")
    return 0


def _compare(args: argparse.Namespace) -> int:
    if len(args.given) != (1 if args.torch else 2):
        raise NpformerError("golden compare: expected a golden file and either the port's arrays or --torch MODEL")
    reference = golden.load(args.given[0])
    model, why_not = _model(args, reference)
    if args.torch:
        arrays: Any = golden.load_torch(args.torch, reference)
    elif not (folder := Path(args.given[1])).is_dir():
        arrays, _ = load_arrays(args.given[1], limits(args))
    elif (folder / CONFIG).exists() or not any(folder.rglob("*.npy")):
        _, tree = load_folder(folder, limits=limits(args), allow_nonfinite=True)
        arrays = flatten(tree)
    else:
        arrays = load_npy_folder(folder, limits(args))
    comparison = golden.compare(reference, arrays, _names(args.names), args.dtype)
    as_text = args.format in (None, "text")
    if as_text:
        print(comparison, flush=True)  # printed at once, because the diagnosis may take seconds
    diagnosis = None
    if model and (comparison.theirs.weights or not comparison.ok):
        with status() as show:
            diagnosis = golden.diagnose(reference, arrays, model, comparison=comparison, progress=show)
    findings = diagnosis.weights if diagnosis else []
    if args.format == "json":
        print(reports.comparison_json(comparison, diagnosis, why_not))
    elif args.format == "github":
        print(reports.comparison_github(comparison, diagnosis))
    elif diagnosis:
        if comparison.theirs.weights and not findings:
            print(f"weights: all {len(comparison.theirs.weights)} equal the model's")
        if findings or not comparison.ok:
            print(f"\n{diagnosis}")
    elif not comparison.ok:
        print(f"\nno diagnosis: {why_not}")
    return 0 if comparison.passes and not findings else DIVERGES


def _suite(args: argparse.Namespace) -> int:
    if len(args.given) != 1:
        raise NpformerError("golden suite: expected the name of one new folder")
    path = golden.suite(args.given[0], args.case, progress=sys.stderr.isatty())
    size = sum(each.stat().st_size for each in path.rglob("*"))
    print(f"{path}: {len(golden.read_suite(path))} cases, {size / 1e6:.1f} MB; {MANIFEST} describes them")
    return 0


def _run(args: argparse.Namespace) -> int:
    if len(args.given) < 2:
        raise NpformerError("golden run: expected a suite folder and a program: golden run DIR -- COMMAND")
    folder, *command = args.given
    timeout = positive("--timeout", TIMEOUT if args.timeout is None else args.timeout)
    width = max(len(entry["name"]) for entry in golden.read_suite(folder, args.case))
    verdicts = []
    # opened before the run, so that a wrong path fails early
    with written_whole(args.junit) if args.junit else nullcontext() as partial:
        for verdict in golden.run_suite(folder, command, args.case, timeout, args.dtype):
            verdicts.append(verdict)
            if args.format in (None, "text"):
                print(reports.row(verdict, width), flush=True)
        if partial is not None:
            partial.write_bytes(reports.junit(verdicts))
    made = {"json": reports.verdicts_json, "github": reports.verdicts_github}.get(args.format, reports.summary)
    print(made(verdicts))
    return 0 if all(verdict.ok for verdict in verdicts) else DIVERGES


def _model(args: argparse.Namespace, reference: golden.Golden) -> tuple[Model | Seq2Seq | None, str]:
    """Loads the model of a golden file: --model, a model next to the file, the model named in the file, or --torch.

    Only --model may be downloaded. If there is no model, returns None and the reason. Raises NpformerError if --model
    cannot be loaded or is not the model of the file.
    """
    beside = Path(args.given[0]).resolve().parent
    found = [str(beside)] if (beside / CONFIG).exists() else []
    names = [args.model] if args.model else [*found, reference.model, *([args.torch] if args.torch else [])]
    why_not = ""
    for name in names:
        try:
            model = load(name, **loading(args) | {"offline": args.offline or name != args.model})
            golden.check_model(reference, model)
            return model, ""
        except NpformerError as error:
            if args.model:
                raise
            why_not = why_not or f"{error} (name the model with --model)"
    return None, why_not


def _names(path: str | None) -> dict[str, str] | None:
    names = read_json(as_given(path)) if path else None
    if names is not None and not all(isinstance(name, str) for name in names.values()):
        raise NpformerError(
            f"{path}: expected an object that maps the port's names to npformer's, got {json.dumps(names):.80}"
        )
    return names
