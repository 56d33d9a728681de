"""Hostile folders: a folder that requests much more memory or time than its size justifies is refused within a few
seconds and megabytes, in a subprocess with limits on both.
"""

import json
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from npformer.checkpoint import tree as layout
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.safetensors import write_tensors
from npformer.common.limits import Limits
from npformer.families import read_config
from tests.support.torch_writer import dump, storage, tensor, write_zip

ROOT = Path(__file__).parents[2]
SECONDS = 60  # timeout: a hundred times the slowest case on an idle machine

# Each line of stdin is the path of a folder. The program loads the folder in a fork with limits, and prints the result
# and the growth of peak memory in bytes. If the fork fails, it prints null, and the reason on stderr.
LOADER = f"""
import json, os, resource, signal, sys, traceback
import npformer, npformer.loading, npformer.checkpoint.torch_file

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def load(folder):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 10**9, size + 10**9))
    before = peak()
    try:
        said = str(npformer.load(folder))
    except npformer.NpformerError as error:
        said = f"refused: {{error}}"
    print(json.dumps([said, peak() - before]), flush=True)

for line in sys.stdin:
    if os.fork() == 0:
        signal.alarm({SECONDS})
        try:
            load(line[:-1])
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.wait()[1]:
        print("null", flush=True)
"""

BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 10, "hidden_size": 2, "num_attention_heads": 1,
    "num_hidden_layers": 1, "intermediate_size": 2, "max_position_embeddings": 4,
}  # fmt: skip
TORCH = {
    "model_type": "transformer", "architectures": ["nn.TransformerEncoder"], "d_model": 4, "n_heads": 2, "d_ffn": 8,
    "n_layers": 1, "vocab_size": 5,
}  # fmt: skip
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
STORAGE = b"\x8c\x07storagectorch\nFloatStorage\n\x8c\x010\x8c\x03cpuK\x06"


@pytest.fixture(scope="module")
def loader() -> Iterator[subprocess.Popen]:
    """Returns a process that has imported npformer and loads each folder in a new fork."""
    command = [sys.executable, "-c", LOADER]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def loaded_alone(loader: subprocess.Popen, folder: Path) -> tuple[str, int]:
    """Loads a folder in a fork; returns the message, and the growth of memory in bytes."""
    print(folder, file=loader.stdin, flush=True)
    answer = json.loads(loader.stdout.readline())
    assert answer is not None, "the process that loads the folder failed"
    return answer[0], answer[1]


