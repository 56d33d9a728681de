"""Every page of `npformer.plain` computes what the engine computes, stage by stage, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from npformer import plain
from npformer.config import Decoder, InputConvolution, Local, Positions, Sharing
from npformer.families import FAMILIES, EncoderTable
from npformer.mechanisms import Rotary, Window
from npformer.plain.pages import model_on
from npformer.plain.roberta import padded_positions
from npformer.plain.sizes import bind
from npformer.transformer import stages
from tests.support import tiny
from tests.support.page_stages import Page

# The page and the engine sum in different orders. In float64 and tiny models, that changes about 1e-14.
TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
#: Sizes of which no two are equal, so that an exchanged axis shows.
ODD = {"d_model": 24, "n_heads": 4, "n_layers": 3, "d_ffn": 40}
TEXTS = [[5, 6, 7, 8, 9, 4, 1], [3, 1], [8, 1, 11, 1]]


def cases() -> list[Any]:
    """Every head of every family that has a page."""
    found = []
    for model_type in FAMILIES:
        try:
            known = plain.page(model_type)
        except ModuleNotFoundError:
            continue
        found += [pytest.param(model_type, head, id=f"{model_type}-{head}") for head in known.HEADS]
    return found


def model_of(model_type: str, head: str, **fields: Any) -> Any:
    """A tiny random model in float64."""
    causal = {"causal": True} if head == "causal-lm" else {}
    return tiny.model(model_type, head, dtype=np.float64, **{**_sizes(model_type, head), **causal, **fields})


def _sizes(model_type: str, head: str) -> dict[str, Any]:
    if isinstance(FAMILIES[model_type], EncoderTable) or head == "causal-lm":
        return ODD
    decoder = Decoder(n_layers=2, n_heads=3, d_ffn=28, vocab_size=len(tiny.VOCABULARY), start_id=3, end_ids=(1,))
    return {**ODD, "decoder": decoder}


def text_of(model: Any) -> Any:
    """A text for a model, or a source and a target."""
    types = np.array([0, 0, 0, 0, 1, 1, 1]) if model.config.reads_token_types else None
    text = npformer.Text(np.array(TEXTS[0]), types)
    return (text, npformer.Text(np.array([3, 4, 9, 8, 2]))) if model.config.head == "translation" else text


def stages_of_page(model: Any, text: Any) -> dict[str, np.ndarray]:
    """The stages of a page by name."""
    page = Page(model.config.model_type).run(model, text)
    for name in [each for each in page if each.endswith("embeddings.token")]:
        page.setdefault(name.replace("token", "sum"), page[name])  # the sum of a single table
    return page


def assert_same_stages(model: Any, text: Any) -> None:
    """Asserts that the page has every stage of the engine, with the same numbers."""
    trace, page = npformer.trace(model, [text]), stages_of_page(model, text)
    for stage in stages(model.weights, model.config):
        expected, got = trace[stage.name], page[stage.name]
        if got.shape != expected.shape:  # the engine rotates rows, a page rotates heads
            got = got.swapaxes(-2, -3).reshape(expected.shape)
        np.testing.assert_allclose(got, expected, err_msg=stage.name, **TOLERANCE)


@pytest.mark.parametrize(("model_type", "head"), cases())
def test_a_page_has_the_stages_of_the_engine(model_type: str, head: str) -> None:
    model = model_of(model_type, head)
    assert_same_stages(model, text_of(model))


@pytest.mark.parametrize(("model_type", "head"), cases())
def test_a_page_gives_the_answers_of_a_model(model_type: str, head: str) -> None:
    model = model_of(model_type, head)
    ids = [[[5, 6, 7, 8], [3, 4, 9, 9]]] if head == "multiple-choice" else TEXTS
    labels = {"labels": [[3, 4, 9, 8, 2], [7, 7], [1]]} if head == "translation" else {}
    expected, got = model(ids, **labels), plain.run(model, ids, **labels)
    assert list(got) == list(expected)
    for name, answer in expected.items():
        np.testing.assert_allclose(got[name], answer, err_msg=name, **TOLERANCE)


# --- what an encoder's config.json chooses ---------------------------------------------------------------------------

ENCODERS = ("bert", "distilbert", "roberta", "albert", "electra", "mpnet", "deberta-v2", "modernbert", "nomic_bert")


def distances(**fields: Any) -> dict[str, Any]:
    return {"mechanisms": (tiny.distances(**fields),)}


def local(layers: tuple[int, ...], *mechanisms: Any) -> dict[str, Any]:
    return {"local": Local(layers, mechanisms)}


#: Family, head and fields of its config, one for each choice that the family reads.
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
    """The id of a test."""
    if not isinstance(choice, dict):
        return str(choice)
    return ",".join(f"{name}={str(value).replace(' ', '')}" for name, value in choice.items())


@pytest.mark.parametrize(("model_type", "head", "fields"), ENCODER_CHOICES, ids=said)
def test_a_page_has_the_stages_of_a_choice(model_type: str, head: str, fields: dict[str, Any]) -> None:
    model = model_of(model_type, head, **fields)
    assert_same_stages(model, text_of(model))


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


#: A family, and a choice that depends on the tokens around a token.
READERS: list[tuple[str, str, dict[str, Any]]] = [
    *((each, "base", {}) for each in ENCODERS),
    ("deberta-v2", "base", {"convolution": InputConvolution(5)}),
    ("modernbert", "sequence-classification", {"pooling": "mean"}),
]
MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1, 0]])


@pytest.mark.parametrize(("model_type", "head", "fields"), READERS, ids=said)
def test_a_page_leaves_masked_tokens_out(model_type: str, head: str, fields: dict[str, Any]) -> None:
    """One text after another without its masked tokens, and then the three texts as a padded batch."""
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
    """The answers of a page that reads a padded batch, (B, L)."""
    config, page = model.config, plain.page(model.config.model_type)
    uncounted = config.uncounted is not None
    positions = padded_positions(ids, config.uncounted) if uncounted else np.arange(ids.shape[1])
    given = {"ids": ids, "positions": positions, "token_type_ids": 0 * ids, "mask": mask[:, None, None, :]}
    text, x = npformer.Text(ids[0]), None
    rows = bind(model_on(page, config), config, model.weights, text)
    x = rows(**{name: value for name, value in given.items() if name in rows.keywords})
    head = bind(page.HEADS[config.head], config, model.weights, text)
    return head(x, **{name: value for name, value in given.items() if name in head.keywords})


@pytest.mark.parametrize("model_type", ENCODERS)
def test_a_page_keeps_float32(model_type: str) -> None:
    model = tiny.model(model_type, "masked-lm")
    page = stages_of_page(model, text_of(model))
    assert {page[stage.name].dtype for stage in stages(model.weights, model.config)} == {np.dtype(np.float32)}
