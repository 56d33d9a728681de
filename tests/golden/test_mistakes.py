"""A table of mistakes in ports, which are edited pages. Nearly all are named, from all stages or from a few.

Nearly all the time is spent in forward passes: dozens per diagnosis, and two or three times as many with few stages.
So each mistake is diagnosed with all stages exported in one tiny model, and with only a few exported in the other. Some
mistakes are diagnosed in two layers of the bundled model too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

import npformer
from npformer import families, golden
from npformer.checkpoint import flatten
from npformer.common.errors import NpformerError
from npformer.common.halves import half
from npformer.engine.mechanisms.mechanism import Mechanism
from npformer.engine.runtime.packing import Text
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes.parts import OF_CLASS
from npformer.golden.mistakes.precision import quantized
from npformer.interpret.edits import edit
from npformer.model import Model
from tests.support import tiny
from tests.support.edited_pages import Plant, edited, run, weights
from tests.support.mechanisms import with_mechanisms
from tests.support.planted import HELD_BACK, IN_GPT2, IN_MODERNBERT, KNOWN
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

FAMILIES = ("distilbert", "bert")
BUNDLED = "distilbert-sst2"  # trained weights, width 384, 6 layers
TWO_LAYERS = "two layers of distilbert-sst2"
FEW = ("embeddings.norm", ".ffn_norm", "logits", "probabilities")
FEW_IN_PRE_NORM = ("embeddings.sum", ".ffn_residual", "logits", "probabilities")


def model_of(family: str) -> Model:
    if family not in (BUNDLED, TWO_LAYERS):
        return tiny.model(family, max_length=24, n_layers=4 if family == "modernbert" else 2)
    model = npformer.load(BUNDLED)
    if family == BUNDLED:
        return model
    return Model(replace(model.config, n_layers=2), {**model.weights, "layers": model.weights["layers"][:2]})


@cache
def reference(family: str) -> tuple[Model, golden.Golden]:
    model = model_of(family)
    random = np.random.default_rng(2)
    texts = [Text(random.integers(5, model.config.vocab_size, length)) for length in (9, 6, 3)]
    if model.config.uncounted is not None:
        texts[0].ids[4] = model.config.uncounted
    if model.config.n_token_types:
        texts = [replace(text, token_type_ids=(np.arange(len(text)) > 1).astype(np.int64)) for text in texts]
    return model, golden.record(model, texts)


def stages(family: str, plant: Plant | None = None) -> dict[str, np.ndarray]:
    return run(*reference(family), plant)


@pytest.mark.parametrize("family", slow_after(3, [*FAMILIES, "roberta", "gpt2", "modernbert", BUNDLED]))
def test_the_port_without_a_mistake_is_right(family: str) -> None:
    comparison = golden.compare(reference(family)[1], stages(family))
    assert comparison.ok, str(comparison)


def test_an_edit_that_is_not_of_one_place_says_which() -> None:
    with pytest.raises(AssertionError, match=r"'variance \+ eps' -> 'variance': .* once in the page of bert, found 2"):
        stages("bert", edited(("variance + eps", "variance")))


def diagnosed(
    family: str, arrays: dict[str, np.ndarray], few: bool = False, dtype: str | None = None
) -> golden.Diagnosis:
    model, recorded = reference(family)
    ends = FEW_IN_PRE_NORM if model.config.norm_first else FEW
    given = {name: array for name, array in arrays.items() if name.endswith(ends)} if few else arrays
    return golden.diagnose(recorded, given, model, dtype=dtype)


#: Mistakes that make no difference in DistilBERT, which has no token types.
OF_TYPES = ("types all 1", "types all 0", "restarting")
#: Mistakes that change the numbers only in RoBERTa, where positions begin at row 2 and do not count padding.
OF_OFFSET = ("no offset", "padding counted")
#: (mistake, whether only few stages are given), for the known mistakes that are not named.
UNSEEN = {("dropout", True)}  # few stages lack the numbers that dropout replaced by 0
#: Whether only a few stages are exported, which takes three times as long -> mistakes diagnosed at real widths.
IN_BUNDLED = {
    False: ("from 1", "eps", "unscaled", "tanh gelu", "transposed", "labels"),
    True: ("from 1", "last token"),
}  # fmt: skip


#: Name -> one of the mistakes with this name, which is diagnosed with few stages too.
ONE_OF_A_NAME = {name: key for key, (name, _) in KNOWN.items()}


def tried(family: str, few: bool) -> list[str]:
    """Half of the known mistakes; if `few`, one mistake of each name from the other half."""
    only = dict.fromkeys(OF_TYPES, "bert") | dict.fromkeys(OF_OFFSET, "roberta")
    keys = [key for i, key in enumerate(KNOWN) if family == only.get(key, FAMILIES[(i + few) % 2])]
    return [key for key in keys if not few or key in ONE_OF_A_NAME.values()]


def missed(
    family: str, keys: Iterable[str], few: bool, known: Mapping[str, tuple[str, Plant]] = KNOWN
) -> dict[tuple[str, bool], str]:
    """Returns the diagnoses that do not name the known mistake; asserts that they are not certain of a wrong cause."""
    found = {}
    for key in keys:
        name, plant = known[key]
        diagnosis = diagnosed(family, stages(family, plant), few)
        if name not in diagnosis.causes:
            found[key, few] = str(diagnosis)
            assert not diagnosis.causes, f"{key}: {diagnosis}"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True], ids=["every stage", "few stages"])
@pytest.mark.parametrize("family", [*FAMILIES, "roberta"])
def test_known_mistakes_are_named(family: str, few: bool) -> None:
    """Every mistake that the exported stages can show is named."""
    unnamed = missed(family, tried(family, few), few)
    assert set(unnamed) <= UNSEEN, unnamed


@pytest.mark.parametrize("few", [False, True], ids=["every stage", "few stages"])
def test_every_known_mistake_is_tried(few: bool) -> None:
    keys = {key for family in (*FAMILIES, "roberta") for key in tried(family, few)}
    assert keys == set(ONE_OF_A_NAME.values() if few else KNOWN)


#: Mistakes of a causal pre-norm model that are also diagnosed with few stages.
FEW_IN_GPT2 = ("no causal mask", "fused", "post-norm", "last of the batch")


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True], ids=["every stage", "few stages"])
def test_mistakes_in_a_causal_model_are_named(few: bool) -> None:
    assert missed("gpt2", FEW_IN_GPT2 if few else IN_GPT2, few, IN_GPT2) == {}


def test_an_ignored_mask_is_named_beside_a_head_of_one_row() -> None:
    """ModernBERT's head has one row (D,) per text. D must not be taken for the width of the padded batch."""
    assert missed("modernbert", ["mask ignored"], False, IN_MODERNBERT) == {}


