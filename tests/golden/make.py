"""Makes the golden values. With --check, makes them again and compares them with the committed values.

    python tests/golden/make.py [--check]

It needs the `oracle` group (torch, transformers, mpmath); the tests that read the values do not. The files, all under
`data/`:

    <case>/            a tiny model of `cases.py`: its checkpoint as transformers saves it, its inputs and every stage
    functions.safetensors, gelu.safetensors    the single functions of `calls.py`
    distilbert-sst2.safetensors                the bundled checkpoint on the forty texts of `texts.py`

Every number is stored twice, as torch's float32 and float64 results. A model's stages come with the errors of float32
runs that add in each order of `orders.py`. These errors are named `error/<stage>`, and the metadata lists the orders.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.golden.calls import answer, calls, exact_gelu
from tests.golden.cases import CASES, Case, build, inputs, keeps, reads_texts
from tests.golden.orders import ORDERS, errors
from tests.golden.record import stages
from tests.golden.texts import TEXTS, Given

HERE = Path(__file__).parent
BUNDLED = HERE.parent.parent / "weights" / "distilbert-sst2"
BATCHES = [slice(0, 24), slice(24, 40)]  # texts that torch runs together
DTYPES = {"float32": torch.float32, "float64": torch.float64}
BUNDLED_ORDERS = list(ORDERS)[:2]  # only two orders, because the bundled model is not tiny


def make(folder: Path) -> None:
    """Writes all golden values into a folder."""
    torch.set_num_threads(1)
    for name, case in CASES.items():
        make_case(folder / name, name, case)
    make_functions(folder)
    make_bundled(folder)


def make_case(folder: Path, name: str, case: Case) -> None:
    model, given = build(case), inputs(name, case)
    model.save_pretrained(folder)
    arrays = {f"input/{key}": array for key, array in given.items()}
    runs = {dtype: joined(stages(model.to(type_), **given)) for dtype, type_ in DTYPES.items()}
    for dtype, found in runs.items():
        kept = {stage: array for stage, array in found.items() if keeps(case, stage)}
        arrays |= {f"{dtype}/{stage}": array for stage, array in kept.items()}
    model.to(torch.float32)
    arrays |= errors(lambda: joined(stages(model, **given)), kept, as_torch=runs["float32"])
    _save(
        arrays, folder / "stages.safetensors",
        {"encoder": name if reads_texts(case) else case.encoder or name, "orders": "; ".join(ORDERS)},
    )  # fmt: skip


def joined(stages: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenates the entries of each stage text by text, without padding, as a flat array."""
    return {name: np.concatenate([text.ravel() for text in texts]) for name, texts in stages.items()}


def make_functions(folder: Path) -> None:
    arrays, described = {}, {}
    for name, call in calls().items():
        described[name] = {"function": call.function, "options": dict(call.options)}
        arrays |= {f"{name}/{argument}": array for argument, array in call.arrays.items()}
        arrays |= {f"{name}/{dtype}": answer(call, np.dtype(dtype)) for dtype in DTYPES}
    _save(arrays, folder / "functions.safetensors", {"calls": json.dumps(described)})
    _save(exact_gelu(), folder / "gelu.safetensors", {})


