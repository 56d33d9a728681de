"""Mistakes in T5, planted in a page: each is named, with all stages and with hidden states only."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from npformer import golden
from npformer.config import Decoder
from npformer.engine.mechanisms import RelativeBias
from npformer.engine.runtime.packing import Text
from npformer.families import FAMILIES
from npformer.model import Seq2Seq
from tests.support import tiny
from tests.support.edited_pages import Plant, changed, edited, inputs, run, taken
from tests.support.planted import CAUSAL

pytestmark = pytest.mark.numbers

FEW = ("embeddings.sum", ".ffn_residual", "norm", "logits")


@cache
def reference(version: str = "1.0") -> tuple[Seq2Seq, golden.Golden]:
    """A tiny T5, and its golden file of texts longer than max_distance."""
    sizes = {"vocab_size": 40, "d_model": 16, "n_heads": 4, "head_width": 6, "n_layers": 1, "d_ffn": 24}
    options = {"scale_output": True} if version == "1.0" else {"gated": True, "activation": "gelu_tanh", "tied": False}
    decoder = Decoder(n_layers=2, start_id=0, end_ids=(1,))
    buckets = RelativeBias(8, max_distance=9)
    settings = FAMILIES["t5"].config(
        "translation", **sizes, **options, pad_id=0, decoder=decoder, mechanisms=(buckets,)
    )
    random, model = np.random.default_rng(4), Seq2Seq(settings, tiny.weights(settings))
    sources = [Text(np.array([*random.integers(2, 40, length - 1), 1])) for length in (17, 12, 7)]
    targets = [Text(np.array([0, *random.integers(2, 40, length - 1)])) for length in (11, 15, 6)]
    return model, golden.record(model, list(zip(sources, targets, strict=True)))


def stages(version: str = "1.0", plant: Plant | None = None) -> dict[str, np.ndarray]:
    return run(*reference(version), plant)


ROOT_MEAN_SQUARE = "return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)"
BIASED = "query_heads @ key_heads.mT + bias"


#: Name of a planted mistake -> its name in the diagnosis, and how it is planted.
PLANTED: dict[str, tuple[str, Plant]] = {
    "scores divided": (
        "scores divided by sqrt(d_head)",
        edited((BIASED, "query_heads @ key_heads.mT / math.sqrt(query_heads.shape[-1]) + bias")),
    ),
    "decoder's buckets of both directions": (
        "wrong buckets", edited(("biases(text_positions, causal_buckets,", "biases(text_positions, relative_buckets,"))
    ),
    "encoder's buckets of one direction": (
        "wrong buckets", edited(("biases(text_positions, relative_buckets,", "biases(text_positions, causal_buckets,"))
    ),
    "max_distance 128": ("wrong buckets", inputs(lambda given: {"max_distance": 128})),
    "head not scaled": (
        "rows before the projection not scaled", edited(("scaled = scale_output * x", "scaled = x"))
    ),
    "bias across": (
        "relative bias in attention to the source",
        edited(
            ("biases(text_positions, causal_buckets,", "biases(np.arange(20), causal_buckets,"),
            ("normed, normed, bias, mask,", "normed, normed, bias[:, : mask.shape[0], : mask.shape[0]], mask,"),
            ("source, 0, seen,", "source, bias[:, : mask.shape[0], : source.shape[-2]], seen,"),
        ),
    ),
    "bias in the first layer only": (
        "relative bias only in the first layer", edited((BIASED, f"{BIASED} * ('layers.0' in at())"))
    ),
    "no bias": ("relative bias left out", edited((BIASED, BIASED.removesuffix(" + bias")))),
    "the encoder's table in both": (
        "relative bias of the other stack",
        taken(("decoder.relative_bias", "encoder.relative_bias")),
    ),
    "bias transposed": (
        "relative bias with the wrong sign",
        edited(("max_distance)], -1, 0)", "max_distance)], -1, 0).mT")),
    ),
    "start token 1": (
        "wrong start token",
        inputs(lambda given: {"target_ids": np.where(given["target_text_positions"], given["target_ids"], 1)}),
    ),
    "1 + w": ("weight of RMSNorm misused", changed("norm.weight", lambda w: 1 + w)),
    "mean subtracted": (
        "mean subtracted in RMSNorm",
        edited((ROOT_MEAN_SQUARE, f"x = x - x.mean(axis=-1, keepdims=True)\n    {ROOT_MEAN_SQUARE}")),
    ),
    "eps 1e-3": ("wrong RMSNorm eps", edited((ROOT_MEAN_SQUARE, ROOT_MEAN_SQUARE.replace("eps", "1e-3")))),
    "no causal mask": ("causal mask left out", edited((CAUSAL, "np.ones((n_queries, n_queries), bool)"))),
    "source's padding seen": ("mask ignored", edited(("source, 0, seen, ", "source, 0, True, "))),
    "no last norm of the encoder": (
        "RMSNorm left out",
        edited((ROOT_MEAN_SQUARE, ROOT_MEAN_SQUARE.replace("x /", "x if at() == 'encoder.norm' else x /"))),
    ),
}  # fmt: skip


def missed(key: str, few: bool) -> str:
    """Returns the diagnosis of a mistake, or "" if it names the mistake."""
    name, plant = PLANTED[key]
    given = {stage: a for stage, a in stages(plant=plant).items() if not few or stage.endswith(FEW)}
    model, recorded = reference()
    diagnosis = golden.diagnose(recorded, given, model)
    return "" if any(name in cause for cause in diagnosis.causes) else str(diagnosis)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_port_without_a_mistake_is_right(version: str) -> None:
    comparison = golden.compare(reference(version)[1], stages(version))
    assert comparison.ok, str(comparison)
    assert not comparison.missing


#: Mistakes that only T5 can have, tried by the quick suite; `test_decoder_mistakes.py` has those of any decoder.
QUICK = ("scores divided", "decoder's buckets of both directions", "head not scaled", "bias across", "start token 1")
#: Mistakes that are also diagnosed with hidden states only, which takes most of the time.
FROM_FEW = ("scores divided", "head not scaled", "bias in the first layer only", "1 + w")


@pytest.mark.parametrize("key", [pytest.param(key, marks=[] if key in QUICK else pytest.mark.slow) for key in PLANTED])
def test_a_mistake_is_named_from_every_stage(key: str) -> None:
    assert missed(key, few=False) == ""


@pytest.mark.slow
@pytest.mark.parametrize("key", FROM_FEW)
def test_a_mistake_is_named_from_hidden_states(key: str) -> None:
    assert missed(key, few=True) == ""
