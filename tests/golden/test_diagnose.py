"""Each known mistake in a NumPy forward pass is named; correct stages and unknown mistakes are reported as such.

The same mistakes are planted in torch models in tests/oracle/test_diagnose.py. Here they are not made as the diagnosis
makes them, but with patched functions, changed weights and changed inputs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import cycle

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import flatten, unflatten
from npformer.common.errors import NpformerError
from npformer.common.halves import half
from npformer.engine.activations import ACTIVATIONS, gelu
from npformer.engine.runtime.packing import Text
from npformer.engine.taps import tap
from npformer.families import parts_of
from npformer.interpret.edits import edit
from npformer.interpret.traces import trace
from npformer.model import Model
from tests.support import tiny
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

FAMILIES = ("distilbert", "bert", "electra")
attention, embeddings, norms = (
    sys.modules[f"npformer.engine.{name}"] for name in ("packed_attention", "embeddings", "norms.layernorm")
)
LENGTHS = (9, 6, 3)


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return reference(request.param)[0]


def test_spans_of_texts_of_several_lengths_are_diagnosed() -> None:
    """Each text has one column per token, so no order of columns fits texts of all lengths."""
    model = tiny.model("bert", "question-answering")
    golden_file = golden.record(model, texts_for(model))
    given = {f"{i}/{stage}": array for stage, each in golden_file.stages.items() for i, array in enumerate(each)}
    for i, length in enumerate(LENGTHS):
        given[f"{i}/start_logits"] = np.sin(np.arange(length, dtype=np.float32))
    diagnosis = golden.diagnose(golden_file, given, model)
    assert (diagnosis.stage, diagnosis.causes) == ("start_logits", [])


@cache
def reference(family: str) -> tuple[Model, golden.Golden]:
    model = tiny.model(family)
    return model, golden.record(model, texts_for(model))


@pytest.fixture
def recorded(model: Model) -> golden.Golden:
    return reference(model.config.model_type)[1]


def texts_for(model: Model) -> list[Text]:
    random = np.random.default_rng(2)
    texts = [Text(random.integers(5, model.config.vocab_size, length)) for length in LENGTHS]
    if model.config.n_token_types:
        texts = [replace(text, token_type_ids=(np.arange(len(text)) > 1).astype(np.int64)) for text in texts]
    return texts


def arrays_of(model: Model, texts: list[Text]) -> dict[str, np.ndarray]:
    """Every stage of a run, named text by text, as another program would write them."""
    t = trace(model, texts)
    return {f"{i}/{name}": array for name in t for i, array in enumerate(t.texts(name))}


# --- how the mistakes are made here ---------------------------------------------------------------------------------

Made = Iterator[tuple[Model, list[Text]]]  # the model and texts of the wrong port, while the mistake is in place


def with_weights(model: Model, change: Callable[[str, np.ndarray], np.ndarray]) -> Model:
    flat = flatten(dict(model.weights))
    return Model(model.config, unflatten({name: change(name, array) for name, array in flat.items()}))


@contextmanager
def patched(home: object, name: str, wrong: object) -> Iterator[None]:
    right = getattr(home, name)
    setattr(home, name, wrong)
    try:
        yield
    finally:
        setattr(home, name, right)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 1.0, axis: int = -1) -> np.ndarray:
    scores = tap("scores", q @ k.mT * np.float32(scale / math.sqrt(q.shape[-1])))
    e = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return tap("context", tap("weights", e / e.sum(axis=axis, keepdims=True)) @ v)


def attended(wrong: Callable[..., np.ndarray]) -> Callable[[Model, list[Text]], Made]:
    @contextmanager
    def made(model: Model, texts: list[Text]) -> Made:
        with patched(attention, "scaled_dot_product_attention", lambda q, k, v, *_, **__: wrong(q, k, v)):
            yield model, texts

    return made


def norm_made(wrong: Callable[..., np.ndarray]) -> Callable[[Model, list[Text]], Made]:
    @contextmanager
    def made(model: Model, texts: list[Text]) -> Made:
        def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, **_: object) -> np.ndarray:
            return wrong(x) * weight + bias

        with patched(norms, "layer_norm", norm):
            yield model, texts

    return made


def standardized(x: np.ndarray, eps: float = 1e-12, lost: int = 0) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).sum(-1, keepdims=True) / np.float32(x.shape[-1] - lost) + np.float32(eps))


def activation_made(wrong: Callable[..., np.ndarray]) -> Callable[[Model, list[Text]], Made]:
    @contextmanager
    def made(model: Model, texts: list[Text]) -> Made:
        right = ACTIVATIONS["gelu"]
        ACTIVATIONS["gelu"] = wrong
        parts_of.cache_clear()  # the parts of a model contain its activation
        try:
            yield model, texts
        finally:
            ACTIVATIONS["gelu"] = right
            parts_of.cache_clear()

    return made


def weights_made(group: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Model, list[Text]], Made]:
    @contextmanager
    def made(model: Model, texts: list[Text]) -> Made:
        yield with_weights(model, lambda name, array: change(array) if name == group else array), texts

    return made


def texts_made(change: Callable[[Text], Text]) -> Callable[[Model, list[Text]], Made]:
    @contextmanager
    def made(model: Model, texts: list[Text]) -> Made:
        yield model, [change(text) for text in texts]

    return made


def stages_made(**changes: Callable[[np.ndarray], np.ndarray]) -> Callable[[Model, list[Text]], Made]:
    @contextmanager
    def made(model: Model, texts: list[Text]) -> Made:
        with edit({f"layers.*.attention.{name}": change for name, change in changes.items()}):
            yield model, texts

    return made


@contextmanager
def pre_norm(model: Model, texts: list[Text]) -> Made:
    yield Model(replace(model.config, norm_first=True), model.weights), texts


@contextmanager
def query_key_weights(model: Model, texts: list[Text]) -> Made:
    flat = flatten(dict(model.weights))
    swap = {".query.": ".key.", ".key.": ".query."}

    def change(name: str, array: np.ndarray) -> np.ndarray:
        part = next((part for part in swap if part in name), None)
        return flat[name.replace(part, swap[part])] if part else array

    yield with_weights(model, change), texts


@contextmanager
def in_half(model: Model, texts: list[Text]) -> Made:
    with edit({"*": lambda array: array.astype(np.float16)}):
        yield with_weights(model, lambda name, array: half("float16", array)), texts


@contextmanager
def one_product_in_half(model: Model, texts: list[Text]) -> Made:
    """A float16 product in a float32 port: its inputs are rounded, but its sum is not."""
    t = trace(model, texts, "layers.0.attention_norm")
    weights = model.weights["layers"][0]["ffn"]["hidden"]
    rounded = [
        half("float16", x) @ half("float16", weights["weight"]) + weights["bias"]
        for x in t.texts("layers.0.attention_norm")
    ]
    with edit({"layers.0.ffn.hidden": rounded}):
        yield model, texts


def read_otherwise(x: np.ndarray) -> np.ndarray:
    """Returns (H, L, K) from (L, D) by reshaping without a transpose."""
    return np.concatenate(list(x), axis=1).reshape(x.shape)


def reshaped(weight: np.ndarray) -> np.ndarray:
    return weight.T.reshape(weight.shape)


SCORES, WEIGHTS, KEY = "layers.0.attention.scores", "layers.0.attention.weights", "layers.1.attention.key"
ACTIVATION, POSITION, SEGMENT = "layers.0.ffn.activation", "embeddings.position", "embeddings.segment"
AXIS, WIDTH = "softmax over the wrong axis", "scores divided by sqrt(d_model)"
POSITIONS, HEADS = "positions off by one", "heads reshaped without the transpose"

#: Short name of a mistake -> how it is made, its name in the diagnosis, and the first stage that shows it.
MADE = {
    "tanh gelu": (activation_made(lambda x, out=None: gelu(x, "tanh")), "tanh GELU for erf", ACTIVATION),
    "silu": (activation_made(lambda x, out=None: x / (1 + np.exp(-x))), "wrong activation", ACTIVATION),
    "eps": (norm_made(lambda x: standardized(x, 1e-5)), "another layer norm eps", "embeddings.norm"),
    "variance": (norm_made(lambda x: standardized(x, lost=1)), "unbiased variance", "embeddings.norm"),
    "square": (weights_made(f"{KEY}.weight", np.transpose), "transposed weight", KEY),
    "wide": (weights_made("layers.0.ffn.hidden.weight", reshaped), "transposed weight", "layers.0.ffn.hidden"),
    "bias": (weights_made("layers.1.ffn.output.bias", np.zeros_like), "missing bias", "layers.1.ffn.output"),
    "norm's bias": (weights_made("layers.0.ffn_norm.bias", np.zeros_like), "missing bias", "layers.0.ffn_norm"),
    "head's bias": (weights_made("head.output.bias", np.zeros_like), "missing bias", "logits"),
    "unscaled": (attended(lambda q, k, v: attend(q, k, v, 8**0.5)), "unscaled scores", SCORES),
    "twice": (attended(lambda q, k, v: attend(q, k, v, 8**-0.5)), "doubly scaled scores", SCORES),
    "d_model": (attended(lambda q, k, v: attend(q, k, v, 0.5)), WIDTH, SCORES),
    "queries": (attended(lambda q, k, v: attend(q, k, v, axis=-2)), AXIS, WEIGHTS),
    "heads": (attended(lambda q, k, v: attend(q, k, v, axis=-3)), AXIS, WEIGHTS),
    "q for k": (attended(lambda q, k, v: attend(k, q, v)), "query and key swapped", SCORES),
    "W_Q for W_K": (query_key_weights, "query and key swapped", "layers.0.attention.query"),
    "split": (
        stages_made(query_heads=read_otherwise, key_heads=read_otherwise, value_heads=read_otherwise),
        HEADS,
        "layers.0.attention.query_heads",
    ),
    "combine": (
        stages_made(combined=lambda x: np.stack(np.split(x, 4, axis=1)).reshape(x.shape)),
        HEADS,
        "layers.0.attention.combined",
    ),
    "pre-norm": (pre_norm, "pre-norm instead of post-norm", "layers.0.attention.query"),
    "from 1": (texts_made(lambda t: replace(t, positions=np.arange(1, len(t) + 1))), POSITIONS, POSITION),
    "from 2": (texts_made(lambda t: replace(t, positions=np.arange(2, len(t) + 2))), POSITIONS, POSITION),
    "types": (texts_made(lambda t: replace(t, token_type_ids=None)), "token types ignored", "embeddings.segment"),
    "no types": (weights_made(f"{SEGMENT}.weight", np.zeros_like), "token types ignored", SEGMENT),
    "ids": (texts_made(lambda t: replace(t, ids=t.ids[::-1])), "wrong token ids", "embeddings.token"),
    "half": (in_half, "half precision", "embeddings.token"),
}  # fmt: skip


#: Mistakes that differ from another entry of `MADE` only in their place or in a number.
REPEATED = ("from 2", "heads", "no types", "norm's bias", "wide", "twice")


def by_turns(made: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs each mistake with one family in turn, and mistakes in token types with BERT, which has token types."""
    families = [FAMILIES[i % len(FAMILIES)] for i in range(len(MADE))]
    return [("bert" if "types" in each else family, each) for family, each in zip(families, made, strict=False)]