def make_bundled(folder: Path) -> None:
    """Stores ids and logits in full, and each stage's float32 error, its magnitude and a float64 checksum.

    Also stores each stage's largest error for each batch and each of BUNDLED_ORDERS. Texts run in padded batches, as
    is usual in torch, because torch's BLAS has a separate kernel for products of fewer than 16 rows: it adds up 16
    partial sums, and its error is a third of the error of the same product in a batch. A library that gives each text
    the same bits alone and in a batch can have only one of these errors.
    """
    from npformer.checkpoint import convert

    arrays: dict[str, list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as place:
        torch_folder = convert(BUNDLED, Path(place) / "torch", to="torch")
        tokenizer = AutoTokenizer.from_pretrained(torch_folder)
        models = [
            AutoModelForSequenceClassification.from_pretrained(torch_folder, dtype=each) for each in DTYPES.values()
        ]
        for model in models:
            model.eval().set_attn_implementation("eager")
        ids = [np.array(tokenizer(*_pair(text), truncation=True, max_length=512)["input_ids"]) for text in TEXTS]
        for batch in BATCHES:
            mask = np.arange(max(map(len, ids[batch]))) < np.array([len(each) for each in ids[batch]])[:, None]
            padded = np.zeros(mask.shape, np.int64)
            padded[mask] = np.concatenate(ids[batch])
            given = padded, mask.astype(np.int64)
            runs = [stages(model, *given) for model in models]
            run32, truth = map(joined, runs)
            of_batch = errors(lambda given=given: joined(stages(models[0], *given)), truth, BUNDLED_ORDERS, run32)
            for key, array in [*_of_texts(*runs), *of_batch.items()]:
                arrays.setdefault(key, []).append(array)
    flat = {"ids": np.concatenate(ids), "lengths": np.array([len(each) for each in ids])}
    _save(
        flat | {key: np.stack(each) for key, each in arrays.items()}, folder / "distilbert-sst2.safetensors",
        {"orders": "; ".join(BUNDLED_ORDERS)},
    )  # fmt: skip


def _pair(text: Given) -> tuple[str, ...]:
    return text if isinstance(text, tuple) else (text,)


def _of_texts(
    run32: dict[str, list[np.ndarray]], run64: dict[str, list[np.ndarray]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the stored part of each stage, one text at a time."""
    for stage, truths in run64.items():
        for truth, other in zip(truths, run32[stage], strict=True):
            yield f"summary/{stage}", np.array(summary(truth, other))
            if stage == "logits":
                yield f"float32/{stage}", other
                yield f"float64/{stage}", truth


def summary(truth: np.ndarray, run32: np.ndarray) -> tuple[float, float, float, float]:
    """max |run32 - truth|, max |truth|, sum |truth|, and the sum of truth times cos(i), for index i."""
    wave = np.cos(np.arange(truth.size, dtype=np.float64))
    return (
        float(np.abs(run32 - truth).max()),
        float(np.abs(truth).max()),
        float(np.abs(truth).sum()),
        float(truth @ wave),
    )


def _save(arrays: dict[str, np.ndarray], path: Path, metadata: dict[str, str]) -> None:
    save_file({name: array.copy(order="C") for name, array in arrays.items()}, path, metadata)


# --- --check ---------------------------------------------------------------------------------------------------------


def differences(made: Path, committed: Path) -> list[str]:
    """Lists the differences from the committed files."""
    found = []
    here, there = ({str(f.relative_to(each)) for f in each.rglob("*") if f.is_file()} for each in (made, committed))
    found += [f"{name}: {'made' if name in here else 'committed'} only" for name in sorted(here ^ there)]
    for name in sorted(here & there):
        if name.endswith(".json"):
            if json.loads((made / name).read_text()) != json.loads((committed / name).read_text()):
                found.append(f"{name}: another configuration")
        else:
            found += [f"{name}: {line}" for line in _differences(made / name, committed / name)]
    return found


def keep_committed(made: Path, committed: Path) -> None:
    """Keeps committed numbers unless new ones differ by more than results of two CPUs do, so that files rarely change."""
    for path in made.rglob("*.safetensors"):
        old_path = committed / path.relative_to(made)
        if old_path.exists() and path.name != "model.safetensors":
            new, old = load_file(path), load_file(old_path)
            if not _differences(path, old_path):  # copies bytes, because safetensors may reorder metadata
                shutil.copyfile(old_path, path)
                continue
            kept = {key: old[key] if key in old and _same(key, new, old, False) else new[key] for key in new}
            _save(kept, path, _metadata(path) or {})


def _differences(made: Path, committed: Path) -> list[str]:
    new, old = load_file(made), load_file(committed)
    found = [f"{key}: made or committed only" for key in sorted(new.keys() ^ old.keys())]
    if _metadata(made) != _metadata(committed):
        found.append("other metadata")
    exact = made.name == "model.safetensors"  # parameters come from a random generator, without rounding
    return found + [
        f"{key}: not as committed" for key in sorted(new.keys() & old.keys()) if not _same(key, new, old, exact)
    ]


def _same(key: str, new: dict[str, np.ndarray], old: dict[str, np.ndarray], exact: bool) -> bool:
    """Whether two arrays have equal bits, or differ by no more than the results of two CPUs do.

    torch's kernels for a different instruction set add in a different order. This changes the last bits of a float64
    number, and gives a float32 number a different error of about the same size. npformer's stages have the same error
    budget.
    """
    a, b = new[key], old[key]
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return True
    if exact or a.dtype.kind != "f":
        return False
    truth = old.get(key.replace("float32", "float64"), b)
    ordinary = np.abs(truth) < 1e38  # beyond this, torch's kernels overflow to infinity or NaN, at different inputs
    if not np.array_equal(np.isfinite(a) & ordinary, np.isfinite(b) & ordinary):
        return False
    finite = np.isfinite(a) & ordinary
    gap = np.abs(a[finite] - b[finite].astype(np.float64))
    if key.endswith("/scores"):  # scores of beams are sums of float32 logarithms; the tests have the same tolerance
        return bool(np.allclose(a[finite], b[finite], rtol=1e-5, atol=1e-4))
    if "error/" in key:  # torch's own order depends on the CPU; in a single order, the error of a few numbers is random
        return bool(a.max() <= 3 * b.max() + 1e-7 and b.max() <= 3 * a.max() + 1e-7)
    # Columns are those of `summary`: the error may differ by a factor of 3, the other columns only by float64 rounding.
    if key.startswith("summary/"):
        near = a[:, 0].max() <= 3 * b[:, 0].max() + 1e-12  # over all texts, because one text's error is random
        # some sums are 0 up to rounding, such as those of gradients for key biases
        size = np.maximum(b[:, 2:3], 0.01 * b[:, 2].max())
        return bool(near and (gap.reshape(a.shape)[:, 1:] <= 1e-12 * size).all())
    if "float32" not in key or truth is b:
        return bool((gap <= 1e-12 * np.abs(b[finite]).max()).all())
    own = np.abs(b[finite] - truth[finite]).max()
    return bool(gap.max() <= 3 * own + np.spacing(np.float32(np.abs(b[finite]).max())))


def _metadata(path: Path) -> Any:
    with safe_open(path, "np") as file:
        return file.metadata()


def make_or_check(
    doc: str | None,
    make: Callable[[Path], None],
    committed: Path,
    same: str,
    differences: Callable[[Path, Path], list[str]] = differences,
) -> int:
    """Runs a script that makes golden values: makes them in a new folder, then installs or compares them."""
    if sys.argv[1:] not in ([], ["--check"]):
        print(doc)
        return 2
    with tempfile.TemporaryDirectory() as place:
        made = Path(place)
        make(made)
        if not sys.argv[1:]:
            keep_committed(made, committed)
            shutil.copytree(made, committed, dirs_exist_ok=True)
            return 0
        lines = differences(made, committed)
    print("\n".join(lines) or f"{same}: as committed")
    return bool(lines)


if __name__ == "__main__":
    told = f"{len(CASES)} models, {len(calls())} calls, {len(TEXTS)} texts"
    sys.exit(make_or_check(__doc__, make, HERE / "data", told))
