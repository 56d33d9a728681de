"""BART's classifier and its head for questions: the decoder reads the text again, and the head reads its output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

import npformer
from npformer import golden
from npformer.checkpoint import to_torch
from npformer.checkpoint.safetensors import write_tensors
from npformer.common.errors import NpformerError
from npformer.config import Config
from npformer.engine.runtime.packing import Text
from npformer.families import read_config, write_config
from npformer.interpret import stages
from npformer.interpret.direct_attribution import head_results, logit_attribution
from npformer.interpret.patching import ablate_heads, patch
from npformer.model import Model
from npformer.training import Example, HeadLoss, Trainable, gradients, standard_rates
from npformer.training.start import start
from tests.families.test_bart import config as generator
from tests.families.test_bart import folder as generator_folder
from tests.support import tiny

ENTAILMENT = ("contradiction", "neutral", "entailment")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
PIECES = (*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "Ġa")


def config(head: str = "sequence-classification", **fields: Any) -> Config:
    labels = ENTAILMENT if head == "sequence-classification" else ()
    sizes = {"vocab_size": len(PIECES), "max_length": 200}
    base = generator(**sizes, decoder=replace(generator().decoder, vocab_size=len(PIECES)))
    return replace(base, **{"head": head, "labels": labels, **fields})


def folder(path: Path, head: str = "sequence-classification") -> Path:
    """Writes a folder like those of older checkpoints: vocab.json and merges.txt, but no tokenizer.json."""
    settings = config(head)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(write_config(settings)))
    write_tensors(path / "model.safetensors", to_torch(tiny.weights(settings), settings), {"format": "pt"})
    (path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(PIECES)}))
    (path / "merges.txt").write_text("#version: 0.2\nt h\nĠ a\n")
    return path


def texts(*lengths: int) -> list[Text]:
    random = np.random.default_rng(0)
    return [Text(np.concatenate([[0], random.integers(5, 60, length - 2), [2]])) for length in lengths]


def test_the_config_is_read_and_written() -> None:
    for head in ("sequence-classification", "question-answering"):
        data = json.loads(json.dumps(write_config(config(head))))
        assert read_config(data) == config(head)
        assert (config(head).d_model, config(head).pooler) == (16, "tanh")
    assert data["architectures"] == ["BartForQuestionAnswering"]
    with pytest.raises(
        NpformerError, match="eos_token_id: expected one id, because a classifier reads the row of this"
    ):
        read_config({**write_config(config()), "eos_token_id": [2, 3]})
    with pytest.raises(NpformerError, match="decoder: expected no layers for a token-classification model"):
        config("token-classification", labels=("A",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_layers": 0}, "encoder_layers, decoder_layers: expected at least one layer each, got 0 and"),
        ({"decoder_layers": 0}, r"encoder_layers, decoder_layers: expected at least one layer each, got \d+ and 0"),
        ({"eos_token_id": [2, 3]}, r"eos_token_id: expected one id, because a classifier .*, got \(2, 3\)"),
        ({"eos_token_id": []}, r"eos_token_id: expected one id, because a classifier .*, got \(\)"),
        ({"decoder_start_token_id": 10**400}, "start_id: expected a whole number"),
        ({"decoder_start_token_id": None}, "start_id: expected a whole number"),
    ],
)
def test_a_config_that_is_impossible(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match=message):
        read_config({**write_config(config()), **changes})
    if "eos_token_id" in changes:  # allowed for a generating model, but not for training on labels
        folder = generator_folder(tmp_path / "model")
        described = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(described))
        with pytest.raises(NpformerError, match=message):
            start(folder, ("yes", "no"))


def test_the_last_end_token_is_read_and_the_decoder_is_a_token_behind() -> None:
    model = Model(config(), tiny.weights(config()))
    ids = [0, 9, 2, 2, 7, 2]
    traced = npformer.trace(model, ids)
    assert traced.ids.tolist() == [2, 0, 9, 2, 2, 7]
    assert (traced.tokens, traced.key_tokens) == (["2", "0", "9", "2", "2", "7"], [str(each) for each in ids])
    pooler = (
        traced["decoder.layers.0.ffn_norm"][-1] @ model.weights["pooler"]["weight"] + model.weights["pooler"]["bias"]
    )
    np.testing.assert_allclose(traced["pooler"], pooler, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(traced["pooled"], np.tanh(traced["pooler"]))
    weights = traced["decoder.layers.0.attention.weights"]
    assert not np.triu(weights, 1).any()
    assert (traced["decoder.layers.0.cross_attention.weights"] > 0).all()
    padded = model([[0, 9, 2, 1, 1], [0, 5, 7, 8, 2]], attention_mask=[[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert np.array_equal(padded.logits[0], model([0, 9, 2]).logits[0])
    for mask in ([0, 1, 1, 1, 1], [1, 1, 0, 1, 1]):
        with pytest.raises(NpformerError, match="attention_mask: expected padding only after a text"):
            model([[0, 9, 7, 8, 2]], attention_mask=[mask])
    for given in ([[0, 9, 2], [0, 9, 7]], [[0, 9, 7]], [[0, 9, 7], [0, 9, 2]]):
        with pytest.raises(
            NpformerError, match="expected token 2 at the end of each text, because the head reads this token's row"
        ):
            model(given)


def test_tasks_run_from_the_files_of_older_checkpoints(tmp_path: Path) -> None:
    made = folder(tmp_path / "mnli")
    model = npformer.load(made)
    assert repr(model) == "<npformer.Model bart sequence-classification: 2 layers, 4 heads, width 16, float32>"
    encoded = model.tokenizer.encode("the act", "a c")
    assert encoded.tokens == ["<s>", "th", "e", "Ġa", "c", "t", "</s>", "</s>", "a", "Ġ", "c", "</s>"]
    ask = npformer.pipeline("zero-shot-classification", made)
    found = ask("the act", ["art", "law"])
    pairs = [model.tokenizer.encode("the act", f"This example is {label}.").ids for label in ("art", "law")]
    logits = np.array([model(ids).logits[0, 2] for ids in pairs], np.float64)
    expected = dict(zip(("art", "law"), np.exp(logits) / np.exp(logits).sum(), strict=True))
    assert dict(zip(found["labels"], found["scores"], strict=True)) == pytest.approx(expected, abs=1e-6)
    classify = npformer.pipeline(model=made)
    assert classify.name == "text-classification"
    assert classify(["a cat", "the act"]) == [classify("a cat"), classify("the act")]
    with pytest.raises(NpformerError, match="expected an encoder, which makes vectors, got the encoder-decoder bart"):
        npformer.pipeline("feature-extraction", model)
    answer = npformer.pipeline(model=folder(tmp_path / "squad", "question-answering"))
    found = answer(question="what?", context="the act of a cat")
    assert "the act of a cat"[found["start"] : found["end"]] == found["answer"]


def test_a_classifier_is_trained_from_one_and_from_a_model_that_generates(tmp_path: Path) -> None:
    same, tree, kept = start(folder(tmp_path / "mnli"), ENTAILMENT)
    assert (same.labels, kept) == (ENTAILMENT, True)
    other, fresh, kept = start(tmp_path / "mnli", ("no", "yes"))
    assert (other.labels, kept, fresh["head"]["output"]["weight"].shape) == (("no", "yes"), False, (16, 2))
    assert np.array_equal(
        fresh["decoder"]["layers"][0]["ffn"]["hidden"]["weight"],
        tree["decoder"]["layers"][0]["ffn"]["hidden"]["weight"],
    )
    made, grown, kept = start(generator_folder(tmp_path / "cnn"), ("no", "yes"))
    assert (made.head, kept, grown["pooler"]["weight"].shape) == ("sequence-classification", False, (16, 16))
    weights = Trainable(fresh, other)
    loss = HeadLoss(other)
    examples = [Example(text, i % 2) for i, text in enumerate(texts(9, 4, 12))]
    before = gradients(loss, weights, examples)
    for name, grad in before.flat.items():
        if isinstance(grad, np.ndarray):
            weights.flat[name] -= 0.05 * grad
    assert gradients(loss, weights, examples).loss < before.loss
    assert standard_rates(other, 0.1, head=0.3)["pooled"] == 0.3


@pytest.mark.slow
def test_interpretation_covers_both_stacks() -> None:
    model = Model(config(), tiny.weights(config()))
    ids = [0, 9, 8, 2]
    found = logit_attribution(model, ids)
    assert found.total == pytest.approx(found.logit, abs=1e-5)
    assert found.by_layer().columns[1:5] == ("head 0", "head 1", "source 0", "source 1")
    assert found.tokens == ("2", "0", "9", "8", "2")
    assert patch(model, ids, [0, 9, 7, 2], by="head").values.shape == (4, 4)
    with pytest.raises(NpformerError, match="head_results: expected a model with one stack"):
        head_results(model, npformer.trace(model, ids))
    effects = ablate_heads(model, ids, "entailment")
    assert effects.values.shape == (4, 4)  # two encoder layers, one decoder layer, and its cross-attention
    assert np.isfinite(effects.values[0]).all()
    slopes = npformer.trace(model, ids, grads="entailment").grads
    assert np.abs(slopes["encoder.embeddings.sum"]).max() > 0
    recorded = golden.record(model, texts(9, 4))
    arrays = {f"{i}/{name}": a for name in recorded.stages for i, a in enumerate(recorded.stages[name])}
    assert golden.compare(recorded, arrays).ok
    arrays["0/decoder.layers.0.ffn_norm"] = arrays["0/decoder.layers.0.ffn_norm"] + 1
    assert golden.diagnose(recorded, arrays, model).stage == "decoder.layers.0.ffn_norm"


@pytest.mark.parametrize("head", ["sequence-classification", "question-answering"])
def test_hugging_face_s_modules_name_its_stages(head: str) -> None:
    model = Model(config(head), tiny.weights(config(head)))
    recorded, names, runs = golden.record(model, texts(9, 4)), stages.names(model.config), stages.modules(model.config)
    assert [name for name in names if name in recorded.stages] == list(recorded.stages)
    assert runs["model.decoder.embed_tokens"] == "decoder.embeddings.token"
    assert runs["model.decoder.layers.0.encoder_attn.k_proj"] == "decoder.layers.0.cross_attention.key"
    arrays = {f"{i}/{path}": a for path, name in runs.items() for i, a in enumerate(recorded.stages[name])}
    comparison = golden.compare(recorded, arrays)
    assert (comparison.ok, comparison.theirs.unused) == (True, [])
    assert {row.stage for row in comparison.rows} == set(runs.values())


def test_a_page_has_all_views(tmp_path: Path) -> None:
    (found,) = npformer.view.page(npformer.load(folder(tmp_path / "mnli")), "the act").texts
    kinds = ["heads", "model", "neurons", "stages", "attribution", "logit", "lens", "ablation"]
    assert [each.kind for each in found] == kinds
    assert len(found[4].methods) == 4
