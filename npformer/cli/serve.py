"""Serve models over HTTP: vectors, labels, ranks, entities, answers and texts,
with the routes of text-embeddings-inference, Hugging Face and OpenAI."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from npformer.cli.arguments import KEEP, OFFLINE, REVISION, add_options
from npformer.common.errors import NpformerError
from npformer.serve import ServiceLimits, need_extra
from npformer.tasks.declaration import whole

KEY = "NPFORMER_API_KEY"
EPILOG = f"""Requests from different clients share batches, which does not change the
answers. GET /docs lists the routes. After SIGTERM, the service answers the
accepted requests, then exits with 0.

The API key is read from the variable {KEY} or from a file, because
every user of a machine can see a process's arguments.

example:
  npformer serve distilbert-sst2 --port 8123"""

#: Option -> the field of ServiceLimits that the option sets, and the help text.
LIMITS = {
    "--max-body": ("body", "maximum bytes in a request"),
    "--max-texts": ("texts", "maximum texts in a request"),
    "--max-tokens": ("tokens", "maximum tokens in a request"),
    "--timeout": ("seconds", "maximum seconds from a request to its answer"),
    "--max-answers": ("answers", "maximum bytes of answers that clients have not read"),
    "--max-queue": ("queue", "maximum waiting texts; further requests get status 429"),
    "--max-batch-tokens": ("batch_tokens", "maximum tokens in a batch"),
    "--max-wait": ("wait_ms", "milliseconds a text waits for others to share its batch"),
    "--grace": ("grace", "seconds to answer accepted requests when stopped"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a bundled model, a folder or a Hugging Face id")
    parser.add_argument(
        "--name", action="append", metavar="NAME", help="the name to serve a model under, once for each MODEL, in order"
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to serve on (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="the port; 0: any free port (%(default)s)")
    parser.add_argument("--workers", type=whole, default=1, metavar="N", help="processes (%(default)s)")
    parser.add_argument(
        "-j", "--threads", type=whole, metavar="N", help="cores per process (default: all, divided among the processes)"
    )
    add_options(parser, [REVISION, OFFLINE, KEEP])
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="file with the API key that clients send")
    parser.add_argument(
        "--access-log", action="store_true", help="log each request: method, path, status, time and rows, but no texts"
    )
    types = {each.name: each.type for each in fields(ServiceLimits)}
    for name, (sets, what) in LIMITS.items():
        kind = whole if types[sets] == "int" else float
        default = getattr(ServiceLimits(), sets)
        parser.add_argument(name, dest=sets, type=kind, metavar="N", default=default, help=f"{what} (%(default)s)")


def run(args: argparse.Namespace) -> None:
    need_extra()
    from npformer.serve.supervisor import ServerSettings
    from npformer.serve.supervisor import run as serve

    try:
        limits = ServiceLimits(**{sets: getattr(args, sets) for sets, _ in LIMITS.values()})
    except NpformerError as error:
        name, _, problem = str(error).partition(": ")
        flag = next(flag for flag, (sets, _) in LIMITS.items() if sets == name)
        raise NpformerError(f"{flag}: {problem}") from None
    own: dict[str, Any] = {"limits": limits, "api_key": _api_key(args.api_key_file)}
    if args.name is not None:
        args.models = _named(args.models, args.name)
    given = {each.name: getattr(args, each.name) for each in fields(ServerSettings) if each.name not in own}
    serve(ServerSettings(**given, **own))


def _named(models: list[str], names: list[str]) -> dict[str, str]:
    """Returns the models by the names under which they are served."""
    if len(names) != len(models) or len(set(names)) != len(names) or not all(names):
        raise NpformerError(
            f"--name: expected a different name for each of {len(models)} models, got {', '.join(names)}"
        )
    return dict(zip(names, models, strict=True))


def _api_key(path: Path | None) -> str | None:
    """Returns the key from the given file, or else from the environment, or None."""
    if path is None:
        return os.environ.get(KEY)
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NpformerError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
