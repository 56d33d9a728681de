"""A golden file contains a model's stages, their truth and their budgets. Other files raise errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import npformer
from npformer import golden
from npformer.checkpoint import flatten, load_folder
from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.config import ENCODER_HEADS
from npformer.engine.runtime.packing import Text
from npformer.families import encoders
from npformer.families.torch_nn import TORCH_MODULES
from npformer.golden.budget import in_float64
from npformer.golden.record import weights_sha256
from npformer.interpret.edits import edit
from npformer.interpret.traces import trace
from npformer.model import Model, Seq2Seq
from npformer.tasks import Pair
from tests.support import tiny
from tests.support.seq2seq_models import folder_of_letters, golden_model, random_model
from tests.support.slow import slow_after

pytestmark = pytest.mark.numbers

TEXTS = ["I love ice cream", Pair("no", "my movie"), "not"]
FAMILIES = ("distilbert", "roberta", "gpt2")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return tiny.model(request.param)


@pytest.fixture(scope="module")
def recorded(model: Model) -> golden.Golden:
    return golden.record(model, TEXTS, name="a model")


def test_the_recorded_stages_are_the_trace_and_its_truth(model: Model, recorded: golden.Golden) -> None:
    single, double = trace(model, TEXTS), trace(in_float64(model), list(recorded.texts))
    assert list(recorded.stages) == list(single)
    for name in single:
        for i in range(3):
            np.testing.assert_array_equal(recorded.stages[name][i], single[name][i])
            np.testing.assert_array_equal(recorded.truth[name][i], double[name][i])
            assert (recorded.stages[name][i].dtype, recorded.truth[name][i].dtype) == (np.float32, np.float64)


def test_the_budget_is_of_the_size_of_float32s_own_error(recorded: golden.Golden) -> None:
    """The budget is five times the largest of nine draws, so the recorded run is well within it."""
    for name, budget in recorded.budgets.items():
        gap = max(np.abs(a - b).max() for a, b in zip(recorded.stages[name], recorded.truth[name], strict=True))
        size = max(np.abs(each).max() for each in recorded.truth[name])
        assert gap <= budget / 5
        assert 2**-24 * size <= budget <= 2**-14 * size, name


def test_the_file_is_read_back_whole_and_is_the_same_each_time(
    model: Model, recorded: golden.Golden, tmp_path: Path
) -> None:
    recorded.save(tmp_path / "a")
    golden.record(model, TEXTS, name="a model").save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = golden.load(tmp_path / "a")
    assert (again.model, again.config, again.tokens) == ("a model", model.config, recorded.tokens)
    assert (again.budgets, again.versions, again.weights_sha256) == (
        recorded.budgets,
        recorded.versions,
        weights_sha256(model),
    )
    for name in recorded.stages:
        for part in ("stages", "truth"):
            for a, b in zip(getattr(recorded, part)[name], getattr(again, part)[name], strict=True):
                np.testing.assert_array_equal(a, b)
    for a, b in zip(recorded.texts, again.texts, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        assert (a.token_type_ids is None) == (b.token_type_ids is None) == (model.config.n_token_types == 0)
    assert f"{len(recorded.stages)} stages of 3 texts" in repr(again)
    counts = {"distilbert": 44, "bert": 45, "electra": 46, "roberta": 45, "albert": 46, "gpt2": 42}
    assert len(recorded.stages) == counts[model.config.model_type]


def test_the_format_is_the_documented_one_for_any_safetensors_library(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    golden.record(model, TEXTS, ["embeddings.sum", "*.weights", "logits"]).save(path)
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["version"]) == ("npformer-golden", "1")
    manifest = json.loads(metadata["manifest"])
    stages = ["embeddings.sum", "layers.0.attention.weights", "layers.1.attention.weights", "logits"]
    assert manifest["stages"] == stages
    assert list(manifest) == ["model", "config", "weights_sha256", "versions", "tokens", "stages", "budgets"]
    assert manifest["config"]["model_type"] == model.config.model_type
    inputs = ["ids", "segments"] if model.config.n_token_types else ["ids"]
    names = [*inputs, *stages, *(f"float64/{name}" for name in stages)]
    assert sorted(arrays) == sorted(f"{i}/{name}" for i in range(3) for name in names)
    length = len(manifest["tokens"][0])
    assert arrays["0/ids"].shape == (length,)
    assert arrays["0/layers.0.attention.weights"].shape == arrays["0/float64/layers.0.attention.weights"].shape
    assert arrays["0/layers.0.attention.weights"].shape == (4, length, length)
    page = (Path(__file__).parents[2] / "docs/reference/golden-format.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in manifest)


@pytest.mark.parametrize("head", ENCODER_HEADS)
def test_every_head_is_recorded_and_read(head: str, tmp_path: Path) -> None:
    model = tiny.model("bert" if head in encoders()["bert"].heads else "electra", head)
    golden.record(model, TEXTS[1:]).save(tmp_path / "g.safetensors")
    again = golden.load(tmp_path / "g.safetensors")
    arrays = {f"{i}/{name}": array for name in again.stages for i, array in enumerate(again.stages[name])}
    assert golden.compare(again, arrays).ok


def test_an_encoder_of_torchs_own_modules_is_recorded_too(tmp_path: Path) -> None:
    """The encoder has pre-norm layers and a final norm; its module names are not Hugging Face's."""
    sizes = {"vocab_size": 50, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ffn": 32, "max_length": 32}
    forms = {"torch_class": "nn.TransformerEncoder", "norm_first": True, "final_norm": True, "labels": ("A", "B")}
    config = TORCH_MODULES.config("sequence-classification", **sizes, **forms)
    model = Model(config, tiny.weights(config))
    golden.record(model, [[1, 2, 3], [4, 5]]).save(tmp_path / "g.safetensors")
    recorded = golden.load(tmp_path / "g.safetensors")
    with edit({"layers.*.attention.scores": lambda scores: scores / np.float32(8**0.5)}):
        t = trace(model, recorded.texts)
    arrays = {f"{i}/{name}": array for name in t for i, array in enumerate(t[name])}
    assert golden.diagnose(recorded, arrays, model).mistake == "doubly scaled scores"
    assert t.label == [config.labels[int(logits.argmax())] for logits in t["logits"]]


def test_the_sha256_depends_on_the_numbers_not_on_the_file(tmp_path: Path) -> None:
    own, theirs = (tiny.folder(tmp_path / str(own), "bert", "masked-lm", own=own) for own in (True, False))
    digests = {weights_sha256(Model(*load_folder(path))) for path in (own, theirs)}
    assert len(digests) == 1
    assert weights_sha256(tiny.model("bert", "masked-lm", seed=1)) not in digests


def test_only_a_float32_model_is_recorded(model: Model) -> None:
    with pytest.raises(NpformerError, match="expected a model in float32, got float64"):
        golden.record(in_float64(model), TEXTS)
    with pytest.raises(NpformerError, match="did you mean"):
        golden.record(model, TEXTS, "layers.*.attention.weigths")


# --- tiny models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", slow_after(1, [*FAMILIES, "bart"]))
def test_a_tiny_model_is_small_and_the_same_each_time(family: str, tmp_path: Path) -> None:
    folders = [golden.tiny(tmp_path / name, family, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    files = sorted(path.name for path in folders[0].iterdir())
    assert files == ["config.json", "golden.safetensors", "model.safetensors"]
    for name in files:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert (folders[0] / "golden.safetensors").stat().st_size < 1e6
    assert (folders[0] / "model.safetensors").read_bytes() != (folders[2] / "model.safetensors").read_bytes()
    model = Model(*load_folder(folders[0]))
    recorded = golden.load(folders[0] / "golden.safetensors")
    golden.check_model(recorded, model)
    golden.assert_close(
        recorded,
        {f"{i}/{n}": a for n, each in golden.record(model, recorded.texts).stages.items() for i, a in enumerate(each)},
    )


@pytest.mark.parametrize(
    ("family", "usual"), [("gpt2", "causal-lm"), ("llama", "causal-lm"), ("bert", "sequence-classification")]
)
def test_a_tiny_model_has_the_usual_head_of_its_family_or_the_given_one(family, usual, tmp_path, capsys):
    assert load_folder(golden.tiny(tmp_path / "usual", family))[0].head == usual
    other = "token-classification"
    assert main(["golden", "record", "--tiny", family, "--head", other, "-o", str(tmp_path / "other")]) == 0
    assert load_folder(tmp_path / "other")[0].head == other
    assert main(["golden", "record", "--tiny", family, "--head", "translation", "-o", str(tmp_path / "none")]) == 1
    assert "head: expected one of " in capsys.readouterr().err
    assert main(["golden", "record", "text", "--head", other, "-o", str(tmp_path / "none")]) == 1
    assert "--head: needs --tiny" in capsys.readouterr().err


def test_the_tiny_models_numbers_do_not_depend_on_numpys_version(tmp_path: Path) -> None:
    """The numbers are computed from raw bits of PCG64(0), which NumPy promises not to change."""
    folder = golden.tiny(tmp_path / "m", "distilbert")
    arrays, _ = load_arrays(folder / "model.safetensors")
    first = arrays["distilbert.embeddings.word_embeddings.weight"][0, :3]
    raw = np.random.PCG64(0).random_raw(3) >> np.uint64(11)
    np.testing.assert_array_equal(first, (0.3 * 3**0.5 * (raw * 2.0**-52 - 1)).astype(np.float32))


def test_a_tiny_model_of_no_family_or_over_another_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match=r"expected a family \(.* gpt2, .*, bart, .*\), got 'gpt'$"):
        golden.tiny(tmp_path / "m", "gpt")
    with pytest.raises(NpformerError, match="seed: expected a whole number of at least 0, got -1"):
        golden.tiny(tmp_path / "m", "bert", seed=-1)
    with pytest.raises(NpformerError, match="already exists"):
        golden.tiny(tmp_path, "bert")
    assert list(tmp_path.iterdir()) == []


# --- files that are not golden files ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.tiny(tmp_path_factory.mktemp("tiny") / "m", "bert")


def test_a_truncated_file_is_an_error(tiny_bert: Path, tmp_path: Path) -> None:
    path, data = tmp_path / "golden.safetensors", (tiny_bert / "golden.safetensors").read_bytes()
    for length in (0, 7, 1000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(NpformerError, match=r"golden\.safetensors"):
            golden.load(path)


def test_a_foreign_file_is_an_error(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match="not a golden file"):
        golden.load(tiny_bert / "model.safetensors")
    with pytest.raises(NpformerError, match="No such file"):
        golden.load(tiny_bert / "nothing.safetensors")
    np.savez(tmp_path / "a.npz", ids=np.arange(3))
    with pytest.raises(NpformerError, match="not a golden file"):
        golden.load(tmp_path / "a.npz")


def altered(original: Path, path: Path, change: object) -> None:
    """Writes a golden file with its manifest, or its arrays, changed."""
    arrays, metadata = load_arrays(original)
    arrays, manifest = dict(arrays), json.loads(metadata["manifest"])
    change(arrays, manifest)
    save_arrays(path, arrays, {**metadata, "manifest": json.dumps(manifest)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, manifest: manifest.pop("stages"), "missing 'stages'"),
        (lambda arrays, manifest: manifest["stages"].append("mine"), "missing '0/mine'"),
        (lambda arrays, manifest: manifest.update(stages=[]), "no texts or no stages"),
        (
            lambda arrays, manifest: manifest["budgets"].update(logits=0),
            "logits: expected a finite error budget above 0",
        ),
        (
            lambda arrays, manifest: manifest["budgets"].update(logits=float("nan")),
            "logits: expected a finite error budget",
        ),
        (lambda arrays, manifest: manifest["config"].update(model_type="gpt"), "model_type"),
        (lambda arrays, manifest: manifest["tokens"][0].pop(), "0/ids: expected 8 tokens"),
        (lambda arrays, manifest: manifest.update(tokens=7), "not iterable"),
        (lambda arrays, manifest: arrays.pop("1/float64/logits"), "missing '1/float64/logits'"),
        (lambda arrays, manifest: arrays.update({"1/logits": np.zeros(3, np.float32)}), "logits: expected float32 and"),
        (lambda arrays, manifest: arrays.update({"1/logits": np.zeros(2)}), "logits: expected float32 and float64"),
    ],
)
def test_a_file_that_does_not_fit_its_manifest_is_an_error(
    tiny_bert: Path, tmp_path: Path, change: object, message: str
) -> None:
    path = tmp_path / "golden.safetensors"
    altered(tiny_bert / "golden.safetensors", path, change)
    with pytest.raises(NpformerError, match=f"does not match its manifest: .*{message}"):
        golden.load(path)


def test_another_version_of_the_format_is_an_error(tmp_path: Path) -> None:
    save_arrays(tmp_path / "g.safetensors", {}, {"format": "npformer-golden", "version": "2", "manifest": "{}"})
    with pytest.raises(NpformerError, match="format version '2'; this npformer reads version 1"):
        golden.load(tmp_path / "g.safetensors")
    save_arrays(tmp_path / "g.safetensors", {}, {"format": "npformer-golden", "version": "1", "manifest": "[" * 9999})
    with pytest.raises(NpformerError, match="does not match its manifest"):
        golden.load(tmp_path / "g.safetensors")


# --- translation models ----------------------------------------------------------------------------------------------

START = 119  # golden_model's
PRE_NORM = {"norm_first": True, "final_norm": True}
PAIRS = [([3, 4, 5, 6, 0], [START, 5, 6, 7]), ([8, 0], [START, 9]), ([7, 8, 9, 0], [START, 1, 2, 3, 4, 5])]


@pytest.fixture(scope="module", params=slow_after(1, ["marian", "pre-norm"]))
def translator(request: pytest.FixtureRequest) -> Seq2Seq:
    return golden_model("marian-small") if request.param == "marian" else random_model(**PRE_NORM)


@pytest.fixture(scope="module")
def of_pairs(translator: Seq2Seq) -> golden.Golden:
    return golden.record(translator, PAIRS)


def test_a_translator_is_recorded_on_pairs_and_read_back(
    translator: Seq2Seq, of_pairs: golden.Golden, tmp_path: Path
) -> None:
    of_pairs.save(tmp_path / "g")
    again = golden.load(tmp_path / "g")
    assert [text.ids.tolist() for text in again.sources] == [source for source, _ in PAIRS]
    assert [text.ids.tolist() for text in again.texts] == [target for _, target in PAIRS]
    assert again.source_tokens == [[str(each) for each in source] for source, _ in PAIRS]
    traced = trace(translator, PAIRS[1])
    assert list(again.stages) == list(traced)
    for name in traced:  # traced alone, the second pair has the same bits
        np.testing.assert_array_equal(again.stages[name][1], traced[name])
    double = in_float64(translator)(PAIRS[0][0], decoder_input_ids=PAIRS[0][1])
    np.testing.assert_allclose(again.truth["logits"][0], double.logits[0], rtol=1e-12)
    shape = again.stages["decoder.layers.1.cross_attention.weights"][2].shape
    assert shape == (translator.config.decoder.n_heads, 6, 4)


def padded_outputs(translator: Seq2Seq) -> dict[str, np.ndarray]:
    """The arrays of a port that pads, some under its own names and some under Hugging Face's."""
    with npformer.trace() as t:
        made = translator([source for source, _ in PAIRS], decoder_input_ids=[target for _, target in PAIRS])
    scores = "decoder.layers.0.cross_attention.scores"
    wide = np.zeros((3, translator.config.decoder.n_heads, 6, 5), np.float32)
    for padded, one in zip(wide, t[scores], strict=True):
        padded[:, : one.shape[1], : one.shape[2]] = one
    rows = {"input_ids": [each for each, _ in PAIRS], "decoder_input_ids": [each for _, each in PAIRS]}
    ids = {
        name: np.array([each + [0] * (max(map(len, rows)) - len(each)) for each in rows]) for name, rows in rows.items()
    }
    return {"logits": made.logits, scores: wide, **ids}


def stages_of(recorded: golden.Golden) -> dict[str, np.ndarray]:
    return {f"{i}/{name}": array for name, each in recorded.stages.items() for i, array in enumerate(each)}


def test_a_padded_port_of_a_translator_is_compared(translator: Seq2Seq, of_pairs: golden.Golden) -> None:
    recorded, arrays = of_pairs, padded_outputs(translator)
    comparison = golden.compare(recorded, arrays)
    assert (comparison.ok, len(comparison.rows), comparison.theirs.unused) == (True, 2, []), str(comparison)
    wrong = stages_of(recorded) | {"logits": arrays["logits"] * 1.001}
    comparison = golden.compare(recorded, wrong)
    assert comparison.first.stage == "logits"
    told = golden.diagnose(recorded, wrong, translator, comparison=comparison)
    assert (told.stage, told.causes) == ("logits", ["scaled by a constant"])
    assert "logits, computed again from your stages up to decoder." in str(told)
    with pytest.raises(NpformerError, match="expected the golden file's token ids"):
        golden.compare(recorded, arrays | {"input_ids": arrays["decoder_input_ids"]})


def test_a_translator_s_wrong_weights_are_named(translator: Seq2Seq, of_pairs: golden.Golden) -> None:
    recorded, flat = of_pairs, flatten(dict(translator.weights))
    stages = stages_of(recorded)
    stages |= {f"{i}/logits": array * 2 for i, array in enumerate(recorded.stages["logits"])}
    name = "decoder.layers.0.cross_attention.{}.weight"
    told = golden.diagnose(recorded, stages | {name.format("query"): flat[name.format("key")]}, translator)
    assert told.causes == ["query and key swapped", "scaled by a constant"], str(told)


def test_a_translator_s_own_translation_is_recorded(tmp_path: Path) -> None:
    model = npformer.load(folder_of_letters(tmp_path / "model"))
    recorded = golden.record(model, ["dogs", "news"], "*cross_attention.weights")
    assert len(recorded.texts) == len(recorded.sources) == 2
    assert all(text.ids[0] == model.config.decoder.start_id for text in recorded.texts)
    assert recorded.source_tokens[0][-1] == "</s>"


# --- a comparison in Python ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", slow_after(1, [["no"], ["no", "I love ice cream"]]))
def test_a_trace_is_compared_without_a_file(texts: list[str]) -> None:
    model = npformer.load("distilbert-sst2")
    recorded = golden.record(model, texts)
    comparison = golden.compare(recorded, npformer.trace(model, texts))
    assert comparison.ok
    assert [row.stage for row in comparison.rows] == list(recorded.stages)
    golden.assert_close(recorded, npformer.trace(model, texts))


def test_a_comparison_refuses_other_arguments() -> None:
    model = tiny.model()
    recorded = golden.record(model, [Text([2, 4, 3])])
    with pytest.raises(
        NpformerError, match=r"^arrays: expected a torch model, or a mapping .* got 'port\.safetensors'"
    ):
        golden.compare(recorded, "port.safetensors")
    with pytest.raises(NpformerError, match=r"^arrays: expected a torch model, or a mapping .* got a Model"):
        golden.compare(recorded, model)
    with pytest.raises(NpformerError, match=r"^golden: expected a golden file, got 'a'; golden\.load\(path\) reads"):
        golden.compare("a", {})  # type: ignore[arg-type]
