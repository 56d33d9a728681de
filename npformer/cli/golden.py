"""Record a model's stages for ports of it, or compare a port's stages with them
and find the first that diverges.

golden record TEXT ... -o FILE      every stage of the texts, its float64 truth,
                                    and how far a correct port may be off
golden record --tiny FAMILY -o DIR  a tiny random model with its golden file,
                                    the same every time
golden compare FILE THEIRS          THEIRS is a .safetensors or .npz file of the
                                    port's arrays or a folder of its weights; or
                                    --torch MODEL
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from npformer import golden
from npformer.checkpoint.archive import load_arrays
from npformer.checkpoint.load import load
from npformer.checkpoint.read import CONFIG, load_folder
from npformer.checkpoint.tree import flatten
from npformer.cli.arguments import LOADING, add_options, limits, loading
from npformer.cli.process import DIVERGES
from npformer.errors import NpformerError
from npformer.files import as_given, is_stream, read_json
from npformer.model import Model

EPILOG = """compare ends with exit code 3 if a stage or a weight diverges, with 1 for bad
input. With the model it also finds the causes: --model, or the model beside
the file, or the one that it names if it is on this machine. Weights are
compared first, then each stage is computed again from the port's own inputs.

examples:
  npformer golden record "I love ice cream" "no" -o golden.safetensors
  npformer golden record --tiny distilbert -o tiny
  npformer golden compare golden.safetensors mine.npz --names names.json"""

RECORDED = "distilbert-sst2"  # the default model of `record`

#: Action -> the options that only it has.
ONLY = {
    "record": ("output", "tiny", "seed", "stages"),
    "compare": ("torch", "dtype", "names"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ONLY, help="what to do")
    parser.add_argument(
        "given", nargs="*", metavar="TEXT or FILE", help="record: texts; compare: the golden file, theirs"
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help=f"a bundled model, a folder or a Hugging Face id (record: {RECORDED})",
    )
    add_options(parser, LOADING)
    record = parser.add_argument_group("record")
    record.add_argument("-o", "--output", metavar="FILE", help="the golden file, or the folder of --tiny, to write")
    record.add_argument("--stages", action="append", metavar="GLOB", help="keep only stages such as '*.query'")
    record.add_argument("--tiny", metavar="FAMILY", help="make a tiny random model in -o, such as distilbert")
    record.add_argument("--seed", type=int, metavar="N", help="seed of the tiny model (0)")
    compare = parser.add_argument_group("compare")
    compare.add_argument(
        "--torch", metavar="MODEL", help="run this model with transformers, in place of a file of arrays"
    )
    compare.add_argument(
        "--dtype", choices=golden.DTYPES, help="the precision of the port, found by itself where its stages show it"
    )
    compare.add_argument("--names", metavar="JSON", help='a file of {"their name": "our stage", ...}')


def run(args: argparse.Namespace) -> int:
    other = "record" if args.action == "compare" else "compare"
    for option in ONLY[other]:
        if getattr(args, option) is not None:
            raise NpformerError(f"--{option} goes with golden {other}")
    return _record(args) if args.action == "record" else _compare(args)


def _record(args: argparse.Namespace) -> int:
    if args.output is None:
        raise NpformerError("golden record: expected -o FILE, where to write")
    if args.tiny is not None:
        if args.given or args.model or args.stages:
            raise NpformerError("--tiny makes its own model and texts; it takes none")
        print(f"{golden.tiny(args.output, args.tiny, args.seed or 0)}: a model and its {golden.TINY_FILE}")
        return 0
    if args.seed is not None:
        raise NpformerError("--seed goes with --tiny")
    if not args.given:
        raise NpformerError("golden record: expected at least one text")
    name = args.model or RECORDED
    model = load(name, **loading(args))
    recorded = golden.record(model, args.given, args.stages or "*", name=name)
    recorded.save(args.output)
    if not is_stream(Path(args.output)):  # which may be stdout, where the file has gone
        size = Path(args.output).stat().st_size
        texts = "1 text" if len(recorded.texts) == 1 else f"{len(recorded.texts)} texts"
        print(f"{args.output}: {len(recorded.stages)} stages of {texts}, {size / 1e6:.1f} MB")
    return 0


def _compare(args: argparse.Namespace) -> int:
    if len(args.given) != (1 if args.torch else 2):
        raise NpformerError("golden compare: expected a golden file, and a file of arrays or --torch MODEL")
    reference = golden.load(args.given[0])
    model, why_not = _model(args, reference)
    if args.torch:
        arrays: Any = golden.load_torch(args.torch, reference)
    elif Path(args.given[1]).is_dir():
        _, tree = load_folder(Path(args.given[1]), limits=limits(args), allow_nonfinite=True)
        arrays = flatten(tree)
    else:
        arrays, _ = load_arrays(args.given[1], limits(args))
    comparison = golden.compare(reference, arrays, _names(args.names), args.dtype)
    print(comparison)
    findings = golden.check_weights(model, comparison.theirs.weights, comparison.dtype) if model else []
    if model and comparison.theirs.weights and not findings:
        print(f"weights: all {len(comparison.theirs.weights)} are the model's")
    if model and (findings or not comparison.ok):
        print()
        print(golden.diagnose(reference, arrays, model, comparison=comparison))
    elif not comparison.ok:
        print(f"\nno diagnosis: {why_not}")
    return 0 if comparison.ok and not findings else DIVERGES


def _model(args: argparse.Namespace, reference: golden.Golden) -> tuple[Model | None, str]:
    """Loads the golden file's model: the one given, the one beside the file, or the one it names if it is here.

    Returns None and the reason if there is none. Raises NpformerError if --model is not the file's model.
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
            why_not = why_not or f"{error} (--model says which model it is)"
    return None, why_not


def _names(path: str | None) -> dict[str, str] | None:
    names = read_json(as_given(path)) if path else None
    if names is not None and not all(isinstance(name, str) for name in names.values()):
        raise NpformerError(f"{path}: expected an object of their name: our stage, got {json.dumps(names):.80}")
    return names
