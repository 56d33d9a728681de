"""The safetensors library reads every safetensors file that npformer writes and every one in the checkout.

Single arrays, dtypes and damaged files are in test_storage.py, test_safetensors.py and test_torch_file.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors

import npformer
from npformer import golden
from npformer.checkpoint import convert
from npformer.checkpoint.safetensors import read_tensors
from npformer.engine.runtime.packing import Text
from npformer.training import Example, HeadLoss, Recipe, Trainable, Trainer
from tests.support import tiny

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(
    path.relative_to(ROOT) for folder in ("tests", "weights") for path in (ROOT / folder).rglob("*.safetensors")
)
TEXTS = ["ice cream", "no"]


def check(path: Path) -> None:
    """Checks that the library reads the same arrays and metadata as npformer's reader."""
    arrays, metadata = read_tensors(path)
    with safetensors.safe_open(path, "np") as file:
        assert (file.metadata() or {}) == metadata
        assert set(file.keys()) == arrays.keys() != set()
        for name, array in arrays.items():
            found = file.get_tensor(name)
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert found.tobytes() == array.tobytes()


def convert_both_ways(folder: Path) -> None:
    convert(tiny.folder(folder / "source"), folder / "ours")
    convert(folder / "ours", folder / "theirs", to="torch", dtype="float16")


def save_trace(folder: Path) -> None:
    model = npformer.load(tiny.folder(folder / "model"))
    npformer.trace(model, TEXTS).save(folder / "trace.safetensors")


def record_goldens(folder: Path) -> None:
    golden.tiny(folder / "tiny", "bert")
    golden.record(npformer.load(tiny.folder(folder / "model")), TEXTS).save(folder / "golden.safetensors")


def train(folder: Path) -> None:
    trained = Trainable(tiny.model().weights, tiny.config())
    examples = [Example(Text(np.arange(3) + i), i % 2) for i in range(4)]
    Trainer(HeadLoss(trained.config), trained, Recipe(epochs=1, batch_size=2), folder / "training").train(examples)


@pytest.mark.parametrize("write", [convert_both_ways, save_trace, record_goldens, train])
def test_the_library_reads_all_that_is_written(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    files = list(tmp_path.rglob("*.safetensors"))
    assert files
    for path in files:
        check(path)


@pytest.mark.parametrize("path", COMMITTED, ids=str)
def test_the_library_reads_the_checkout_s_files(path: Path) -> None:
    check(ROOT / path)
