"""Reads torch's golden values, which `golden/make.py` describes, without torch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

DATA = Path(__file__).parents[1] / "golden" / "data"
CASES = sorted(folder.name for folder in DATA.iterdir() if folder.is_dir())


@cache
def metadata(name: str) -> dict[str, Any]:
    """Returns the metadata of a file under `data/`."""
    with safe_open(DATA / name, "np") as file:
        return file.metadata()


@cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a file under `data/`, read-only."""
    found = load_file(DATA / name)
    for array in found.values():
        array.flags.writeable = False
    return found


def below(found: dict[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Returns the arrays with names that begin with path/, without this prefix."""
    return {name.removeprefix(f"{path}/"): array for name, array in found.items() if name.startswith(f"{path}/")}


def inputs(case: str) -> dict[str, np.ndarray]:
    """Returns the inputs of a case's model."""
    return below(arrays(f"{case}/stages.safetensors"), "input")


def stages(case: str, dtype: str) -> dict[str, np.ndarray]:
    """Returns every stage of a case as a flat array: the entries of each text without padding, text by text. The stages
    of its encoder may be in another file."""
    own = below(arrays(f"{case}/stages.safetensors"), dtype)
    encoder = below(arrays(f"{metadata(f'{case}/stages.safetensors')['encoder']}/stages.safetensors"), dtype)
    return {name: array for name, array in encoder.items() if name.startswith(("embeddings.", "layers."))} | own


@cache
def calls() -> dict[str, dict[str, Any]]:
    """Returns the golden calls of single functions: name -> its function and options."""
    return json.loads(metadata("functions.safetensors")["calls"])


def errors(case: str) -> dict[str, float]:
    """Returns the errors of the golden arrays in a case's own file and in the file with its encoder's stages."""
    encoder = metadata(f"{case}/stages.safetensors")["encoder"]
    return {**errors_in(arrays(f"{encoder}/stages.safetensors")), **errors_in(arrays(f"{case}/stages.safetensors"))}


def errors_in(found: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the largest error of each golden array over float32 runs of torch in several orders of summation."""
    return {name: float(array.max()) for name, array in below(found, "error").items()}


def over_budget(ours: np.ndarray, torch32: np.ndarray, truth: np.ndarray, error32: float = 0.0) -> str:
    """Describes the error of a float32 result; "" if it is correct.

    Torch's float64 run is the truth. The error may be twice the error of torch's own float32 run, or twice error32, the
    largest error of torch in several orders of summation. Each of these runs sums in a different order and rounds at
    every step, so their errors are similar, and a mistake is much larger. One ulp of the largest entry is added,
    because in a short stage torch may be exact by chance. Infinities and NaN must be at the same places as in the
    truth.
    """
    with np.errstate(over="ignore"):
        finite = np.isfinite(truth.astype(np.float32))
    if ours.shape != truth.shape:
        return f"shape {ours.shape}, not {truth.shape}"
    if not np.array_equal(np.isfinite(ours), finite) or not np.array_equal(
        ours[~finite], truth[~finite].astype(np.float32), equal_nan=True
    ):
        return "infinities or NaN differ from torch's"
    if not finite.any():
        return ""
    usual = finite & np.isfinite(torch32)
    torchs = np.abs(torch32[usual] - truth[usual]).max(initial=0)
    error = np.abs(ours[finite] - truth[finite]).max()
    budget = 2 * max(torchs, error32) + ulp(np.abs(truth[finite]).max())
    return f"error {error:.3g}, allowed {budget:.3g}" if error > budget else ""


def ulp(largest: float) -> float:
    """Returns the distance between adjacent float32 numbers of this magnitude."""
    return float(np.spacing(np.float32(largest)))


def call(name: str, dtype: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns the arguments of one of `calls()` in a dtype, and torch's results in float32 and float64."""
    found = below(arrays("functions.safetensors"), name)
    torch32, truth = found.pop("float32"), found.pop("float64")
    given = {key: array.astype(dtype) if array.dtype.kind == "f" else array for key, array in found.items()}
    return given, torch32, truth


def wrong(ours: np.ndarray, torch32: np.ndarray, truth: np.ndarray) -> str:
    """Describes the error of a function's result in its own dtype; "" if it is correct.

    float32 results must pass `over_budget`. Two float64 results may differ because of the order of summation, by a few
    units in the last place, or more if terms cancel. The tolerance, 1e-12 of the largest entry, is several thousand
    units.
    """
    if ours.dtype == np.float32:
        return over_budget(ours, torch32, truth)
    if ours.dtype != np.float64 or ours.shape != truth.shape:
        return f"{ours.dtype} {ours.shape}, not float64 {truth.shape}"
    finite = np.isfinite(truth)
    if not np.array_equal(ours[~finite], truth[~finite], equal_nan=True):
        return "infinities or NaN differ from torch's"
    error = np.abs(ours[finite] - truth[finite])
    return f"error {error.max():.3g}" if finite.any() and error.max() > 1e-12 * np.abs(truth[finite]).max() else ""
