"""Every stage of every family, head and option compared with torch, and the bundled checkpoint on forty texts.

In float32, a stage's error may be at most twice torch's error, which is measured over several orders of summation
(`torch_values.over_budget` explains why). In float64, a stage equals torch's, except for the order of summation.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from npformer.checkpoint import flatten, load_folder
from npformer.engine.blocks import Attention, Convolution, CrossAttention, FeedForward, Gated, Normed
from npformer.engine.mechanisms import Causal, Disentangled, HeadNorm, RelativeBias, Rotary, RowNorm, SoftCap, Window
from npformer.engine.norms.layernorm import LayerNorm
from npformer.engine.norms.root_mean_square import RMSNorm
from npformer.engine.output_heads.capped_logits import CappedLogits
from npformer.engine.runtime.packing import Text
from npformer.engine.runtime.padding import unpadded
from npformer.engine.taps import listen
from npformer.families import distinct_encoders, encoders
from npformer.families.bart import BART
from npformer.families.t5 import T5
from npformer.golden.forward import Forward
from npformer.golden.mistake import Mistake
from npformer.golden.mistakes import ANYWHERE, of_model
from npformer.golden.mistakes.parts import of_class
from npformer.golden.mistakes.parts.root_mean_square import MISUSED
from npformer.golden.port import Port
from npformer.interpret import stages
from npformer.interpret.text_parts import is_input
from npformer.model import Model
from tests.golden.texts import TEXTS
from tests.support import torch_values
from tests.support.bits import alike

pytestmark = pytest.mark.numbers

# Two float64 runs sum in different orders, so each of several hundred steps differs by a few units of 2^-53.
FLOAT64 = 1e-13
BUNDLED = Path(__file__).parent.parent / "weights" / "distilbert-sst2"
PER_TOKEN_HEADS = ("base", "token-classification", "question-answering", "masked-lm", "causal-lm", "replaced-token")


@cache
def load(folder: Path, dtype: str) -> Model:
    return Model(*load_folder(folder, dtype), folder=folder)


def heard(model: Model, *args: object, **kwargs: object) -> dict[str, list[np.ndarray]]:
    """Returns every stage of model(...) except inputs, each as a list of its arrays, one per call of `tap`."""
    found: dict[str, list[np.ndarray]] = {}

    def hear(name: str, array: np.ndarray) -> np.ndarray:
        if not is_input(name):
            found.setdefault(name, []).append(array)
        return array

    with listen(hear):
        model(*args, **kwargs)
    return found


@cache
def stages_of(case: str, dtype: str) -> dict[str, list[np.ndarray]]:
    """Returns the stages of a case's model on the case's inputs."""
    return heard(load(torch_values.DATA / case, dtype), **torch_values.inputs(case))


def flat(fired: list[np.ndarray]) -> np.ndarray:
    """Joins the arrays of a stage in the order of golden stages, text by text."""
    return np.concatenate([array.ravel() for array in fired])


# --- tiny models of every family, head and option --------------------------------------------------------------------


@pytest.mark.parametrize("case", torch_values.CASES)
def test_stages_have_torchs_names(case: str) -> None:
    """A run has every stage that is stored for its case, and each stage of a run is stored for a case of its family."""
    model = load(torch_values.DATA / case, "float32")
    found = stages_of(case, "float32").keys()
    family = [each for each in torch_values.CASES if each.startswith(f"{model.config.model_type}-")]
    assert torch_values.stages(case, "float64").keys() <= found
    assert found <= set().union(*(torch_values.stages(each, "float64") for each in family))


@pytest.mark.parametrize("case", torch_values.CASES)
def test_stages_in_float32(case: str) -> None:
    torch32, truth = torch_values.stages(case, "float32"), torch_values.stages(case, "float64")
    found = stages_of(case, "float32")
    errors = torch_values.errors(case)
    wrong = {
        name: torch_values.over_budget(flat(found[name]), torch32[name], truth[name], errors[name]) for name in truth
    }
    assert {name: line for name, line in wrong.items() if line} == {}
    assert {array.dtype for arrays in found.values() for array in arrays} == {np.dtype("float32")}


@pytest.mark.parametrize("case", torch_values.CASES)
def test_stages_in_float64(case: str) -> None:
    found, truth = stages_of(case, "float64"), torch_values.stages(case, "float64")
    wrong = {name: np.abs(flat(found[name]) - truth[name]).max() / np.abs(truth[name]).max() for name in truth}
    assert {name: error for name, error in wrong.items() if error > FLOAT64} == {}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", torch_values.CASES)
def test_answers_without_a_listener(case: str, dtype: str) -> None:
    """A call without a listener skips rows that the head does not read, but has the same bits as a call with one."""
    model, given = load(torch_values.DATA / case, dtype), torch_values.inputs(case)
    answer, found = model(**given), stages_of(case, dtype)
    mask = given["attention_mask"].astype(bool)
    stages = {"last_hidden_state": f"layers.{model.config.n_layers - 1}.ffn_norm", "pooler_output": "pooled"}
    assert answer
    for name, array in answer.items():
        assert array.dtype == dtype
        if model.config.head in PER_TOKEN_HEADS and name != "pooler_output":
            assert array.shape[:2] == mask.shape
            assert not array[~mask].any()
            array = array[mask]
        last = "norm" if "norm" in found and name == "last_hidden_state" else stages.get(name, name)
        assert alike(array.ravel(), flat(found[last]))


#: Mistakes that no case shows: torch's stages end with the logits, so probabilities are not compared, and scaling the
#: query too early changes only the query itself.
UNSEEN = {"wrong probabilities", "query scaled already"}
#: Mistakes found from the port's own arrays, which this test does not record: tests/golden/test_mistakes*.py.
UNSEEN |= {
    "texts in the wrong order",
    "positions from the wrong rule",
    "head without the last norm",
    "the wrong layers are local",
}
#: Mistakes of decoders and of the convolution: tests/golden/test_decoder_mistakes.py and
#: tests/oracle/test_relative_mistakes.py.
UNSEEN |= {each.name for part in (CrossAttention, Convolution) for each in of_class(part)}
UNSEEN |= {"decoder input not shifted", "wrong start token"}
UNSEEN |= {"sines and cosines in the wrong order", "positions from the wrong formula"}
#: Mistakes of T5 alone: tests/golden/test_t5_mistakes.py.
UNSEEN |= {
    "relative bias in attention to the source",
    "relative bias of the other stack",
    "scores divided by sqrt(d_head)",
}
OF_GPT2 = {
    "masked scores not low enough",
    "post-norm instead of pre-norm",
    "causal mask left out",
    "causal mask off by one",
    "causal mask misused",
}
OF_ONE_CASE = {**dict.fromkeys(OF_GPT2, ("gpt2-base",)), "head in the wrong order": ("bert-masked-lm",)}
OF_ONE_CASE["norm before a block, not after it"] = ("olmo2-causal-lm",)
GROUPED = "grouped heads paired wrongly"
OF_PARTS = [each for part in (LayerNorm, Attention, FeedForward, Causal) for each in of_class(part)]
OF_FEW = [each for part in (RelativeBias, Rotary, Window, Disentangled, Gated, RMSNorm) for each in of_class(part)]
OF_FEW += [each for part in (SoftCap, HeadNorm, Normed, CappedLogits) for each in of_class(part)] + [MISUSED]
OF_FEW += [each for each in of_class(RowNorm) if each not in of_class(HeadNorm)]
OF_FEW = [each for each in OF_FEW if each not in OF_PARTS]
OF_FEW += [each for each in OF_PARTS if each.name == GROUPED]
OF_PARTS = [each for each in OF_PARTS if each.name != GROUPED]
#: The only cases that show the mistakes in OF_FEW.
RELATIVE = ("mpnet-base", "modernbert-base", "deberta-v2-base", "llama-base", "gemma2-causal-lm", "gemma3_text-base")
RELATIVE += ("olmo2-causal-lm",)
PLANTED_IN = ("distilbert-base", "bert-base", "bert-gelu-new", "distilbert-sequence-classification", "bert-pooler")


class Planted(NamedTuple):
    """A case in which mistakes are planted: its forward pass, a port without mistakes, and its float32 stages."""

    run: Forward
    port: Port
    right: dict[str, list[np.ndarray]]
    torch32: dict[str, np.ndarray]
    truth: dict[str, np.ndarray]
    errors: dict[str, float]


@cache
def planted_in(case: str) -> Planted:
    model, given = load(torch_values.DATA / case, "float32"), torch_values.inputs(case)
    token_type_ids = given.get("token_type_ids", np.zeros_like(given["input_ids"]))
    mask = given["attention_mask"].astype(bool)
    positions = model.config.positions
    texts = unpadded(given["input_ids"], mask, token_type_ids, model.config.uncounted, positions.skips_masked)
    weights, names = flatten(dict(model.weights)), tuple(stages.names(model.config))
    torch32, truth = torch_values.stages(case, "float32"), torch_values.stages(case, "float64")
    lengths, run = tuple(map(len, texts)), Forward({}, weights)
    stage = "logits" if "logits" in truth else ""
    port = Port(
        model.config, weights, texts, stage, [], frozenset(names), (max(lengths),) * len(lengths), lengths, known=names
    )
    return Planted(run, port, run(port, dtype=np.float32), torch32, truth, torch_values.errors(case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake", [each for each in (*OF_PARTS, *OF_FEW, *ANYWHERE) if each.name not in UNSEEN], ids=lambda m: m.name
)
def test_budgets_are_tight_enough_to_detect_every_mistake(mistake: Mistake) -> None:
    """Plants each known mistake of ports in float32: in each case, the first variant that changes any stage."""
    planted = 0
    cases = RELATIVE if mistake in OF_FEW else PLANTED_IN
    for case in OF_ONE_CASE.get(mistake.name, cases):
        run, port, right, torch32, truth, errors = planted_in(case)
        for _, wrong in mistake.ways(port) if mistake in of_model(port.config) else ():
            if not wrong.possible:
                continue
            found = run(wrong, dtype=np.float32)
            if any(not np.array_equal(flat(found[name]), flat(right[name])) for name in truth):
                over = torch_values.over_budget
                assert any(over(flat(found[n]), torch32[n], truth[n], errors[n]) for n in truth), case
                planted += 1
                break
    assert planted


#: Families with cases for only some heads -> these heads. tests/oracle/test_heads.py compares the others.
FEW_HEADS = {"albert": {"base", "sequence-classification"}, "nomic_bert": {"base", "masked-lm"}}
FEW_HEADS |= {
    "gemma2": {"causal-lm"},
    "gpt_neox": {"causal-lm"},
    "opt": {"causal-lm"},
    "phi3": {"base"},
    "smollm3": {"causal-lm"},
    "olmo2": {"causal-lm"},
    "bloom": {"causal-lm"},
}
FEW_HEADS["electra"] = set(encoders()["electra"].heads) - {"causal-lm"}
FEW_HEADS |= {"bart": set(BART.architectures.values()) - {"translation", "causal-lm"}, "t5": {"question-answering"}}


def test_every_family_head_and_option_has_a_case() -> None:
    """tests/generation compares BART's generation; tests/oracle compares its decoder alone, and T5's other heads."""
    configs = [load(torch_values.DATA / case, "float32").config for case in torch_values.CASES]
    for name, family in {**distinct_encoders(), "bart": BART, "t5": T5}.items():
        heads = {config.head for config in configs if config.model_type == name}
        assert heads == (FEW_HEADS.get(name) or set(family.architectures.values()))
    assert {config.convolution and config.convolution.width for config in configs} == {None, 3}
    assert {config.activation for config in configs} == {"gelu", "gelu_tanh", "relu", "silu"}
    for head in ("masked-lm", "causal-lm"):
        assert {config.tied for config in configs if config.head == head} == {True, False}


# --- the bundled checkpoint on the forty texts -----------------------------------------------------------------------

# Torch ran the texts in two batches, one of which has only single sentences. The error for a single text depends on
# chance, because its largest numbers are a few outliers of a trained model. So errors are measured over a batch.
GROUPS = [range(24), range(24, 40)]


@cache
def bundled() -> dict[str, np.ndarray]:
    return torch_values.arrays("distilbert-sst2.safetensors")


def bundled_texts() -> list[Text]:
    return [Text(ids) for ids in np.split(bundled()["ids"], np.cumsum(bundled()["lengths"])[:-1])]


@cache
def bundled_run(index: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Returns the stages of one text: summaries of the float64 run as in golden/make.py, and errors of the float32 run.

    Only summaries are kept, because the arrays of a long text need half a gigabyte.
    """
    truth: dict[str, np.ndarray] = {}
    errors: dict[str, float] = {}

    def keep(name: str, array: np.ndarray) -> np.ndarray:
        truth[name] = array.ravel()
        return array

    def compare(name: str, array: np.ndarray) -> np.ndarray:
        errors[name] = float(np.abs(array.ravel() - truth[name]).max())
        return array

    for dtype, listener in (("float64", keep), ("float32", compare)):
        with listen(listener):
            load(BUNDLED, dtype).run([bundled_texts()[index]])
    return {name: np.array(summary(truth[name])) for name in torch_values.below(bundled(), "summary")}, errors


