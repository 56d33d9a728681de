"""The files that a hub model needs, and errors without a connection. The tests read a cache and contact no hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npformer.checkpoint import hub
from npformer.checkpoint.hub import UnknownModel, download
from npformer.common.errors import NpformerError

NAME = "owner/tiny"
POOLING = [{"type": "models.Transformer", "path": ""}, {"type": "models.Pooling", "path": "1_Pooling"}]


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of revision "main" in a cache, with a config and weights that are not read."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    repository, commit = tmp_path / "models--owner--tiny", "0123456789" * 4
    folder = repository / "snapshots" / commit
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


@pytest.mark.parametrize(
    ("model", "present", "expected"),
    [
        (("bert", "BertModel"), {}, {"modules.json"}),
        (("gpt2", "GPT2LMHeadModel"), {}, {"modules.json", "generation_config.json"}),
        (
            ("marian", "MarianMTModel"),
            {"source.spm": []},
            {"modules.json", "vocab.json", "target_vocab.json", "target.spm", "generation_config.json"},
        ),
        (("bert", "BertModel"), {"modules.json": POOLING}, {
            "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json",
            "sparse_linear.pt", "colbert_linear.pt",
        }),
    ],
    ids=["encoder", "decoder", "translation", "sentence-transformers"],
)  # fmt: skip
def test_files_that_a_kind_of_model_may_have_are_asked_for(
    snapshot: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: tuple[str, str],
    present: dict[str, Any],
    expected: set[str],
) -> None:
    config = {"model_type": model[0], "architectures": [model[1]]}
    for file, content in {"config.json": config, "tokenizer.json": {}, **present}.items():
        (snapshot / file).write_text(json.dumps(content))
    assert absent(monkeypatch) == expected | {"tokenizer_config.json", "special_tokens_map.json"}


def test_tokenizers_of_older_models_have_other_files(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (snapshot / "merges.txt").touch()
    asked = absent(monkeypatch)
    assert {"tokenizer.json", "vocab.txt", "vocab.json", "added_tokens.json"} <= asked
    assert "spiece.model" not in asked  # one vocabulary is enough
    (snapshot / "vocab.txt").touch()
    assert not {"vocab.json", "merges.txt"} & absent(monkeypatch)


def test_a_model_may_be_in_a_folder_that_modules_json_names(snapshot: Path) -> None:
    inside = snapshot / "0_Transformer"
    inside.mkdir()
    for file in ("config.json", "model.safetensors"):
        (snapshot / file).rename(inside / file)
    with pytest.raises(UnknownModel, match=f"{NAME}: no config.json in the cache"):
        download(NAME, offline=True)
    (snapshot / "modules.json").write_text(json.dumps([{"type": "models.Transformer", "path": inside.name}]))
    assert download(NAME, offline=True) == inside


def absent(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the files that `download` looks for but does not find in the cache."""
    asked: list[str] = []
    monkeypatch.setattr(hub, "is_known_absent", lambda snapshot, file: asked.append(file) or True)
    download(NAME, offline=True)
    return set(asked)


def test_files_are_asked_for_in_the_commit_of_the_cached_files(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing files are fetched from the commit in the cache, or from the newest commit if the cache has no config."""
    asked: list[str] = []
    monkeypatch.setattr(hub, "_fetch", lambda name, revision, weights: asked.append(revision) or snapshot)
    download(NAME)
    (snapshot / "config.json").unlink()
    download(NAME)
    assert asked == [snapshot.name, "main"]


@pytest.mark.parametrize("file", ["config.json", "weights", "model-2.safetensors"])
def test_a_missing_file_is_named_without_a_connection(snapshot: Path, file: str) -> None:
    assert download(NAME, offline=True) == snapshot
    (snapshot / "model.safetensors").rename(snapshot / "model-1.safetensors")
    if file != "weights":
        shards = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(shards))
    if file == "config.json":
        (snapshot / file).unlink()
    with pytest.raises(NpformerError, match=f"{NAME}: no {file} in the cache .*, and offline=True") as raised:
        download(NAME, offline=True)
    assert isinstance(raised.value, UnknownModel) == (file == "config.json")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(1, "Operation not permitted", "/cache"), "cannot write to the cache: Operation not permitted: /cache"),
        (OSError(28, "No space left on device", "/cache"), "cannot write to the cache: No space left on device: /cache"),
        (ConnectionResetError(104, "Connection reset"), "the download of f was interrupted ([Errno 104] Connection reset);"),
        (TimeoutError("timed out"), "the download of f was interrupted (timed out);"),
        (OSError("incomplete"), "the download of f was interrupted (incomplete);"),
    ],
)  # fmt: skip
def test_errors_of_the_disk_and_of_the_connection_differ(error: OSError, message: str) -> None:
    with pytest.raises(NpformerError) as raised, hub._explained(NAME, "main", "f"):
        raise error
    assert str(raised.value).startswith(f"{NAME}: {message}")