@pytest.mark.parametrize(
    ("model", "made"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[1] in REPEATED)) for each in by_turns(MADE)],
    indirect=["model"],
)
def test_a_mistake_is_named(made: str, model: Model, recorded: golden.Golden) -> None:
    make, name, stage = MADE[made]
    with make(model, recorded.texts) as (wrong, texts):
        arrays = arrays_of(wrong, texts)
    diagnosis = golden.diagnose(recorded, arrays, model, dtype="float32")
    assert (diagnosis.stage, diagnosis.mistake) == (stage, name), f"{diagnosis}"
    assert not diagnosis.lies_earlier
    assert f"cause: {name}" in str(diagnosis)


@pytest.mark.parametrize("model", ["bert"], indirect=True)
def test_a_product_in_float16_may_also_be_one_in_tf32(model: Model, recorded: golden.Golden) -> None:
    """Both formats round the product's inputs to 10 bits, so the results are equal, and both causes are listed."""
    with one_product_in_half(model, recorded.texts) as (wrong, texts):
        arrays = arrays_of(wrong, texts)
    diagnosis = golden.diagnose(recorded, arrays, model, dtype="float32")
    assert diagnosis.stage == "layers.0.ffn.hidden"
    assert {"tf32 products", "half precision"} <= set(diagnosis.causes), f"{diagnosis}"


