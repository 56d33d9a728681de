"""Compares a generation step of a GPT-2-sized model with three engines: `python -m tests.benchmarks.generation`.

A model of GPT-2's size with random weights (12 layers, 768 wide, 50,257 tokens) greedily generates 32 tokens after each
prompt. The figure is the total time, including the pass over the prompt, divided by 32. Every engine must generate the
same tokens. Engines take turns in one process, and each figure is an engine's minimum time. Needs the dependency
groups `oracle` and `bench`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npformer.engine.runtime.threads import available_cores
from npformer.loading import load
from tests.benchmarks import measure, table
from tests.benchmarks.models import Contender, quieten

VOCABULARY = 50_257
TOKENS = 32
WORKS = ((1, 16), (1, 128), (1, 512), (8, 16))  # (number of prompts, tokens in each prompt)

Engine = Callable[[np.ndarray], Any]  # prompts (B, L) -> new tokens (B, TOKENS)


def write_model(folder: Path) -> Any:
    """Writes the checkpoint as Transformers saves it; returns the Transformers model."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    quieten()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(eos_token_id=None, bos_token_id=None)).eval()
    model.save_pretrained(folder)
    # CTranslate2 requires names for all ids, and a file of merges, although neither is used here.
    (folder / "vocab.json").write_text(json.dumps({name(i): i for i in range(VOCABULARY)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": name(0), "bos_token": name(0), "unk_token": name(0)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def name(token: int) -> str:
    return f"t{token}"


def transformers_engine(model: Any) -> Engine:
    import torch

    def run(prompts: np.ndarray) -> np.ndarray:
        ids = torch.from_numpy(prompts)
        with torch.inference_mode():
            written = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS, min_new_tokens=TOKENS
            )
        return written[:, prompts.shape[1] :].numpy()

    return run


def ctranslate2_engine(folder: Path, threads: int) -> Engine:
    import ctranslate2

    converted = ctranslate2.converters.TransformersConverter(str(folder)).convert(str(folder / "ctranslate2"))
    generator = ctranslate2.Generator(converted, compute_type="float32", intra_threads=threads)

    def run(prompts: np.ndarray) -> list[list[int]]:
        named = [[name(token) for token in prompt] for prompt in prompts]
        written = generator.generate_batch(
            named, max_length=TOKENS, min_length=TOKENS, max_batch_size=len(named), include_prompt_in_result=False
        )
        return [each.sequences_ids[0] for each in written]

    return run


def onnx_engine(model: Any, folder: Path, threads: int) -> Engine:
    """Returns a function that generates tokens with ONNX Runtime, whose memory holds the keys and values."""
    import onnxruntime

    path, layers = folder / "step.onnx", len(model.transformer.h)
    kept = [f"{kind}{layer}" for layer in range(layers) for kind in ("key", "value")]
    export(model, path, kept)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs, values = ["logits", *(f"new_{each}" for each in kept)], onnxruntime.OrtValue.ortvalue_from_numpy

    def run(prompts: np.ndarray) -> np.ndarray:
        nothing = values(np.zeros((len(prompts), model.config.n_head, 0, 64), np.float32))
        ids, state, written = prompts, [nothing] * len(kept), []
        for _ in range(TOKENS):
            given = {"ids": values(ids), **dict(zip(kept, state, strict=True))}
            logits, *state = session.run_with_ort_values(outputs, given)
            ids = logits.numpy().argmax(axis=-1)
            written.append(ids)
        return np.concatenate(written, axis=1)

    return run


def export(model: Any, path: Path, kept: list[str]) -> None:
    """Writes one step of the model as an ONNX file that computes only the last token's logits."""
    import torch

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, *state: Any) -> tuple[Any, ...]:
            gpt, heads, new = self.model.transformer, self.model.config.n_head, []
            before, count = state[0].shape[2], ids.shape[1]
            places = torch.arange(count) + before
            seen = torch.arange(before + count) <= places[:, None]
            x = gpt.wte(ids) + gpt.wpe(places)
            for layer, block in enumerate(gpt.h):
                q, k, v = (
                    part.reshape(*part.shape[:2], heads, -1).transpose(1, 2)
                    for part in block.attn.c_attn(block.ln_1(x)).chunk(3, dim=-1)
                )
                k, v = torch.cat([state[2 * layer], k], 2), torch.cat([state[2 * layer + 1], v], 2)
                new += [k, v]
                scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
                weights = torch.where(seen, scores, torch.tensor(-1e9)).softmax(dim=-1)
                x = x + block.attn.c_proj((weights @ v).transpose(1, 2).reshape(x.shape))
                x = x + block.mlp(block.ln_2(x))
            return self.model.lm_head(gpt.ln_f(x[:, -1:])), *new

    axes: dict[str, dict[int, str]] = {"ids": {0: "texts", 1: "new"}}
    axes |= {each: {0: "texts", 2: "kept"} for each in kept}
    axes |= {f"new_{each}": {0: "texts", 2: "all"} for each in kept}
    state = [torch.zeros(2, model.config.n_head, 3, 64) for _ in kept]
    torch.onnx.export(
        Step().eval(), (torch.ones(2, 4, dtype=torch.long), *state), path, input_names=["ids", *kept],
        output_names=["logits", *(f"new_{each}" for each in kept)], dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip


def npformer_engine(folder: Path, threads: int) -> Engine:
    model = load(folder, threads=threads)

    def run(prompts: np.ndarray) -> list[list[int]]:
        written = model.generate(prompts, max_new_tokens=TOKENS, min_new_tokens=TOKENS, num_beams=1)
        return [each[0].ids[-TOKENS:] for each in written]

    return run


def main() -> None:
    """Measures and prints all figures, and writes the JSON file if requested."""
    arguments = measure.parser("generation", __doc__, "one turn: a look, not a measurement").parse_args()
    import torch

    threads, rows = available_cores(), []
    torch.set_num_threads(threads)
    result: dict[str, Any] = {"machine": measure.machine(), "tokens": TOKENS, "rows": {}}
    print(measure.described(result["machine"]), flush=True)
    with tempfile.TemporaryDirectory(prefix="npformer-generation-") as place:
        folder = Path(place)
        model = write_model(folder)
        engines = {
            "npformer": npformer_engine(folder, threads),
            "Transformers": transformers_engine(model),
            "ONNX Runtime": onnx_engine(model, folder, threads),
            "CTranslate2": ctranslate2_engine(folder, threads),
        }
        for count, length in WORKS:
            work = f"{count} x {length} tokens"
            prompts = np.random.default_rng(0).integers(1, VOCABULARY, (count, length))
            expected = np.array(engines["npformer"](prompts))

            def check(runner: measure.Runner, answer: Any, expected: np.ndarray = expected, work: str = work) -> None:
                if not np.array_equal(np.array(answer), expected):
                    raise SystemExit(f"{work}: {runner.engine} writes other tokens")

            contenders = [
                Contender(engine, "", lambda run=run, prompts=prompts: run(prompts)) for engine, run in engines.items()
            ]
            raced = measure.race(contenders, 1 if arguments.quick else 4, 0, check)
            seconds = {engine: each["seconds"] / TOKENS for engine, each in raced.items()}
            result["rows"][work] = seconds
            own = seconds["npformer"]
            rows.append([work, f"{own * 1e3:.1f} ms", *(f"{own / seconds[each]:.2f}" for each in list(engines)[1:])])
            print(" ".join(rows[-1]), flush=True)
        print(table.markdown(["prompts", "npformer, per token", *list(engines)[1:]], rows), flush=True)
    measure.save(result, arguments.json)


if __name__ == "__main__":
    main()