def summary(stage: np.ndarray) -> tuple[float, float, float]:
    """Returns the largest magnitude, the sum of magnitudes, and a checksum that depends on the order of entries."""
    return (
        float(np.abs(stage).max()),
        float(np.abs(stage).sum()),
        float(stage @ np.cos(np.arange(stage.size, dtype=float))),
    )


def test_bundled_ids() -> None:
    """The token ids equal those of transformers, truncated at 512."""
    tokenizer = load(BUNDLED, "float32").tokenizer
    for given, text in zip(TEXTS, bundled_texts(), strict=True):
        ids = tokenizer.encode(*given if isinstance(given, tuple) else (given,)).ids
        assert ids[: len(text)][:-1] == text.ids[:-1].tolist(), given
        assert len(ids) == len(text) or len(text) == 512


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(TEXTS)))
def test_bundled_stages_in_float64(index: int) -> None:
    """Each stage has torch's largest magnitude, sum of magnitudes and checksum."""
    for name, (_, largest, total, checksum) in (
        (n, s[index]) for n, s in torch_values.below(bundled(), "summary").items()
    ):
        gaps = np.abs(bundled_run(index)[0][name] - (largest, total, checksum))
        assert (gaps <= FLOAT64 * np.array([largest, total, total])).all(), name


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_bundled_stages_in_float32(group: range) -> None:
    wrong = {}
    for name, theirs in torch_values.below(bundled(), "summary").items():
        error, torchs, largest = (
            max(bundled_run(i)[1][name] for i in group),
            torch_values.below(bundled(), "error")[name][GROUPS.index(group)].max(),
            theirs[group, 1].max(),
        )
        if error > 2 * torchs + torch_values.ulp(largest):
            wrong[name] = f"error {error:.3g}, torch's {torchs:.3g}"
    assert wrong == {}


def test_bundled_answers() -> None:
    """In a batch of all texts, logits and labels equal torch's in float32 and float64."""
    torch32, truth = bundled()["float32/logits"], bundled()["float64/logits"]
    for dtype in ("float32", "float64"):
        logits = np.stack([answer["logits"] for answer in load(BUNDLED, dtype).run(bundled_texts())])
        assert np.array_equal(logits.argmax(axis=-1), truth.argmax(axis=-1))
        if dtype == "float64":
            assert np.abs(logits - truth).max() <= FLOAT64 * np.abs(truth).max()
        else:
            error = torch_values.below(bundled(), "error")["logits"].max()
            assert torch_values.over_budget(logits, torch32, truth, error) == ""


def test_bundled_scores_of_two_texts() -> None:
    """The scores equal the checkpoint's published figures, to as many digits as were published."""
    index = [TEXTS.index("I love ice cream"), TEXTS.index("I hate ice cream")]
    logits = [load(BUNDLED, "float32").run([bundled_texts()[i]])[0]["logits"] for i in index]
    assert np.round(logits, 4).tolist() == pytest.approx(np.array([[-3.4548, 3.8881], [2.6480, -2.6717]]), abs=1.01e-4)
