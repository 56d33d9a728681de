"""The work of this process or a Dask worker, which answers the rows of a part and describes the machine.

`RemoteTask` describes a task, so that a process on another machine can recreate the task. `identity` returns everything
that the answers of a task depend on, including a checksum of the weights.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.read import own_metadata
from npformer.checkpoint.safetensors import checksum
from npformer.checkpoint.tree import stored
from npformer.common.errors import NpformerError
from npformer.common.files import read_bytes
from npformer.common.progress import Count, counted
from npformer.dataset.columns import results
from npformer.dataset.values import as_list
from npformer.engine.activations import gelu
from npformer.engine.blocks import PackedTexts
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.runtime.runner import Runner
from npformer.engine.runtime.threads import blas_libraries
from npformer.families.building import encoder_layer_of
from npformer.generation.settings import resolve
from npformer.loading import bundled
from npformer.tasks import pipeline
from npformer.tasks.task import Task
from npformer.tasks.text_to_text import TextToText
from npformer.tasks.writing import Writing
from npformer.text.inputs import Pair
from npformer.version import __version__

Place = tuple[int, int]  # (index of a file, index of a part in the file)


def identity(task: Task) -> dict[str, Any]:
    """Returns everything that the answers of a task depend on: options, config, weights and tokenizer.

    The sha256 of the weights equals the checksum of the file that `npformer convert` writes in the model's dtype.
    """
    model = task.model
    options = {name: value for name, value in asdict(task.options).items() if name != "progress"}
    if isinstance(task, Writing):
        options["settings"] = asdict(resolve(model.folder, model.config, options["settings"]))
    recipe = {"recipe": asdict(task.recipe)} if hasattr(task, "recipe") else {}
    recipe |= {"modules": task.module_sums} if hasattr(task, "module_sums") else {}
    arrays = stored(dict(model.weights), model.config)
    return {
        "task": task.name,
        "options": options,
        "config": repr(model.config),
        "weights": checksum(arrays, own_metadata(arrays)),
        "tokenizer": _tokenizer(task),
        "same bits": model.same_bits,
        **({"prefix": task.prefix(task.options.to)} if isinstance(task, TextToText) else {}),
        **recipe,
    }


def _tokenizer(task: Task) -> str:
    """Returns the sha256 of the tokenizer, or of a translation model's tokenizer files."""
    tokenizer, folder = task.model.tokenizer, task.model.folder
    digest = hashlib.sha256()
    if hasattr(tokenizer, "to_str"):
        digest.update(tokenizer.to_str().encode())
    elif folder is not None:
        for path in sorted(each for each in folder.iterdir() if each.suffix in (".json", ".spm", ".model", ".txt")):
            digest.update(f"{path.name} ".encode() + read_bytes(path, "vocabulary", task.model.limits))
    return digest.hexdigest()


@dataclass(frozen=True)
class RemoteTask:
    """A task that another process can recreate from the name of the model. Digests detect a different model."""

    task: str
    model: str
    revision: str | None
    dtype: str
    options: Any
    digests: dict[str, str]

    @classmethod
    def of(cls, task: Task) -> RemoteTask:
        """Describes a task. Raises NpformerError for a model created in memory, which other processes cannot load."""
        folder = task.model.folder
        if folder is None:
            raise NpformerError("client: this model was created in memory; workers need a folder or hub id to load it")
        model, revision = _name(folder)
        return cls(task.name, model, revision, task.model.dtype.name, task.options, _digests(task))

    def make(self) -> Task:
        """Creates the task with one thread. Raises NpformerError if the model on this machine is different."""
        made = pipeline(self.task, self.model, threads=1, revision=self.revision, dtype=self.dtype)
        made.options = self.options
        found = _digests(made)
        other = [name for name, value in self.digests.items() if found.get(name) != value]
        if other:
            raise NpformerError(f"{self.model}: the model differs from the run's model in its {', '.join(other)}")
        return made


def _digests(task: Task) -> dict[str, str]:
    return {name: _digest(value) for name, value in identity(task).items()}


def _digest(described: Any) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()


