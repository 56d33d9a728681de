"""Mistakes in T5, planted in a port in plain NumPy: each is named, with all stages and with hidden states only."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from npformer import golden
from npformer.config import Decoder
from npformer.families import FAMILIES
from npformer.mechanisms import RelativeBias
from npformer.model import Seq2Seq
from npformer.runtime.packing import Text
from tests.support import tiny
from tests.support.plain_t5 import PlainT5
from tests.support.planted import Plant, attr, put, weights

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
    model, recorded = reference(version)
    port = PlainT5(model, recorded.texts, recorded.sources)
    if plant:
        plant(port)
    return port.run()


def biased(port: PlainT5, scores: np.ndarray, at: str) -> np.ndarray:
    return scores + port.bias(at.split(".")[0], *scores.shape[-2:])


#: Name of a planted mistake -> its name in the diagnosis, and how it is planted.
PLANTED: dict[str, tuple[str, Plant]] = {
    "scores divided": ("scores divided by sqrt(d_head)", put("scale_of", lambda port, q, at: q.shape[-1] ** -0.5)),
    "decoder's buckets of both directions": ("wrong buckets", put("goes_both_ways", lambda port, side: True)),
    "encoder's buckets of one direction": ("wrong buckets", put("goes_both_ways", lambda port, side: False)),
    "max_distance 128": ("wrong buckets", attr("most", lambda port: 128)),
    "head not scaled": ("rows before the projection not scaled", attr("factor", lambda port: 1.0)),
    "bias across": ("relative bias in attention to the source", put("biased", biased)),
    "bias in the first layer only": (
        "relative bias only in the first layer",
        put("biased", lambda port, x, at: PlainT5.biased(port, x, at) if "layers.0" in at else x),
    ),
    "no bias": ("relative bias left out", put("biased", lambda port, x, at: x)),
    "the encoder's table in both": (
        "relative bias of the other stack",
        attr("tables", lambda port: dict.fromkeys(port.tables, port.tables["encoder"])),
    ),
    "bias transposed": (
        "relative bias with the wrong sign",
        put("bias", lambda port, *sizes: PlainT5.bias(port, *sizes).swapaxes(-1, -2)),
    ),
    "start token 1": ("wrong start token", put("read", lambda port: np.insert(port.targets[:, 1:], 0, 1, axis=1))),
    "1 + w": (
        "weight of RMSNorm misused",
        weights(lambda port: {name: 1 + w for name, w in port.w.items() if name.endswith("norm.weight")}),
    ),
    "mean subtracted": (
        "mean subtracted in RMSNorm",
        put("norm", lambda port, x, name: PlainT5.norm(port, x - x.mean(-1, keepdims=True), name)),
    ),
    "eps 1e-3": ("wrong RMSNorm eps", attr("eps", lambda port: 1e-3)),
    "no causal mask": ("causal mask left out", put("seen_by_decoder", lambda port, n: np.ones((n, n), bool))),
    "source's padding seen": ("mask ignored", put("seen_of_source", lambda port: np.ones((1, 1, 1, 1), bool))),
    "no last norm of the encoder": (
        "RMSNorm left out",
        put("norm", lambda port, x, name: x if name == "encoder.norm" else PlainT5.norm(port, x, name)),
    ),
}


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
