"""The pages of encoders: every option of a config, masked tokens, padded batches, and torch's golden values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import plain
from npformer.checkpoint import load_folder
from npformer.config import Config, InputConvolution, Local, Positions, Sharing
from npformer.engine.mechanisms import Rotary, Window, disentangled, relative_bias
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.padding import unpadded
from npformer.engine.transformer import stages
from npformer.pages.run import functions_of
from npformer.pages.sizes import bind
from npformer.plain import deberta, t5
from npformer.plain.roberta import padded_positions
from tests.plain.test_pages import TEXTS, TOLERANCE, assert_same_stages, model_of, text_of
from tests.support import tiny, torch_values
from tests.support.one_file import answering
from tests.support.page_stages import Page

ENCODERS = ("bert", "distilbert", "roberta", "albert", "electra", "mpnet", "deberta-v2", "modernbert", "nomic_bert")


def distances(**fields: Any) -> dict[str, Any]:
    return {"mechanisms": (tiny.distances(**fields),)}


def local(layers: tuple[int, ...], *mechanisms: Any) -> dict[str, Any]:
    return {"local": Local(layers, mechanisms)}


#: A family, a head and fields of its config, one entry for each option that the family reads.
ENCODER_CHOICES: list[tuple[str, str, dict[str, Any]]] = [
    *((each, "base", {"activation": act}) for each in ENCODERS for act in ("gelu_tanh", "relu", "silu", "gelu")),
    *((each, "masked-lm", {"activation": "relu", "tied": False, "eps": 1e-2}) for each in ENCODERS),
    *((each, "base", {"causal": True}) for each in ("bert", "roberta", "electra")),
    *((each, "causal-lm", {"tied": False}) for each in ("bert", "roberta", "electra")),
    *((each, "base", {"n_token_types": n}) for each in ("bert", "roberta", "albert", "nomic_bert") for n in (1, 3)),
    ("roberta", "base", {"pad_id": 6, "padding_idx": 6, "positions": Positions(first=7, skips_padding=True)}),
    ("albert", "base", {"n_layers": 6, "sharing": Sharing(groups=2, layers=1)}),
    ("albert", "base", {"n_layers": 6, "sharing": Sharing(groups=2, layers=3)}),
    ("albert", "base", {"n_layers": 6, "sharing": Sharing(groups=1, layers=2)}),
    ("albert", "masked-lm", {"d_embedding": 24}),
    ("electra", "base", {"d_embedding": 0}),
    ("electra", "masked-lm", {"d_embedding": 0}),
    ("electra", "replaced-token", {"activation": "relu"}),
    ("deberta-v2", "base", distances(forms=("key",))),
    ("deberta-v2", "base", distances(forms=("query",))),
    ("deberta-v2", "base", distances(forms=())),
    ("deberta-v2", "base", distances(own=True)),
    ("deberta-v2", "base", distances(own=True, forms=("key",))),
    ("deberta-v2", "base", distances(own=True, forms=("query",))),
    ("deberta-v2", "base", distances(norm=False)),
    ("deberta-v2", "base", distances(n_rows=8, max_distance=0)),
    ("deberta-v2", "base", distances(n_rows=60, max_distance=0)),
    ("deberta-v2", "base", distances(n_rows=8, max_distance=6)),
    ("deberta-v2", "base", {"positions": Positions("learned")}),
    ("deberta-v2", "base", {"n_token_types": 2}),
    ("deberta-v2", "base", {"positions": Positions("learned"), "n_token_types": 3}),
    *(
        ("deberta-v2", "base", {"convolution": InputConvolution(n, a)})
        for n, a in ((1, "gelu"), (3, "tanh"), (5, "relu"))
    ),
    ("deberta-v2", "masked-lm", {"convolution": InputConvolution(3), "n_layers": 1, **distances(norm=False, own=True)}),
    ("modernbert", "sequence-classification", {"pooling": "mean"}),
    ("modernbert", "multiple-choice", {"pooling": "mean"}),
    ("modernbert", "token-classification", {"head_activation": "relu"}),
    ("modernbert", "base", local(())),
    ("modernbert", "base", local((0, 1, 2), Rotary(30.0), Window(1))),
    ("modernbert", "base", local((0, 2), Rotary(30.0), Window(2))),
    ("modernbert", "base", {"n_layers": 1, **local((), Rotary(30.0), Window(1))}),
    ("modernbert", "base", {"mechanisms": (), **local((1,), Window(1))}),
    ("modernbert", "base", {"mechanisms": (), **local((1,), Rotary(30.0), Window(1))}),
    ("nomic_bert", "base", {"mechanisms": (Rotary(30.0),)}),
]


def said(choice: Any) -> str:
    """Returns the id of a test."""
    if not isinstance(choice, dict):
        return str(choice)
    return ",".join(f"{name}={str(value).replace(' ', '')}" for name, value in choice.items())


@pytest.mark.parametrize(("model_type", "head", "fields"), ENCODER_CHOICES, ids=said)
def test_a_page_has_the_stages_of_a_choice(model_type: str, head: str, fields: dict[str, Any]) -> None:
    model = model_of(model_type, head, **fields)
    assert_same_stages(model, text_of(model))


@pytest.mark.parametrize(("model_type", "head", "fields"), ENCODER_CHOICES, ids=said)
def test_a_choice_in_one_file(model_type: str, head: str, fields: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(model_type, head, **fields)
    got = answering(model, TEXTS[0], tmp_path)(TEXTS[0])
    ids = [[TEXTS[0]]] if head == "multiple-choice" else TEXTS[0]
    for name, expected in model(ids).items():
        np.testing.assert_allclose(got[name].ravel(), expected.ravel(), err_msg=name, **TOLERANCE)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "albert", "mpnet"])
def test_the_page_of_a_base_model_without_a_pooler(model_type: str) -> None:
    model = model_of(model_type, "base")
    del model.weights["pooler"]
    assert list(plain.run(model, TEXTS)) == ["last_hidden_state"]
    assert_same_stages(model, text_of(model))


def test_the_page_of_a_head_without_biases() -> None:
    model = model_of("nomic_bert", "masked-lm")
    for name in ("hidden", "output"):
        del model.weights["head"][name]["bias"]
    assert_same_stages(model, text_of(model))


#: A family, and an option that depends on the tokens around a token.
READERS: list[tuple[str, str, dict[str, Any]]] = [
    *((each, "base", {}) for each in ENCODERS),
    ("deberta-v2", "base", {"convolution": InputConvolution(5)}),
    ("modernbert", "sequence-classification", {"pooling": "mean"}),
]
MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1, 0]])


@pytest.mark.parametrize(("model_type", "head", "fields"), READERS, ids=said)
def test_a_page_leaves_masked_tokens_out(model_type: str, head: str, fields: dict[str, Any]) -> None:
    """Runs the texts one at a time without their masked tokens, and then the three texts as a padded batch."""
    model, mask = model_of(model_type, head, **fields), MASK.astype(bool)
    ids = np.where(
        mask, [[5, 6, 7, 8, 9, 4, 3], [3, 2, 9, 0, 0, 0, 0], [8, 0, 11, 7, 0, 6, 0]], model.config.pad_id or 0
    )
    name, expected = next(iter(model(ids, attention_mask=MASK).items()))
    got = plain.run(model, ids, attention_mask=MASK)[name]
    np.testing.assert_allclose(got, expected, **TOLERANCE)
    batch = answers_of_a_batch(model, ids, mask)[name]
    np.testing.assert_allclose(batch * mask[..., None] if head == "base" else batch, expected, **TOLERANCE)


def answers_of_a_batch(model: Any, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the answers of a page that reads a padded batch, (B, L)."""
    config, page = model.config, plain.page(model.config.model_type)
    counted = config.uncounted is not None
    positions = padded_positions(ids, config.uncounted) if counted else np.arange(ids.shape[1])
    given = {"ids": ids, "positions": positions, "token_type_ids": 0 * ids, "mask": mask[:, None, None, :]}
    functions = functions_of(page, config, model.weights)
    rows, head = (bind(each, config, model.weights, npformer.Text(ids[0])) for each in functions)
    x = rows(**{name: value for name, value in given.items() if name in rows.keywords})
    return head(x, **{name: value for name, value in given.items() if name in head.keywords})


