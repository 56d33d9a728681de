"""The modules after the pooling of a sentence-transformers folder: Dense, LayerNorm and Normalize.

`sentence_folder.py` reads the pooling and the other settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npformer.checkpoint.modules import WITH_WEIGHTS, Module, module_weights
from npformer.checkpoint.safetensors import checksum
from npformer.common.checks import boolean, one_of, shown, whole
from npformer.common.errors import NpformerError
from npformer.common.files import read_json
from npformer.common.limits import Limits
from npformer.engine.activations import ACTIVATIONS
from npformer.engine.functions import layer_norm
from npformer.tasks.pooling import dense, normalize

Function = Callable[[np.ndarray], np.ndarray]

#: torch's module -> npformer's activation; Dropout and Identity have no effect.
TORCH = {"Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Identity": "none"}
KINDS = (*WITH_WEIGHTS, "Normalize", "Dropout")
WIDEST = 2**16
EPS = 1e-5  # torch's default; the module's config does not contain eps


@dataclass(frozen=True)
class SentenceModule:
    """A module after the pooling: (B, previous width) -> (B, width)."""

    kind: str
    path: str
    width: int
    activation: str = "none"
    bias: bool = True
    residual: bool = False


def read_steps(folder: Path, modules: Sequence[Module], width: int) -> tuple[SentenceModule, ...]:
    """Reads the settings of the modules after the pooling. `width` is the width of the pooled vector.

    Raises NpformerError, with the file and the field, for invalid or unsupported settings.
    """
    steps: list[SentenceModule] = []
    for kind, path in modules:
        where = folder / path / "config.json"
        described = read_json(where) if path and where.exists() else {}
        if kind in WITH_WEIGHTS and not described:
            raise NpformerError(f"{where}: missing; a {kind} module needs its sizes")
        for name in ("module_input_name", "module_output_name"):
            one_of(f"{where}: {name}", described.get(name), (None, "sentence_embedding"))
        if kind == "Dense":
            _expect(f"{where}: in_features", described.get("in_features"), width)
            width = whole(f"{where}: out_features", described.get("out_features"), 1, WIDEST)
            activation = _activation(f"{where}: activation_function", described)
            bias = boolean(f"{where}: bias", described.get("bias", True))
            residual = boolean(f"{where}: use_residual", described.get("use_residual", False))
            steps.append(SentenceModule(kind, path, width, activation, bias, residual))
        else:
            if kind == "LayerNorm":
                _expect(f"{where}: dimension", described.get("dimension"), width)
            steps.append(SentenceModule(kind, path, width))
    return tuple(steps)


def load_steps(
    folder: Path, steps: Sequence[SentenceModule], width: int, dtype: Any, limits: Limits
) -> tuple[list[Function], dict[str, str]]:
    """Returns the functions of the steps, (B, D) -> (B, E), and the sha256 of each module's weights, by folder."""
    functions: list[Function] = []
    sums: dict[str, str] = {}
    for step in steps:
        if step.kind in WITH_WEIGHTS:
            arrays = module_weights(folder / step.path, _shapes(step, width), dtype, limits)
            sums[step.path] = checksum(arrays, {})
            functions.append(_function(step, arrays))
        elif step.kind == "Normalize":
            functions.append(normalize)
        width = step.width
    return functions, sums


def _shapes(step: SentenceModule, width: int) -> dict[str, tuple[int, ...]]:
    if step.kind == "LayerNorm":
        return {"norm.weight": (width,), "norm.bias": (width,)}
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (step.width, width)}
    if step.bias:
        shapes["linear.bias"] = (step.width,)
    if step.residual and step.width != width:
        shapes["residual.weight"] = (step.width, width)
    return shapes


def _function(step: SentenceModule, arrays: dict[str, np.ndarray]) -> Function:
    if step.kind == "LayerNorm":
        return partial(layer_norm, weight=arrays["norm.weight"], bias=arrays["norm.bias"], eps=EPS)
    weight, bias = arrays["linear.weight"].T.copy(), arrays.get("linear.bias")
    residual = arrays["residual.weight"].T.copy() if "residual.weight" in arrays else None
    activation = ACTIVATIONS.get(step.activation)
    if step.residual and residual is None:  # no matrix, because x and the output have the same width
        return lambda x: dense(x, activation, weight, bias) + x
    return lambda x: dense(x, activation, weight, bias, residual)


def _activation(where: str, described: dict[str, Any]) -> str:
    """Returns npformer's activation for a torch class. The default is Tanh, as in sentence-transformers."""
    stored = described.get("activation_function", "torch.nn.modules.activation.Tanh")
    known = re.fullmatch(rf"torch\.nn\.(?:modules\.\w+\.)?({'|'.join(TORCH)})", str(stored))
    if known is None:
        raise NpformerError(f"{where}: expected one of torch's {', '.join(TORCH)}, got {shown(stored)}")
    return TORCH[known[1]]


def _expect(where: str, value: Any, width: int) -> None:
    if value != width or type(value) is not int:
        raise NpformerError(f"{where}: expected {width}, the previous module's width, got {shown(value)}")
