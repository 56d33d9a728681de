"""The pages of encoder-decoders and of torch's own modules: every option of config.json, and torch's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import npformer
from npformer import plain
from npformer.checkpoint import load_folder
from npformer.config import Decoder, Positions
from npformer.engine.mechanisms import RelativeBias
from npformer.families import FAMILIES, read_config, torch_nn, write_config
from npformer.pages.sizes import ACTIVATIONS, chosen
from npformer.pages.source import source
from npformer.plain import torch_nn as page
from tests.golden import seq2seq_cases as cases
from tests.plain.test_pages import TEXTS, TOLERANCE, assert_same_stages, heads_of, model_of, text_of
from tests.support.cli_runner import run
from tests.support.one_file import answering

DATA = Path(__file__).parents[1] / "golden" / "seq2seq"
#: Options of torch's own modules.
TORCH: dict[str, dict[str, Any]] = {
    "norms-before": {"norm_first": True},
    "norms-before-and-last": {"norm_first": True, "final_norm": True},
    "norms-after-and-last": {"final_norm": True},
    "unbiased": {"bias": False},
    "unbiased-norms-before": {"bias": False, "norm_first": True},
    "scaled": {"scale_embedding": True},
    "eps": {"eps": 0.1},
    **{table: {"positions": Positions(table)} for table in ("learned", "none", "sinusoidal-halves")},
    **{name: {"activation": name} for name in ("gelu", "gelu_tanh", "silu")},
}
GATED = {"gated": True, "activation": "gelu_tanh"}
#: Family -> head -> id -> fields of its config, one entry for each option that the family reads.
CHOICES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "transformer": dict.fromkeys(torch_nn.HEADS, TORCH),
    "marian": {
        "translation": {
            "scaled": {"scale_embedding": True},
            "two-tables": {"shared": False, "tied": False},
            **{name: {"activation": name} for name in ("gelu", "relu", "silu")},
        }
    },
    "bart": {
        "translation": {"scaled": {"scale_embedding": True}, "relu": {"activation": "relu"}, "untied": {"tied": False}},
        "sequence-classification": {"scaled": {"scale_embedding": True}},
        "causal-lm": {"scaled": {"scale_embedding": True}, "untied": {"tied": False}},
    },
    "t5": {
        "translation": {
            "gated": GATED,
            "scaled-rows": {"scale_output": True},
            "untied": {"tied": False},
            "eps": {"eps": 0.1},
            "silu": {"gated": True, "activation": "silu"},
            "buckets": {"mechanisms": (RelativeBias(8, max_distance=5),)},
        },
        "base": {"gated": GATED, "buckets": {"mechanisms": (RelativeBias(8, max_distance=5),)}},
        "sequence-classification": {"gated": GATED},
    },
}
ALL = [
    pytest.param(model_type, head, fields, id=f"{model_type}-{head}-{name}")
    for model_type, heads in CHOICES.items()
    for head, choices in heads.items()
    for name, fields in choices.items()
]


def test_every_head_of_every_family_is_on_its_page() -> None:
    for model_type, family in FAMILIES.items():
        heads = torch_nn.HEADS if model_type == "transformer" else family.all_heads
        assert set(heads_of(model_type)) == set(heads), model_type


@pytest.mark.parametrize(("model_type", "head", "fields"), ALL)
def test_a_page_has_every_choice_of_a_config(model_type: str, head: str, fields: dict[str, Any]) -> None:
    model = model_of(model_type, head, **fields)
    read = read_config(write_config(model.config), head)
    assert {name: getattr(read, name) for name in fields} == fields  # a config.json can have this option
    assert_same_stages(model, text_of(model))


@pytest.mark.parametrize(("model_type", "head", "fields"), ALL)
def test_a_standalone_model_has_the_choice(model_type: str, head: str, fields: dict[str, Any], tmp_path: Path) -> None:
    model, ids = model_of(model_type, head, **fields), TEXTS[0]
    answers = answering(model, ids, tmp_path)
    targets = {"decoder_input_ids": [model.config.decoder.start_id]} if head == "translation" else {}
    for each in (ids, ids[-2:]):  # the last token is the end token, which some heads read
        got = answers(each)
        for name, expected in model(each, **targets).items():
            np.testing.assert_allclose(got[name].ravel(), expected.ravel(), err_msg=name, **TOLERANCE)


def rows_of(case: str) -> np.ndarray:
    """Returns the page's rows for the vectors of a case, text by text. Ids 0, 1, ... select the vectors."""
    config, tree = load_folder(DATA / case, "float64")
    sizes = (ACTIVATIONS[config.activation], config.eps, 1.0, page.no_rows)
    layer = chosen("tgt_layer" if config.decoder else "src_layer", page.encode, config)
    last = chosen("last_norm", page.encode, config)
    found = []
    for x, y in zip(texts("source", cases.LENGTHS), texts("target", cases.TARGET_LENGTHS), strict=True):
        source, target = ({"token": {"weight": each}} for each in (x, y))
        ids, target_ids = np.arange(len(x)), np.arange(len(y))
        if "encoder" in tree:
            src_layer = chosen("src_layer", page.encode, config)
            given = (ids, ids, True, config.n_heads, *sizes, src_layer, last)
            x = page.encode(*given, embeddings=source, **tree["encoder"])
        if not config.decoder:
            found.append(page.encode(ids, ids, True, config.n_heads, *sizes, layer, last, embeddings=source, **tree))
            continue
        given = (target_ids, target_ids, x, config.decoder.n_heads, *sizes, layer, last)
        found.append(page.decode(*given, embeddings=target, **tree.get("decoder", tree)))
    return np.concatenate(found)


def texts(name: str, lengths: list[int]) -> list[np.ndarray]:
    return np.split(cases.rows(name, lengths).astype(np.float64), np.cumsum(lengths)[:-1])


@pytest.mark.parametrize("case", ["transformer", "transformer-pre-norm", "encoder", "decoder"])
def test_a_page_gives_the_results_of_torch(case: str) -> None:
    """Both run in float64, but sum in different orders."""
    truth = load_file(DATA / case / "stages.safetensors")["float64/result"]
    assert np.abs(rows_of(case).ravel() - truth).max() < 1e-13 * np.abs(truth).max()


def test_the_cases_of_torch_have_norms_before_and_after_blocks() -> None:
    configs = [load_folder(DATA / case)[0] for case in ("transformer", "transformer-pre-norm", "encoder", "decoder")]
    for field in ("norm_first", "final_norm"):
        assert {getattr(config, field) for config in configs} == {True, False}


def test_a_model_from_a_folder_has_its_page(tmp_path: Path) -> None:
    model = npformer.load(DATA / "classifier", dtype="float64")
    ids = [each.tolist() for each in cases.classifier_ids()]
    np.testing.assert_allclose(plain.run(model, ids).logits, model(ids).logits, **TOLERANCE)
    assert source(model) == source("torch_nn") == run("page", "-m", str(DATA / "classifier"))[1]
    code, output, _ = run("page", "-m", str(DATA / "classifier"), "--standalone", "-o", "model.py", cwd=tmp_path)
    assert (code, output.startswith("model.py, model.npz: ")) == (0, True)
    assert output.endswith("prints the answers for the ids 0 1 2 3 4 5\n")  # the model has no tokenizer


def test_the_page_of_2017_has_the_name_transformer() -> None:
    assert plain.page("transformer").__name__ == "npformer.plain.transformer"
    model = model_of("transformer", "translation", decoder=Decoder(1, 3, 28, 40, start_id=3, end_ids=(1,)))
    assert source(model) == source("torch_nn")
