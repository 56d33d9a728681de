"""The heads of pre-training models compared with transformers. BERT's and ALBERT's classes have two heads each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import npformer
from npformer.base_model import packed
from npformer.checkpoint import load_folder
from npformer.engine.runtime.padding import unpadded
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward
from npformer.families import parts_of
from npformer.training.losses import Example, HeadLoss
from tests.oracle.test_every_family import DTYPES, FLOAT64, MASK, assert_grads, theirs
from tests.support.in_double import in_double

SIZES = {
    "vocab_size": 50, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "num_hidden_layers": 2,
    "max_position_embeddings": 40, "hidden_act": "relu",
}  # fmt: skip
CLASSES = {"bert": "BertForPreTraining", "albert": "AlbertForPreTraining", "electra": "ElectraForPreTraining"}
#: Classes that config.json may name although the weights are of the class in CLASSES.
OTHERS = {"bert": "BertForMaskedLM", "albert": "AlbertForMaskedLM", "electra": "ElectraModel"}
OPTIONS: dict[str, dict[str, Any]] = {"albert": {"embedding_size": 10}, "electra": {"embedding_size": 10}}
#: Family -> head -> the field of its logits in the output of the class.
LOGITS = {
    "bert": {"masked-lm": "prediction_logits", "next-sentence": "seq_relationship_logits"},
    "albert": {"masked-lm": "prediction_logits", "next-sentence": "sop_logits"},
    "electra": {"replaced-token": "logits"},
}
CASES = [(family, head) for family, heads in LOGITS.items() for head in heads]


def folder_of(path: Path, family: str, dtype: torch.dtype = torch.float32) -> Path:
    """Writes a random checkpoint as transformers does. No bias is 0, so omitting one changes the answers."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES, **OPTIONS.get(family, {}))
    model = getattr(transformers, CLASSES[family])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.to(dtype).save_pretrained(path)
    return path


def given() -> dict[str, np.ndarray]:
    """Returns texts with padding after and inside them, but not at the first token, which a head for texts reads."""
    mask, random = np.array([[int(each) for each in row] for row in MASK]), np.random.default_rng(0)
    mask[:, 0] = 1
    ids, types = random.integers(5, 50, mask.shape), random.integers(0, 2, mask.shape)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", CLASSES)
def test_each_head_s_answers_are_torch_s(family: str, dtype: str, tmp_path: Path) -> None:
    """Files are safetensors or pickles, and config.json may name a different class."""
    folder = folder_of(tmp_path / "model", family, DTYPES[dtype])
    model, arrays = theirs(folder), given()
    with torch.no_grad(), in_double():
        expected = model(**tensors(arrays))
    pickled = shutil.copytree(folder, tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    other = shutil.copytree(folder, tmp_path / "other")
    described = json.loads((folder / "config.json").read_text()) | {"architectures": [OTHERS[family]]}
    (other / "config.json").write_text(json.dumps(described))
    mask = arrays["attention_mask"]
    for head, name in LOGITS[family].items():
        right = expected[name].numpy()
        right = right if head == "next-sentence" else right * mask.reshape(*mask.shape, *[1] * (right.ndim - 2))
        for each in (folder, pickled, other):
            ours = npformer.load(each, head=head, dtype="float64")(**arrays).logits
            assert ours.shape == right.shape
            assert np.abs(ours - right).max() < FLOAT64 * max(1.0, float(np.abs(right).max())), (each.name, head)


@pytest.mark.parametrize(("family", "head"), CASES)
def test_each_head_s_gradients_are_torch_s(family: str, head: str, tmp_path: Path) -> None:
    """Compares the gradients of the sum of all logits, each multiplied by a random number."""
    folder, arrays = folder_of(tmp_path / "model", family), given()
    model, mask = theirs(folder), arrays["attention_mask"].astype(bool)
    config, tree = load_folder(folder, np.float64, head)
    batch = packed(config, unpadded(arrays["input_ids"], mask, arrays["token_type_ids"], config.uncounted))
    recording = Recording()
    with listen(recording):
        logits = forward(tree, parts_of(config), batch)["logits"]
    grad = np.random.default_rng(1).standard_normal(logits.shape)
    with in_double():
        answer = model(**tensors(arrays))[LOGITS[family][head]]
    answer = answer if head == "next-sentence" else answer[torch.from_numpy(mask)]
    (answer * torch.from_numpy(grad)).sum().backward()
    assert_grads(model, config, backward({"logits": grad}, recording.stages, tree, parts_of(config), batch))


def test_the_loss_of_replaced_tokens_and_its_gradients_are_torch_s(tmp_path: Path) -> None:
    """The loss is the mean over the tokens that are not padding."""
    folder, arrays = folder_of(tmp_path / "model", "electra"), given()
    model, mask = theirs(folder), arrays["attention_mask"].astype(bool)
    labels = np.random.default_rng(1).integers(0, 2, mask.shape)
    config, tree = load_folder(folder, np.float64)
    texts = unpadded(arrays["input_ids"], mask, arrays["token_type_ids"], config.uncounted)
    examples = [Example(text, row[kept]) for text, row, kept in zip(texts, labels, mask, strict=True)]
    with in_double():
        answer = model(**tensors(arrays), labels=torch.from_numpy(labels))
    rows = torch.from_numpy(mask)
    wanted = torch.from_numpy(labels[mask]).double()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(answer.logits[rows], wanted)
    assert abs(loss - answer.loss) < 1e-6  # transformers always computes the loss in float32
    loss.backward()
    objective = HeadLoss(config)
    part = objective.part(tree, examples, sum(map(objective.count, examples)), None)
    assert abs(part.loss - loss.item()) < FLOAT64 * loss.item()
    assert part.right == int(((answer.logits[rows] > 0).numpy() == labels[mask]).sum())
    assert_grads(model, config, part.tree)
