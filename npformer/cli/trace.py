"""Show the stages of a forward pass on one text: token ids, embeddings, a layer,
the head, the label."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from npformer.cli.arguments import PAIR, add_options, loading, model_options
from npformer.cli.run_task import write_json
from npformer.cli.texts import paired
from npformer.common.errors import NpformerError
from npformer.interpret.teardown import corners, shown_stages, teardown
from npformer.interpret.traces import Trace, trace
from npformer.loading import load

EPILOG = """examples:
  npformer trace "I love ice cream"
  npformer trace "I love ice cream" --pair "So do I"
  npformer trace "I love ice cream" --stage "*.weights" --layer 3
  npformer trace "I love ice cream" -o stages.safetensors"""

#: The fields of each stage in the JSON object.
COLUMNS = ("name", "shape", "formula", "function", "huggingface", "transformerlens", "mean", "std", "min", "max")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="the text")
    add_options(parser, [PAIR, *model_options("distilbert-sst2")])
    parser.add_argument("--layer", type=int, metavar="N", help="the layer to show (0)")
    parser.add_argument("--stage", action="append", metavar="GLOB", help="stages to show, such as '*.weights'")
    parser.add_argument("--json", action="store_true", help="write a JSON object, for programs")
    parser.add_argument("-o", "--output", metavar="FILE", help="also write every stage in full to a safetensors file")


def run(args: argparse.Namespace) -> None:
    model = load(args.model, **loading(args))
    recorded = trace(model, paired(args.text, args.pair))
    names = shown_stages(recorded, args.layer, args.stage)  # before any output, because it raises for an unknown stage
    if args.output is not None:
        if Path(args.output).suffix != ".safetensors":
            raise NpformerError(f"{args.output}: expected a file name that ends in .safetensors")
        recorded.save(args.output)
    if args.json:
        write_json(_described(recorded, names))
    else:
        print(teardown(recorded, args.layer, args.stage))


def _described(recorded: Trace, names: list[str]) -> dict[str, Any]:
    rows = recorded.table(COLUMNS, names).records()
    return {
        "tokens": recorded.tokens,
        "ids": recorded.ids.tolist(),
        **_source(recorded),
        "label": recorded.label,
        "stages": [{**row, **_values(recorded[name], row)} for name, row in zip(names, rows, strict=True)],
    }


def _source(recorded: Trace) -> dict[str, Any]:
    """Returns the tokens that the encoder reads, for a model with a decoder."""
    if recorded.key_ids is None:
        return {}
    return {"source_tokens": recorded.key_tokens, "source_ids": recorded.key_ids.tolist()}


def _values(array: np.ndarray, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that differ in JSON: the shape as numbers, the function's full name, and the corner values."""
    return {"shape": list(array.shape), "function": f"npformer.engine.{row['function']}", "corners": corners(array)}
