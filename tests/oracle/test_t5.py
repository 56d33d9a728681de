"""T5 compared with transformers: answers of every class, gradients, generated texts, and round trips of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import npformer
from npformer import golden
from npformer.checkpoint import convert
from npformer.checkpoint import tree as layout
from npformer.engine.functions import SparseRows
from npformer.engine.mechanisms.relative_bias import relative_buckets
from npformer.engine.runtime.packing import Text
from npformer.training import Example, Trainable, gradients
from npformer.training.losses import TranslationLoss
from tests.support.in_double import in_double

V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
WRITER = "T5ForConditionalGeneration"
#: One case for each class and each version of T5.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "1.0": (WRITER, {}),
    "1.1": (WRITER, V1_1),
    "mT5": ("MT5ForConditionalGeneration", {"tie_word_embeddings": False}),
    "encoder": ("T5EncoderModel", {"feed_forward_proj": "gated-silu"}),
    "texts": ("T5ForSequenceClassification", {"num_labels": 3}),
    "tokens": ("T5ForTokenClassification", {"num_labels": 3}),
    "answers": ("T5ForQuestionAnswering", {}),
}
LENGTHS = (40, 17, 17, 2)


def torch_model(case: str) -> Any:
    """Returns a random model, in which omitting a norm or a bias changes the answers."""
    name, options = CASES[case]
    torch.manual_seed(len(case))
    sizes = {
        "vocab_size": 60, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 3,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
    }  # fmt: skip
    kind = getattr(transformers, name)
    model = kind._from_config(kind.config_class(**sizes, **options), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1))
        if "tie_word_embeddings" in options:
            model.lm_head.weight = torch.nn.Parameter(torch.randn(60, 24) * 0.3)
    return model


def batch() -> dict[str, np.ndarray]:
    """Returns sources of different lengths that end in </s>."""
    random = np.random.default_rng(0)
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    ids = np.where(mask == 1, random.integers(2, 60, mask.shape), 0)
    ids[np.arange(len(ids)), np.array(LENGTHS) - 1] = 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("case", CASES)
def test_answers_are_transformers_own(case: str, tmp_path: Path) -> None:
    """The test uses targets that are longer than max_distance."""
    theirs, given = torch_model(case), batch()
    theirs.save_pretrained(tmp_path / "torch")
    if theirs.can_generate():
        given["labels"] = np.random.default_rng(1).integers(2, 60, (4, 30))
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    with torch.no_grad(), in_double():
        truth = theirs.double()(**tensors)
    found = npformer.load(tmp_path / "torch", dtype="float64")(**given)
    names = [name for name in found if name in truth]
    assert names
    seen = dict.fromkeys(names, given["attention_mask"] == 1)
    seen |= {"logits": ...} if case not in ("tokens",) else {}
    for name in names:
        expected = truth[name].numpy()
        difference = np.abs(found[name] - expected)[seen[name]]
        assert difference.max() <= 1e-12 * np.abs(expected).max(), name
    back = convert(convert(tmp_path / "torch", tmp_path / "own"), tmp_path / "back", to="torch")
    again, before = (type(theirs).from_pretrained(each).state_dict() for each in (back, tmp_path / "torch"))
    assert again.keys() == before.keys()
    assert all(torch.equal(again[key], before[key]) for key in before)


@pytest.mark.parametrize("case", CASES)
def test_every_stage_of_transformers_is_within_its_budget(case: str, tmp_path: Path) -> None:
    """The rows after self-attention and after cross-attention are the inputs of different norms."""
    theirs, random = torch_model(case), np.random.default_rng(2)
    theirs.save_pretrained(tmp_path / "torch")
    texts: list[Any] = [[*random.integers(2, 60, length - 1).tolist(), 1] for length in LENGTHS[:3]]
    if theirs.can_generate():
        texts = [(ids, [0, *random.integers(2, 60, 9).tolist()]) for ids in texts]
    recorded = golden.record(npformer.load(tmp_path / "torch"), texts)
    comparison = golden.compare(recorded, theirs)
    assert comparison.ok, str(comparison)
    residuals = [row.stage for row in comparison.rows if row.stage.endswith("attention_residual")]
    assert len(residuals) == sum(stage.endswith("attention_residual") for stage in recorded.stages)


@pytest.mark.parametrize("search", [{}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize("case", ["1.0", "1.1"])
def test_generated_tokens_equal_transformers(case: str, search: dict[str, int], tmp_path: Path) -> None:
    theirs, given = torch_model(case), batch()
    theirs.save_pretrained(tmp_path)
    tensors = {key: torch.from_numpy(each) for key, each in given.items()}
    # without this setting, a random model would repeat one word
    settings = {"no_repeat_ngram_size": 1, "max_new_tokens": 25, **search}
    expected = theirs.generate(**tensors, do_sample=False, **settings).numpy()
    model = npformer.load(tmp_path)
    rows = [row[:length] for row, length in zip(given["input_ids"], LENGTHS, strict=True)]
    for row, target in zip(rows, expected, strict=True):
        ((found,),) = model.generate([row], **settings)
        ours = [0, *found.ids.tolist()]  # transformers' answer begins with the start token
        assert target[: len(ours)].tolist() == ours
        assert set(target[len(ours) :]) <= {0, 1}  # transformers pads its answers


@pytest.mark.parametrize("case", ["1.0", "1.1"])
def test_gradients_are_torch_s(case: str, tmp_path: Path) -> None:
    theirs = torch_model(case).double()
    theirs.save_pretrained(tmp_path)
    source, target = [7, 11, 9, *range(20, 45), 1], [5, 3, 3, 8, *range(30, 52)]
    with in_double():
        theirs(torch.tensor([source]), labels=torch.tensor([[*target, 1]])).loss.backward()
    model = npformer.load(tmp_path, dtype="float64")
    grads = {name: each.grad.numpy() for name, each in theirs.named_parameters() if each.grad is not None}
    expected = layout.flatten(layout.to_tree(grads, model.config, np.float64))
    weights = Trainable(model.weights, model.config)
    found = gradients(
        TranslationLoss(model.config, 0.0), weights, [Example(Text(np.array(source)), np.array(target))]
    ).flat
    assert found.keys() == weights.flat.keys()
    for name, grad in found.items():
        if isinstance(grad, SparseRows):
            dense = np.zeros_like(weights.flat[name])
            dense[grad.ids] = grad.values
            grad = dense
        np.testing.assert_allclose(grad, expected[name], rtol=0, atol=1e-12 * max(1, np.abs(expected[name]).max()))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_transformers_own(bidirectional: bool) -> None:
    """Transformers rounds in float32, which changes no distance's bucket for usual numbers of buckets."""
    distances = np.arange(-3000, 3001)
    for count in (8, 32, 33, 128):
        for most in (100, 128, 256, 1000):
            theirs = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket(
                torch.from_numpy(distances), bidirectional, count, most
            )
            assert np.array_equal(relative_buckets(distances, count, most, bidirectional), theirs.numpy())
