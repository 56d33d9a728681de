"""Serves the same model as `service.py` with ONNX Runtime and starlette, batching requests as such servers usually do.

    python -m tests.benchmarks.onnx_service ENGINE FOLDER PORT

ENGINE is `onnxruntime`, with the fastest session settings on this machine, or `fastembed`, the library with its
defaults. FOLDER is the output of `service.py --export`. Up to 64 waiting texts are sorted by length and run in groups
of 8, padded to the longest; this is the fastest setup for this model. Vectors are means normalized to length 1, like
the vectors of /embed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from npformer.engine.runtime.threads import available_cores

Vectors = Callable[[list[str]], np.ndarray]  # texts -> (N, D)


def by_onnxruntime(folder: str) -> Vectors:
    """Opens the model with threads that do not spin, because spinning uses half the processor time on shared cores."""
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()

    def vectors(texts: list[str]) -> np.ndarray:
        encoded = tokenizer.encode_batch(texts)
        ids, mask = (np.array([getattr(each, name) for each in encoded]) for name in ("ids", "attention_mask"))
        (hidden,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    return vectors


def by_fastembed(folder: str) -> Vectors:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    source = ModelSource(hf="local")  # nothing is downloaded, because the folder is given
    TextEmbedding.add_custom_model("local", PoolingType.MEAN, True, source, dim=384, model_file="model.onnx")
    model = TextEmbedding("local", threads=available_cores(), specific_model_path=folder)
    return lambda texts: np.stack(list(model.embed(texts)))


ENGINES = {"onnxruntime": by_onnxruntime, "fastembed": by_fastembed}
waiting: asyncio.Queue = asyncio.Queue()


async def compute(vectors: Vectors) -> None:
    while True:
        batch = [await waiting.get()]
        while len(batch) < 64 and not waiting.empty():
            batch.append(waiting.get_nowait())
        batch.sort(key=lambda each: len(each[0]))
        for group in (batch[at : at + 8] for at in range(0, len(batch), 8)):
            found = await asyncio.to_thread(vectors, [text for text, _ in group])
            for (_, future), vector in zip(group, found, strict=True):
                if not future.done():
                    future.set_result(vector)


async def embed(request: Request) -> Response:
    future = asyncio.get_running_loop().create_future()
    waiting.put_nowait(((await request.json())["inputs"], future))
    return Response(json.dumps([(await future).tolist()]), media_type="application/json")


def main(engine: str, folder: str, port: str) -> None:
    """Serves the model."""
    vectors = ENGINES[engine](folder)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(compute(vectors))
        yield
        task.cancel()

    print(f"serving {folder} on http://127.0.0.1:{port}", flush=True)
    app = Starlette(routes=[Route("/embed", embed, methods=["POST"])], lifespan=lifespan)
    uvicorn.run(app, port=int(port), access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
