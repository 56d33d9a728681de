"""GPT2DoubleHeadsModel compared with transformers: both heads of one file, generated tokens, and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2DoubleHeadsModel

import npformer
from npformer.base_model import packed
from npformer.checkpoint import load_folder
from npformer.engine.runtime.padding import unpadded
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward
from npformer.families import parts_of
from tests.oracle.test_every_family import DTYPES, FLOAT64, assert_grads, save_as
from tests.support.in_double import in_double

PAD = 7
LENGTHS = (9, 4, 1, 6)


def folder_of(path: Path, dtype: str = "float32", **fields: Any) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, "pad_token_id": PAD}
    model = GPT2DoubleHeadsModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    save_as(dtype, model, path)
    return path


def theirs(folder: Path) -> Any:
    model = GPT2DoubleHeadsModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.double().eval()


def choices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the ids of two examples with two choices each, their masks, and the positions of their last tokens."""
    mask = (np.arange(9) < np.array(LENGTHS)[:, None]).astype(np.int64).reshape(2, 2, 9)
    ids = np.where(mask == 1, np.random.default_rng(0).integers(8, 60, mask.shape), PAD)
    return ids, mask, np.array(LENGTHS).reshape(2, 2) - 1


def answers(model: Any) -> Any:
    ids, mask, last = map(torch.from_numpy, choices())
    with in_double():
        return model(input_ids=ids, attention_mask=mask, mc_token_ids=last)


@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False}], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [*DTYPES, "bin"])
def test_both_heads_answer_as_transformers(dtype: str, fields: dict[str, Any], tmp_path: Path) -> None:
    folder, (ids, mask, _) = folder_of(tmp_path, dtype, **fields), choices()
    with torch.no_grad():
        expected = answers(theirs(folder))
    of_choices = npformer.load(folder, head="multiple-choice", dtype="float64")(ids, attention_mask=mask).logits
    assert of_choices.shape == (2, 2)
    assert np.abs(of_choices - expected.mc_logits.numpy()).max() < FLOAT64 * expected.mc_logits.abs().max()
    flat = npformer.load(folder, dtype="float64")(ids.reshape(4, 9), attention_mask=mask.reshape(4, 9)).logits
    right = (expected.logits.numpy() * mask[..., None]).reshape(flat.shape)
    assert np.abs(flat - right).max() < FLOAT64 * np.abs(right).max()


def test_without_places_transformers_reads_the_last_column(tmp_path: Path) -> None:
    folder, (ids, mask, _) = folder_of(tmp_path), choices()
    with torch.no_grad(), in_double():
        last = theirs(folder)(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).mc_logits.numpy()
    ours = npformer.load(folder, head="multiple-choice", dtype="float64")(ids, attention_mask=mask).logits
    assert (np.abs(ours - last) < FLOAT64 * np.abs(last).max()).tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("settings", [{"no_repeat_ngram_size": 1}, {"num_beams": 3, "no_repeat_ngram_size": 2}])
def test_it_generates_transformers_tokens(settings: dict[str, Any], tmp_path: Path) -> None:
    folder, prompt = folder_of(tmp_path), np.array([9, 11, 30])
    expected = theirs(folder).generate(torch.from_numpy(prompt[None]), do_sample=False, max_new_tokens=12, **settings)
    [[found]] = npformer.load(folder, dtype="float64").generate(prompt, max_new_tokens=12, **settings)
    assert expected[0, 3 : 3 + len(found.ids)].tolist() == found.ids.tolist()


def test_the_gradients_of_choices_are_torchs(tmp_path: Path) -> None:
    """Compares the gradients of the sum of all choices' logits, each multiplied by a random number."""
    folder, (ids, mask, _), model = folder_of(tmp_path), choices(), theirs(tmp_path)
    config, tree = load_folder(folder, np.float64, "multiple-choice")
    batch = packed(config, unpadded(ids.reshape(4, 9), mask.reshape(4, 9).astype(bool)))
    recording, grad = Recording(), np.random.default_rng(1).standard_normal((4, 1))
    with listen(recording):
        forward(tree, parts_of(config), batch)
    (answers(model).mc_logits * torch.from_numpy(grad.reshape(2, 2))).sum().backward()
    assert_grads(model, config, backward({"logits": grad}, recording.stages, tree, parts_of(config), batch))
