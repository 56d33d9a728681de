"""Combined mechanisms: scores match the formulas, gradients are correct, and a text has the same bits in any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npformer import NpformerError
from npformer.base_model import packed
from npformer.checkpoint.tree import flatten, unflatten
from npformer.config import InputConvolution, Local
from npformer.engine.blocks import Attention, PackedTexts
from npformer.engine.descriptions.weight_group import Group, linear, table
from npformer.engine.functions import SparseRows, rms_norm
from npformer.engine.mechanisms import (
    Alibi,
    Causal,
    Disentangled,
    HeadNorm,
    Mechanism,
    PartialRotary,
    RelativeBias,
    Rotary,
    RowNorm,
    SoftCap,
    Window,
)
from npformer.engine.mechanisms.distances import at_distances
from npformer.engine.mechanisms.relative_bias import relative_bias
from npformer.engine.mechanisms.rotary import rotary_angles, rotate
from npformer.engine.mechanisms.rotary_scaling import Yarn
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.threads import single_blas_thread
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import encode, encode_backward, last_rows
from npformer.families import FAMILIES, parts_of
from npformer.interpret.traces import trace
from tests.support import tiny
from tests.support.mechanisms import Added, with_mechanisms

pytestmark = pytest.mark.numbers

YARN = Yarn(3.0, original=20)
PARTIAL = PartialRotary(9.0, columns=4, scaling=YARN)
#: Name -> a family, the mechanisms that each layer has in addition to the family's own, and fields of the config.
COMBINATIONS: dict[str, tuple[str, Added, dict[str, Any]]] = {
    "alibi-causal": ("bloom", lambda config, i: (), {}),
    "bias-capped": ("mpnet", lambda config, i: (SoftCap(0.7),), {}),
    "bias-causal": ("mpnet", lambda config, i: (Causal(),), {}),
    "bias-rotary": ("mpnet", lambda config, i: (Rotary(100.0, config.d_head),), {}),
    "bias-window": ("mpnet", lambda config, i: (Window(3),) * i, {}),
    "distances-and-a-convolution": (
        "deberta-v2",
        lambda config, i: (),
        {"convolution": InputConvolution(3), "n_layers": 1},
    ),
    "distances-causal": ("deberta-v2", lambda config, i: (Causal(),), {}),
    "distances-rotary": ("deberta-v2", lambda config, i: (Rotary(100.0, config.d_head),), {}),
    "grouped-norms-rotary-window-causal": (
        "qwen3",
        lambda config, i: (Window(2),) * i,
        {"n_kv_heads": 2, "head_width": 6},
    ),
    "grouped-norms-of-rows-rotary-window-causal": (
        "olmo2",
        lambda config, i: (Window(2),) * i,
        {"n_kv_heads": 2, "head_width": 6},
    ),
    "grouped-scaled-rotary": (
        "llama",
        lambda config, i: (),
        {"n_kv_heads": 1, "mechanisms": (Rotary(9.0, scaling=YARN),)},
    ),
    "grouped-capped-window": ("llama", lambda config, i: (SoftCap(0.7), *(Window(3),) * i), {"n_kv_heads": 2}),
    "grouped-bias": ("llama", lambda config, i: (RelativeBias(8).for_model(config),), {"n_kv_heads": 2}),
    "partial-rotary-in-parallel": ("gpt_neox", lambda config, i: (), {"mechanisms": (PARTIAL,)}),
    "projected-tokens": ("opt", lambda config, i: (), {}),
    "rotary-causal": ("gpt2", lambda config, i: (Rotary(100.0, config.d_head),), {}),
    "rotary-window-causal": ("modernbert", lambda config, i: (Causal(),), {}),
    "window": ("bert", lambda config, i: (Window(2),), {}),
    "window-causal": ("gpt2", lambda config, i: (Window(2),), {}),
}
#: The positions of each text's tokens. Adjacent texts of equal length differ in their first or last gap.
PLACES = (range(7), range(12), range(7), (0, 1, 2, 3, 4, 5, 9), (0, 4, 5, 6, 7, 8, 9), (2, 3, 4, 5, 6, 7, 8), range(3))


def in_turn(*choices: Any) -> list[Any]:
    """Returns every pair of a combination and a choice. Half of the pairs, alternately, are marked slow."""
    return [
        pytest.param(name, choice, marks=[pytest.mark.slow] * ((i + j) % 2))
        for i, name in enumerate(COMBINATIONS)
        for j, choice in enumerate(choices)
    ]


def combined(name: str, dtype: Any = np.float64, head: str = "base", **more: Any) -> Any:
    return tiny.model(name, head, dtype=dtype, **COMBINATIONS[name][2], **more)


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in COMBINATIONS:
        monkeypatch.setitem(FAMILIES, name, with_mechanisms(COMBINATIONS[name][0], name, COMBINATIONS[name][1]))


def texts() -> list[Text]:
    random = np.random.default_rng(0)
    return [Text(random.integers(5, 60, len(places)), places=np.array(places)) for places in PLACES]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_scores_and_weights_match_all_formulas(name: str) -> None:
    """Recomputes scores and weights from the heads. The tolerance, 1e-13, is several hundred float64 roundings."""
    model = combined(name)
    config, weights = model.config, model.weights
    recorded = trace(model, texts()[1])
    distance = np.arange(12) - np.arange(12)[:, None]  # key - query
    for i in range(config.n_layers):
        at = f"layers.{i}.attention"
        [attention, *_] = [block.core for _, block in parts_of(config).stack.layers[i].blocks]
        mechanisms = {type(each): each for each in attention.mechanisms}
        q, k = recorded[f"{at}.query_heads"], recorded[f"{at}.key_heads"]
        for stage, heads in (("query", q), ("key", k)):
            rows = recorded[f"{at}.{stage}"]
            if HeadNorm in mechanisms:
                own = weights["layers"][i]["attention"][f"{stage}_norm"]
                rows = rms_norm(rows.reshape(12, -1, config.d_head), **own, eps=config.eps).reshape(rows.shape)
            if RowNorm in mechanisms:
                rows = rms_norm(rows, **weights["layers"][i]["attention"][f"{stage}_norm"], eps=config.eps)
            if rotary := mechanisms.get(Rotary):
                angles = rotary_angles(np.arange(12), config.d_head, rotary.theta, np.float64, rotary.scaling)
                rows = rotate(rows, *angles)
            if partial := mechanisms.get(PartialRotary):
                angles = rotary_angles(np.arange(12), partial.columns, partial.theta, np.float64, partial.scaling)
                heads_of = rows.reshape(12, -1, config.d_head)
                first = rotate(heads_of[..., : partial.columns].reshape(12, -1), *angles).reshape(12, 4, -1)
                rows = np.concatenate([first, heads_of[..., partial.columns :]], axis=-1).reshape(rows.shape)
            np.testing.assert_array_equal(rows.reshape(12, -1, config.d_head).swapaxes(0, 1), heads)
        k = k.repeat(4 // len(k), axis=0)
        products = 3 if Disentangled in mechanisms else 1
        expected = q @ k.mT / np.sqrt(products * config.d_head)
        if RelativeBias in mechanisms:
            bias = relative_bias(
                **weights["relative_bias"], farthest=12, bidirectional=mechanisms[RelativeBias].bidirectional
            )
            expected = expected + bias[:, bias.shape[-1] // 2 + distance]
        if Alibi in mechanisms:  # four heads
            expected = expected + np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None] * distance
        if Disentangled in mechanisms:
            expected = expected + recorded[f"{at}.distance_scores"]
        if cap := mechanisms.get(SoftCap):
            expected = cap.cap * np.tanh(expected / cap.cap)
        np.testing.assert_allclose(recorded[f"{at}.scores"], expected, rtol=0, atol=1e-13)
        seen = np.ones((12, 12), bool)
        if Causal in mechanisms:
            seen &= distance <= 0
        if window := mechanisms.get(Window):
            seen &= np.abs(distance) <= window.reach
        admitted = np.where(seen, np.exp(expected), 0)
        wanted = admitted / admitted.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(recorded[f"{at}.weights"], wanted, rtol=0, atol=1e-13)
        assert ((recorded[f"{at}.weights"] == 0) == ~seen).all()


@pytest.mark.parametrize(("name", "rows"), in_turn("all", "read"))
def test_gradients_are_finite_differences(name: str, rows: str) -> None:
    """Central differences with steps of 1e-6 in float64 have a relative error of about 1e-8."""
    model = combined(name)
    config, weights = model.config, dict(model.weights)
    batch = packed(config, texts())
    indices = batch.read if rows == "read" else None
    recording = Recording()
    with single_blas_thread(), listen(recording):
        y = encode(weights, parts_of(config), batch, indices)
    np.testing.assert_array_equal(last_rows(recording.stages, parts_of(config)), y)
    random = np.random.default_rng(1)
    grad = random.standard_normal(y.shape)
    tree = flatten(encode_backward(grad.copy(), recording.stages, weights, parts_of(config), batch, indices))
    flat = flatten(weights)
    shared = ("relative_bias.weight", "distances.weight", "distances_norm.weight")
    for each in (
        *shared,
        "layers.0.attention.query.weight",
        "layers.1.attention.key.weight",
        "layers.1.attention.value.weight",
        "layers.0.attention.query_norm.weight",
        "layers.1.attention.key_norm.weight",
        "layers.0.attention_norm.weight",
        "layers.0.attention.output_norm.weight",
        "layers.1.ffn.output_norm.weight",
        "layers.0.ffn.hidden.weight",
        "convolution.weight",
        "embeddings.token.weight",
    ):
        if each not in flat:
            continue
        direction = random.standard_normal(flat[each].shape)

        def loss(step: float, each: str = each, direction: np.ndarray = direction) -> float:
            moved = unflatten({**flat, each: flat[each] + step * direction})
            with single_blas_thread():
                return float((encode(moved, parts_of(config), batch, indices) * grad).sum())

        found: Any = tree[each]
        dense = np.zeros_like(flat[each])
        if isinstance(found, SparseRows):
            dense[found.ids] = found.values
        else:
            dense = found
        difference = (loss(1e-6) - loss(-1e-6)) / 2e-6
        assert difference == pytest.approx(float((dense * direction).sum()), rel=1e-6, abs=1e-6), each


@pytest.mark.parametrize(("name", "dtype"), in_turn(np.float32, np.float64))
def test_a_text_has_the_same_bits_alone_and_in_a_batch(name: str, dtype: Any) -> None:
    model = combined(name, dtype)
    together = model.run(texts())
    batch = packed(model.config, texts())
    with model.cores(1):
        first = encode(model.weights, model.parts, batch, batch.read)
    for text, answer, row in zip(texts(), together, first, strict=True):
        alone = packed(model.config, [text])
        assert np.array_equal(model.run([text])[0]["last_hidden_state"], answer["last_hidden_state"])
        with model.cores(1):
            assert np.array_equal(encode(model.weights, model.parts, alone, alone.read)[0], row)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_text_shared_by_two_threads_has_the_same_bits(name: str) -> None:
    """The head reads only one row of the last layer, so one of the two threads has no row of that layer to compute."""
    model = combined(name, np.float32, "sequence-classification", threads=2, max_length=250)
    text = Text(np.random.default_rng(0).integers(5, 60, 230))
    [shared] = model.run([text])
    model.threads = 1
    assert np.array_equal(shared["logits"], model.run([text])[0]["logits"])


@pytest.mark.parametrize("mechanism", [Window(1), Causal()])
def test_some_texts_of_a_run_have_their_own_masks(mechanism: Mechanism) -> None:
    places = np.array([0, 1, 2, 0, 5, 6, 2, 1, 0])
    x, block = np.random.default_rng(0).standard_normal((9, 8)), Attention(2, (mechanism,))
    weights = {name: {"weight": np.eye(8)} for name in ("query", "key", "value", "output")}
    together = block(x, PackedTexts(np.array([3, 3, 3]), places=(places, places)), **weights)
    for text in range(3):
        rows = slice(3 * text, 3 * text + 3)
        alone = block(x[rows], PackedTexts(np.array([3]), places=(places[rows], places[rows])), **weights)
        np.testing.assert_array_equal(alone, together[rows])


@pytest.mark.parametrize("queries", [[[0, 1, 2, 3]] * 2, [[1, 2]] * 2, [[1], [3]], [[0, 2], [1, 3]]])
@pytest.mark.parametrize("keys", [[[0, 1, 2, 3]] * 2, [[0, 1, 2, 3], [1, 2, 3, 4]], [[0, 1, 2, 9], [0, 7, 8, 9]]])
def test_each_query_and_key_read_the_value_of_their_distance(queries: list[list[int]], keys: list[list[int]]) -> None:
    """Distances beyond the table, 4 and more, have the value at the nearer end of the table."""
    values = np.arange(14.0).reshape(2, 7)
    found = np.broadcast_to(at_distances(values, np.array(queries), np.array(keys)), (2, 2, len(queries[0]), 4))
    for n, h, i, j in np.ndindex(found.shape):
        assert found[n, h, i, j] == values[h, 3 + min(max(keys[n][j] - queries[n][i], -3), 3)]


@pytest.mark.parametrize(
    "name",
    [
        *("rotary-causal", "window-causal", "grouped-norms-rotary-window-causal", "grouped-capped-window"),
        *("grouped-norms-of-rows-rotary-window-causal",),
        *("partial-rotary-in-parallel", "projected-tokens", "alibi-causal"),
    ],
)
def test_a_causal_model_writes_the_tokens_of_whole_passes(name: str) -> None:
    model = combined(name, head="causal-lm")
    prompt = np.arange(5, 12)
    [[written]] = model.generate(prompt, max_new_tokens=5, num_beams=1, do_sample=False)
    ids = list(prompt)
    for token in written.ids:
        assert model.run([Text(np.array(ids))])[0]["logits"][-1].argmax() == token
        ids.append(token)


def test_a_mechanism_without_cached_steps_cannot_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "cached", False)
    model = combined("window-causal", head="causal-lm")
    with pytest.raises(NpformerError, match="generate: not supported for a model with Window attention"):
        model.generate(np.arange(5, 9), max_new_tokens=2)


def test_layers_with_equal_choices_share_their_tables() -> None:
    config = tiny.config("modernbert", "base", n_layers=6)
    assert len(parts_of(config).stack.mechanisms) == 3  # two rotations, one window


@pytest.mark.parametrize(
    ("family", "chosen"),
    [
        ("bert", {"mechanisms": (Rotary(100.0),)}),
        ("bert", {"mechanisms": (RelativeBias(32),)}),
        ("bert", {"convolution": InputConvolution(3)}),
        ("gpt2", {"mechanisms": (tiny.distances(),)}),
        ("mpnet", {"local": Local((1,), (Window(3),))}),
        ("deberta-v2", {"causal": True}),
        ("modernbert", {"causal": True}),
        ("llama", {"mechanisms": (Rotary(100.0), SoftCap(2.0))}),
        ("gpt2", {"n_kv_heads": 2}),
        ("bert", {"head_width": 4}),
    ],
)
def test_a_choice_that_no_part_of_the_family_computes_is_an_error(family: str, chosen: dict[str, Any]) -> None:
    [field] = chosen
    fixed = field in ("n_kv_heads", "head_width")
    why = f"expected 0, because it is fixed for {family} models" if fixed else f".*a {family} model has no"
    with pytest.raises(NpformerError, match=f"^{'mechanisms' if field == 'local' else field}: {why}"):
        parts_of(tiny.config(family, "base", **chosen))


class Weighted(Mechanism):
    """A mechanism with a table that all layers share, and with a projection in each layer."""

    def groups(self, d_model: int) -> dict[str, Group]:
        return {"slopes": table(7, 4)}

    def projections(self, d_model: int) -> dict[str, Group]:
        return {"slope": linear(d_model, 3)}


def test_a_mechanism_declares_its_weights() -> None:
    config = tiny.config("bert", "base")
    own = FAMILIES["bert"].weights(config, "base")
    found = with_mechanisms("bert", "weighted", lambda config, i: (Weighted(),) * i).weights(config, "base")
    assert {name: found[name] for name in found.keys() - own.keys()} == {
        "slopes": table(7, 4),
        "layers.1.attention.slope": linear(32, 3),
    }
