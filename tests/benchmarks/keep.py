"""Measures memory and time of a decoder with narrow weights: `python -m tests.benchmarks.keep gpt2`.

A model with random weights reads a prompt of 512 tokens, and generates 32 tokens after a prompt of 16. For each form of
the weights, a separate process measures its resident memory, at the end and at its peak, relative to the size of the
float32 weights. Times are measured in turns in one process, and each figure is the minimum time of a form.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import npformer
from npformer.checkpoint.read import KEEP
from npformer.checkpoint.tree import flatten

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 50_257, "d_model": 768, "n_heads": 12, "n_layers": 12, "d_ffn": 3072,
        "max_length": 1024,
    },
    "smollm2-135m": {
        "model_type": "llama", "vocab_size": 49_152, "d_model": 576, "n_heads": 9, "n_kv_heads": 3, "n_layers": 30,
        "d_ffn": 1536, "max_length": 8192, "tied": True,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "vocab_size": 151_936, "d_model": 896, "n_heads": 14, "n_kv_heads": 2, "n_layers": 24,
        "d_ffn": 4864, "max_length": 32_768, "tied": True,
    },
}  # fmt: skip
PROMPT, SHORT, TOKENS, TURNS = 512, 16, 32, 5
WAYS = ("float32", "bfloat16", "float16", "int8")


def works(model: npformer.Model) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns two functions: a pass over a long prompt, and steps after a short prompt."""
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, PROMPT)
    steps = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS}
    return lambda: model.generate(ids, max_new_tokens=1), lambda: model.generate(ids[:SHORT], **steps)


def memory(folder: Path, keep: str) -> dict[str, float]:
    """Returns this process's memory in megabytes, at the end of some work and at its peak."""
    model = npformer.load(folder, keep=keep)
    for work in works(model):
        work()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(status[key].split()[0]) / 1e3 for name, key in (("end", "VmRSS"), ("peak", "VmHWM"))}


def in_turns(folders: dict[str, Path]) -> None:
    models = {keep: npformer.load(folder, keep=keep) for keep, folder in folders.items()}
    times: dict[str, list[list[float]]] = {keep: [[], []] for keep in models}
    for _ in range(TURNS):
        for keep, model in models.items():
            for work, taken in zip(works(model), times[keep], strict=True):
                start = time.perf_counter()
                work()
                taken.append(time.perf_counter() - start)
    least = {keep: [min(each) for each in taken] for keep, taken in times.items()}
    for keep, (prefill, writing) in least.items():
        ratios = [each / first for each, first in zip((prefill, writing), least["float32"], strict=True)]
        print(
            f"{keep:9} prompt of {PROMPT} {prefill * 1e3:6.0f} ms ({ratios[0]:.2f})   "
            f"a token after {SHORT} {writing / TOKENS * 1e3:6.1f} ms ({ratios[1]:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--memory", action="store_true", help="measure no times")
    parser.add_argument("--memory-of", choices=KEEP, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(json.dumps(memory(args.folder, args.memory_of)))
        return
    from tests.support import tiny  # imported only in this process, so that its memory is not measured

    with tempfile.TemporaryDirectory() as home:
        shape = dict(SHAPES[args.shape])
        source = tiny.folder(Path(home) / "torch", shape.pop("model_type"), "causal-lm", **shape)
        folders = {
            keep: npformer.checkpoint.convert(source, Path(home) / keep, keep=None if keep == "float32" else keep)
            for keep in WAYS
        }
        model = npformer.load(folders["float32"])
        distinct = {
            id(array.base if array.base is not None else array): array for array in flatten(model.weights).values()
        }
        total = sum(array.nbytes for array in distinct.values()) / 1e6
        print(f"{total:.0f} MB of weights in float32")
        for keep, folder in folders.items():
            options = [args.shape, "--memory-of", keep, "--folder", folder]
            command = [sys.executable, "-m", "tests.benchmarks.keep", *options]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"{keep:9} " + "   ".join(f"{name} {mb:6.0f} MB ({mb / total:.2f})" for name, mb in found.items()))
        if not args.memory:
            in_turns(folders)


if __name__ == "__main__":
    main()