@pytest.mark.parametrize("model_type", ENCODERS)
def test_a_page_keeps_float32(model_type: str) -> None:
    model = tiny.model(model_type, "masked-lm")
    page = Page(model_type).run(model, text_of(model))
    assert {page[stage.name].dtype for stage in stages(model.weights, model.parts)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (32, 512)])
def test_the_buckets_of_every_distance(n_buckets: int, max_distance: int) -> None:
    """The distances include some that short texts do not have."""
    every = np.arange(-2 * max_distance, 2 * max_distance)
    expected = relative_bias.relative_buckets(every, n_buckets, max_distance)
    np.testing.assert_array_equal(t5.relative_buckets(every, n_buckets, max_distance), expected)
    expected = disentangled.log_buckets(every, n_buckets, max_distance)
    np.testing.assert_array_equal(deberta.log_buckets(every, n_buckets, max_distance), expected)


# --- torch's golden values -------------------------------------------------------------------------------------------

# Two float64 runs sum in different orders, so each of several hundred steps differs by a few units of 2^-53.
FLOAT64 = 1e-13
FAMILIES = (*ENCODERS, "bart", "t5")
CASES = [case for case in torch_values.CASES if any(case.startswith(f"{each}-") for each in FAMILIES)]


def texts_of(case: str, config: Config) -> list[Text]:
    """Returns the texts of a case without padding."""
    given = {name: array.reshape(-1, array.shape[-1]) for name, array in torch_values.inputs(case).items()}
    mask = given["attention_mask"].astype(bool)
    return unpadded(given["input_ids"], mask, given.get("token_type_ids"), config.uncounted)


@pytest.mark.numbers
@pytest.mark.parametrize("case", CASES)
def test_a_page_has_torchs_stages(case: str) -> None:
    config, weights = load_folder(torch_values.DATA / case, "float64")[:2]
    page, truth = Page(config.model_type), torch_values.stages(case, "float64")
    runs = [page.stages_of(config, weights, text) for text in texts_of(case, config)]
    for name, expected in truth.items():
        error = np.abs(np.concatenate([run[name].ravel() for run in runs]) - expected).max()
        assert error <= FLOAT64 * np.abs(expected).max(), name
