"""Compares decoders with Transformers: `python -m tests.benchmarks.decoders smollm2-135m qwen2.5-0.5b gpt2`.

A model with random weights reads a prompt and greedily generates 24 more tokens. The figures are the time to read the
prompt and generate one token, and the time of each further token, for npformer with `same_bits` on and off, and for
Transformers (eager attention, float32). Engines take turns in one process, and each figure is an engine's minimum time.
Every engine must generate the same tokens. Needs the group `oracle`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npformer.engine.runtime.threads import available_cores
from npformer.loading import load
from tests.benchmarks import measure, table
from tests.benchmarks.keep import SHAPES
from tests.benchmarks.models import quieten
from tests.support import tiny

TOKENS = 24
PROMPTS = (16, 512)

Engine = Callable[[np.ndarray, int], list[int]]  # (a prompt (L,), number of new tokens) -> the new tokens


def engines(folder: Path) -> dict[str, Engine]:
    """Opens the model in each engine; returns the functions that generate tokens, by name."""
    import torch
    from transformers import AutoModelForCausalLM

    quieten()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    def transformers(prompt: np.ndarray, count: int) -> list[int]:
        ids = torch.from_numpy(prompt[None])
        lengths = {"max_new_tokens": count, "min_new_tokens": count}
        with torch.inference_mode():
            written = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **lengths)
        return [int(token) for token in written[0, len(prompt) :]]

    def npformer(same_bits: bool) -> Engine:
        own = load(folder, same_bits=same_bits)

        def run(prompt: np.ndarray, count: int) -> list[int]:
            [[written]] = own.generate(prompt, max_new_tokens=count, min_new_tokens=count)
            return [int(token) for token in written.ids[-count:]]

        return run

    return {"npformer": npformer(True), "without the same bits": npformer(False), "Transformers": transformers}


def times(runs: dict[str, Engine], prompt: np.ndarray, turns: int) -> dict[str, tuple[float, float]]:
    """Returns each engine's seconds for the prompt and one token, and its seconds for each further token."""
    least = {name: [np.inf, np.inf] for name in runs}
    for _ in range(turns):
        written = {}
        for name, run in runs.items():
            for i, count in enumerate((1, 1 + TOKENS)):
                start = time.perf_counter()
                written[name] = run(prompt, count)
                least[name][i] = min(least[name][i], time.perf_counter() - start)
        if any(tokens != written["Transformers"] for tokens in written.values()):
            raise SystemExit(f"the engines write different tokens: {written}")
    return {name: (first, (whole - first) / TOKENS) for name, (first, whole) in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--quick", action="store_true", help="one turn: a rough look, not a measurement")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(available_cores())
    print(measure.described(measure.machine()), flush=True)
    rows = []
    for name in args.shapes:
        with tempfile.TemporaryDirectory() as home:
            shape: dict[str, Any] = dict(SHAPES[name])
            runs = engines(tiny.folder(Path(home) / "torch", shape.pop("model_type"), "causal-lm", **shape))
            for length in PROMPTS:
                prompt = np.random.default_rng(0).integers(8, shape["vocab_size"], length)
                found = times(runs, prompt, 1 if args.quick else 5)
                for i, what in enumerate(("prompt", "step")):
                    theirs = found["Transformers"][i]
                    cells = [f"{each[i] * 1e3:.0f} ms ({each[i] / theirs:.2f})" for each in found.values()]
                    rows.append([f"{name}, {length} tokens, {what}", *cells])
    print(table.markdown(["work", *found], rows))


if __name__ == "__main__":
    main()