def _name(folder: Path) -> tuple[str, str | None]:
    """Returns the name with which other machines load a model: bundled name, hub id and commit, or path."""
    name = next((name for name, path in bundled().items() if path.resolve() == folder.resolve()), None)
    if name is not None:
        return name, None
    snapshots, repository = folder.parent, folder.parent.parent
    if snapshots.name == "snapshots" and repository.name.startswith("models--"):
        return repository.name.removeprefix("models--").replace("--", "/"), folder.name
    return str(folder.resolve()), None


# --- answers ---------------------------------------------------------------------------------------------------------


def answer(task: Task, texts: Any, place: Place, count: Count | None = None) -> Any:
    """Answers and counts the rows of a part with one or two text columns. Returns the table of results."""
    columns = [as_list(column) for column in texts.columns]
    items = columns[0] if len(columns) == 1 else list(map(Pair, *columns))
    answers = task.answers(iter(items), _seeded(task.options, place), quiet=True)
    return results(task, list(counted(answers, count or Count(0))))


def _seeded(options: Any, place: Place) -> Any:
    """Gives each part its own seed if the task samples.

    Random draws depend on the seed and on the index in a part, so all parts would have the same draws with a common
    seed.
    """
    settings = getattr(options, "settings", {})
    if not settings.get("do_sample"):
        return options
    seed = int(np.random.SeedSequence([settings["seed"], *place]).generate_state(1)[0])
    return replace(options, settings={**settings, "seed": seed})


_tasks: dict[str, Task] = {}
_making = threading.Lock()


def answer_elsewhere(work: RemoteTask, texts: Any, place: Place) -> tuple[Any, str]:
    """Answers a part on a worker, which creates the task only once. Returns the results and the worker's `probe`."""
    return answer(_made(work), texts, place), probe()


def describe(work: RemoteTask) -> dict[str, str]:
    """Creates the task on a worker. Returns the worker's `machine`, with an "error" if the task cannot be created."""
    try:
        _made(work)
    except NpformerError as error:
        return {"error": str(error), **machine()}
    return machine()


def _made(work: RemoteTask) -> Task:
    key = _digest(asdict(work))
    with _making:
        if key not in _tasks:
            _tasks.clear()  # frees the memory of earlier runs' tasks
            _tasks[key] = work.make()
        return _tasks[key]


# --- numerical results of this machine -------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """Returns everything that affects the last bits of answers, other than the task."""
    kernels = [
        f"{each.get('internal_api')} {each.get('version')} {each.get('architecture')}" for each in blas_libraries()
    ]
    return {"npformer": __version__, "numpy": np.__version__, "kernels": ", ".join(kernels), "bits": probe()}


_probed: list[str] = []


def probe() -> str:
    """Returns a digest of the output of an encoder layer for a fixed input, to detect differences in the last bits."""
    if not _probed:
        random = np.random.default_rng(0)
        d, f = 384, 1536

        def linear(inner: int, outer: int) -> dict[str, np.ndarray]:
            weight = (random.random((inner, outer), np.float32) - 0.5) / 8
            return {"weight": weight, "bias": random.random(outer, np.float32) - 0.5}

        layer = encoder_layer_of(12, gelu, False, LayerNorm(1e-12), norm_first=False)
        attention = {name: linear(d, d) for name in ("query", "key", "value", "output")}
        ffn = {"hidden": linear(d, f), "output": linear(f, d)}
        norm = {"weight": np.ones(d, np.float32), "bias": np.zeros(d, np.float32)}
        weights = {"attention": attention, "attention_norm": norm, "ffn": ffn, "ffn_norm": norm}
        x, lengths = random.random((60, d), np.float32) - 0.5, np.array([7, 53])
        with Runner(1, same_bits=True).cores():
            y = layer(x, PackedTexts(lengths), weights)
        _probed.append(hashlib.sha256(y.tobytes()).hexdigest()[:16])
    return _probed[0]


def check_repeatable(task: Task) -> None:
    """Raises NpformerError if two runs of the task would give different answers."""
    settings = getattr(task.options, "settings", {})
    if settings.get("do_sample") and settings.get("seed") is None:
        raise NpformerError("seed: missing; an interrupted run can only resume with a seed")
