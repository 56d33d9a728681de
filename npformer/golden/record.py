"""Records a golden file: a model's stages in float32 and in float64, with an error budget for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from npformer.checkpoint import tree as layout
from npformer.common.errors import NpformerError
from npformer.golden.budget import budgets, in_float64, run
from npformer.golden.format import Golden
from npformer.interpret.study_inputs import read_inputs
from npformer.model import Model, Seq2Seq
from npformer.version import __version__


def record(model: Model | Seq2Seq, texts: Any, stages: str | Iterable[str] = "*", name: str | None = None) -> Golden:
    """Records the stages of a model on texts as a golden file, which its method `save` writes.

    Parameters
    ----------
    model : Model or Seq2Seq, in float32
    texts : str, Pair, token ids, or a list of these
        A translation model takes texts to translate, or pairs of token ids: a source, and the decoder's input.
    stages : name of a stage, pattern with `*`, or several
        Only matching stages are recorded.
    name : str, optional
        The model's name in the file; by default the name of its folder.

    Returns
    -------
    Golden

    Raises
    ------
    NpformerError
        If the model is not in float32, a pattern matches no stage, or a text cannot be read.

    Examples
    --------
    >>> record(npformer.load("distilbert-sst2"), ["I love ice cream", "not my music"], "*.weights")
    <npformer Golden of distilbert-sst2: 6 stages of 2 texts>
    """
    if model.dtype != np.float32:
        raise NpformerError(f"golden record: expected a model in float32, got {model.dtype}; load it in float32")
    read = read_inputs(model, texts)
    recorded = run(model, read.inputs, stages)
    truth = run(in_float64(model), read.inputs, stages)
    other = _without_rounded_scale(model)
    unrounded = run(in_float64(other), read.inputs, stages) if other else None
    return Golden(
        model=name or (model.folder.name if model.folder else model.config.model_type),
        config=model.config,
        weights_sha256=weights_sha256(model),
        versions={"npformer": __version__, "numpy": np.__version__},
        texts=read.texts,
        tokens=read.tokens,
        stages={stage: recorded.texts(stage) for stage in recorded},
        truth={stage: truth.texts(stage) for stage in truth},
        budgets=budgets(model, read.inputs, recorded, truth, stages),
        sources=read.sources,
        source_tokens=read.source_tokens,
        unrounded={stage: unrounded.texts(stage) for stage in unrounded} if unrounded else {},
    )


def _without_rounded_scale(model: Model | Seq2Seq) -> Model | Seq2Seq | None:
    """Returns the model with token embeddings scaled by sqrt(d_model) in float32; None if it does so already."""
    if not model.config.scale_embedding:
        return None
    other = with_scale(model, "float32")
    return None if abs(other.config.token_scale / model.config.token_scale - 1) < 2.0**-22 else other


def with_scale(model: Model | Seq2Seq, scale_dtype: str) -> Model | Seq2Seq:
    """Returns the model with sqrt(d_model) rounded to another dtype."""
    if scale_dtype == model.config.scale_dtype:
        return model
    config = replace(model.config, scale_dtype=scale_dtype)
    return type(model)(config, model.weights, model.folder, model.threads, model.same_bits, model.limits)


def weights_sha256(model: Model | Seq2Seq) -> str:
    """Hashes the weights in the order of their names: each name, then its values in float32, (in, out).

    The bytes are little-endian. A tied vocabulary projection is left out, so that the hash does not depend on the
    format of the checkpoint.
    """
    digest = hashlib.sha256()
    for name, array in sorted(layout.stored(dict(model.weights), model.config).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array, dtype="<f4").data)
    return digest.hexdigest()


def check_model(golden: Golden, model: Model | Seq2Seq) -> None:
    """Raises NpformerError if the golden file was recorded from different weights."""
    if weights_sha256(model) != golden.weights_sha256:
        raise NpformerError(
            f"the golden file was recorded from {golden.model}, whose weights differ from this model's; use that model"
        )
