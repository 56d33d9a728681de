"""A port may write the stages of only some of the golden file's texts, and pad each text separately."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npformer import golden
from npformer.common.errors import NpformerError
from npformer.engine.runtime.packing import Text
from npformer.interpret.edits import edit
from npformer.interpret.traces import trace
from npformer.model import Model
from tests.golden.conftest import texts_for
from tests.golden.test_t5_mistakes import reference as t5
from tests.support import tiny

pytestmark = pytest.mark.numbers

Arrays = dict[str, Any]


def written(model: Model, text: Text, name: str = "{}", batch: bool = False) -> Arrays:
    """The stages of one text, as a port would write them."""
    return {name.format(stage): array[None] if batch else array for stage, array in trace(model, text).items()}


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("named", "batch"), [("{number}/{{}}", False), ("{{}}", False), ("{{}}", True)])
def test_one_text_of_several_is_compared(
    model: Model, recorded: golden.Golden, number: int, named: str, batch: bool
) -> None:
    arrays = written(model, recorded.texts[number], named.format(number=number), batch)
    comparison = golden.compare(recorded, arrays)
    assert comparison.passes, str(comparison)
    assert len(comparison.rows) == len(recorded.stages)
    assert f"only text {number} of 3 compared" in str(comparison)
    with edit({"layers.1.attention.scores": lambda array: array * np.float32(8**0.5)}):
        arrays = written(model, recorded.texts[number], named.format(number=number), batch)
    assert golden.diagnose(recorded, arrays, model).causes == ["unscaled scores"]


def test_an_array_that_may_belong_to_several_texts_is_refused() -> None:
    model = tiny.model()
    recorded = golden.record(model, texts_for(model, (6, 6, 3)))
    for i, right in enumerate(recorded.stages["logits"]):
        assert golden.compare(recorded, {"logits": right}).golden.texts[0] is recorded.texts[i]
    with pytest.raises(NpformerError, match=r"logits: its shape fits texts 0 and 1 and 2, .* 0/logits"):
        golden.compare(recorded, {"logits": recorded.stages["logits"][0] + 1})
    ids = {"input_ids": recorded.texts[1].ids}
    comparison = golden.compare(recorded, {"logits": recorded.stages["logits"][1] + 1} | ids)
    assert comparison.golden.texts == recorded.texts[1:2]
    assert not comparison.ok
    with pytest.raises(NpformerError, match="expected the golden file's token ids"):
        golden.compare(recorded, {"logits": recorded.stages["logits"][1], "input_ids": recorded.texts[1].ids + 1})


@pytest.mark.parametrize("padding", [0, 4])
def test_rows_after_the_end_of_a_shorter_text_are_no_padding(padding: int) -> None:
    """The file's second text is the beginning of the first, and the port is wrong only in rows that are not in both."""
    model = tiny.model("llama", "causal-lm")
    text = texts_for(model, (9,))[0]
    recorded = golden.record(model, [text, replace(text, ids=text.ids[:6])])
    with edit({"layers.0.attention.output": lambda array: np.concatenate([array[:7], 0 * array[7:]])}):
        found = trace(model, text)
    arrays = {
        name: np.pad(array, [(0, padding if size == 9 else 0) for size in array.shape])
        for name, array in found.items()
    }  # fmt: skip
    comparison = golden.compare(recorded, arrays)
    assert "only text 0 of 2 compared" in str(comparison)
    assert comparison.first.stage == "layers.0.attention.output"


def test_a_text_that_lacks_a_token_is_no_shorter_text_with_padding(model: Model, recorded: golden.Golden) -> None:
    """The port reads 8 of a text's 9 tokens, and its arrays also fit the text of 6 tokens with 2 tokens of padding."""
    short = replace(recorded.texts[0], ids=recorded.texts[0].ids[:-1])
    diagnosis = golden.diagnose(recorded, written(model, short), model)
    assert (diagnosis.stage, diagnosis.causes) == ("embeddings.token", [])
    assert "expected (9, " in diagnosis.problem


