"""When training ends, its folder contains only the model unless the state is kept, even after kills and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from npformer.cli import main as cli
from npformer.training import start
from npformer.training.run_folder import Checkpoints
from tests.support import tiny


def finetuning(folder: Path, output: str, *more: str) -> list[str]:
    """Returns a command that trains a tiny model in two epochs of six steps."""
    if not (folder / "model").exists():
        tiny.folder(folder / "model", head="base")
        rows = ["warm\tit was so hot", "cold\tit was an ice cream"] * 24
        (folder / "train.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    files = ["--train", str(folder / "train.tsv"), "--dev", str(folder / "train.tsv"), "-o", str(folder / output)]
    command = ["finetune", "-m", str(folder / "model"), *files, "--epochs", "2", "--batch-size", "8"]
    return [*command, "--learning-rate", "3e-3", *more]


def test_finetune_prints_its_outputs_and_does_not_change_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(finetuning(tmp_path, "out")) == 0
    files = {each.name: each.stat().st_size for each in (tmp_path / "out").iterdir()}
    printed = capsys.readouterr().out
    said = printed.splitlines()
    assert f"wrote {', '.join(sorted(files))} ({sum(files.values()) / 1e6:.1f} MB)" in " ".join(printed.split())
    assert "npformer.safetensors" in files
    assert "training" not in files
    line = said[-1].removeprefix("for transformers: npformer ").replace("NEW_FOLDER", str(tmp_path / "theirs"))
    assert cli.main(line.split()) == 0
    assert (tmp_path / "theirs" / "model.safetensors").exists()


def test_the_state_of_a_training_is_kept_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(finetuning(tmp_path, "out", "--keep-state")) == 0
    assert (tmp_path / "out" / "training" / "last.safetensors").exists()
    capsys.readouterr()
    assert cli.main(finetuning(tmp_path, "out")) == 1
    assert f"{tmp_path / 'out' / 'training'} can be deleted" in capsys.readouterr().err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Returns the files of a finetuning run that was not killed."""
    folder = tmp_path_factory.mktemp("whole")
    assert cli.main(finetuning(folder, "out")) == 0
    return {each.name: each.read_bytes() for each in (folder / "out").iterdir()}


@pytest.mark.parametrize("moment", ["a step", "the model's file", "config.json"])
def test_a_finetuning_that_was_killed_ends_with_the_same_bytes(
    moment: str, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill during training, or while the result is written, leaves the state, because the state is removed last."""
    calls = {"a step": 2, "the model's file": 1, "config.json": 1}[moment]

    def killed(*given: object, **more: object) -> object:
        nonlocal calls
        calls -= 1
        if calls == 0:
            raise KeyboardInterrupt
        return real(*given, **more)

    where, name = {
        "a step": (Checkpoints, "save"),
        "the model's file": (start, "save_arrays"),
        "config.json": (start, "write_config"),
    }[moment]
    real = getattr(where, name)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed)
        assert cli.main(finetuning(tmp_path, "out")) == 130
    assert not (tmp_path / "out" / "config.json").exists()
    assert (tmp_path / "out" / "training" / "last.safetensors").exists()
    assert cli.main(finetuning(tmp_path, "out")) == 0
    assert {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()} == whole


def test_train_translation_leaves_the_model_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    for name, text in zip(names, ("a dog runs.\na man sits.\n", "ein Hund läuft.\nein Mann sitzt.\n"), strict=True):
        Path(name).write_text(text, encoding="utf-8")
    sizes = ["--vocabulary", "300", "--width", "32", "--heads", "2", "--ffn", "64", "--layers", "1", "--epochs", "1"]
    assert cli.main(["train-translation", "--train", *names, "--dev", *names, "-o", str(tmp_path / "out"), *sizes]) == 0
    assert not (tmp_path / "out" / "training").exists()
    assert "for transformers: npformer convert" in capsys.readouterr().out


def test_finetune_names_a_bad_row_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.folder(tmp_path / "model")
    (tmp_path / "train.tsv").write_text("label\ttext\n1\ta\n0\n", encoding="utf-8")
    command = ["finetune", "-m", str(tmp_path / "model"), "--train", str(tmp_path / "train.tsv")]
    assert cli.main([*command, "--dev", str(tmp_path / "train.tsv"), "-o", str(tmp_path / "out")]) == 1
    assert "train.tsv:3: expected 2 columns" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
