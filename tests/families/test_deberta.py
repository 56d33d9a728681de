"""Features of DeBERTa: disentangled attention, one table of distances for all layers, and no table of positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.checkpoint.safetensors import read_tensors
from npformer.common.errors import NpformerError
from npformer.config import InputConvolution, Positions
from npformer.engine.activations import tanh
from npformer.engine.blocks import Convolution, PackedTexts
from npformer.engine.mechanisms.disentangled import (
    distance_rows,
    distance_scores,
    distance_scores_backward,
    log_buckets,
)
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.families import read_config, write_config
from npformer.interpret.traces import trace
from npformer.model import Model
from npformer.training import Example, HeadLoss, Trainable, gradients, standard_rates
from tests.support import tiny
from tests.support.check_family import same_bits
from tests.support.slow import slow_after

FORMS: tuple[tuple[str, ...], ...] = ((), ("key",), ("query",), ("key", "query"))
OPTIONAL = ("position_biased_input", "pos_att_type", "type_vocab_size")


def test_buckets() -> None:
    """Each distance up to half the number of buckets has its own bucket; larger distances share logarithmic buckets."""
    distances = np.arange(-511, 512)
    buckets = log_buckets(distances, 256, 512)
    near = np.abs(distances) <= 128
    assert (buckets[near] == distances[near]).all()
    assert (buckets == -buckets[::-1]).all()
    assert (np.diff(buckets) >= 0).all()
    assert buckets[-1] == 255
    assert log_buckets(np.array([129, 130, 131, 200, 300, 400]), 256, 512).tolist() == [129, 130, 131, 169, 207, 233]


def test_the_same_distances_are_looked_up_once_for_all_texts() -> None:
    places = np.arange(5)[None].repeat(3, axis=0)
    assert distance_rows(places, places, 4, 9, 0, 4).tolist() == [(4 + np.arange(5)[:, None] - np.arange(5)).tolist()]
    assert distance_rows(places + 7, places + 7, 4, 9, 0, 4).shape == (1, 5, 5)
    gaps = places.copy()
    gaps[1, 3:] += 2
    # distances 5 and 6 are beyond the table, and use its edge, row 0
    assert distance_rows(gaps, gaps, 4, 9, 0, 4)[1].tolist()[0] == [4, 3, 2, 0, 0]


@pytest.mark.parametrize("forms", [("key", "query"), ("key",), ("query",)])
@pytest.mark.parametrize("gap", [0, 3, -4])
def test_scores_and_their_backward_are_the_sums_of_the_paper(gap: int, forms: tuple[str, ...]) -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal((2, 2, 3, 5, 4))
    of_keys, of_queries = random.standard_normal((2, 1, 3, 9, 4))
    of_keys, of_queries = of_keys * ("key" in forms), of_queries * ("query" in forms)
    tables = {f"distance_{form}": {"key": of_keys, "query": of_queries}[form] for form in forms}
    places = np.arange(5)[None].repeat(2, axis=0)
    places[1, 2:] += gap
    rows = distance_rows(places, places, 4, 9, 16, 4)
    grad = random.standard_normal((2, 3, 5, 5))
    scores = distance_scores(q, k, rows, **tables)
    dq, dk, sums = distance_scores_backward(grad, q, k, rows, **tables)
    found = {"scores": scores, "q": dq, "k": dk, **sums}
    assert sums.keys() == set(forms)
    of_text = np.broadcast_to(rows, (2, 5, 5))
    shapes = {"scores": scores.shape, "q": q.shape, "k": k.shape, "key": (2, 3, 9, 4), "query": (2, 3, 9, 4)}
    expected = {name: np.zeros(shape) for name, shape in shapes.items()}
    for n, h, i, j in np.ndindex(scores.shape):
        r, g = of_text[n, i, j], grad[n, h, i, j]
        expected["scores"][n, h, i, j] = q[n, h, i] @ of_keys[0, h, r] + k[n, h, j] @ of_queries[0, h, r]
        expected["q"][n, h, i] += g * of_keys[0, h, r]
        expected["k"][n, h, j] += g * of_queries[0, h, r]
        expected["key"][n, h, r] += g * q[n, h, i]
        expected["query"][n, h, r] += g * k[n, h, j]
    for name, got in found.items():
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=1e-13)  # sums of at most 20 products of about 1


@pytest.mark.numbers
@pytest.mark.parametrize("forms", FORMS)
def test_a_text_has_the_same_bits_with_every_form_of_distances(forms: tuple[str, ...]) -> None:
    """A text alone reads fewer rows of the table than in a batch with longer texts. Gaps increase distances."""
    fields = {"labels": tuple("abc"), "mechanisms": (tiny.distances(forms=forms),)}
    same_bits("deberta-v2", "token-classification", **fields)
    model, ids = tiny.model("deberta-v2", "token-classification", **fields), np.arange(5, 12)
    texts = [Text(ids), Text(ids, places=np.array([0, 1, 2, 40, 41, 42, 43]))]
    near, far = (each["logits"] for each in model.run(texts))
    assert np.array_equal(near, far) == (not forms)
    assert np.array_equal(model.run(texts[1:])[0]["logits"], far)


@pytest.mark.numbers
def test_a_classifier_computes_only_first_rows_with_the_bits_of_all() -> None:
    model = tiny.model("deberta-v2", "sequence-classification", threads=2, max_length=300)
    text = Text(np.random.default_rng(0).integers(2, 99, 250))
    assert np.array_equal(model.run([text])[0]["logits"], trace(model, text)["logits"])


@pytest.mark.parametrize("forms", FORMS)
def test_every_group_of_weights_has_a_gradient_also_an_unused_table(forms: tuple[str, ...]) -> None:
    model = tiny.model("deberta-v2", "sequence-classification", mechanisms=(tiny.distances(forms=forms),))
    weights = Trainable(model.weights, model.config)
    grads = gradients(HeadLoss(model.config), weights, [Example(Text(np.array([5, 6, 7])), 1)])
    assert grads.flat.keys() == weights.flat.keys()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mechanisms": (tiny.distances(12, 0),)},
        {"mechanisms": (tiny.distances(own=True, norm=False),)},
        *({"mechanisms": (tiny.distances(forms=forms, own=own),)} for forms in FORMS for own in (False, True)),
        {"positions": Positions(), "n_token_types": 2},
        {"positions": Positions(), "n_token_types": 1, "mechanisms": (tiny.distances(forms=()),)},
    ],
)
def test_every_form_of_its_settings_is_read_as_it_is_written(fields: dict[str, Any]) -> None:
    config = tiny.config("deberta-v2", **fields)
    data = write_config(config)
    assert read_config(data) == config
    if len(config.mechanisms[0].forms) == 2:
        assert read_config({**data, "pos_att_type": "c2p|p2c"}) == config
    assert read_config({**data, "pos_att_type": " | ".join(data["pos_att_type"]).upper()}) == config


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("relative_attention", False, "relative_attention: False is not supported; supported: True"),
        ("position_biased_input", 1, "position_biased_input: expected true or false"),
        ("pos_att_type", ["p2p"], "pos_att_type: expected one of p2c, c2p, got 'p2p'"),
        ("pos_att_type", ["c2p", 1], "pos_att_type: expected a list of strings"),
        ("pos_att_type", 5, "pos_att_type: expected a list of strings, got 5"),
        ("norm_rel_ebd", "batch_norm", "norm_rel_ebd: 'batch_norm' is not supported"),
        ("position_buckets", 2, "position_buckets: expected at least 4 and below max_relative_positions 40, got 2"),
        ("position_buckets", "8", "position_buckets: expected a whole number"),
        ("share_att_key", "yes", "share_att_key: expected true or false"),
        ("conv_kernel_size", 2, "conv_kernel_size: expected an odd number"),
        ("conv_kernel_size", -1, "conv_kernel_size: expected a whole number"),
        ("type_vocab_size", -1, "type_vocab_size: expected a whole number"),
        ("embedding_size", 16, "embedding_size: 16 is not supported; supported: 32"),
    ],
)
def test_settings_that_would_be_computed_wrongly_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(NpformerError, match=message.replace("|", r"\|")):
        read_config({**write_config(tiny.config("deberta-v2")), field: value})


def test_settings_that_are_absent_have_transformers_values() -> None:
    data = write_config(tiny.config("deberta-v2"))
    absent = {name: value for name, value in data.items() if name not in OPTIONAL}
    config = read_config(absent)
    assert (config.positions, config.mechanisms[0].forms, config.n_token_types) == (Positions(), (), 0)
    del absent["relative_attention"]
    with pytest.raises(NpformerError, match="relative_attention: None is not supported; supported: True"):
        read_config(absent)


@pytest.mark.parametrize("forms", FORMS)
def test_the_stages_of_scores_of_one_form(forms: tuple[str, ...]) -> None:
    """Scores are divided by sqrt(number of products * K). A model without distances has no stages for distances."""
    model = tiny.model("deberta-v2", "token-classification", mechanisms=(tiny.distances(forms=forms, own=True),))
    t = trace(model, Text(np.arange(2, 12)))
    at = "layers.1.attention."
    assert (f"{at}distance_scores" in t) == bool(forms)
    products = t[f"{at}query_heads"] @ t[f"{at}key_heads"].mT / np.sqrt(8 * (1 + len(forms)))
    more = t[f"{at}distance_scores"] if forms else 0
    np.testing.assert_allclose(t[f"{at}scores"], products + more, rtol=0, atol=1e-5)
    if len(forms) == 1:
        formula = {"key": "Q_h K_r^T / sqrt(2 K), r: distances", "query": "Q_r K_h^T / sqrt(2 K), r: distances"}
        assert t.row(f"{at}distance_scores").formula == formula[forms[0]]
    assert {f"distance_{form}" for form in forms} <= model.weights["layers"][0]["attention"].keys()


@pytest.mark.parametrize(("few", "forms"), slow_after(1, [*((False, forms) for forms in FORMS[1:]), (True, FORMS[-1])]))
@pytest.mark.parametrize("mistake", ["distances reversed", "distances without buckets"])
def test_a_mistake_in_the_distances_is_named(mistake: str, few: bool, forms: tuple[str, ...]) -> None:
    model = tiny.model("deberta-v2", "sequence-classification", mechanisms=(tiny.distances(forms=forms),))
    random = np.random.default_rng(0)
    texts = [Text(random.integers(5, model.config.vocab_size, length)) for length in (30, 17, 9)]
    recorded = golden.record(model, texts)
    config, weights = model.config, dict(model.weights)
    if mistake == "distances reversed":
        table = weights["distances"]["weight"]
        weights["distances"] = {"weight": np.array([table[-r % len(table)] for r in range(len(table))])}
    else:
        config = replace(config, mechanisms=(replace(config.mechanisms[0], max_distance=0),))
    found = trace(Model(config, weights), texts)
    names = [name for name in found if not few or name.endswith(("embeddings.norm", "ffn_norm", "logits"))]
    arrays = {f"{i}/{name}": array for name in names for i, array in enumerate(found.texts(name))}
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert diagnosis.mistake == mistake, str(diagnosis)


# --- the convolution of the largest models ---------------------------------------------------------------------------

CONVOLUTION = {"convolution": InputConvolution(3, "gelu"), "max_length": 300}


def test_a_convolution_reads_the_neighbouring_rows() -> None:
    random = np.random.default_rng(0)
    lengths = np.array([4, 1, 3])
    places = np.array([0, 1, 2, 3, 0, 5, 2, 3])  # the last text has gaps
    x, weight = random.standard_normal((8, 6)), random.standard_normal((5 * 6, 6))
    bias, grad = random.standard_normal(6), random.standard_normal((8, 6))
    made, hidden = Convolution(tanh), {"weight": weight, "bias": bias}
    batch = replace(pack([Text(np.zeros(length, np.int64)) for length in lengths]), places=places)
    packed = PackedTexts(lengths, batch, embedded=x)
    recording = Recording()
    with listen(recording):
        found = made(x, packed, **hidden)
    _, d_hidden, shared = made.backward(grad, recording.stages, x, packed, **hidden)
    dx = shared["embedded"]["rows"]
    expected, linear = np.zeros((3, 8, 6)), np.tile(bias, (8, 1))
    pairs = [
        (i, j, int(places[j] - places[i]) + 2)
        for first, end in ((0, 4), (4, 5), (5, 8))
        for i in range(first, end)
        for j in range(first, end)
        if abs(places[j] - places[i]) <= 2
    ]
    d_weight = np.zeros_like(weight)
    for i, j, k in pairs:
        linear[i] += x[j] @ weight[6 * k : 6 * k + 6]
    d_linear = grad * (1 - np.tanh(linear) ** 2)
    for i, j, k in pairs:
        expected[0, j] += weight[6 * k : 6 * k + 6] @ d_linear[i]
        d_weight[6 * k : 6 * k + 6] += np.outer(x[j], d_linear[i])
    np.testing.assert_allclose(found, np.tanh(linear), rtol=0, atol=1e-13)
    np.testing.assert_allclose(dx, expected[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(d_hidden["weight"], d_weight, rtol=0, atol=1e-13)
    np.testing.assert_allclose(d_hidden["bias"], d_linear.sum(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("head", ["sequence-classification", "token-classification"])
def test_with_a_convolution_a_text_has_the_same_bits_alone_in_a_batch_and_on_threads(head: str, n_layers: int) -> None:
    same_bits("deberta-v2", head, n_layers=n_layers, **CONVOLUTION)
    found = trace(tiny.model("deberta-v2", head, n_layers=n_layers, **CONVOLUTION), Text(np.arange(5, 12)))
    after = found["layers.0.ffn_norm"] + found["convolution.activation"]
    np.testing.assert_array_equal(found["convolution_residual"], after)
    assert found["convolution_norm"].shape == (7, 32)


def test_a_convolution_is_in_config_and_files_and_is_trained(tmp_path: Path) -> None:
    folder = tiny.folder(tmp_path / "model", "deberta-v2", "sequence-classification", **CONVOLUTION)
    config, weights = load_folder(folder)
    assert config.convolution == InputConvolution(3, "gelu")
    assert read_config(write_config(config)) == config
    stored = read_tensors(folder / "model.safetensors")[0]["deberta.encoder.conv.conv.weight"]
    assert stored.shape == (32, 32, 3)
    for k in range(3):
        assert np.array_equal(weights["convolution"]["weight"][32 * k : 32 * k + 32], stored[:, :, k].T)
    assert standard_rates(config, 0.2)["convolution.hidden"] == 0.2
    examples = [Example(Text(np.array([2, 9, 8, 3])), 0), Example(Text(np.array([2, 7, 3])), 1)]
    flat = gradients(HeadLoss(config), Trainable(weights, config), examples).flat
    assert np.abs(flat["convolution.weight"]).max() > 0
    assert np.abs(flat["convolution_norm.bias"]).max() > 0
    model = Model(config, weights)
    recorded = golden.record(model, [Text(np.array([2, 9, 8, 3]))])
    arrays = {f"0/{name}": each[0] for name, each in recorded.stages.items()}
    arrays["0/convolution_norm"] = arrays["0/convolution_norm"] + 1
    assert golden.diagnose(recorded, arrays, model).stage == "convolution_norm"
    with pytest.raises(NpformerError, match="conv_groups: 2 is not supported; supported: 1"):
        read_config({**write_config(config), "conv_groups": 2})
    with pytest.raises(NpformerError, match="conv_act: expected one of"):
        read_config({**write_config(config), "conv_act": "mish"})
