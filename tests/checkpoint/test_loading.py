"""`load` resolves a name cheaply, and uses the network and a hub client only if the name is a hub id."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npformer import loading
from npformer.checkpoint import storage
from npformer.checkpoint.safetensors import read_tensors, write_tensors
from npformer.common.errors import NpformerError
from npformer.engine.runtime.threads import run_tasks
from npformer.loading import bundled, find_folder, load
from tests.support import tiny
from tests.support.slow import slow_after

ROOT = Path(__file__).parents[2]
BUNDLED = "distilbert-sst2"
EXAMPLES = {  # the logits in the model's card, as torch computes them
    "I love ice cream": ([-3.4548, 3.8881], "POSITIVE"),
    "I hate ice cream": ([2.6480, -2.6717], "NEGATIVE"),
}


@pytest.fixture
def folder(tmp_path):
    return tiny.folder(tmp_path / "runs" / "sentiment")


def error(*arguments, **options):
    with pytest.raises(NpformerError) as caught:
        load(*arguments, **options)
    return str(caught.value)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_local_folder(folder, monkeypatch):
    model = load(folder, threads=1)
    assert (model.folder, model.threads, model.dtype) == (folder, 1, np.float32)
    assert model.config.labels == ("NEGATIVE", "POSITIVE")
    expected = tiny.model()([2, 9, 8, 3]).logits
    np.testing.assert_array_equal(model([2, 9, 8, 3]).logits, expected)
    np.testing.assert_array_equal(load(str(folder))([2, 9, 8, 3]).logits, expected)
    monkeypatch.setenv("HOME", str(folder.parent))
    np.testing.assert_array_equal(load("~/sentiment")([2, 9, 8, 3]).logits, expected)
    monkeypatch.chdir(folder.parent.parent)  # "runs/sentiment" could also be a hub id; the folder takes precedence
    np.testing.assert_array_equal(load("runs/sentiment")([2, 9, 8, 3]).logits, expected)


def test_float64_is_float64_throughout(folder):
    model = load(folder, dtype="float64")
    assert model.dtype == np.float64
    assert model([2, 9, 8, 3]).logits.dtype == np.float64


def test_a_converted_folder_is_used_in_place(tmp_path):
    """Weights are read-only views of the file's pages: nothing is copied, and processes share them."""
    weights = load(tiny.folder(tmp_path / "own", own=True)).weights
    array = weights["layers"][1]["ffn"]["hidden"]["weight"]
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert array.flags.c_contiguous


def test_invalid_names_are_errors(folder, monkeypatch):
    there = folder.parent
    assert error(f"{there}/sentimant").endswith(f"no folder of this name (did you mean {there}/sentiment?). {known()}")
    assert "there is a file of this name; give the folder of the model, here" in error(folder / "config.json")
    assert error(Path("owner/model")) == f"owner/model: there is no folder of this name. {known()}"
    assert error("./distilbert-sst3").endswith(f"; did you mean {BUNDLED}?")
    for name in ("./nothing", "a/b/c", "a b", "nothing/", "x" * 5000, "C:\\models\\x", "owner/model.git"):
        assert f": there is no folder of this name. {known()}" in error(name)
    for name in ("", None, 3, ["owner/model"], "a\0b"):
        assert error(name).startswith("name: expected a bundled model, a folder or a hub id, got ")
    monkeypatch.chdir(there)
    assert error("./sentimant").endswith(f"(did you mean sentiment?). {known()}")


def known():
    return f"Bundled models: {', '.join(sorted(bundled()))}"


def test_other_arguments_are_checked_before_anything_is_read_or_fetched(folder, monkeypatch):
    monkeypatch.setattr(loading, "find_folder", None)
    assert error("owner/model", dtype="float8") == (
        "dtype: expected float32 or float64, got 'float8'; for smaller weights in memory, use keep="
    )
    assert error("owner/model", threads=0) == "threads: expected a whole number of at least 1, got 0"
    monkeypatch.undo()
    for name in (BUNDLED, str(folder)):
        assert error(name, revision="main").startswith("revision: only valid for a model on the hub, but ")


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert error(tmp_path).startswith(f"{tmp_path}: no weights; looked for npformer.safetensors, model.safetensors")