def described(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def empty(folder: Path, config: object) -> Path:
    """Writes a folder with a nearly empty file of weights."""
    write_tensors(folder / "model.safetensors", {"a": np.zeros(2, np.float32)}, {"format": "pt"})
    return described(folder, config)


def views(folder: Path, config: dict[str, object], strides, step: int = 0, size: int = 4096) -> Path:
    """Writes a torch.save file with all tensors that the config needs, as views of one storage of `size` bytes."""
    settings = read_config(config, limits=Limits(positions=2**60))
    content, known = {}, parameters(settings)
    for number, (ours, source) in enumerate(layout.sources(settings).items()):
        parameter = known[ours]
        shape = parameter.shape[::-1] if parameter.transposed else parameter.shape
        shape = shape if source.part is None else (sum(source.part.widths) * shape[0], *shape[1:])
        where = storage("FloatStorage", "0", size // 4)
        content[source.names[0]] = tensor(where, shape, strides(shape), step * number)
    write_zip(folder / "pytorch_model.bin", content, {"0": bytes(size)})
    return described(folder, config)


def zeros(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (0,) * len(shape)


def rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[1], 1) if len(shape) == 2 else (1,)


def pickled(folder: Path, code: bytes) -> Path:
    write_zip(folder / "pytorch_model.bin", b"\x80\x02" + code + b".", {})
    return described(folder, BERT)


def headed(folder: Path, header: bytes) -> Path:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return described(folder, BERT)


def entries(count: int) -> bytes:
    """Returns a header that lists this many tensors without elements."""
    entry = {"dtype": "I8", "shape": [0], "data_offsets": [0, 0]}
    return json.dumps(dict.fromkeys(map(str, range(count)), entry), separators=(",", ":")).encode()


def many_entries(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        for number in range(60_000):
            archive.writestr(f"{number:0100}", b"")
    return described(folder, BERT)


def many_shards(folder: Path) -> Path:
    """Writes an index that lists thousands of tensors for each of a hundred files, which have one tensor each."""
    for number in range(100):
        write_tensors(folder / f"{number}.safetensors", {f"t{number}": np.zeros(1, np.float32)}, {})
    weight_map = {f"t{number}": f"{number % 100}.safetensors" for number in range(300_000)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return described(folder, BERT)


HOSTILE = {
    "a matrix of zero strides": (
        lambda at: views(at, {**BERT, "hidden_size": 27_000, "vocab_size": 27_000}, zeros),
        r"tensors of \d+ bytes in files of \d+ bytes: some have strides of 0",
    ),
    "matrices over the same bytes": (
        lambda at: views(
            at, {**BERT, "hidden_size": 500, "num_hidden_layers": 100, "intermediate_size": 500}, rows, 1, 10**6 + 16_000
        ),
        r"tensors of \d+ bytes in files of \d+ bytes: some have strides of 0",
    ),
    "a vocabulary of two billions": (
        lambda at: views(at, {**TORCH, "vocab_size": 2**31 - 1}, zeros), r"tensors of \d+ bytes in files of",
    ),
    "a vocabulary that is not there": (lambda at: empty(at, {**BERT, "vocab_size": 2**31 - 1}), "missing: embeddings"),
    "a table of sinusoids": (lambda at: empty(at, {**TORCH, "max_length": 2**27}), "limit `positions`"),
    "sinusoids of one wide row": (
        lambda at: empty(at, {**TORCH, "n_layers": 0, "d_model": 2**20, "max_length": 2**20}), "limit `positions`",
    ),
    "9,990 layers": (lambda at: empty(at, {**BERT, "num_hidden_layers": 9990}), "limit `layers`"),
    "layers up to the limit": (lambda at: empty(at, {**BERT, "num_hidden_layers": 500}), "missing: embeddings"),
    "a billion labels": (
        lambda at: empty(at, {**BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 10**9}),
        "limit `labels`",
    ),
    "a large config": (lambda at: empty(at, '{"a":[' + "[]," * 1_300_000 + "[]]}"), "model_type"),
    "a larger config": (lambda at: empty(at, '{"a":[' + "[]," * 1_400_000 + "[]]}"), "limit `config`"),
    "a deep config": (lambda at: empty(at, "[" * 10**6), "not JSON"),
    "modules without end": (
        lambda at: empty(at, {**TORCH, "modules": dict.fromkeys(map(str, range(200_000)), "")}), "modules: expected at most",
    ),
    "a header of a hundred megabytes": (lambda at: headed(at, b" " * 10**8), "limit `header`"),
    "a header of tensors without end": (lambda at: headed(at, entries(70_000)), "missing: embeddings"),
    "a header of lists": (lambda at: headed(at, b'{"a":[' + b"[]," * 1_300_000 + b"[]]}"), "data_offsets"),
    "a deep header": (lambda at: headed(at, b"[" * 4_000_000), "not JSON"),
    "a name in the header twice": (lambda at: headed(at, b'{"a":{},"a":{}}'), "duplicate key"),
    "keys with one hash": (
        lambda at: pickled(
            at, b"}(" + b"".join(b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"N" for i in range(40_000)) + b"u"
        ),
        "a dict with a key that is not a string",
    ),
    "a pickle without end": (lambda at: pickled(at, b"N" * 10**6), "limit `pickle`"),
    "tuples of tuples": (lambda at: pickled(at, b"Nq\x00" + b"h\x00\x86q\x00" * 70_000), "got a tuple|MEMOIZE|corrupt"),
    "a shape of many axes, often": (
        lambda at: pickled(
            at,
            REBUILD + b"q\x00(" + dump(storage("FloatStorage", "0", 6))[2:-1] + b"K\x00(" + b"K\x01" * 10**5
            + b"tq\x02h\x02\x89Ntq\x01" + b"h\x00h\x01R" * 60_000,
        ),
        "unexpected arguments",
    ),
    "a storage of many fields, often": (
        lambda at: pickled(at, b"(" + STORAGE + b"N" * 10**5 + b"tq\x01" + b"h\x01Q" * 90_000), "external data",
    ),
    "an archive of many entries": (many_entries, "limit `directory`"),
    "an index of many tensors": (many_shards, "is not in"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the size of a process is read from Linux's /proc")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused_cheaply(loader, tmp_path, name):
    """Memory grows by at most thirty times the files' size plus 40 MB. JSON lists use the most memory per byte."""
    make, message = HOSTILE[name]
    size = sum(file.stat().st_size for file in make(tmp_path).iterdir())
    said, grown = loaded_alone(loader, tmp_path)
    assert said.startswith("refused: ")
    assert re.search(message, said), said[:500]
    assert len(said) < 10_000
    assert grown < 30 * size + 40e6


def test_tensors_over_the_same_bytes_are_one(loader, tmp_path):
    """Views of the same bytes use memory once: 100 layers that share one megabyte of weights use 1 MB, not 600 MB."""
    config = {**BERT, "hidden_size": 500, "num_hidden_layers": 100, "intermediate_size": 500}
    said, grown = loaded_alone(loader, views(tmp_path, config, rows, 0, 10**6 + 16_000))
    assert said.startswith("<npformer.Model bert base: 100 layers")
    assert grown < 60e6