@pytest.mark.slow
def test_mistakes_in_local_layers_are_named() -> None:
    assert missed("modernbert", IN_MODERNBERT, False, IN_MODERNBERT) == {}


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True], ids=["every stage", "few stages"])
def test_mistakes_are_named_at_real_widths(few: bool) -> None:
    """With all stages, mistakes are spread from the embeddings to the logits; with few, there is one at each end."""
    unnamed = missed(TWO_LAYERS, IN_BUNDLED[few], few)
    assert unnamed == {}


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True], ids=["every stage", "few stages"])
@pytest.mark.parametrize("family", FAMILIES)
def test_mistakes_that_are_not_known_get_no_wrong_cause(family: str, few: bool) -> None:
    """For a mistake that is not in its list, the diagnosis is certain only of causes that describe the numbers
    correctly."""
    wrong = {}
    # Diagnoses with few stages take long, so only a third of the mistakes are tried with few stages.
    for key in list(HELD_BACK)[FAMILIES.index(family) :: len(FAMILIES) * (3 if few else 1)]:
        names, plant = HELD_BACK[key]
        diagnosis = diagnosed(family, stages(family, plant), few)
        causes = [cause for each in (diagnosis, *diagnosis.then) for cause in each.causes]
        assert diagnosis.stage, key
        if set(causes) - set(names):
            wrong[key] = str(diagnosis)
    assert wrong == {}


