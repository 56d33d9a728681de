"""Every family and head of encoders compared with transformers: answers to ragged batches in each stored dtype, and
gradients.

Both run in float64, so a difference comes from the formula or a weight. The checkpoints are random, in the form that
transformers reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from npformer.base_model import packed
from npformer.checkpoint import convert, load_folder
from npformer.checkpoint import tree as layout
from npformer.checkpoint.safetensors import read_tensors
from npformer.checkpoint.tied import PROJECTION, ties
from npformer.config import POOLED_HEADS, Config, InputConvolution, Local, Positions
from npformer.engine.functions import SparseRows
from npformer.engine.mechanisms import HeadNorm, PartialRotary, Rotary, RowNorm, SoftCap, Window, ZeroCentredHeadNorm
from npformer.engine.mechanisms.rotary_scaling import Linear, Llama3, Yarn
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.padding import unpadded
from npformer.engine.tape import Recording
from npformer.engine.taps import listen
from npformer.engine.transformer import backward, forward
from npformer.families import encoders, family_of, parts_of
from npformer.model import Model
from npformer.training.losses import Example, HeadLoss
from tests.support import later_modernbert, tiny
from tests.support.in_double import in_double

#: Heads with one class each; `test_pretraining.py` tests classes with two heads.
HEADS = [(name, head) for name, family in encoders().items() for head in dict.fromkeys(family.architectures.values())]
#: Options that only some checkpoints of a family have.
OPTIONS = {
    "convolution": {"convolution": InputConvolution(3, "gelu")},
    "relu": {"activation": "relu"},
    "silu head": {"head_activation": "silu"},
    "content to distance": {"mechanisms": (tiny.distances(forms=("key",)),)},
    "distance to content": {"mechanisms": (tiny.distances(forms=("query",)),)},
    "no distances": {"mechanisms": (tiny.distances(forms=()),)},
    "own keys of distances": {"mechanisms": (tiny.distances(forms=("key",), own=True, norm=False),)},
    "own queries of distances": {"mechanisms": (tiny.distances(forms=("query",), own=True),)},
    "positions": {"positions": Positions()},
    "segments": {"n_token_types": 2},
    "positions and segments": {
        "positions": Positions(), "n_token_types": 2,
        "convolution": InputConvolution(3), "mechanisms": (tiny.distances(12, 0, forms=("key",), own=True),),
    },
    "as BERT": {"positions": Positions(), "n_token_types": 2, "mechanisms": (tiny.distances(forms=()),)},
}  # fmt: skip
HEADS += [("deberta-v2+convolution", head) for head in ("base", "sequence-classification", "token-classification")]
#: Options of decoders.
OF_DECODERS = {
    "wide heads": {"head_width": 12, "n_kv_heads": 1},
    "every head its own keys": {"n_kv_heads": 0},
    "biases": {"bias": True},
    "linear": {"mechanisms": (Rotary(30.0, scaling=Linear(3.0)),)},
    "llama3": {"mechanisms": (Rotary(30.0, scaling=Llama3(3.0, 1.0, 1.5, 16)),)},
    "yarn": {"mechanisms": (Rotary(30.0, scaling=Yarn(3.0, 24)),)},
    "yarn, untruncated": {"mechanisms": (Rotary(30.0, scaling=Yarn(3.0, 24, 8.0, 2.0, 1.3, truncate=False)),)},
    "window": {"mechanisms": (Rotary(30.0), Window(4))},
    "windows": {"local": Local((1,), (Rotary(10_000.0), Window(4)))},
    "norms and windows": {
        "local": Local((1,), (HeadNorm(), Rotary(10_000.0), Window(4))),
        "head_width": 10,
        "bias": True,
    },
}
#: Caps and windows that are smaller than the scores, logits and texts of the random models.
CAPPED = (Rotary(30.0), SoftCap(1.5))
OF_DECODERS |= {
    "caps, windows and a scale": {
        "mechanisms": CAPPED, "local": Local((1,), (*CAPPED, Window(4))), "logit_cap": 1.5, "score_scale": 6**-0.5,
        "head_width": 10,
    },
    "both directions": {
        "causal": False, "mechanisms": (ZeroCentredHeadNorm(), Rotary(30.0, scaling=Linear(3.0))),
        "local": Local((0,), (ZeroCentredHeadNorm(), Rotary(10.0), Window(3))), "score_scale": 10**-0.5,
    },
    "no caps": {"mechanisms": (Rotary(30.0),), "local": Local((0,), (Rotary(30.0), Window(4))), "logit_cap": 0.0},
}  # fmt: skip
HEADS += [("gemma2+caps, windows and a scale", "causal-lm"), ("gemma2+no caps", "base")]
HEADS += [("gemma3_text+both directions", "base")]
HEADS += [(f"llama+{name}", "causal-lm") for name in ("wide heads", "every head its own keys", "linear")]
HEADS += [(f"llama+{name}", "base") for name in ("biases", "llama3", "yarn", "yarn, untruncated")]
HEADS += [("mistral+window", "base"), ("qwen2+windows", "causal-lm"), ("qwen3+norms and windows", "causal-lm")]
OF_DECODERS["in sequence"] = {
    "parallel": False, "bias": False, "mechanisms": (PartialRotary(30.0, scaling=Yarn(3.0, 24), columns=4),),
}  # fmt: skip
OF_DECODERS["norms after blocks"] = {"norm_first": False, "final_norm": False, "bias": False, "activation": "gelu"}
OF_DECODERS["partial and window"] = {"mechanisms": (PartialRotary(30.0, columns=4), Window(4))}
HEADS += [("phi3+partial and window", "causal-lm")]
OF_DECODERS["rotation in all layers"] = {"local": None}
OF_DECODERS["no rotation in windows"] = {"local": Local((0,), (Window(4),)), "bias": True}
HEADS += [("smollm3+rotation in all layers", "base"), ("smollm3+no rotation in windows", "causal-lm")]
HEADS += [("olmo2+wide heads", "causal-lm"), ("olmo2+biases", "base")]
OF_DECODERS["scaled after norms"] = {"mechanisms": (RowNorm(), Rotary(30.0, scaling=Yarn(3.0, 24)))}
HEADS += [("olmo2+scaled after norms", "base")]
OF_DECODERS["six heads"] = {"n_heads": 6, "d_model": 48}
HEADS += [("bloom+six heads", "causal-lm")]
OF_DECODERS["wide tokens"] = {"d_embedding": 0}
HEADS += [("gpt_neox+in sequence", "causal-lm"), ("opt+norms after blocks", "causal-lm"), ("opt+wide tokens", "base")]
HEADS += [
    (f"{name}+relu", head)
    for name in ("roberta", "xlm-roberta", "camembert", "mpnet", "electra")
    for head in ("masked-lm", "causal-lm", "replaced-token")
    if (name, head) in HEADS
]
HEADS += [("modernbert+silu head", head) for head in ("masked-lm", "sequence-classification")]
HEADS += [(f"deberta-v2+{name}", "masked-lm") for name in list(OPTIONS)[3:]]
HEADS += [("deberta-v2+positions and segments", head) for head in ("base", "sequence-classification")]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Masks with texts of equal length next to each other, a text of one token, padding before the text, and gaps.
MASK = ["1" * 40, "1" * 40, "1" * 9 + "0" * 31, "1" + "0" * 39, "0" * 30 + "1" * 10, "111011" * 6 + "1111"]
#: A function of family and head that returns a folder written by transformers, and the model in it, in float64.
Saved = Callable[[str, str], tuple[Path, Any]]
#: The error of a float64 run: a few hundred steps, each rounded to 2^-53.
FLOAT64 = 1e-12


def save_as(form: str, model: Any, folder: Path) -> None:
    """Writes a checkpoint as transformers does, in one of DTYPES, or (`form` "bin") pickled, as older versions do."""
    if form == "bin":
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    else:
        model.to(DTYPES[form]).save_pretrained(folder)


#: The padding token for a model whose head finds padding by its id. The token also occurs in texts.
PAD = 7
DECODERS = {name for name, family in encoders().items() if family.constants.get("causal")}


def folder_of(path: Path, family: str, head: str) -> Path:
    name, _, option = family.partition("+")
    fields = {"pad_id": PAD} if name in DECODERS else {}
    return tiny.folder(path, name, head, **fields, **{**OPTIONS, **OF_DECODERS}.get(option, {}))


def given(family: str, head: str) -> dict[str, np.ndarray]:
    mask = np.array([[int(each) for each in row] for row in MASK])
    ids = np.random.default_rng(0).integers(5, len(tiny.VOCABULARY), mask.shape)
    if family.partition("+")[0] in DECODERS:
        ids[mask == 0] = ids[0, -3:] = PAD
    elif head in ("base", *POOLED_HEADS):
        mask[:, 0] = 1  # the first token is not padding, because these heads read it
    arrays = {"input_ids": ids, "attention_mask": mask}
    if OPTIONS.get(family.partition("+")[2], {}).get("n_token_types"):
        arrays["token_type_ids"] = np.random.default_rng(2).integers(0, 2, mask.shape)
    return {name: a.reshape(3, 2, -1) if head == "multiple-choice" else a for name, a in arrays.items()}


def theirs(folder: Path) -> Any:
    """Returns the model of transformers in float64."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    for each in model.modules():
        if hasattr(each, "embed_scale"):  # rounds the scale, as if the model ran in the dtype of its files
            each.embed_scale = each.embed_scale.to(config.dtype)
    return model.double().eval()  # double() also converts the frequencies of rotations


