"""Arrays of another program in less usual layouts are read, and maps of names are checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npformer import golden
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.model import Model
from tests.golden.test_compare import padded

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


def test_two_names_of_one_stage_are_an_error(recorded: golden.Golden) -> None:
    """The second array would replace the first, and another stage would not be compared."""
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