@dataclass(frozen=True)
class Sloped(Mechanism):
    """score_ij = q_i . k_j * scale - |i - j| / 2, a mechanism that golden/ does not include."""

    def terms(self, queries: np.ndarray, keys: np.ndarray, n_heads: int) -> dict[str, np.ndarray]:
        return {"slope": np.abs(keys[:, None, None, :] - queries[:, None, :, None]) / 2}

    def add(self, scores: np.ndarray, q: np.ndarray, k: np.ndarray, scale: float, **terms: np.ndarray) -> np.ndarray:
        scores -= terms["slope"].astype(scores.dtype)
        return scores


def slope(length: int) -> np.ndarray:
    places = np.arange(length)
    distances: np.ndarray = np.abs(places - places[:, None])
    return distances


class Steeper(Sloped):
    """A mechanism without separate mistakes, so its ports make the mistakes of `Sloped`."""


@pytest.mark.parametrize("mechanism", [Sloped, Steeper])
def test_mistakes_are_found_by_the_class_of_a_part(monkeypatch: pytest.MonkeyPatch, mechanism: type[Sloped]) -> None:
    wrong = Mistake(
        "slope with the wrong sign",
        "far keys have lower scores",
        {"": {"*.attention.scores": lambda scores, at: scores + slope(scores.shape[-1])}},
    )
    monkeypatch.setitem(OF_CLASS, Sloped, (wrong,))
    monkeypatch.setitem(
        families.FAMILIES, "sloped", with_mechanisms("distilbert", "sloped", lambda config, i: (mechanism(),))
    )
    model = tiny.model("sloped")
    recorded = golden.record(model, [Text(np.arange(5, 13))])
    with edit({"*.attention.scores": lambda scores: scores + slope(8)}):
        theirs = dict(npformer.trace(model, [Text(np.arange(5, 13))]))
    diagnosis = golden.diagnose(recorded, theirs, model)
    assert diagnosis.mistake == "slope with the wrong sign", str(diagnosis)


def test_texts_that_are_right_explain_nothing() -> None:
    """The longest text has exactly the right numbers. The other texts' numbers are random, so they have no cause."""
    arrays = stages("bert")
    wrong = arrays["embeddings.token"].copy()
    wrong[1:] = np.random.default_rng(0).standard_normal(wrong[1:].shape)
    diagnosis = diagnosed("bert", arrays | {"embeddings.token": wrong})
    assert (diagnosis.stage, diagnosis.causes) == ("embeddings.token", [])


# --- 16 and 8 bits --------------------------------------------------------------------------------------------------


def in_half(kind: str) -> Plant:
    """Rounds the weights and every stage."""
    return Plant(
        weights=(lambda flat: {name: half(kind, w) for name, w in flat.items()},),
        stage=(lambda name, x: half(kind, x.astype(np.float32)),),
    )


