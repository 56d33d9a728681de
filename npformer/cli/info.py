"""Show this installation and machine, or with MODEL what a model is and needs."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

from npformer import __version__
from npformer.cli.arguments import LOADING, add_options, loading
from npformer.cli.process import BAD_INPUT
from npformer.errors import NpformerError
from npformer.files import open_file
from npformer.model import Model

EPILOG = """examples:
  npformer info
  npformer info distilbert-sst2
  npformer info --verify distilbert-sst2"""

CARD = 2**16  # bytes of a model's card that are looked at
ENCODERS = ["feature-extraction", "sentence-embedding"]  # tasks that every encoder serves, whatever its head


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="MODEL", help="a bundled model, a folder or a Hugging Face id")
    add_options(parser, LOADING)
    what = "what to load MODEL in, or to try for the same bits (default: float32, which every command computes in)"
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help=what)
    what = "hold the files of MODEL, or of all bundled models, to their checksums"
    parser.add_argument("--verify", action="store_true", help=what)
    parser.add_argument("--json", action="store_true", help="write a JSON object, for programs")


def run(args: argparse.Namespace) -> int:
    damaged = False
    if args.verify:
        facts, damaged = _verified(args)
    elif args.name is None:
        facts = _installation(args)
    else:
        from npformer.checkpoint.load import load

        facts = _model(load(args.name, dtype=args.dtype, **loading(args)))
    if args.json:
        print(json.dumps(facts, indent=2))
        return BAD_INPUT if damaged else 0
    width = max(map(len, facts))
    for name, value in facts.items():
        for row, each in enumerate(value if isinstance(value, list) else [value]):
            print(f"{name if row == 0 else '':{width}}  {each}")
    return BAD_INPUT if damaged else 0


def _verified(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Returns for each file its SHA-256 and what it was held to, and whether one is damaged."""
    from npformer.checkpoint.load import bundled, find_folder
    from npformer.checkpoint.verify import verify

    models = bundled()  # asked by name, a bundled model is held to its checksum already, and an error is all there is
    if args.name is None:
        folders = list(models.values())
    else:
        folders = [models.get(args.name) or find_folder(args.name, args.revision, args.offline)]
    found = {str(folder / each.name): each for folder in folders for each in verify(folder)}
    facts = {name: f"{each.sha256}  {each.held_to}" for name, each in found.items()}
    return facts, any(each.damaged for each in found.values())


def _installation(args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    import tokenizers
    from huggingface_hub.constants import HF_HUB_CACHE

    from npformer.checkpoint.load import bundled
    from npformer.runtime.products import panels_pay
    from npformer.runtime.threads import available_cores, blas_libraries, thread_count

    return {
        "npformer": f"{__version__} in {Path(__file__).parent.parent}",
        "Python": f"{platform.python_version()} in {sys.prefix}",
        "NumPy": np.__version__,
        "tokenizers": tokenizers.__version__,
        "machine": f"{platform.machine()} {platform.system()}, {available_cores()} cores",
        "threads": thread_count(args.threads),
        "BLAS": [_blas(library) for library in blas_libraries()] or ["none that threads can be counted of"],
        # Nothing is tried that was not asked for: a BLAS may stop the process at products of the other type alone.
        "same bits": f"{args.dtype}: {_same_bits(np.dtype(args.dtype))}",
        "panels": "yes: weights for few tokens are laid out anew" if panels_pay() else "no: they would not pay here",
        "bundled models": [f"{name} in {folder}" for name, folder in sorted(bundled().items())] or ["none"],
        "cache": HF_HUB_CACHE,
    }


def _same_bits(dtype: Any) -> str:
    from npformer.runtime.products import kernel, same_bits
    from npformer.runtime.threads import wants_same_bits

    if not wants_same_bits():
        return "not asked for: NPFORMER_SAME_BITS=0"
    if not same_bits(dtype):
        return "no, on this BLAS a text's last bits depend on the texts beside it; results are right all the same"
    return f"yes, alone and in any batch, order and number of threads ({kernel(dtype).means()})"


def _blas(library: dict[str, Any]) -> str:
    kernels = f" ({library['architecture']})" if library.get("architecture") else ""
    return f"{library.get('internal_api')} {library.get('version')}{kernels}, {library.get('num_threads')} threads"


def _card(folder: Path | None) -> dict[str, str]:
    """Returns the path of the model's card, and the base model that the card names."""
    card = folder / "README.md" if folder else Path()
    try:
        file = open_file(card)
    except NpformerError:
        return {}
    with file:
        base = re.search(r"^base_model: *(\S+)$", file.read(CARD).decode(errors="replace"), re.MULTILINE)
    return {"card": str(card)} | ({"made from": base[1]} if base else {})


def _model(model: Model) -> dict[str, Any]:
    from npformer.checkpoint.tree import stored
    from npformer.tasks.pipeline import TASK_OF
    from npformer.text.tokenizer import longest_text

    config = model.config
    arrays = stored(dict(model.weights), config)
    knows_entailment = any(label.lower().startswith("entail") for label in config.labels)
    decoder = config.decoder.n_layers
    own = [TASK_OF[config.head]] if config.head in TASK_OF.keys() - {"base"} else []
    more = ["zero-shot-classification"] if knows_entailment else []
    more += ["sparse-embedding"] if config.head == "masked-lm" else []
    more += ["text-ranking"] if config.head == "sequence-classification" and len(config.labels) == 1 else []
    facts: dict[str, Any] = {
        "folder": str(model.folder),
        **_card(model.folder),
        "family": config.model_type,
        "head": config.head,
        "layers": f"{config.n_layers} and {decoder} in the decoder" if decoder else config.n_layers,
        "heads": f"{config.n_heads} of {config.d_head}",
        "width": f"{config.d_model}, {config.d_ffn} in the feed-forward network ({config.activation})",
        "vocabulary": f"{config.vocab_size} pieces",
        "longest text": f"{longest_text(model.folder, config)} tokens",
        "parameters": f"{sum(array.size for array in arrays.values()) / 1e6:.1f} million",
        "memory": f"{sum(array.nbytes for array in arrays.values()) / 1e6:.1f} MB as {model.dtype}",
        "tasks": ", ".join([*own, *more, *(() if decoder else ENCODERS)]),
    }
    if config.labels:
        facts["labels"] = list(config.labels)
    return facts
