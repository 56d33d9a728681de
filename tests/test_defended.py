"""The table of docs/how-it-works/security.md: every row is tested with an attack."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.cli import main as cli
from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.common.locks import in_use
from npformer.text.chat_template import render
from tests.support import tiny, torch_writer

PAGE = Path(__file__).parent.parent / "docs" / "how-it-works" / "security.md"


def refused(match: str, folder: Path, **options: object) -> None:
    with pytest.raises(NpformerError, match=match):
        npformer.load(folder, **options)


def pickles(folder: Path) -> None:
    """The pickle would call os.mkdir. Python's own pickle does call it."""
    (folder / "model.safetensors").unlink()
    canary = folder / "canary"
    made = torch_writer.Call(torch_writer.Global("os", "mkdir"), (str(canary),))
    torch_writer.write_zip(folder / "pytorch_model.bin", {"weight": made}, {})
    refused(r"pytorch_model\.bin: .*os\.mkdir", folder)
    assert not canary.exists()
    pickle.loads(torch_writer.dump(made))
    assert canary.exists()


def sizes(folder: Path) -> None:
    """Each model would need gigabytes or minutes, but refusing it needs less than a megabyte. See
    checkpoint/test_hostile.py."""
    config = json.loads((folder / "config.json").read_text())
    tracemalloc.start()
    for name, size in {"vocab_size": 2**30, "n_layers": 9990}.items():
        (folder / "config.json").write_text(json.dumps({**config, name: size}))
        refused({"vocab_size": "1073741824, 32", "n_layers": "limit `layers` of 500"}[name], folder)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    with pytest.raises(NpformerError, match=r"limit `config` of 10; .*--allow config=N"):
        npformer.load(folder, limits=npformer.Limits(config=10))


def what_is_no_file(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_text("{}")
    for name in ("config.json", "model.safetensors"):
        path, kept = folder / name, (folder / name).read_bytes()
        path.unlink()
        os.mkfifo(path)
        refused(rf"{name}: not a regular file", folder)
        path.unlink()
        path.symlink_to("/dev/zero")
        refused(rf"{name}: ", folder)
        path.unlink()
        path.symlink_to(secret)
        refused(rf"{name}: a link out of the model folder", folder)
        path.unlink()
        path.write_bytes(kept)
    npformer.load(folder)


def damage(folder: Path) -> None:
    tensors = {name: np.array(each) for name, each in read_tensors(folder / "model.safetensors")[0].items()}
    tensors["classifier.bias"][1] = np.inf
    write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    refused(r"classifier\.bias.*the number at \[1\] is inf", folder)
    own = tiny.folder(folder.parent / "own", own=True)
    path = npformer.checkpoint.convert(own, folder.parent / "converted") / "npformer.safetensors"
    assert cli.main(["info", "--verify", str(path.parent)]) == 0
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert cli.main(["info", "--verify", str(path.parent)]) == 1


def tokenizers(folder: Path) -> None:
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    bomb = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 999}
    path.write_text(json.dumps({**settings, "normalizer": {"type": "Sequence", "normalizers": [bomb, bomb]}}))
    with pytest.raises(NpformerError, match="limit `growth`"):
        npformer.pipeline("text-classification", folder)("a")


def templates(folder: Path) -> None:
    """Time, memory and the environment are tested in text/test_chat_template.py."""
    pytest.importorskip("jinja2", reason="needs the extra `chat`: jinja2")
    for harmful in (
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.json }}",
        "{% include '/etc/passwd' %}",
    ):
        with pytest.raises(NpformerError, match="the template failed"):
            render(str(folder), harmful, [[{"role": "user", "content": ""}]], {})


def texts(folder: Path) -> None:
    classify = npformer.pipeline("text-classification", folder)
    long = "ice cream " * 100_001
    with pytest.warns(UserWarning, match="cut to 64"):
        assert classify(long).truncated
    for how in ("window", "error"):
        with pytest.raises(NpformerError, match="1000010 is more than the limit `characters` of 1000000"):
            classify(long, long=how)
    with pytest.raises(NpformerError, match="limit `characters`"):  # the text has no space at which it could be cut
        classify("x" * 1_000_001)


def outputs(folder: Path) -> None:
    path = folder / "output"
    path.write_text("old")
    with contextlib.suppress(ZeroDivisionError), written_whole(path) as partial:
        partial.write_text("new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with in_use(folder / "training"), pytest.raises(NpformerError, match="in use by process"):
        in_use(folder / "training").__enter__()


ATTACKS: dict[str, Callable[[Path], None]] = {
    "pickles in pytorch_model.bin and other files of `torch.save`": pickles,
    "sizes in config.json, headers, strides, npz": sizes,
    "pipes, devices, links out of a model's folder": what_is_no_file,
    "NaN, infinity or corruption in weights": damage,
    "a tokenizer's files": tokenizers,
    "chat templates": templates,
    "texts": texts,
    "`-o`, training folders": outputs,
}


@pytest.mark.parametrize("row", ATTACKS)
def test_a_row_of_the_table_holds(row: str, tmp_path: Path) -> None:
    ATTACKS[row](tiny.folder(tmp_path / "model"))


def test_every_row_of_the_table_has_an_attack() -> None:
    table = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \|", table, flags=re.MULTILINE)
    assert rows[:2] == ["input", "---"]
    assert rows[2:] == list(ATTACKS)