IN_TF32 = edited(("x @ weight + bias", "tf32(x) @ tf32(weight) + bias"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_port_in_16_bits_is_found_to_be_one(family: str, kind: str) -> None:
    arrays = stages(family, in_half(kind))
    recorded = reference(family)[1]
    comparison = golden.compare(recorded, arrays)
    assert (comparison.dtype, comparison.ok) == (kind, True), str(comparison)
    assert f"budgets for {kind}: " in str(comparison)
    assert 0.1 < max(row.budgets for row in comparison.rows) < 0.5  # the budgets are neither too narrow nor too wide
    golden.assert_close(recorded, arrays)
    assert not golden.compare(recorded, arrays, dtype="float32").ok
    assert "half precision" in diagnosed(family, arrays, dtype="float32").causes


@pytest.mark.parametrize(
    ("family", "dtype", "plant"),
    slow_after(
        3,
        [
            ("bert", "tf32", IN_TF32),
            ("distilbert", "int8", KNOWN["int8"][1]),
            ("bert", "int8", KNOWN["int8 by column"][1]),
            ("distilbert", "tf32", IN_TF32),
            ("bert", "int8", KNOWN["int8"][1]),
            ("distilbert", "int8", KNOWN["int8 by column"][1]),
        ],
    ),
)
def test_a_port_is_judged_in_its_declared_precision(family: str, dtype: str, plant: Plant) -> None:
    arrays = stages(family, plant)
    recorded = reference(family)[1]
    assert not golden.compare(recorded, arrays).ok
    comparison = golden.compare(recorded, arrays, dtype=dtype)
    assert comparison.ok
    assert 0.1 < max(row.budgets for row in comparison.rows) < 0.5
    expected = {"tf32": "tf32 products", "int8": "quantized weights"}[dtype]
    assert diagnosed(family, arrays).mistake == expected
    assert not golden.compare(recorded, stages(family, plant & KNOWN["causal"][1]), dtype=dtype).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["causal", "unscaled", "relu", "mask ignored", "no W_O", "q and k", "no residual 2", "last token", "labels"]
)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_mistake_in_16_bits_is_named(kind: str, key: str) -> None:
    name, plant = KNOWN[key]
    diagnosis = diagnosed("bert", stages("bert", plant & in_half(kind)))
    assert name in diagnosis.causes, f"{diagnosis}"


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(NpformerError, match="dtype"):
        golden.compare(reference("bert")[1], {"logits": np.zeros((3, 2))}, dtype="float8")


# --- several mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", slow_after(1, FAMILIES))
def test_stages_after_an_explained_mistake_are_explained_too(family: str) -> None:
    three = KNOWN["eps outside"][1] & KNOWN["quick gelu"][1] & KNOWN["mean"][1]
    diagnosis = diagnosed(family, stages(family, three))
    told = [(each.stage, each.mistake) for each in (diagnosis, *diagnosis.then)]
    expected = [("embeddings.norm", "eps outside the root"), ("layers.0.ffn.activation", "quick GELU")]
    assert told == [*expected, ("pooler", "wrong pooling")]
    assert "with this mistake in the model, the next stage that diverges is pooler" in str(diagnosis)


def in_blocks(w: np.ndarray) -> np.ndarray:
    """int4 with one scale per 16 numbers of a row."""
    return quantized(w.reshape(-1, 16), axis=1, symmetric=7, bits=4).reshape(w.shape) if w.ndim == 2 else w


@pytest.mark.parametrize(
    ("change", "cause", "line"),
    [
        (lambda w: {n: w[n.replace("layers.1", "layers.0")] for n in w}, "weights of another layer", "layers.1 has layers.0's"),
        (lambda w: {n: half("bfloat16", a) for n, a in w.items()}, "half precision", "rounded to bfloat16"),
        (lambda w: {n: a + np.float32(0.1) for n, a in w.items()}, "different checkpoint", "different values; they differ by up to 0.1"),
        (lambda w: w | {"layers.0.ffn.hidden.bias": 0 * w["layers.0.ffn.hidden.bias"]}, "missing bias", "all zeros"),
        (lambda w: w | {"layers.0.attention.query.weight": w["layers.0.attention.key.weight"]}, "query and key swapped", "has layers.0.attention.key"),
        (lambda w: w | {"layers.0.ffn.output.weight": quantized(w["layers.0.ffn.output.weight"])}, "quantized weights", "quantized to int8"),
        (lambda w: {n: np.round(a, 2) for n, a in w.items()}, "quantized weights", "rounded to 2 decimals"),
        (lambda w: {n: in_blocks(a) for n, a in w.items()}, "quantized weights", "4 bits, one scale per group of 16 columns"),
        (lambda w: {n: np.rint(a * 40) / 40 for n, a in w.items()}, "quantized weights", "rounded to a few values"),
        (lambda w: w | {"layers.0.ffn.output.weight": w["layers.0.ffn.output.weight"] * 2}, "scaled by a constant", "2 times the correct values"),
    ],
)  # fmt: skip
def test_weights_are_compared_before_the_stages_and_put_into_the_model(change: Callable, cause: str, line: str) -> None:
    """The diagnosis also finds a second mistake of the port."""
    model, recorded = reference("bert")
    right = flatten(dict(model.weights))
    theirs = right | {name: np.asarray(array, np.float32) for name, array in change(right).items()}
    given = stages("bert", weights(lambda flat: theirs) & KNOWN["quick gelu"][1]) | theirs
    diagnosis = golden.diagnose(recorded, given, model)
    assert cause in diagnosis.causes, f"{diagnosis}"
    assert line in str(diagnosis)
    assert (diagnosis.stage, diagnosis.fits[0].mistake.name) == ("layers.0.ffn.activation", "quick GELU")
