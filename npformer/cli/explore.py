"""Type a text, change the model and see how the answer changes, on a page
that this process computes and serves only to browsers on this machine."""

from __future__ import annotations

import argparse
import signal
import webbrowser
from contextlib import suppress
from importlib import import_module
from threading import Thread

from npformer.cli.arguments import LOADING, PAIR, add_options, loading
from npformer.cli.texts import paired
from npformer.common.errors import NpformerError
from npformer.common.progress import note
from npformer.loading import load

MODEL = "distilbert-sst2"
EPILOG = """The page is served on 127.0.0.1, to browsers that know its full address.
Ctrl-C stops the server.

example:
  npformer explore "time flies like an arrow" --no-browser"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the text shown first")
    add_options(parser, [PAIR])
    parser.add_argument(
        "-m", "--model", action="append", metavar="MODEL",
        help=f"a bundled model, a folder or a Hugging Face id; repeat it to compare models ({MODEL})",
    )  # fmt: skip
    add_options(parser, LOADING)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, but open no browser")


def run(args: argparse.Namespace) -> None:
    if args.pair is not None and args.text is None:
        raise NpformerError("--pair: expected TEXT, the first text of the pair")
    Thread(target=import_module, args=("npformer.view.explorer.server",)).start()  # imports while weights load
    models = {name: load(name, **loading(args)) for name in args.model or [MODEL]}
    text = None if args.text is None else paired(args.text, args.pair)
    view = import_module("npformer.view")
    with view.explore(models, text, port=args.port) as explorer:
        print(explorer.url, flush=True)
        note("Ctrl-C ends the page")
        if not args.no_browser:
            webbrowser.open(explorer.url)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a background job may ignore SIGINT
        with suppress(KeyboardInterrupt):
            explorer.prepare()  # while the browser loads the page
            explorer.wait()
