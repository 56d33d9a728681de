"""Every page of `npformer.plain` computes the same stages as the engine, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import npformer
from npformer import plain
from npformer.config import Decoder
from npformer.engine.transformer import stages
from npformer.families import FAMILIES, EncoderTable
from npformer.pages.find import PAGES
from tests.support import tiny
from tests.support.page_stages import Page

# The page and the engine sum in different orders. For tiny models in float64, results differ by about 1e-14.
TOLERANCE = {"rtol": 1e-11, "atol": 1e-12}
#: Sizes that all differ, so exchanged axes are noticed.
ODD = {"d_model": 24, "n_heads": 4, "n_layers": 3, "d_ffn": 40}
#: Heads of the models that read texts with gaps.
GAPS = {"base", "causal-lm", "translation"}
TEXTS = [[5, 6, 7, 8, 9, 4, 1], [3, 1], [8, 1, 11, 1]]


def cases() -> list[Any]:
    """Returns every head of every family that has a page."""
    found = []
    for model_type in FAMILIES:
        found += [pytest.param(model_type, head, id=f"{model_type}-{head}") for head in heads_of(model_type)]
    return found


def heads_of(model_type: str) -> list[str]:
    """Returns the heads on the page of a family."""
    return list(plain.page(PAGES.get(model_type, model_type)).HEADS)


def model_of(model_type: str, head: str, **fields: Any) -> Any:
    """Returns a tiny random model in float64."""
    causal = {"causal": True} if head == "causal-lm" else {}
    return tiny.model(model_type, head, dtype=np.float64, **{**_sizes(model_type, head), **causal, **fields})


def _sizes(model_type: str, head: str) -> dict[str, Any]:
    if isinstance(FAMILIES[model_type], EncoderTable) or head == "causal-lm":
        return ODD
    if model_type == "transformer" and head != "translation":
        return {**ODD, "decoder": Decoder()}
    decoder = Decoder(n_layers=2, n_heads=3, d_ffn=28, vocab_size=len(tiny.VOCABULARY), start_id=3, end_ids=(1,))
    return {**ODD, "decoder": decoder}


def text_of(model: Any) -> Any:
    """Returns a text for a model, or a source and a target."""
    types = np.array([0, 0, 0, 0, 1, 1, 1]) if model.config.reads_token_types else None
    text = npformer.Text(np.array(TEXTS[0]), types)
    return (text, npformer.Text(np.array([3, 4, 9, 8, 2]))) if model.config.head == "translation" else text


def assert_same_stages(model: Any, text: Any) -> None:
    """Asserts that the page has every stage of the engine, with the same numbers."""
    trace, page = npformer.trace(model, [text]), Page(model.config.model_type).run(model, text)
    for stage in stages(model.weights, model.parts):
        np.testing.assert_allclose(page[stage.name], trace[stage.name], err_msg=stage.name, **TOLERANCE)


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


@pytest.mark.parametrize(("model_type", "head"), [case for case in cases() if case.values[1] in GAPS])
def test_tokens_that_a_mask_hides_between_others(model_type: str, head: str) -> None:
    """Distances count the hidden tokens, too, as in transformers."""
    model = model_of(model_type, head)
    ids, mask = [[5, 6, 7, 8, 9, 4, 1]], [[1, 0, 1, 1, 0, 0, 1]]
    labels = {"labels": [[3, 4, 9]]} if head == "translation" else {}
    if model.config.decoder and head != "translation":
        pytest.skip("the decoder reads the ids shifted right, so padding may only follow a text")
    expected, got = model(ids, mask, **labels), plain.run(model, ids, mask, **labels)
    for name, answer in expected.items():
        np.testing.assert_allclose(got[name], answer, err_msg=name, **TOLERANCE)
