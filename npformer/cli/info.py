"""Describe this installation, or show whether MODEL runs, and for which tasks."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npformer.cli.arguments import LOADING, add_options, loading
from npformer.cli.process import BAD_INPUT
from npformer.common.errors import NpformerError
from npformer.common.files import open_file
from npformer.common.progress import wrapped
from npformer.version import __version__

if TYPE_CHECKING:
    from npformer.checkpoint.parameters import Parameter

EPILOG = """examples:
  npformer info
  npformer info distilbert-sst2
  npformer info --verify distilbert-sst2"""

MARGIN = 24  # if any name is longer than this, values are printed below their names
CARD = 2**16  # maximum bytes read from a model card


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a bundled model, a folder or a Hugging Face id")
    add_options(parser, LOADING)
    what = "dtype for MODEL's memory estimate and the same-bits test (default: float32, which all commands use)"
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help=what)
    what = "check the files of MODEL, or of all bundled models, against their checksums"
    parser.add_argument("--verify", action="store_true", help=what)
    parser.add_argument("--json", action="store_true", help="write a JSON object, for programs")


def run(args: argparse.Namespace) -> int:
    damaged = False
    if args.verify:
        facts, damaged = _verified(args)
    elif args.model is None:
        facts = _installation(args)
    else:
        facts = _model(args)
    if args.json:
        print(json.dumps(facts, indent=2))
        return BAD_INPUT if damaged else 0
    for name, value in facts.items():
        for row, each in enumerate(value if isinstance(value, list) else [value]):
            print(_row(name if row == 0 else "", str(each), max(map(len, facts))))
    return BAD_INPUT if damaged else 0


def _row(name: str, value: str, width: int) -> str:
    """Formats a name and its value. On a terminal, wraps the value, below the name if any name is long."""
    value = value.replace("\n", "\\n")  # a label or file name may contain line breaks
    line = f"{name:{width}}  {value}"
    if not sys.stdout.isatty():
        return line
    if width > MARGIN:
        return f"{name}\n{wrapped(f'  {value}', '  ')}"
    return wrapped(line, " " * (width + 2))


def _verified(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Returns the SHA-256 of each file with the source of the expected checksum, and whether any file is damaged."""
    from npformer.checkpoint.verify import verify
    from npformer.loading import bundled, find_folder

    models = bundled()  # not `find_folder`, which rejects damaged bundled models
    if args.model is None:
        folders = list(models.values())
    else:
        folders = [models.get(args.model) or find_folder(args.model, args.revision, args.offline)]
    found = {str(folder / each.name): each for folder in folders for each in verify(folder)}
    if not found:
        places = ", ".join(map(str, folders)) or "the package, which has no bundled model"
        raise NpformerError(f"--verify: found no files in {places}")
    facts = {name: f"{each.sha256}  {each.verdict}" for name, each in found.items()}
    return facts, any(each.damaged for each in found.values())


