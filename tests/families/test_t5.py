"""T5: buckets for one direction, config.json of its versions, the encoder alone, steps with a cache, and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.checkpoint import flatten, load_folder
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.checkpoint.tree import unflatten
from npformer.common.errors import NpformerError
from npformer.engine.functions import SparseRows, log_softmax
from npformer.engine.mechanisms import RelativeBias
from npformer.engine.mechanisms.relative_bias import relative_buckets
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.runtime.threads import single_blas_thread
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import transformer, transformer_backward
from npformer.families import parts_of, read_config, write_config
from npformer.interpret.direct_attribution import logit_attribution
from npformer.training.start import start
from tests.support import tiny

BUCKETS = (RelativeBias(8, max_distance=20),)
V1_1: dict[str, Any] = {"gated": True, "activation": "gelu_tanh", "tied": False}


def test_buckets_of_one_direction() -> None:
    """Each distance below 16 has its own bucket. Greater distances share sixteen buckets, which begin at
    16 * 8^(k / 16), k = 0 to 15.

    Keys after the query have the bucket of distance 0.
    """
    found = relative_buckets(-np.arange(200), 32, bidirectional=False)
    assert found[:16].tolist() == list(range(16))
    borders = [int(np.ceil(16 * 8 ** (k / 16) - 1e-9)) for k in range(16)]
    assert [int(np.flatnonzero(found == 16 + k)[0]) for k in range(16)] == borders
    assert found.max() == 31
    assert (relative_buckets(np.arange(200), 32, bidirectional=False) == 0).all()


# --- config.json -----------------------------------------------------------------------------------------------------

SMALL = {"model_type": "t5", "vocab_size": 40, "d_model": 16, "num_heads": 3, "d_kv": 4, "d_ff": 24, "num_layers": 2}


def test_versions_of_t5_in_config_json() -> None:
    first = read_config({**SMALL, "architectures": ["T5ForConditionalGeneration"]})
    assert (first.gated, first.activation, first.tied, first.scale_output) == (False, "relu", True, True)
    assert (first.d_head, first.score_scale, first.bias) == (4, 1.0, False)
    assert (first.decoder.n_layers, first.decoder.start_id, first.decoder.end_ids) == (2, 0, (1,))
    later = {**SMALL, "architectures": ["T5ForConditionalGeneration"], "feed_forward_proj": "gated-gelu"}
    second = read_config({**later, "tie_word_embeddings": False, "num_decoder_layers": 1})
    assert (second.gated, second.activation, second.tied, second.scale_output) == (True, "gelu_tanh", False, False)
    assert second.decoder.n_layers == 1
    assert not read_config({**later, "scale_decoder_outputs": False}).scale_output  # as Transformers 5 writes it
    assert read_config({**later, "feed_forward_proj": "gated-silu"}).activation == "silu"
    third = read_config({**SMALL, "model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]})
    assert (third.gated, third.tied, third.scale_output) == (True, True, False)
    alone = read_config(SMALL)
    assert (alone.head, bool(alone.decoder)) == ("base", False)
    for config in (first, second, third, alone):
        assert read_config(write_config(config)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward_proj": "gated-sine"}, "feed_forward_proj: expected ACTIVATION or gated-ACTIVATION, got"),
        ({"relative_attention_num_buckets": 2}, "relative_attention_num_buckets: expected .* from 4 to .*, got 2"),
        ({"relative_attention_max_distance": 8}, "relative_bias.max_distance: expected .* at least 9, got 8"),
        ({"d_kv": 0}, "d_kv: expected"),
        ({"scale_decoder_outputs": "yes"}, "scale_decoder_outputs: expected true or false"),
        ({"num_layers": None}, "n_layers: expected"),
        ({"architectures": ["T5ForMaskedLM"]}, "architectures: expected one of"),
    ],
)
def test_other_settings_are_refused(change: dict[str, Any], message: str) -> None:
    data = {**SMALL, "architectures": ["T5EncoderModel"], **change}
    with pytest.raises(NpformerError, match=message):
        read_config(data)


def test_other_families_refuse_its_fields() -> None:
    for field, value in (("score_scale", 0.5), ("head_width", 4)):
        with pytest.raises(NpformerError, match=f"{field}: expected 0, because it is fixed for bert models"):
            parts_of(tiny.config("bert", "base", **{field: value}))


# --- files -----------------------------------------------------------------------------------------------------------


def test_an_encoder_cannot_be_fine_tuned_for_labels(tmp_path: Path) -> None:
    encoder = tiny.folder(tmp_path / "t5", "t5", "base", mechanisms=BUCKETS, **V1_1)
    with pytest.raises(NpformerError, match="a t5 classifier reads a row of its decoder, and the model has only an"):
        start(encoder, ("bad", "good"))


def test_the_encoder_of_a_whole_file(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """With head="base", the decoder and projection are omitted without a warning, as in sentence-transformers."""
    whole = tiny.folder(tmp_path / "t5", "t5", "translation", mechanisms=BUCKETS, **V1_1)
    source = Text(np.arange(5, 30))
    model = npformer.load(whole, head="base")
    expected = npformer.load(whole).encode([source])[0]
    assert np.array_equal(model.run([source])[0]["last_hidden_state"], expected)
    assert not recwarn.list


def test_a_projection_that_is_missing_or_differs(tmp_path: Path) -> None:
    """The table replaces a missing lm_head. An lm_head that differs from the table is used, as in Transformers 5."""
    folder = tiny.folder(tmp_path / "t5", "t5", "translation", mechanisms=BUCKETS, **V1_1)
    tensors = dict(read_tensors(folder / "model.safetensors")[0])
    projection = load_folder(folder)[1]["head"]["output"]["weight"]
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "tie_word_embeddings": True}))
    assert np.array_equal(load_folder(folder)[1]["head"]["output"]["weight"], projection)
    (folder / "config.json").write_text(json.dumps(data))
    del tensors["lm_head.weight"]
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    tree = load_folder(folder)[1]
    assert np.array_equal(tree["head"]["output"]["weight"], tree["encoder"]["embeddings"]["token"]["weight"].T)


# --- generation ------------------------------------------------------------------------------------------------------


@pytest.mark.numbers
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}, {"num_beams": 24, "max_new_tokens": 12}], ids=str)
def test_steps_have_the_bits_of_a_whole_pass(search: dict[str, int]) -> None:
    """Texts are longer than max_distance. With 24 beams, some BLAS libraries change the order of sums."""
    options = {"head_width": 6, "mechanisms": BUCKETS, "scale_output": True, "n_layers": 1}
    model = tiny.model("t5", "translation", threads=2, **options)
    sources = [np.random.default_rng(0).integers(5, 90, length).tolist() for length in (5, 40, 1)]
    settings = {"max_new_tokens": 35, "suppress_tokens": [3], "output_scores": True, **search}
    for source, hypotheses in zip(sources, model.generate(sources, **settings), strict=True):
        for each in hypotheses:
            target = np.concatenate([[model.config.decoder.start_id], each.ids[:-1]])
            logits = model.run([(Text(np.array(source)), Text(target))])[0]["logits"]
            if not search:  # greedy search scores only the tokens that the settings allow
                logits[:, 3] = -np.inf
            expected = log_softmax(logits)[np.arange(len(each.ids)), each.ids]
            assert np.array_equal(expected, each.token_scores)


# --- backward --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"scale_output": True}, V1_1], ids=["1.0", "1.1"])
def test_gradients_are_finite_differences(fields: dict[str, Any]) -> None:
    """Central differences with steps of 1e-6 in float64 have a relative error of about 1e-8."""
    sizes = {"d_model": 8, "n_heads": 2, "head_width": 3, "d_ffn": 6, "n_layers": 1}
    model = tiny.model("t5", "translation", dtype=np.float64, mechanisms=BUCKETS, **sizes, **fields)
    random, config = np.random.default_rng(0), model.config
    source, target = (pack([Text(random.integers(5, 90, n)) for n in lengths]) for lengths in ((24, 9), (23, 7)))
    weights = {name: array.copy() for name, array in flatten(dict(model.weights)).items()}
    grad = random.standard_normal((30, config.vocab_size))

    def total() -> float:
        logits = transformer(unflatten(weights), parts_of(config), source, target)["logits"]
        return float((logits * grad).sum())

    recording = Recording()
    with single_blas_thread(), listen(recording):
        transformer(model.weights, parts_of(config), source, target)
    grads = {"logits": grad}
    found = flatten(transformer_backward(grads, recording.stages, model.weights, parts_of(config), source, target))
    for name in (
        "encoder.relative_bias.weight",
        "decoder.relative_bias.weight",
        "encoder.layers.0.attention.query.weight",
        "decoder.layers.0.cross_attention.key.weight",
        "decoder.layers.1.ffn.gate.weight" if fields.get("gated") else "decoder.layers.1.ffn.hidden.weight",
        "decoder.layers.0.attention_norm.weight",
        "decoder.norm.weight",
        "head.output.weight",
    ):
        direction = random.standard_normal(weights[name].shape)
        own = found[name]
        if isinstance(own, SparseRows):
            dense = np.zeros_like(weights[name])
            dense[own.ids] = own.values
            own = dense
        before, ends = weights[name], []
        for step in (1e-6, -1e-6):
            weights[name] = before + step * direction
            ends.append(total())
        weights[name] = before
        assert (own * direction).sum() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-6)


def test_the_parts_of_a_logit_add_up() -> None:
    model = tiny.model("t5", "translation", dtype=np.float64, mechanisms=BUCKETS, scale_output=True, n_layers=1)
    ids = np.random.default_rng(0).integers(5, 90, 30)
    found = logit_attribution(model, (ids[:20], ids[20:]), position=4, label=7)
    assert found.total == pytest.approx(found.logit, abs=1e-10)
