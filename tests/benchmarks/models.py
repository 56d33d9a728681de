"""The two models of the benchmarks, loaded into every engine with the same weights.

`folders` writes them as Hugging Face checkpoints; `Engines` opens one of them in npformer, torch, ONNX Runtime
and CTranslate2, each as a function from texts to logits. `measure.py` races those functions.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.convert import COMPANIONS, convert
from npformer.engine.runtime.packing import Text
from npformer.loading import bundled, load
from npformer.model import Model
from tests.benchmarks.sizes import BUNDLED

BATCH_SIZES = (1, 4, 8, 32)

Ids = Sequence[np.ndarray]  # the token ids of each text, (L,)


@dataclass(frozen=True)
class Contender:
    """One way to compute a row of the table: an engine, its setup, and the timed call."""

    engine: str
    setup: str
    run: Callable[[], Any]


@dataclass(frozen=True)
class _Batch:
    """The input of an engine that pads."""

    ids: np.ndarray  # (B, L)
    mask: np.ndarray  # (B, L): 1 for tokens, 0 for padding

    @property
    def is_padded(self) -> bool:
        return not self.mask.all()


Run = Callable[[list[_Batch]], Iterator[np.ndarray]]


def folders(path: Path) -> dict[str, Path]:
    """Writes the two checkpoints: DistilBERT-base's size with random weights, and the bundled model."""
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    quieten()
    torch.manual_seed(0)
    base, small = path / "distilbert-base", path / BUNDLED
    DistilBertForSequenceClassification(DistilBertConfig()).save_pretrained(base)
    source = bundled()[BUNDLED]
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, base / name)
    convert(source, small, to="torch", dtype="float32")
    return {"DistilBERT-base, random weights": base, f"{BUNDLED}, 384 wide": small}


class Engines:
    """One checkpoint in every engine, with as many threads as npformer uses."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.threads = threads
        self.npformer: Model = load(folder, threads=threads)
        self.torch = _torch_model(folder, "sdpa")
        self.sessions = {setup: _session(path, threads) for setup, path in _export(folder).items()}
        self.encoders = _encoders(folder, threads)

    def contenders(self, ids: Ids) -> list[Contender]:
        """Returns every engine's setups for computing the logits of these texts. Padded batches are made beforehand."""
        texts = [Text(each) for each in ids]
        found = [Contender("npformer", "", lambda: np.stack([each["logits"] for each in self.npformer.run(texts)]))]
        for size in BATCH_SIZES:
            if size <= len(ids):
                order, batches = _batches(ids, size)
                back = np.argsort(order)
                found += [
                    Contender(engine, ", ".join([*setup, f"batches of {size}"]), partial(_in_order, run, batches, back))
                    for engine, setup, run in self._peers(len(batches))
                ]
        return found

    def _peers(self, n_batches: int) -> Iterator[tuple[str, list[str], Run]]:
        """Yields the name of each engine, its setup, and a function that runs batches in it."""
        yield "torch", [], self._run_torch
        for setup, session in self.sessions.items():
            yield "ONNX Runtime", [setup], partial(_run_session, session)
        for setup, (encoder, callers) in self.encoders.items():
            if callers == 1 or n_batches > 1:
                yield "CTranslate2", [setup], partial(self._run_encoder, encoder, callers)

    def _run_torch(self, batches: list[_Batch]) -> Iterator[np.ndarray]:
        import torch

        with torch.inference_mode():
            for batch in batches:
                mask = torch.from_numpy(batch.mask) if batch.is_padded else None
                yield self.torch(torch.from_numpy(batch.ids), attention_mask=mask).logits.numpy()

    def _run_encoder(self, encoder: Any, callers: int, batches: list[_Batch]) -> Iterator[np.ndarray]:
        """Runs the encoder. CTranslate2 has no head, so NumPy computes the head's two small products."""
        from ctranslate2 import StorageView

        def first_rows(batch: _Batch) -> np.ndarray:
            ids, lengths = (StorageView.from_array(each.astype(np.int32)) for each in (batch.ids, batch.mask.sum(1)))
            return np.asarray(encoder.forward_batch(ids, lengths).last_hidden_state)[:, 0].copy()

        if callers == 1:
            first = [first_rows(batch) for batch in batches]
        else:
            with ThreadPoolExecutor(callers) as pool:
                first = list(pool.map(first_rows, batches))
        pooler, head = self.npformer.weights["pooler"], self.npformer.weights["head"]["output"]
        pooled = np.maximum(np.concatenate(first) @ pooler["weight"] + pooler["bias"], 0)
        yield pooled @ head["weight"] + head["bias"]