def _installation(args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    import tokenizers
    from huggingface_hub.constants import HF_HUB_CACHE

    from npformer.engine.runtime.threads import available_cores, blas_libraries, thread_count
    from npformer.loading import bundled

    return {
        "npformer": f"{__version__} in {Path(__file__).parent.parent}",
        "Python": f"{platform.python_version()} in {sys.prefix}",
        "NumPy": np.__version__,
        "tokenizers": tokenizers.__version__,
        "machine": f"{platform.machine()} {platform.system()}, {available_cores()} cores",
        "threads": thread_count(args.threads),
        "BLAS": [_blas(library) for library in blas_libraries()] or ["none found by threadpoolctl"],
        # Only this dtype is tested, because some BLAS libraries abort the process when they multiply the other dtype.
        "same bits": f"{args.dtype}: {_same_bits(np.dtype(args.dtype))}",
        "panels": _panels(),
        "bundled models": [f"{name} in {folder}" for name, folder in sorted(bundled().items())] or ["none"],
        "cache": HF_HUB_CACHE,
    }


def _panels() -> str:
    from npformer.engine.runtime.weight_products import MANY, panels_pay

    paying = [rows for rows in (8, 32, MANY) if panels_pay(rows)]
    if not paying:
        return "no, they would be slower on this machine"
    return f"yes, weights are repacked for up to {paying[-1]} tokens at a time"


def _same_bits(dtype: Any) -> str:
    from npformer.engine.runtime.products import kernel, same_bits
    from npformer.engine.runtime.threads import wants_same_bits

    if not wants_same_bits():
        return "turned off by NPFORMER_SAME_BITS=0"
    if not same_bits(dtype):
        return "no, on this BLAS the last bits of a text's result depend on its batch; results are still correct"
    return f"yes, for any batch, order and number of threads ({kernel(dtype).means()})"


def _blas(library: dict[str, Any]) -> str:
    kernels = f" ({library['architecture']})" if library.get("architecture") else ""
    return f"{library.get('internal_api')} {library.get('version')}{kernels}, {library.get('num_threads')} threads"


def _memory(arrays: Iterable[Parameter], dtype: str, keep: str) -> str:
    """Estimates the bytes of the weights in memory."""
    import numpy as np

    from npformer.checkpoint.read import check_keep
    from npformer.checkpoint.tree import may_be_narrow
    from npformer.engine.runtime.narrow import NARROW

    check_keep(keep, np.dtype(dtype))
    if keep == "stored":
        raise NpformerError("--keep: info does not read the dtypes of stored weights; give bfloat16, float16 or int8")
    size = 0
    for each in arrays:
        if keep in NARROW and may_be_narrow(each, each.shape):
            scales = 4 * each.shape[-1 if each.kind == "linear" else 0] if keep == "int8" else 0
            size += prod(each.shape) * NARROW[keep].itemsize + scales
        else:
            size += prod(each.shape) * np.dtype(dtype).itemsize
    return f"{size / 1e6:.1f} MB as {dtype if keep == 'float32' else keep}"


def _card(folder: Path) -> dict[str, str]:
    """Returns the path of the model card, and the base model named in the card."""
    card = folder / "README.md"
    try:
        file = open_file(card)
    except NpformerError:
        return {}
    with file:
        base = re.search(r"^base_model: *(\S+)$", file.read(CARD).decode(errors="replace"), re.MULTILINE)
    return {"card": str(card)} | ({"made from": base[1]} if base else {})


def _model(args: argparse.Namespace) -> dict[str, Any]:
    """Describes a model from its config.json, without reading or downloading weights.

    For an unsupported model, raises the same NpformerError as `load`, which names the unsupported feature.
    """
    from npformer.checkpoint.modules import home
    from npformer.checkpoint.read import WEIGHTS, config_of, read_description
    from npformer.checkpoint.tied import drawn
    from npformer.common.other_libraries import TRANSFORMERS_VERSIONS
    from npformer.families import family_of, ignored
    from npformer.loading import find_folder
    from npformer.tasks.logit_score import is_logit_score
    from npformer.tasks.pipelines import tasks_of
    from npformer.tasks.sentence_folder import unsupported_modules
    from npformer.text.tokenizer import longest_text

    limits = loading(args)["limits"]
    folder = find_folder(args.model, args.revision, args.offline, weights=False)
    data = read_description(folder, limits)
    config = config_of(folder, data, limits=limits)
    outer = home(folder)
    problem = "" if is_logit_score(outer) else unsupported_modules(outer)
    numbers = sum(prod(each.shape) for each in drawn(config).values())
    decoder = config.decoder.n_layers
    weights = next((name for name in WEIGHTS if (folder / name).exists()), "not here")
    extra = "translate, unless the model has a tokenizer.json" if family_of(config).tokenizer_pieces else "none"
    return {
        "folder": str(folder),
        **_card(folder),
        "runs": f"only the encoder: {problem}" if problem else "yes, according to its config.json",
        "extra needed": extra,
        "family": config.model_type,
        "head": config.head,
        "layers": f"{config.n_layers} and {decoder} in the decoder" if decoder else config.n_layers,
        "heads": f"{config.n_heads} of width {config.d_head}",
        "width": f"{config.d_model}, {config.d_ffn} in the feed-forward network ({config.activation})",
        "vocabulary": f"{config.vocab_size} pieces",
        "longest text": f"{longest_text(folder, config)} tokens",
        "parameters": f"{numbers / 1e6:.1f} million",
        "Transformers": f"results of version 4 or 5; where they differ, see {TRANSFORMERS_VERSIONS}",
        "weights": weights,
        "memory": _memory(drawn(config).values(), args.dtype, args.keep),
        "tasks": ", ".join(name for name in tasks_of(config, data) if not (problem and name == "sentence-embedding")),
        **({"ignored": ", ".join(unread)} if (unread := ignored(data, family_of(config))) else {}),
        **({"labels": list(config.labels)} if config.labels else {}),
    }