@pytest.mark.parametrize("batch", [False, True])
def test_a_source_without_its_end_token_is_the_cause(batch: bool) -> None:
    """The decoder's attention to the source diverges, too, but its computation is correct."""
    model, recorded = t5()
    arrays = Arrays()
    for i, (source, target) in enumerate(zip(recorded.sources, recorded.texts, strict=True)):
        found = trace(model, [(replace(source, ids=source.ids[:-1]), target)])
        arrays |= {f"{i}/{stage}": found.texts(stage)[0] for stage in found}
    if batch:
        arrays = in_batch(arrays)
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert (diagnosis.stage, diagnosis.causes, diagnosis.then) == ("encoder.embeddings.token", [], [])
    assert "the port reads 16 tokens of source 0, which has 17 tokens, of which the last is '1'" in str(diagnosis)


def in_batch(arrays: Arrays) -> Arrays:
    """Arrays i/STAGE as batches, padded with zeros."""
    batches = Arrays()
    for stage in [name.removeprefix("0/") for name in arrays if name.startswith("0/")]:
        each = [array for name, array in arrays.items() if name.partition("/")[2] == stage]
        shape = np.max([array.shape for array in each], axis=0)
        rooms = [[(0, whole - size) for whole, size in zip(shape, array.shape, strict=True)] for array in each]
        batches[stage] = np.stack([np.pad(array, room) for array, room in zip(each, rooms, strict=True)])
    return batches


def test_a_layout_that_cannot_be_read_does_not_hide_a_later_mistake() -> None:
    """The stages after the unreadable stage are correct, so that stage is correct, too."""
    model = tiny.model()
    recorded = golden.record(model, texts_for(model))
    with edit({"layers.1.attention.scores": lambda array: array * np.float32(8**0.5)}):
        found = trace(model, recorded.texts)
    arrays = {f"{i}/{stage}": array for stage in found for i, array in enumerate(found.texts(stage))}
    for i in range(3):
        arrays[f"{i}/layers.0.attention.query_heads"] = arrays[f"{i}/layers.0.attention.query_heads"].T[:5]
    assert golden.compare(recorded, arrays).first.stage == "layers.0.attention.query_heads"
    assert golden.diagnose(recorded, arrays, model).causes == ["unscaled scores"]


# --- each text with its own padding ----------------------------------------------------------------------------------


def padded(text: Text, width: int, left: bool) -> Text:
    room = (width - len(text), 0) if left else (0, width - len(text))
    return replace(text, ids=np.pad(text.ids, room))


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("widths", [(12, 12, 12), (16, 8, 8)], ids=str)
def test_texts_padded_one_by_one_are_read_as_in_a_batch(widths: tuple[int, ...], left: bool) -> None:
    """The port does not mask padding. The diagnosis is the same as for a padded batch."""
    model = tiny.model("bert")
    recorded = golden.record(model, texts_for(model))
    arrays = Arrays()
    for i, (text, width) in enumerate(zip(recorded.texts, widths, strict=True)):
        arrays |= written(model, padded(text, width, left), f"{i}/{{}}")
    diagnosis = golden.diagnose(recorded, arrays, model)
    assert diagnosis.mistake == ("left padding" if left else "mask ignored"), str(diagnosis)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_right_texts_with_padding_pass(model: Model, recorded: golden.Golden, left: bool) -> None:
    """The rows of padding are arbitrary."""
    arrays = Arrays()
    for i, text in enumerate(recorded.texts):
        for stage, array in trace(model, text).items():
            room = [((3, 0) if left else (0, 3)) if size == len(text) else (0, 0) for size in array.shape]
            arrays[f"{i}/{stage}"] = np.pad(array, room, constant_values=7.0)
    comparison = golden.compare(recorded, arrays)
    assert comparison.passes, str(comparison)


