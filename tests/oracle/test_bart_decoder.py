"""BartForCausalLM compared with transformers: answers, generated texts, loss, gradients, stages and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BartForCausalLM, BartForConditionalGeneration

import npformer
from npformer import golden
from npformer.checkpoint import convert, load_folder
from npformer.engine.runtime.packing import Text
from npformer.generation import generate
from npformer.training.losses import Example, HeadLoss
from tests.oracle.test_bart import OPTIONS, SETTINGS, compared, torch_model
from tests.oracle.test_every_family import DTYPES, assert_grads, save_as

#: Both stacks have the same number of layers, because transformers sizes the decoder's cache by the encoder's layers.
SIZES = {"encoder_layers": 3, "max_position_embeddings": 32}
MASK = np.array([[int(each) for each in row] for row in ("111111111", "111110000", "000111111", "110111011")])


def given() -> dict[str, np.ndarray]:
    """Returns texts with padding after or before them, with gaps, and with the padding token as one of their tokens."""
    ids = np.random.default_rng(0).integers(3, 50, MASK.shape)
    ids[0, 4] = 1
    return {"input_ids": ids, "attention_mask": MASK}


@pytest.mark.parametrize("dtype", [*DTYPES, "bin"])
@pytest.mark.parametrize("option", OPTIONS)
def test_answers_are_transformers_own(option: str, dtype: str, tmp_path: Path) -> None:
    theirs, arrays = torch_model(option, BartForCausalLM, **SIZES), given()
    save_as(dtype, theirs, tmp_path)
    with torch.no_grad():
        expected = theirs.double()(**{name: torch.from_numpy(each) for name, each in arrays.items()}).logits.numpy()
    found = npformer.load(tmp_path, dtype="float64")(**arrays).logits
    right = expected * MASK[..., None]
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-13 * np.abs(right).max())


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")  # npformer has the same default length
@pytest.mark.parametrize(
    ("option", "settings"),
    [*(("plain", each) for each in [{}, *SETTINGS]), ("scaled", {}), ("scaled", SETTINGS[1]), ("untied", SETTINGS[2])],
    ids=str,
)
def test_generated_tokens_equal_transformers(option: str, settings: dict[str, int], tmp_path: Path) -> None:
    """Each prompt runs alone, because transformers gives different positions to prompts padded on the left."""
    theirs = torch_model(option, BartForCausalLM, **SIZES).double()
    theirs.save_pretrained(tmp_path)
    model = npformer.load(tmp_path, dtype="float64")
    prompts = [np.array(each) for each in ([0, 7, 9, 11, 2], [5], [0, 30, 31, 32, 33, 34, 35, 36])]
    targets = [
        theirs.generate(torch.from_numpy(each[None]), do_sample=False, **settings)[0, len(each) :] for each in prompts
    ]
    for older in (False, True):  # first with generation_config.json, then without it, with the defaults
        if older:
            (tmp_path / "generation_config.json").unlink()
        for target, [found] in zip(targets, generate(model, [Text(each) for each in prompts], **settings), strict=True):
            assert list(target) == found.ids.tolist() + [1] * (len(target) - len(found.ids))
    [[found]] = generate(model, [Text(np.array([], np.int64))], **settings)
    target = theirs.generate(do_sample=False, **settings)[0]
    assert list(target) == [0, *found.ids.tolist()]


def test_padding_before_a_prompt_changes_nothing(tmp_path: Path) -> None:
    torch_model("plain", BartForCausalLM, **SIZES).save_pretrained(tmp_path)
    model = npformer.load(tmp_path)
    [[alone]] = model.generate([0, 7, 9, 11], no_repeat_ngram_size=1, max_new_tokens=12)
    padded = [[1, 1, 0, 7, 9, 11], [0, 5, 6, 7, 8, 9]], [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]
    found = model.generate(*map(np.array, padded), no_repeat_ngram_size=1, max_new_tokens=12)
    assert np.array_equal(found[0][0].ids, alone.ids)


@pytest.mark.parametrize("option", OPTIONS)
def test_the_loss_of_the_next_tokens_and_its_gradients_are_torchs(option: str, tmp_path: Path) -> None:
    theirs = torch_model(option, BartForCausalLM, **SIZES).double()
    theirs.save_pretrained(tmp_path)
    config, tree = load_folder(tmp_path, np.float64)
    texts, total = [np.array([0, 7, 11, 9, 2, 3]), np.array([5, 30, 12])], torch.zeros((), dtype=torch.float64)
    for ids in texts:  # transformers does not shift the labels of this class
        logits = theirs(torch.from_numpy(ids[None, :-1])).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, torch.from_numpy(ids[1:]), reduction="sum")
    count = sum(len(ids) - 1 for ids in texts)
    loss = total / count
    loss.backward()
    part = HeadLoss(config).part(tree, [Example(Text(ids[:-1]), ids[1:]) for ids in texts], count, None)
    assert abs(part.loss - loss.item()) < 1e-12 * loss.item()
    assert_grads(theirs, config, part.tree)


@pytest.mark.parametrize("option", OPTIONS)
def test_files_survive_a_round_trip_and_transformers_reads_them(option: str, tmp_path: Path) -> None:
    """Compares all tensors except cross-attention, which transformers initializes randomly and does not use here."""
    torch_model(option, BartForCausalLM, **SIZES).save_pretrained(tmp_path / "torch")
    back = convert(convert(tmp_path / "torch", tmp_path / "own"), tmp_path / "back", to="torch")
    before, again = (BartForCausalLM.from_pretrained(each) for each in (tmp_path / "torch", back))
    kept = {key: each for key, each in before.state_dict().items() if "encoder_attn" not in key}
    assert all(torch.equal(again.state_dict()[key], each) for key, each in kept.items())
    ids = torch.tensor([[0, 7, 9, 11]])
    with torch.no_grad():
        assert torch.equal(before(ids).logits, again(ids).logits)


def test_the_decoder_of_a_model_with_both_stacks(tmp_path: Path) -> None:
    """A .bin file also contains the token table under the decoder's name."""
    whole = torch_model("scaled", BartForConditionalGeneration, **SIZES)
    whole.config.save_pretrained(tmp_path)
    torch.save(whole.state_dict(), tmp_path / "pytorch_model.bin")
    theirs, ids = BartForCausalLM.from_pretrained(tmp_path).eval().double(), [0, 7, 9, 11]
    with pytest.warns(UserWarning, match="tensors that the model does not use"):
        ours = npformer.load(tmp_path, head="causal-lm", dtype="float64")
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits.numpy()
    np.testing.assert_allclose(ours(ids).logits, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("option", OPTIONS)
def test_every_stage_is_transformers_own(option: str, tmp_path: Path) -> None:
    torch_model(option, BartForCausalLM, **SIZES).save_pretrained(tmp_path / "m")
    texts = [Text(np.array(ids)) for ids in ([0, 7, 2, 2, 9, 2], [0, 5, 2])]
    recorded = golden.record(npformer.load(tmp_path / "m"), texts)
    comparison = compared(recorded, golden.load_torch(str(tmp_path / "m"), recorded))
    assert comparison.ok, str(comparison)
    assert "layers.2.ffn_norm" in {row.stage for row in comparison.rows}
