"""Another program's arrays are read in unusual layouts, and maps of names are checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npformer import golden
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.interpret.edits import edit
from npformer.model import Model
from tests.golden.conftest import texts_for
from tests.golden.test_compare import padded
from tests.support import tiny

pytestmark = pytest.mark.numbers


def before(arrays: list[np.ndarray], width: int = 9) -> np.ndarray:
    """A batch with padding before the texts, on every axis of tokens."""
    whole = padded(arrays, width, 7.0)
    for each, array in zip(whole, arrays, strict=True):
        axes = tuple(axis for axis in range(array.ndim) if each.shape[axis] > array.shape[axis])
        each[...] = np.roll(each, [each.shape[axis] - array.shape[axis] for axis in axes], axes)
    return whole


def test_texts_may_be_padded_on_the_left(model: Model, recorded: golden.Golden) -> None:
    """Padding before the texts is no mistake if every stage is right without it."""
    arrays = {name: before(each) for name, each in recorded.stages.items() if name != "logits"}
    arrays["input_ids"] = np.stack([np.pad(text.ids, (9 - len(text), 0)) for text in recorded.texts])
    assert golden.compare(recorded, arrays).ok
    arrays["layers.1.ffn.activation"] = np.tanh(before(recorded.stages["layers.1.ffn.hidden"]))
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert (diagnosis.stage, diagnosis.causes) == ("layers.1.ffn.activation", ["wrong activation"])


def test_one_text_may_have_its_tokens_before_the_heads(recorded: golden.Golden) -> None:
    name = "layers.0.attention.query_heads"
    arrays = {f"{i}/{name}": array.swapaxes(0, 1) for i, array in enumerate(recorded.stages[name])}
    assert golden.compare(recorded, arrays).ok


# --- transposed scores and weights ---------------------------------------------------------------------------------

MAPS = ("attention.scores", "attention.weights")


def transposed(stages: dict[str, list[np.ndarray]], ends: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
    return {
        name: [array.swapaxes(1, 2) for array in arrays] if name.endswith(ends) else arrays
        for name, arrays in stages.items()
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bits", [0x7F800000, 0x7FC00000, 0x7FA00000], ids=["inf", "nan", "signaling nan"])
def test_scores_that_are_not_finite_are_not_taken_for_transposed(recorded: golden.Golden, bits: int) -> None:
    """Subtracting a signaling NaN, which a damaged file may contain, would make NumPy print a warning."""
    name = "layers.0.attention.scores"
    arrays = {name: [np.full(array.shape, bits, np.uint32).view(np.float32) for array in recorded.truth[name]]}
    comparison = golden.compare(recorded, arrays)
    assert comparison.first is not None
    assert comparison.first.stage == name
    assert comparison.theirs.notes == []


@pytest.mark.parametrize("ends", [MAPS, MAPS[:1], MAPS[1:]], ids=["both", "scores", "weights"])
def test_transposed_scores_and_weights_of_a_right_port_are_read(recorded: golden.Golden, ends: tuple[str, ...]) -> None:
    comparison = golden.compare(recorded, transposed(recorded.stages, ends))
    assert comparison.ok, str(comparison)
    names = ", ".join(f"layers.*.{end}" for end in ends)
    assert comparison.theirs.notes == [f"read as (keys, queries), because your dump is transposed: {names}"]
    assert comparison.theirs.notes[0] in " ".join(str(comparison).split())


def of_port(model: Model, recorded: golden.Golden, rules: dict[str, Callable]) -> dict[str, list[np.ndarray]]:
    with edit(rules):
        return golden.record(model, recorded.texts).stages


@pytest.mark.parametrize("few", [("",), MAPS, MAPS[:1]], ids=["every stage", "both", "scores"])
def test_products_of_keys_and_queries_are_no_layout(
    model: Model, recorded: golden.Golden, few: tuple[str, ...]
) -> None:
    stages = of_port(model, recorded, {"*.attention.scores": lambda scores: scores.swapaxes(-1, -2)})
    diagnosis = golden.diagnose(recorded, {name: each for name, each in stages.items() if name.endswith(few)}, model)
    assert (diagnosis.stage, diagnosis.causes[0]) == ("layers.0.attention.scores", "query and key swapped")
    assert not diagnosis.notes


def test_a_transposed_dump_is_read_after_an_earlier_mistake_too(model: Model, recorded: golden.Golden) -> None:
    first = "embeddings.norm" if "embeddings.norm" in recorded.stages else "embeddings.sum"
    diagnosis = golden.diagnose(recorded, transposed(of_port(model, recorded, {first: lambda x: x * 1.5}), MAPS), model)
    assert (diagnosis.stage, diagnosis.causes[0], diagnosis.then) == (first, "scaled by a constant", [])
    assert diagnosis.notes[0] in str(diagnosis)


# --- a padded vocabulary ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "head"), [("bert", "masked-lm"), ("gpt2", "causal-lm")])
def test_logits_of_a_padded_vocabulary_are_compared_without_the_padding(family: str, head: str) -> None:
    model = tiny.model(family, head)
    recorded = golden.record(model, texts_for(model), "logits")
    size = model.config.vocab_size
    wide = {"logits": [np.pad(array, ((0, 0), (0, 7))) for array in recorded.stages["logits"]]}
    comparison = golden.compare(recorded, wide)
    assert comparison.ok, str(comparison)
    assert comparison.theirs.notes == [
        f"logits: {size + 7} columns, of which the first {size} are compared; the rest is padding"
    ]
    moved = {"logits": [np.roll(array, 1, axis=1) for array in wide["logits"]]}
    assert golden.compare(recorded, moved).first.stage == "logits"
    short = {"logits": [array[:, 1:] for array in recorded.stages["logits"]]}
    assert "expected" in golden.compare(recorded, short).first.problem


def test_labels_are_not_padded() -> None:
    model = tiny.model("bert")
    recorded = golden.record(model, texts_for(model), "logits")
    assert golden.compare(recorded, {"logits": [np.pad(a, (0, 1)) for a in recorded.stages["logits"]]}).first.problem


def test_two_names_of_one_stage_are_an_error(recorded: golden.Golden) -> None:
    """Otherwise the second array would replace the first, which would then not be compared."""
    name, given = "layers.0.attention.query", recorded.stages["layers.0.attention.query"][0]
    with pytest.raises(NpformerError, match=f"name map: '0/q' and '0/k' are both mapped to {name}"):
        golden.compare(recorded, {"0/q": given, "0/k": given}, {"q": name, "k": name})


def test_a_folder_of_npy_files_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded, folder = (
        golden.load(golden.tiny(tmp_path / "tiny", "distilbert") / "golden.safetensors"),
        tmp_path / "npy",
    )
    for i in range(len(recorded.texts)):
        (folder / str(i)).mkdir(parents=True)
        for name, arrays in recorded.stages.items():
            np.save(folder / str(i) / f"{name}.npy", arrays[i])
    command = ["golden", "compare", str(tmp_path / "tiny" / "golden.safetensors"), str(folder)]
    assert main(command) == 0
    assert f"no stage diverges: all {len(recorded.stages)}" in capsys.readouterr().out
    np.save(folder / "0" / "logits.npy", np.array([{"an": "object"}]), allow_pickle=True)
    assert main(command) == 1
    assert "logits.npy: not a readable npy file" in capsys.readouterr().err
    (folder / "0" / "a.npy").symlink_to("nothing")
    assert main(command) == 1
    assert f"{folder}/0/a.npy: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(("order", "wrong"), [("repeat", False), ("tile", False), ("repeat", True)])
def test_heads_of_keys_may_be_repeated_for_the_queries(order: str, wrong: bool) -> None:
    decoder = tiny.model("llama", "causal-lm")
    reference = golden.record(decoder, texts_for(decoder))
    times = decoder.config.n_heads // decoder.config.kv_heads
    arrays = dict(reference.stages)
    for name in [each for each in arrays if each.endswith(("key_heads", "value_heads"))]:
        heads = [1.5 * each if wrong and "key" in name else each for each in arrays[name]]
        arrays[name] = [each.repeat(times, 0) if order == "repeat" else np.tile(each, (times, 1, 1)) for each in heads]
    comparison = golden.compare(reference, arrays)
    assert comparison.first is None if not wrong else comparison.first.stage == "layers.0.attention.key_heads"
    random = np.random.default_rng(0)
    name = "layers.0.attention.key_heads"
    arrays[name] = [each + random.normal(size=each.shape) for each in arrays[name]]
    first = golden.compare(reference, arrays).first
    assert first is not None
    assert first.problem.startswith("expected (2, ")  # the heads of a group differ


def test_equal_keys_of_neighbouring_tokens_are_not_taken_for_repeated_heads() -> None:
    """The text has as many tokens as the model has heads, and each token occurs twice in a row."""
    decoder = tiny.model("llama", "causal-lm")
    reference = golden.record(decoder, [Text(np.repeat([7, 9], decoder.config.n_heads // 2))])
    assert golden.compare(reference, dict(reference.stages)).ok