@pytest.mark.parametrize("model", slow_after(1, ["bert", "distilbert", "electra"]), indirect=True)
def test_an_ignored_mask_is_named(model: Model, recorded: golden.Golden) -> None:
    """Texts are padded with id 0 and run without a mask, as in a port that forgets the mask."""
    width = max(LENGTHS)
    texts = [
        Text(np.pad(text.ids, (0, width - len(text))), _padded(text.token_type_ids, width)) for text in recorded.texts
    ]
    t = trace(model, texts)
    arrays = {name: np.stack(t[name]) for name in t}
    comparison = golden.compare(recorded, arrays)
    assert comparison.first.stage == "layers.0.attention.weights"
    assert golden.diagnose(recorded, arrays, model).mistake == "mask ignored"


def test_a_wrong_mask_is_named_after_an_earlier_mistake() -> None:
    """The mask's rule needs padding to hide, even if it is tried without the rule of the earlier mistake."""
    model, recorded = reference("distilbert")
    real = np.array(LENGTHS)[:, None, None, None] > np.arange(max(LENGTHS))

    def too_high(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        scores = tap("scores", q @ k.mT * np.float32(1 / math.sqrt(q.shape[-1])))
        weights = np.exp(np.where(real, scores, np.float32(1e-9)))
        return tap("context", tap("weights", weights / weights.sum(axis=-1, keepdims=True)) @ v)

    texts = [Text(np.pad(text.ids, (0, max(LENGTHS) - len(text)))) for text in recorded.texts]
    with (
        norm_made(lambda x: standardized(x, 1e-5))(model, texts),
        patched(attention, "scaled_dot_product_attention", lambda q, k, v, *_, **__: too_high(q, k, v)),
    ):
        t = trace(model, texts)
    diagnosis = golden.diagnose(recorded, {name: np.stack(t[name]) for name in t}, model)
    assert [each.mistake for each in (diagnosis, *diagnosis.then)] == ["another layer norm eps", "mask misused"]


def _padded(token_type_ids: np.ndarray | None, width: int) -> np.ndarray | None:
    return None if token_type_ids is None else np.pad(token_type_ids, (0, width - len(token_type_ids)))


def test_the_exact_gelu_in_a_model_of_the_tanh_one_is_named() -> None:
    model = tiny.model("bert", activation="gelu_tanh")
    recorded = golden.record(model, texts_for(model))
    arrays = arrays_of(Model(replace(model.config, activation="gelu"), model.weights), recorded.texts)
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert (diagnosis.stage, diagnosis.mistake) == ("layers.0.ffn.activation", "erf GELU for tanh")


@pytest.mark.slow
def test_another_gelu_is_one_mistake_in_the_layers_and_in_the_pooler() -> None:
    model = tiny.model("bert", pooler="gelu")
    recorded = golden.record(model, texts_for(model))
    wrong = Model(replace(model.config, activation="gelu_tanh", pooler="gelu_tanh"), model.weights)
    arrays = arrays_of(wrong, recorded.texts)
    logits = {name: array for name, array in arrays.items() if name.endswith("/logits")}
    for given in (arrays, logits):
        assert golden.diagnose(recorded, given, model).mistake == "tanh GELU for erf"


# --- with few stages ------------------------------------------------------------------------------------------------


FROM_FEW = ("tanh gelu", "variance", "unscaled", "queries", "split", "W_Q for W_K", "pre-norm", "from 2", "bias")


HIDDEN_STATES = ("hidden_states.0", "hidden_states.1", "hidden_states.2", "logits")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "made", "stages"),
    [(*each, stages) for each, stages in zip(by_turns(FROM_FEW), cycle([HIDDEN_STATES, ("logits",)]), strict=False)],
    indirect=["model"],
)
def test_a_mistake_is_named_from_layers_outputs_or_logits_alone(
    made: str, stages: tuple[str, ...], model: Model, recorded: golden.Golden
) -> None:
    """The diagnosis computes missing stages from the nearest given stage, or from the token ids."""
    make, name, _ = MADE[made]
    with make(model, recorded.texts) as (wrong, texts):
        t = trace(wrong, texts)
    ours = {
        "hidden_states.0": model.parts.embeddings.output,
        "hidden_states.1": "layers.0.ffn_norm",
        "hidden_states.2": "layers.1.ffn_norm",
    }
    arrays = {f"{i}/{stage}": array for stage in stages for i, array in enumerate(t.texts(ours.get(stage, stage)))}
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert diagnosis.mistake == name, f"{diagnosis}"


