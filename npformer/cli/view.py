"""Draw a forward pass: attention by head, layer or neuron, every stage, the words
behind a label, the contributions to a logit, the answer at each layer and
with one head removed; or all of them on one page."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from npformer import view
from npformer.cli.arguments import PAIR, add_options, loading, model_options
from npformer.cli.texts import paired
from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.common.progress import note
from npformer.loading import load
from npformer.view.attribution_view import METHODS

KINDS = ("page", "heads", "model", "neurons", "stages", "attribution", "logit", "lens", "ablation")
EPILOG = """Without -o, a view is printed as text. For a page, only the heads are printed.

examples:
  npformer view "time flies like an arrow" --layer 0 --head 8 \\
      -o view.html --open
  npformer view "time flies like an arrow" \\
      --pair "fruit flies like a banana" --kind model -o view.html
  npformer view "I love ice cream" --kind attribution --method logit"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="the text")
    add_options(parser, [PAIR])
    shown = f"what to show: {', '.join(KINDS[1:])}; or all of them on one page (page)"
    parser.add_argument("--kind", choices=KINDS, default="page", metavar="KIND", help=shown)
    parser.add_argument("--layer", type=int, metavar="N", help="the layer shown first (0)")
    parser.add_argument("--head", type=int, metavar="N", help="the head shown first (heads: all; neurons: 0)")
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        choices=METHODS,
        help=f"attribution measure, repeatable: {', '.join(METHODS[:-1])} or {METHODS[-1]} (default: all but logit)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write one HTML file that needs no network")
    parser.add_argument("--svg", action="store_true", help="write (or print) an SVG picture instead")
    parser.add_argument("--open", action="store_true", help="open the file in the browser")
    add_options(parser, model_options("distilbert-sst2"))


def run(args: argparse.Namespace) -> None:
    if args.open and args.output is None:
        raise NpformerError("--open: expected a file; give -o FILE")
    if args.kind == "page" and (args.output is None or args.svg):
        args.kind = "heads"  # a terminal or an SVG picture can show only a single view
    options = _options(args)
    model = load(args.model, **loading(args))
    shown = getattr(view, args.kind)(model, paired(args.text, args.pair), **options)
    if args.output is None:
        print(shown.svg() if args.svg else shown)
        return
    if args.svg:
        with written_whole(args.output) as partial:
            partial.write_text(shown.svg(), encoding="utf-8")
    else:
        shown.save(args.output)
    note(f"wrote {args.output}")
    if args.open:
        webbrowser.open(Path(args.output).resolve().as_uri())


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns --layer, --head and --method for the view. Raises NpformerError for an option that the view lacks."""
    if args.kind in ("attribution", "page"):
        methods = {"methods": args.method}
    elif args.method:
        raise NpformerError(f"--method: expected --kind attribution or page, got {args.kind}")
    else:
        methods = {}
    taken = ("layer", "head") if args.kind in ("page", "heads", "neurons") else ()
    given = {name: getattr(args, name) for name in ("layer", "head") if getattr(args, name) is not None}
    for name in given:
        if name not in taken:
            raise NpformerError(f"--{name}: expected --kind page, heads or neurons, got {args.kind}")
    if args.kind == "heads" and "head" in given:
        given["heads"] = [given.pop("head")]
    return given | methods