def test_a_model_s_folder_in_the_cache_is_not_a_revision_s(tmp_path):
    folder = tmp_path / "models--owner--model"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    assert error(folder).endswith(f"give the folder of one revision, here {folder}/snapshots/abc")


@pytest.mark.parametrize("rest", ["", "/tree/main", "?library=npformer"])
def test_the_address_of_a_model_s_page_is_not_its_id(rest):
    address = f"https://huggingface.co/owner/model{rest}"
    assert error(address) == f"{address}: expected a hub id, got an address; give owner/model"


# --- bundled models --------------------------------------------------------------------------------------------------


def test_the_bundled_model_gives_the_answers_of_its_card():
    """The tolerance is half a unit of the card's fourth decimal, plus 2e-5 for a different order of float32 sums."""
    model = load(BUNDLED)
    for text, (logits, label) in EXAMPLES.items():
        answer = model(model.tokenizer.encode(text).ids).logits[0]
        np.testing.assert_allclose(answer, logits, atol=7e-5, rtol=0)
        assert model.config.labels[answer.argmax()] == label
    assert model.tokenizer.encode("I love ice cream").ids == [101, 1045, 2293, 3256, 6949, 102]


def test_a_bundled_model_is_half_precision_on_disk_in_our_layout_and_has_a_card():
    folder = bundled()[BUNDLED]
    with open(folder / "npformer.safetensors", "rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    metadata = header.pop("__metadata__")
    assert metadata.keys() == {"format", "finite", "sha256"}
    assert metadata["format"] == "npformer"
    assert {entry["dtype"] for entry in header.values()} == {"F16"}
    assert header["layers.0.ffn.hidden.weight"]["shape"] == [384, 1536]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert {"## Where it comes from", "## Scores", "## Licence"} <= set(card.splitlines())
    size = sum(np.prod(entry["shape"]) for entry in header.values())
    assert f"{size:,} parameters in {len(header)} arrays" in card
    for text, (logits, label) in EXAMPLES.items():
        numbers = re.search(rf"\| {text} \| (\S+), (\S+) \| {label},", card)
        np.testing.assert_allclose([float(number) for number in numbers.groups()], logits, atol=1.01e-4)


def test_a_bundled_model_takes_precedence_over_a_folder_of_that_name(tmp_path, monkeypatch):
    tiny.folder(tmp_path / BUNDLED)
    monkeypatch.chdir(tmp_path)
    assert find_folder(BUNDLED) == bundled()[BUNDLED]
    assert find_folder(f"./{BUNDLED}").resolve() == tmp_path / BUNDLED


def test_bundled_models_are_in_the_package_and_in_the_checkout(tmp_path, monkeypatch):
    """An installed package is in site-packages, where a folder `weights` belongs to a different package."""
    monkeypatch.setattr(loading, "__file__", str(tmp_path / "npformer" / "loading.py"))
    monkeypatch.chdir(tmp_path.parent)
    installed = tiny.folder(tmp_path / "npformer" / "_weights" / "one")
    beside = [tiny.folder(tmp_path / "weights" / name) for name in ("one", "two")]
    (tmp_path / "weights" / "no-model").mkdir()
    assert bundled() == {"one": installed}
    (tmp_path / "pyproject.toml").touch()
    assert bundled() == {"one": installed, "two": beside[1]}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Creates a site-packages folder with npformer but without its models; the process runs in a different folder."""
    site = tmp_path / "site-packages"
    (site / "npformer").mkdir(parents=True)
    (site / "npformer-0.1.0.dist-info").mkdir()
    (site / "npformer-0.1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.4\nName: npformer\n")
    monkeypatch.setattr(loading, "__file__", str(site / "npformer" / "loading.py"))
    monkeypatch.syspath_prepend(site)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return site


@pytest.mark.parametrize("name", loading.OURS)
def test_a_bundled_model_that_is_not_installed(site, name):
    """The network is not used. The message says where to get the model, or gives its path in the checkout."""
    missing = f"{name}: not part of the installed package.\n  "
    clone = "Get it with `git clone https://github.com/npformer/npformer` and use its path: "
    for each in (name, f"weights/{name}", f"./weights/{name}", Path("npformer/weights", name)):
        assert error(each) == f"{missing}{clone}npformer/weights/{name}"
    record = site / "npformer-0.1.0.dist-info" / "direct_url.json"
    record.write_text('{"url": "https://example.org/npformer.zip", "archive_info": {}}')
    assert error(name) == f"{missing}{clone}npformer/weights/{name}"
    checkout = site.parent / "my checkout"
    folder = tiny.folder(checkout / "weights" / name)
    record.write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {}}))
    found = "It is in the checkout that npformer was installed from; use its path: "
    assert error(name) == f"{missing}{found}{folder}"


def test_in_a_checkout_an_installed_package_finds_its_models(site, tmp_path, monkeypatch):
    """A checkout's bundled models are found from its top folder and from subfolders, where notebooks run."""
    checkout = tmp_path / "checkout"
    (checkout / "npformer").mkdir(parents=True)
    (checkout / "examples").mkdir()
    (checkout / "docs" / "learn").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    folder = tiny.folder(checkout / "weights" / "en-de-multi30k")
    for place in (checkout, checkout / "examples", checkout / "docs" / "learn"):
        monkeypatch.chdir(place)
        assert find_folder("en-de-multi30k") == folder
    monkeypatch.chdir(tmp_path)
    assert bundled() == {}
    checkout.rename(tmp_path / "npformer")  # where the suggested `git clone` puts the checkout
    assert find_folder("en-de-multi30k") == tmp_path / "npformer" / "weights" / "en-de-multi30k"


# --- the cost of loading ---------------------------------------------------------------------------------------------

PROGRAM = """
import json, socket, sys
def refuse(*_):
    raise AssertionError("a socket was connected")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from npformer.loading import load
model = load(sys.argv[1])
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak": peak, "modules": sorted(sys.modules)}))
"""


def loaded_alone(name):
    """Loads a model without a network in a fresh process; returns the output."""
    command = [sys.executable, "-c", PROGRAM, str(name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_folders_and_bundled_models_need_no_network_and_no_hub_client(folder):
    for name in (BUNDLED, folder):
        heavy = {"huggingface_hub", "tokenizers", "safetensors", "tqdm", "httpx", "requests", "torch"}
        assert not heavy & set(loaded_alone(name)["modules"])


def test_importing_npformer_imports_no_hub_client():
    program = "import sys, npformer; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux's /proc")
@pytest.mark.parametrize(("layout", "dtype"), slow_after(1, [("torch", "F16"), ("torch", "F32"), ("npformer", "F32")]))
def test_the_peak_of_memory(tmp_path, layout, dtype):
    """The peak is at most 1.5 times the float32 weights (100 MB) plus 80 MB, because tensors are copied one at a time.

    In npformer's own layout in float32, the file's pages are the weights, and are read only when they are used.
    """
    folder = tiny.folder(tmp_path / "model", d_model=768, n_heads=12, d_ffn=3072, n_layers=3, own=layout == "npformer")
    (file,) = folder.glob("*.safetensors")
    weights = file.stat().st_size
    if dtype == "F16":
        arrays = {name: np.array(array) for name, array in read_tensors(file)[0].items()}
        write_tensors(file, arrays, {"format": "pt"}, "float16")
    bare = loaded_alone(tiny.folder(tmp_path / "small"))["peak"]
    peak = loaded_alone(folder)["peak"]
    assert weights > 80e6
    assert peak < 1.5 * weights + 80e6
    assert peak - bare < (0.1 if layout == "npformer" else 1.25) * weights


@pytest.mark.parametrize("threads", [1, 3])
def test_weights_are_copied_by_the_models_threads(threads, monkeypatch):
    used = []
    monkeypatch.setattr(storage, "run_tasks", lambda tasks, n: used.append(n) or run_tasks(tasks, n))
    assert load(BUNDLED, threads=threads).threads == threads
    assert used == [threads]
