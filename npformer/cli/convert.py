"""Convert a checkpoint to npformer's format, which loads fastest, or to torch's."""

from __future__ import annotations

import argparse

from npformer.checkpoint.convert import FILES, STORED_DTYPES, convert
from npformer.cli.arguments import ALLOW, OFFLINE, REVISION, add_options, limits
from npformer.loading import find_folder

EPILOG = """examples:
  npformer convert distilbert/distilbert-base-uncased here
  npformer convert here there --to torch"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="a bundled model, a folder or a Hugging Face id")
    parser.add_argument("destination", metavar="DST", help="the folder to write; it must not exist")
    parser.add_argument("--to", choices=FILES, default="npformer", help="the format of the result (%(default)s)")
    parser.add_argument("--dtype", choices=STORED_DTYPES, help="dtype of the stored weights (default: unchanged)")
    keep = "store the weights in bfloat16, float16 or int8; other commands memory-map them with --keep stored"
    parser.add_argument("--keep", metavar="DTYPE", help=keep)
    add_options(parser, [REVISION, OFFLINE, ALLOW])


def run(args: argparse.Namespace) -> None:
    source = find_folder(args.source, args.revision, args.offline)
    folder = convert(source, args.destination, args.to, args.dtype, limits=limits(args), keep=args.keep)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB")