@pytest.mark.parametrize("model", slow_after(1, FAMILIES), indirect=True)
def test_a_golden_of_some_stages_is_enough(model: Model) -> None:
    recorded = golden.record(model, texts_for(model), ["embeddings.norm", "layers.*.attention.combined", "logits"])
    make, name, _ = MADE["unscaled"]
    with make(model, recorded.texts) as (wrong, texts):
        arrays = arrays_of(wrong, texts)
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert (diagnosis.stage, diagnosis.mistake) == ("layers.0.attention.combined", name)


# --- no mistake, or no known mistake ------------------------------------------------------------------------------


def test_a_stage_that_is_right_given_its_inputs_lies_earlier(model: Model, recorded: golden.Golden) -> None:
    """All queries and keys drift in the same direction, each within its budget; the errors add up in the scores."""
    name = "layers.0.attention.scores"
    drift = {"layers.0.attention.query_heads": lambda q: q * np.float32(1 + 1e-6)}
    drift |= {"layers.0.attention.key_heads": lambda k: k * np.float32(1 + 1e-6)}
    with edit(drift):
        arrays = arrays_of(model, recorded.texts)
    tight = replace(recorded, budgets={**recorded.budgets, name: recorded.budgets[name] / 4})
    assert golden.compare(tight, arrays).first.stage == name
    diagnosis = golden.diagnose(tight, arrays, model)
    assert diagnosis.lies_earlier
    assert diagnosis.mistake == ""
    assert "the fault is earlier" in str(diagnosis)