# --- batches for engines that pad ------------------------------------------------------------------------------------


def _batches(ids: Ids, size: int) -> tuple[np.ndarray, list[_Batch]]:
    """Returns the indices of the texts sorted by length, longest first, and batches of `size` texts in that order."""
    order = np.argsort([-len(each) for each in ids], kind="stable")
    batches = []
    for start in range(0, len(order), size):
        chosen = [ids[i] for i in order[start : start + size]]
        mask = (np.arange(len(chosen[0])) < np.array([len(each) for each in chosen])[:, None]).astype(np.int64)
        padded = np.zeros(mask.shape, np.int64)
        padded[mask == 1] = np.concatenate(chosen)
        batches.append(_Batch(padded, mask))
    return order, batches


def _in_order(run: Run, batches: list[_Batch], back: np.ndarray) -> np.ndarray:
    return np.concatenate(list(run(batches)))[back]


# --- opening a checkpoint in the engines -----------------------------------------------------------------------------


def quieten() -> None:
    """Silences messages while models are exported and converted."""
    import logging
    import warnings

    import transformers

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _torch_model(folder: Path, attention: str) -> Any:
    import transformers

    kind = transformers.DistilBertForSequenceClassification
    return kind.from_pretrained(folder, attn_implementation=attention).eval()


def _export(folder: Path) -> dict[str, Path]:
    """Writes two ONNX files: the export, and a copy of it with layers fused by ONNX Runtime's own tool.

    Attention is exported in its plain form ("eager"), which the tool recognizes. This form does not make the first file
    slower.
    """
    import torch
    from onnxruntime.transformers import optimizer

    model, example = _torch_model(folder, "eager"), torch.ones(2, 8, dtype=torch.long)
    plain, fused = folder / "model.onnx", folder / "fused.onnx"
    torch.onnx.export(
        model,
        (example, example),
        plain,
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_axes={
            "input_ids": {0: "texts", 1: "tokens"},
            "attention_mask": {0: "texts", 1: "tokens"},
            "logits": {0: "texts"},
        },
        opset_version=17,
        dynamo=False,
    )
    config = model.config
    tool = optimizer.optimize_model(
        str(plain), model_type="bert", num_heads=config.n_heads, hidden_size=config.dim, opt_level=1
    )
    tool.save_model_to_file(str(fused))
    return {"exported": plain, "fused": fused}


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run_session(session: Any, batches: list[_Batch]) -> Iterator[np.ndarray]:
    for batch in batches:
        yield session.run(None, {"input_ids": batch.ids, "attention_mask": batch.mask})[0]


def _encoders(folder: Path, threads: int) -> dict[str, tuple[Any, int]]:
    """Returns (encoder, calling threads) by setup: all threads on one batch, or a batch for each thread."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    converted = TransformersConverter(str(folder)).convert(str(folder / "ctranslate2"))
    ways = {f"1 x {threads} threads": (1, threads)} | ({f"{threads} x 1 threads": (threads, 1)} if threads > 1 else {})
    return {
        name: (
            ctranslate2.Encoder(
                converted, device="cpu", compute_type="float32", inter_threads=inter, intra_threads=intra
            ),
            inter,
        )
        for name, (inter, intra) in ways.items()
    }
