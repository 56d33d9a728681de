"""Every head of RoBERTa's and ALBERT's families compared with transformers, from files that transformers saved.

In float64, the two libraries agree up to rounding; in float32, npformer's error is similar to torch's. ALBERT's layers
share weights in several ways, and the sums of their gradients equal torch's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import npformer
from npformer.checkpoint import convert
from npformer.checkpoint import tree as layout
from npformer.checkpoint.tied import ties
from npformer.engine.functions import SparseRows
from npformer.engine.runtime.packing import Text
from npformer.families import encoders
from npformer.training import Example, HeadLoss, Trainable, gradients

SIZES = {
    "vocab_size": 50, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "num_hidden_layers": 2,
    "max_position_embeddings": 20, "num_labels": 3,
}  # fmt: skip
ROBERTA = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
ALBERT = {"embedding_size": 10}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("roberta", ROBERTA),
    "roberta-padding-5": ("roberta", {**ROBERTA, "pad_token_id": 5}),
    "xlm-roberta": ("xlm-roberta", {**ROBERTA, "hidden_act": "gelu"}),
    "camembert": ("camembert", {**ROBERTA, "type_vocab_size": 2}),
    "albert": ("albert", {**ALBERT, "num_hidden_layers": 4}),
    "albert-groups": ("albert", {**ALBERT, "num_hidden_layers": 5, "num_hidden_groups": 3}),
    "albert-inner": ("albert", {**ALBERT, "num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2}),
    "albert-own": ("albert", {**ALBERT, "num_hidden_layers": 3, "num_hidden_groups": 3}),
    "albert-wide": ("albert", {"embedding_size": 24, "hidden_act": "relu"}),
    "albert-untied": ("albert", {**ALBERT, "tie_word_embeddings": False}),
}
LENGTHS = (9, 4, 4, 1)
#: Every class of RoBERTa and ALBERT. Each variant of their configs is tried with two classes, because no head depends
#: on the variant. `test_every_family` tries every class of XLM-RoBERTa and CamemBERT.
ALL: list[tuple[str, str]] = []
for i, (name, (family, _)) in enumerate(MODELS.items()):
    classes = list(encoders()[family].architectures)
    some = classes if name in ("roberta", "albert") else [classes[i % len(classes)], classes[(i + 3) % len(classes)]]
    ALL += [(name, each) for each in some]


def torch_model(name: str, architecture: str) -> Any:
    """Returns a random model. No bias is 0 and no norm is 1, so omitting one changes the answers."""
    family, options = MODELS[name]
    settings = dict(SIZES) | ({"num_labels": 2} if "Answering" in architecture else {}) | options
    settings |= {"is_decoder": True} if architecture.endswith("CausalLM") else {}
    torch.manual_seed(sum(map(ord, name)))
    config = transformers.AutoConfig.for_model(family, **settings)
    model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def batch(model: Any, choices: bool, lengths: tuple[int, ...] = LENGTHS) -> dict[str, np.ndarray]:
    """Returns padded texts of several lengths; the first also has padding inside."""
    random, pad = np.random.default_rng(0), model.config.pad_token_id
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.where(mask == 1, random.integers(6, 50, mask.shape), pad)
    ids[0, 4] = pad
    types = random.integers(0, model.config.type_vocab_size, mask.shape)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {key: each.reshape(-1, 2, each.shape[-1]) if choices else each for key, each in given.items()}


def answers(model: Any, given: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, np.ndarray]:
    with torch.no_grad():
        found = model.to(dtype)(**{key: torch.from_numpy(each) for key, each in given.items()})
    named = {"prediction_logits": "logits"}  # a model for pre-training has a different name for logits
    return {
        named.get(key, key): each.numpy() for key, each in found.items() if key not in ("sop_logits", "past_key_values")
    }


@pytest.mark.parametrize(("name", "architecture"), ALL)
def test_answers_are_transformers_own(name: str, architecture: str, tmp_path: Path) -> None:
    theirs = torch_model(name, architecture)
    theirs.save_pretrained(tmp_path / "torch")
    lengths = LENGTHS * 4  # with only four logits, torch's largest error may be far below its usual size
    given = batch(theirs, architecture.endswith("MultipleChoice"), lengths)
    double, single = answers(theirs, given, torch.float64), answers(theirs, given, torch.float32)
    truth = npformer.load(tmp_path / "torch", dtype="float64")(**given)
    ours = npformer.load(tmp_path / "torch")(**given)
    assert ours.keys() == double.keys()
    for key, each in double.items():
        kept = given["attention_mask"] == 1 if each.shape[:2] == given["attention_mask"].shape else slice(None)
        size = np.abs(each[kept]).max()
        np.testing.assert_allclose(truth[key][kept], each[kept], rtol=0, atol=1e-13 * size)
        error, torch_s = (np.abs(run[key][kept] - each[kept]).max() for run in (ours, single))
        assert error <= 2 * torch_s + 2**-22 * size, (key, error, torch_s)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["roberta", "xlm-roberta", "camembert", "albert-inner"])
def test_half_precision_and_pickles_survive_a_round_trip(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    family = MODELS[name][0]
    architecture = next(each for each in encoders()[family].architectures if each.endswith("MaskedLM"))
    theirs = torch_model(name, architecture).to(dtype)
    theirs.save_pretrained(tmp_path / "torch")
    given = batch(theirs, False)
    ours = npformer.load(tmp_path / "torch")(**given)
    back = convert(convert(tmp_path / "torch", tmp_path / "own"), tmp_path / "back", to="torch")
    assert np.array_equal(npformer.load(back)(**given)["logits"], ours["logits"])
    before, after = (
        transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype).state_dict()
        for folder in (tmp_path / "torch", back)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    (tmp_path / "torch/model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "torch/pytorch_model.bin")
    assert np.array_equal(npformer.load(tmp_path / "torch")(**given)["logits"], ours["logits"])


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("albert")])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMaskedLM"])
def test_gradients_of_layers_that_share_weights_are_torch_s(name: str, head: str, tmp_path: Path) -> None:
    theirs = torch_model(name, f"Albert{head}").double()
    theirs.save_pretrained(tmp_path / "torch")
    given, random = batch(theirs, False), np.random.default_rng(1)
    # replaces padding inside a text, because torch does not train the row of the padding token
    given["input_ids"][0, 4] = 7
    model = npformer.load(tmp_path / "torch", dtype="float64")
    if head == "ForMaskedLM":
        labels = np.where(random.random(given["input_ids"].shape) < 0.5, given["input_ids"], -100)
        labels[given["attention_mask"] == 0] = -100
        targets: Any = [row[:length] for row, length in zip(labels, LENGTHS, strict=True)]
    else:
        labels = targets = np.array([0, 2, 1, 1])
    loss = theirs(**{key: torch.from_numpy(each) for key, each in given.items()}, labels=torch.from_numpy(labels)).loss
    loss.backward()
    rows = zip(given["input_ids"], given["token_type_ids"], LENGTHS, targets, strict=True)
    examples = [Example(Text(ids[:length], types[:length]), target) for ids, types, length, target in rows]
    weights = Trainable(model.weights, model.config)
    found = gradients(HeadLoss(model.config), weights, examples)
    assert abs(found.loss - loss.item()) < 1e-12
    grads = {key: each.grad.numpy() for key, each in theirs.named_parameters() if each.grad is not None}
    expected = layout.flatten(layout.to_tree(grads, model.config, np.float64))
    assert found.flat.keys() == weights.flat.keys() == expected.keys() - ties(model.config).keys()
    for key, grad in found.flat.items():
        if isinstance(grad, SparseRows):
            dense = np.zeros_like(expected[key])
            dense[grad.ids] = grad.values
            grad = dense
        np.testing.assert_allclose(grad, expected[key], rtol=0, atol=1e-12 * max(1, np.abs(expected[key]).max()))