@pytest.mark.parametrize("model", slow_after(1, ["electra", "bert", "distilbert"]), indirect=True)
def test_an_unknown_mistake_is_reported_as_unknown(model: Model, recorded: golden.Golden) -> None:
    with edit({"layers.0.ffn.hidden": lambda x: x + np.float32(0.01) * np.sin(9 * x)}):
        arrays = arrays_of(model, recorded.texts)
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert diagnosis.stage == "layers.0.ffn.hidden"
    assert diagnosis.fits == []
    assert "check the weights that it uses: layers.0.ffn.hidden.*" in str(diagnosis)
    assert "no known mistake gives your values" in str(diagnosis)


def test_a_correct_port_has_nothing_to_diagnose(model: Model, recorded: golden.Golden) -> None:
    diagnosis = golden.diagnose(recorded, arrays_of(model, recorded.texts), model)
    assert diagnosis.stage == ""
    assert "nothing to diagnose" in str(diagnosis)


def test_arrays_without_numbers_are_not_used(model: Model, recorded: golden.Golden) -> None:
    arrays = arrays_of(model, recorded.texts)
    arrays["0/layers.0.ffn.hidden"] = np.full_like(arrays["0/layers.0.ffn.hidden"], np.nan)
    assert "your array cannot be used" in str(golden.diagnose(recorded, arrays, model))


def test_another_model_is_an_error(model: Model, recorded: golden.Golden) -> None:
    other = tiny.model(model.config.model_type, seed=1)
    with pytest.raises(NpformerError, match="whose weights differ from this model's; use that model"):
        golden.diagnose(recorded, {}, other)


def test_half_rounds_as_the_formats_do() -> None:
    """float16 rounds as in NumPy; bfloat16 to the nearest neighbour, with ties to even."""
    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.14159, 65519, 1e-3, 0])
    np.testing.assert_array_equal(half("float16", x), x.astype(np.float16))
    np.testing.assert_array_equal(half("bfloat16", x)[:4], [1, 1, 1 + 2**-6, 1 + 2**-7])
    assert half("bfloat16", np.float32([3.14159])).dtype == np.float32