def texts_of(config: Config, ids: np.ndarray, mask: np.ndarray, types: np.ndarray | None) -> list[Text]:
    return unpadded(ids, mask, types, config.uncounted, config.positions.skips_masked)


def answers(model: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    with in_double():
        found = model(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    names = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")
    return {name: found[name] for name in names if name in found and found[name] is not None}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Returns a function that makes each model once, in one of DTYPES."""

    @cache
    def made(family: str, head: str) -> tuple[Path, Any]:
        place = tmp_path_factory.mktemp("model")
        written = theirs(folder_of(place / "written", family, head))
        written.to(dict(zip(HEADS, cycle(DTYPES.values()), strict=False))[family, head]).save_pretrained(
            place / "saved"
        )
        return place / "saved", theirs(place / "saved")

    return made


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_answers_are_torchs(family: str, head: str, saved: Saved) -> None:
    folder, other = saved(family, head)
    model = Model(*load_folder(folder, np.float64), threads=1)
    arrays = given(family, head)
    with torch.no_grad():
        expected = answers(other, arrays)
    ours = model(**arrays)
    assert ours.keys() == expected.keys()
    for name, array in ours.items():
        right = expected[name].numpy()
        if array.shape[:2] == arrays["attention_mask"].shape and head != "multiple-choice" and name != "pooler_output":
            right = right * arrays["attention_mask"].reshape(*array.shape[:2], *[1] * (array.ndim - 2))
        assert np.abs(array - right).max() < FLOAT64 * max(1.0, float(np.abs(right).max())), name


@pytest.mark.parametrize("local", [(0, 1, 3), (0, 1, 2, 3)])
def test_local_layers_at_any_steps(local: tuple[int, ...], tmp_path: Path) -> None:
    folder = tiny.folder(
        tmp_path / "model", "modernbert", "base", n_layers=4, local=Local(local, (Rotary(10_000.0), Window(3)))
    )
    arrays = given("modernbert", "base")
    with torch.no_grad():
        right = answers(theirs(folder), arrays)["last_hidden_state"].numpy() * arrays["attention_mask"][..., None]
    ours = Model(*load_folder(folder, np.float64), threads=1)(**arrays).last_hidden_state
    assert np.abs(ours - right).max() < FLOAT64 * np.abs(right).max()


@pytest.mark.parametrize("name", later_modernbert.CONFIGS)
def test_later_checkpoints_of_modernbert(name: str, tmp_path: Path) -> None:
    folder = later_modernbert.folder(tmp_path / "model", name)
    arrays = given("modernbert", "masked-lm")
    with torch.no_grad():
        right = answers(theirs(folder), arrays)["logits"].numpy() * arrays["attention_mask"][..., None]
    ours = Model(*load_folder(folder, np.float64), threads=1)(**arrays).logits
    assert np.abs(ours - right).max() < FLOAT64 * np.abs(right).max()


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_gradients_are_torchs(family: str, head: str, saved: Saved) -> None:
    """Compares the gradients of the sum of all answers, each multiplied by a random number."""
    (folder, model), arrays, random = saved(family, head), given(family, head), np.random.default_rng(1)
    model.zero_grad()
    config, tree = load_folder(folder, np.float64)
    mask = arrays["attention_mask"].reshape(-1, arrays["attention_mask"].shape[-1]).astype(bool)
    types = arrays["token_type_ids"].reshape(mask.shape) if "token_type_ids" in arrays else None
    batch = packed(config, texts_of(config, arrays["input_ids"].reshape(mask.shape), mask, types))
    recording = Recording()
    with listen(recording):
        ours = forward(tree, parts_of(config), batch)
    grads = {name: random.standard_normal(array.shape) for name, array in ours.items()}
    loss = torch.zeros((), dtype=torch.float64)
    for name, answer in answers(model, arrays).items():
        per_token = answer.shape[: arrays["attention_mask"].ndim] == arrays["attention_mask"].shape
        if head == "multiple-choice" or not per_token or name == "pooler_output":
            loss = loss + (answer * torch.from_numpy(grads[name].reshape(answer.shape))).sum()
        else:
            loss = loss + (answer[torch.from_numpy(mask)] * torch.from_numpy(grads[name])).sum()
    loss.backward()
    assert_grads(model, config, backward(grads, recording.stages, tree, parts_of(config), batch))


@pytest.mark.parametrize("family", [name for name, head in HEADS if head == "causal-lm"])
def test_the_loss_of_the_next_tokens_and_its_gradients_are_torchs(family: str, saved: Saved) -> None:
    """Transformers shifts the labels itself. If a label is -100, the token before it has no target."""
    (folder, model), arrays = saved(family, "causal-lm"), given(family, "causal-lm")
    model.zero_grad()
    config, tree = load_folder(folder, np.float64)
    mask = arrays["attention_mask"].astype(bool)
    labels = np.where(mask, arrays["input_ids"], -100)
    labels[0, 3:9] = -100
    wanted = np.concatenate([labels[:, 1:], np.full_like(labels[:, :1], -100)], axis=1)
    texts = texts_of(config, arrays["input_ids"], mask, None)
    objective = HeadLoss(config)
    examples = [Example(*each) for each in zip(texts, (w[m] for w, m in zip(wanted, mask, strict=True)), strict=True)]
    # Where a gap hides the token before a target, Transformers would still read its logits.
    labels[:, 1:][~mask[:, :-1]] = -100
    count = sum(map(objective.count, examples))
    with in_double():
        answer = model(**{name: torch.from_numpy(a) for name, a in arrays.items()}, labels=torch.from_numpy(labels))
    rows, after = answer.logits[:, :-1].flatten(0, 1), torch.from_numpy(labels[:, 1:]).flatten()
    loss = torch.nn.functional.cross_entropy(rows, after)
    assert abs(loss - answer.loss) < 1e-6  # transformers always computes the loss in float32
    loss.backward()
    part = objective.part(tree, examples, count, None)
    assert abs(part.loss - loss.item()) < FLOAT64 * loss.item()
    assert_grads(model, config, part.tree)


def assert_grads(model: Any, config: Config, ours: dict[str, Any]) -> None:
    """Compares npformer's gradients with torch's gradients, which are stored in the model's parameters."""
    parameters = dict(model.named_parameters(remove_duplicate=False))  # tied parameters have several names
    named = {name: each.grad.numpy() for name, each in parameters.items() if each.grad is not None}
    expected = layout.flatten(layout.to_tree({**state(model), **named}, config, np.float64))
    found = layout.flatten(ours)
    tied = ties(config)
    total = {name: dense(array, expected[name].shape) for name, array in found.items()}
    for name, table in tied.items():
        grad = total.pop(name)
        # only the projection is transposed, not the weights that layers share
        total[table] = total[table] + (grad.T if name == PROJECTION else grad)
    assert total.keys() == expected.keys() - tied.keys()
    for name, grad in total.items():
        assert np.abs(grad - expected[name]).max() < FLOAT64 * max(1.0, float(np.abs(expected[name]).max())), name


def state(model: Any) -> dict[str, np.ndarray]:
    """Returns zeros for every parameter; they remain for parameters on which no answer depends."""
    return {name: np.zeros(tuple(each.shape)) for name, each in model.named_parameters(remove_duplicate=False)}


def dense(grad: Any, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(grad, SparseRows):
        return grad
    whole = np.zeros(shape)
    whole[grad.ids] = grad.values
    return whole


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_a_conversion_round_trip_keeps_every_bit(family: str, head: str, saved: Saved, tmp_path: Path) -> None:
    folder, _ = saved(family, head)
    there = convert(folder, tmp_path / "there", to="npformer")
    back = convert(there, tmp_path / "back", to="torch")
    first, last = (read_tensors(each / "model.safetensors")[0] for each in (folder, back))
    assert first.keys() == last.keys()
    assert all(np.array_equal(first[name], last[name]) for name in first)
    model = transformers.AutoConfig.from_pretrained(back)
    assert model.architectures == [family_of(load_folder(back)[0]).architecture(load_folder(back)[0])]
