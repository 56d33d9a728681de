"""BART compared with transformers: answers of every head, generated texts, gradients, and round trips of files."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
)

import npformer
from npformer import golden
from npformer.checkpoint import convert, load_folder
from npformer.checkpoint import tree as layout
from npformer.engine.functions import SparseRows
from npformer.engine.runtime.packing import Text, pack
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward
from npformer.families import parts_of
from npformer.interpret import attribution
from npformer.interpret.integrated_gradients import slope
from npformer.training import Example, Trainable, gradients
from npformer.training.losses import TranslationLoss
from tests.oracle.test_every_family import DTYPES

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale_embedding": True, "activation_function": "relu", "max_position_embeddings": 32},
    "untied": {"tie_word_embeddings": False},
}
SETTINGS = [
    {"no_repeat_ngram_size": 1},  # without this setting, a random model would repeat one word
    {"num_beams": 3, "no_repeat_ngram_size": 1},
    {"num_beams": 2, "no_repeat_ngram_size": 2, "forced_bos_token_id": 7},
]
LENGTHS = (9, 4, 4, 2)


def torch_model(option: str, kind: Any = BartForConditionalGeneration, **more: Any) -> Any:
    """Returns a random model. No bias is 0 and no norm is 1, so omitting one changes the answers."""
    torch.manual_seed(len(option))
    sizes = {
        "vocab_size": 50, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 30, "max_position_embeddings": 20,
    }  # fmt: skip
    model = kind(BartConfig(**sizes | OPTIONS[option] | more)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        if kind is BartForConditionalGeneration:
            model.final_logits_bias.copy_(torch.randn(1, 50))
    return model


def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    return {"input_ids": np.where(mask == 1, random.integers(3, 50, mask.shape), 1), "attention_mask": mask}


@pytest.mark.parametrize("option", OPTIONS)
def test_answers_are_transformers_own(option: str, tmp_path: Path) -> None:
    theirs, given = torch_model(option), batch()
    theirs.save_pretrained(tmp_path / "torch")
    targets = np.random.default_rng(1).integers(3, 50, (4, 6))
    found = {}
    for dtype in (torch.float32, torch.float64):
        with torch.no_grad():
            tensors = {key: torch.from_numpy(each) for key, each in given.items()}
            found[dtype] = theirs.to(dtype)(**tensors, labels=torch.from_numpy(targets)).logits.numpy()
    truth = npformer.load(tmp_path / "torch", dtype="float64")(**given, labels=targets).logits
    ours = npformer.load(tmp_path / "torch")(**given, labels=targets).logits
    size = np.abs(found[torch.float64]).max()
    np.testing.assert_allclose(truth, found[torch.float64], rtol=0, atol=1e-13 * size)
    error, torch_s = (np.abs(each - found[torch.float64]).max() for each in (ours, found[torch.float32]))
    assert error <= 2 * torch_s + 2**-22 * size
    back = convert(convert(tmp_path / "torch", tmp_path / "own"), tmp_path / "back", to="torch")
    again = BartForConditionalGeneration.from_pretrained(back).state_dict()
    before = BartForConditionalGeneration.from_pretrained(tmp_path / "torch").state_dict()
    assert again.keys() == before.keys()
    unread = {"model.shared.weight"} if option == "untied" else set()  # encoder and decoder have separate tables
    assert all(torch.equal(again[key], before[key]) for key in before.keys() - unread)


@pytest.mark.parametrize(
    ("option", "settings"),
    [*(("plain", each) for each in SETTINGS), ("scaled", SETTINGS[1]), ("untied", SETTINGS[2])],
    ids=str,
)
def test_generated_tokens_equal_transformers(option: str, settings: dict[str, int], tmp_path: Path) -> None:
    theirs, given = torch_model(option), batch()
    theirs.save_pretrained(tmp_path / "torch")
    tensors = {key: torch.from_numpy(each) for key, each in given.items()}
    expected = theirs.generate(**tensors, max_new_tokens=12, do_sample=False, **settings).numpy()
    model = npformer.load(tmp_path / "torch")
    for older in (False, True):  # first with generation_config.json, then without it, with the defaults
        if older:
            (tmp_path / "torch/generation_config.json").unlink()
        rows = [row[:length] for row, length in zip(given["input_ids"], LENGTHS, strict=True)]
        for row, target in zip(rows, expected, strict=True):
            ((found,),) = model.generate([row], max_new_tokens=12, **settings)
            ours = [2, *found.ids.tolist()]  # transformers' answer begins with the start token
            assert list(target) == ours + [1] * (len(target) - len(ours))


@pytest.mark.parametrize("option", OPTIONS)
def test_gradients_are_torch_s(option: str, tmp_path: Path) -> None:
    theirs = torch_model(option).double()
    theirs.save_pretrained(tmp_path / "torch")
    source, target = [0, 7, 11, 9, 2], [5, 3, 3, 8]
    theirs(torch.tensor([source]), labels=torch.tensor([[*target, 2]])).loss.backward()
    model = npformer.load(tmp_path / "torch", dtype="float64")
    grads = {name: each.grad.numpy() for name, each in theirs.named_parameters() if each.grad is not None}
    expected = layout.flatten(layout.to_tree(grads, model.config, np.float64))
    weights = Trainable(model.weights, model.config)
    example = Example(Text(np.array(source)), np.array(target))
    found = gradients(TranslationLoss(model.config, 0.0), weights, [example]).flat
    assert found.keys() == weights.flat.keys()
    for name, grad in found.items():
        if name == "head.output.bias":  # a buffer in torch, which has no gradient
            continue
        if isinstance(grad, SparseRows):
            dense = np.zeros_like(weights.flat[name])
            dense[grad.ids] = grad.values
            grad = dense
        np.testing.assert_allclose(grad, expected[name], rtol=0, atol=1e-12 * max(1, np.abs(expected[name]).max()))


def test_a_model_without_a_head_generates_as_transformers_reads_it(tmp_path: Path) -> None:
    torch_model("plain", BartModel).save_pretrained(tmp_path)
    theirs, given = BartForConditionalGeneration.from_pretrained(tmp_path).eval(), batch()
    targets = np.random.default_rng(1).integers(3, 50, (4, 6))
    with torch.no_grad():
        tensors = {key: torch.from_numpy(each) for key, each in given.items()}
        expected = theirs.double()(**tensors, labels=torch.from_numpy(targets)).logits.numpy()
    found = npformer.load(tmp_path, dtype="float64")(**given, labels=targets).logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


# --- heads on a decoder that reads the text again --------------------------------------------------------------------

HEADS = {BartForSequenceClassification: {"num_labels": 3}, BartForQuestionAnswering: {}}


def ended() -> dict[str, np.ndarray]:
    """Returns the batch, with an end token at the end of each text."""
    given = batch()
    for row, length in zip(given["input_ids"], LENGTHS, strict=True):
        row[length - 1] = 2
    return given


def head_answers(model: Any, given: dict[str, np.ndarray]) -> dict[str, Any]:
    found = model(**{name: torch.from_numpy(array) for name, array in given.items()})
    return {name: found[name] for name in ("logits", "start_logits", "end_logits") if name in found}


@pytest.mark.parametrize(
    ("option", "kind", "dtype"),
    [(*each, dtype) for each, dtype in zip(product(OPTIONS, HEADS), cycle(DTYPES), strict=False)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_head_s_answers_are_transformers_own(option: str, kind: Any, dtype: str, tmp_path: Path) -> None:
    model, given = torch_model(option, kind, **HEADS[kind]).to(DTYPES[dtype]), ended()
    model.save_pretrained(tmp_path / "torch")
    with torch.no_grad():
        expected = head_answers(model.double(), given)
    ours = npformer.load(tmp_path / "torch", dtype="float64", threads=1)(**given)
    assert ours.keys() == expected.keys()
    for name, array in ours.items():
        right = expected[name].numpy() * (1 if name == "logits" else given["attention_mask"])
        np.testing.assert_allclose(array, right, rtol=0, atol=1e-12 * max(1, np.abs(right).max()))
    back = convert(convert(tmp_path / "torch", tmp_path / "own"), tmp_path / "back", to="torch")
    again, before = (kind.from_pretrained(each).state_dict() for each in (back, tmp_path / "torch"))
    unread = {"model.shared.weight"} if option == "untied" else set()
    assert all(torch.equal(again[key], before[key]) for key in before.keys() - unread)


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_head_s_gradients_are_torch_s(option: str, kind: Any, tmp_path: Path) -> None:
    """Compares the gradients of a random linear combination of all answers. One text has two end tokens."""
    model = torch_model(option, kind, **HEADS[kind]).double()
    model.save_pretrained(tmp_path / "torch")
    config, tree = load_folder(tmp_path / "torch", np.float64)
    texts, random = [np.array([0, 7, 2, 2, 9, 2]), np.array([0, 5, 2, 2])], np.random.default_rng(2)
    recording, packed = Recording(), pack([Text(ids) for ids in texts])
    with listen(recording):
        ours = forward(tree, parts_of(config), packed)
    grads = {name: random.standard_normal(array.shape) for name, array in ours.items()}
    rows = {name: each if name == "logits" else packed.split(each) for name, each in grads.items()}
    for i, ids in enumerate(texts):  # one by one: transformers requires the same number of end tokens in all texts
        found = head_answers(model, {"input_ids": ids[None]})
        sum((found[name] * torch.from_numpy(rows[name][i])).sum() for name in found).backward()
    named = {name: each.grad.numpy() for name, each in model.named_parameters() if each.grad is not None}
    expected = layout.flatten(layout.to_tree(named, config, np.float64))
    flat = Trainable(tree, config).flat
    total = Trainable(tree, config).collect(backward(grads, recording.stages, tree, parts_of(config), packed))
    assert total.keys() == flat.keys()
    for name, grad in total.items():
        if isinstance(grad, SparseRows):
            dense = np.zeros_like(flat[name])
            dense[grad.ids] = grad.values
            grad = dense
        np.testing.assert_allclose(grad, expected[name], rtol=0, atol=1e-12 * max(1, np.abs(expected[name]).max()))


@pytest.mark.parametrize("option", OPTIONS)
def test_an_attribution_s_gradient_by_both_embeddings_is_torch_s(option: str, tmp_path: Path) -> None:
    """Compares the gradient of a label's log-odds with respect to a text's embeddings in encoder and decoder."""
    theirs = torch_model(option, BartForSequenceClassification, num_labels=3).double()
    theirs.save_pretrained(tmp_path / "torch")
    ids, heard = np.array([0, 7, 2, 11, 9, 2]), []
    for stack in (theirs.model.encoder, theirs.model.decoder):
        stack.layernorm_embedding.register_forward_hook(
            lambda module, args, out: heard.append(out) or out.retain_grad()
        )
    logits = theirs(input_ids=torch.from_numpy(ids)[None]).logits[0]
    (logits[1] - torch.logsumexp(logits[[0, 2]], 0)).backward()
    model = npformer.load(tmp_path / "torch", dtype="float64")
    explained = attribution.target(model, 1, logits.detach().numpy())
    found = slope(model, [Text(ids)], explained)
    for ours, tensor in zip(found.gradient, heard, strict=True):
        right = tensor.grad[0].numpy()
        np.testing.assert_allclose(ours, right, rtol=0, atol=1e-12 * max(1, np.abs(right).max()))


# --- golden files ----------------------------------------------------------------------------------------------------


def compared(recorded: golden.Golden, theirs: Any) -> golden.Comparison:
    comparison = golden.compare(recorded, theirs)
    assert all(name.endswith(("scores", "probabilities")) for name in comparison.missing), comparison.missing
    return comparison


def test_the_tiny_model_of_the_command_is_one_of_transformers(tmp_path: Path) -> None:
    """All stages of both stacks agree, and a changed weight is visible in the first stage that uses it."""
    folder = golden.tiny(tmp_path / "m", "bart")
    recorded = golden.load(folder / golden.TINY_FILE)
    theirs = golden.load_torch(str(folder), recorded)
    assert compared(recorded, theirs).ok
    with torch.no_grad():
        theirs.model.decoder.layers[1].encoder_attn.v_proj.bias.zero_()
    first = compared(recorded, theirs).first
    assert first
    assert first.stage == "decoder.layers.1.cross_attention.value"


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_stages_of_texts_with_one_and_with_several_end_tokens(kind: Any, tmp_path: Path) -> None:
    torch_model("scaled", kind, **HEADS[kind]).save_pretrained(tmp_path / "m")
    texts = [Text(np.array(ids)) for ids in ([0, 7, 2, 2, 9, 2], [0, 5, 2])]
    recorded = golden.record(npformer.load(tmp_path / "m"), texts)
    comparison = compared(recorded, golden.load_torch(str(tmp_path / "m"), recorded))
    assert comparison.ok, str(comparison)