# --- Gemma's embeddings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("ran_in", ["float32", "bfloat16"])
def test_either_rounding_of_gemma_s_scale_is_right_for_a_16_bit_checkpoint(family: str, ran_in: str) -> None:
    """Transformers rounds sqrt(D) to the dtype in which it runs the model."""
    model = tiny.model(family, "causal-lm", scale_dtype="bfloat16")
    recorded = golden.record(model, texts_for(model))
    port = Model(replace(model.config, scale_dtype=ran_in), model.weights)
    arrays = {
        f"{i}/{name}": array for i, text in enumerate(recorded.texts) for name, array in trace(port, text).items()
    }
    comparison = golden.compare(recorded, arrays)
    assert comparison.passes, str(comparison)
    assert ("not rounded to bfloat16" in str(comparison)) == (ran_in == "float32")
    with edit({"layers.0.attention.scores": lambda array: array * np.float32(0.5)}):
        wrong = {
            f"{i}/{name}": each for i, text in enumerate(recorded.texts) for name, each in trace(port, text).items()
        }
    first = golden.compare(recorded, wrong).first
    assert first is not None
    assert first.stage == "layers.0.attention.scores"
    few = {name: array for name, array in wrong.items() if "embeddings" not in name}
    diagnosis = golden.diagnose(recorded, few, model)
    assert diagnosis.stage == "layers.0.attention.scores"


def test_a_scale_that_no_dtype_of_the_checkpoint_gives_is_wrong() -> None:
    model = tiny.model("gemma", "causal-lm", scale_dtype="float32")
    recorded = golden.record(model, texts_for(model))
    assert recorded.unrounded == {}
    port = Model(replace(model.config, scale_dtype="bfloat16"), model.weights)
    arrays = {
        f"{i}/{name}": array for i, text in enumerate(recorded.texts) for name, array in trace(port, text).items()
    }
    assert golden.diagnose(recorded, arrays, model).causes == ["embeddings scaled differently"]


def test_both_truths_are_in_the_file(tmp_path: Any) -> None:
    model = tiny.model("gemma", "causal-lm", scale_dtype="bfloat16")
    recorded = golden.record(model, texts_for(model), ["embeddings.token", "logits"])
    recorded.save(tmp_path / "g.safetensors")
    read = golden.load(tmp_path / "g.safetensors")
    assert list(read.unrounded) == list(recorded.unrounded) == ["embeddings.token", "logits"]
    for name, arrays in recorded.unrounded.items():
        for ours, theirs in zip(arrays, read.unrounded[name], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert read.with_unrounded_scale.config.scale_dtype == "float32"


@pytest.mark.parametrize("wrong", [False, True])
def test_a_stage_of_one_text_is_compared_without_the_others(model: Model, recorded: golden.Golden, wrong: bool) -> None:
    arrays: Arrays = {
        f"{i}/{name}": each[i]
        for name, each in recorded.stages.items()
        for i in range(3)
        if "scores" not in name or i == 2
    }
    name = "2/layers.0.attention.scores"
    arrays[name] = arrays[name] * 2 if wrong else arrays[name]
    comparison = golden.compare(recorded, arrays)
    assert comparison.passes is not wrong
    assert len(comparison.rows) == len(recorded.stages)
    assert "only in text 2; not used for the diagnosis" in str(comparison)
    for i in range(3):
        arrays[f"{i}/layers.0.ffn.hidden"] = arrays[f"{i}/layers.0.ffn.hidden"] * 2
    first = golden.compare(recorded, arrays).first
    assert first is not None
    assert first.stage == "layers.0.ffn.hidden"


def test_an_answer_of_one_text_does_not_pass_for_all(recorded: golden.Golden) -> None:
    arrays = {f"{i}/{name}": each[i] for name, each in recorded.stages.items() for i in range(3)}
    answer = recorded.answers[0]
    del arrays[f"0/{answer}"]
    assert not golden.compare(recorded, arrays).passes
