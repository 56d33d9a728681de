"""`npformer trace` and `npformer golden`: their output, files, errors and exit codes."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from npformer import golden, load
from npformer.checkpoint import load_folder
from npformer.checkpoint.archive import save_arrays
from npformer.cli import golden as golden_command
from npformer.cli import trace as trace_command
from npformer.cli import view as view_command
from npformer.cli.main import Subcommand, find, main
from npformer.common.errors import NpformerError
from npformer.interpret.teardown import shown_stages, teardown
from npformer.interpret.traces import Trace, trace
from npformer.model import Model
from tests.support import tiny

TEXT = "I love ice cream"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("models") / "model", "bert", n_layers=3)


def run(command: ModuleType | Subcommand, arguments: Sequence[object]) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_intermixed_args([str(each) for each in arguments])) or 0


# --- trace -----------------------------------------------------------------------------------------------------------


def test_the_teardown_goes_from_tokens_to_the_label(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace_command, [TEXT, "-m", folder]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["token", "[CLS]", "i", "love", "ice", "cream", "[SEP]"]
    assert lines[2].split()[0] == "id"
    titles = [block.splitlines()[0].split("  ")[0] for block in printed.split("\n\n")[1:-1]]
    layer = [name for name in titles if name.startswith("layers.0.")]
    assert titles[:5] == [f"embeddings.{name}" for name in ("token", "position", "segment", "sum", "norm")]
    assert len(layer) == 18
    left_out = "... left out: layer 1, layer 2 except its output (--layer N shows one)"
    assert titles[5 + 18 :] == [left_out, "layers.2.ffn_norm", "pooler", "pooled", "logits", "probabilities"]
    model = Model(*load_folder(folder), folder=folder)
    t = trace(model, TEXT)
    assert lines[-1] == f"{t.label}  {t['probabilities'].max():.7f}"


def test_corner_values_are_the_first_and_last_three_columns_as_torch_prints_them(folder: Path) -> None:
    t = trace(Model(*load_folder(folder), folder=folder), TEXT)
    x = t["embeddings.norm"]
    row = next(line for line in teardown(t, patterns=["embeddings.norm"]).splitlines() if line.startswith("2 love"))
    assert row.split()[2:] == [*(f"{value:.4f}" for value in x[2, :3]), "...", *(f"{value:.4f}" for value in x[2, -3:])]
    t["embeddings.norm"][2, 0] = 1e-6  # a wide range of magnitudes is shown with exponents
    row = next(line for line in teardown(t, patterns=["embeddings.norm"]).splitlines() if line.startswith("2 "))
    assert row.split()[:3] == ["2", "love", "1.000e-06"]


def test_wide_numbers_in_a_teardown_keep_the_tokens_names(folder: Path) -> None:
    """Every row shows its token, all numbers of a stage have the same format, and no line is wider than 80 columns."""
    t = trace(Model(*load_folder(folder), folder=folder), TEXT)
    for name in ("embeddings.norm", "layers.0.attention.weights"):  # only the first has too many columns to show
        array = t[name][0] if name.endswith("weights") else t[name]
        array[3, 1] = -1e-7
        lines = teardown(t, patterns=[name]).split("\n\n")[1].splitlines()[1:]
        assert [line.split()[1] for line in lines] == t.tokens
        numbers = [number for line in lines for number in line[10:].replace("...", "").split()]
        assert all(re.fullmatch(r"-?\d\.\d{3}e[+-]\d\d", number) for number in numbers)
        assert max(map(len, lines)) <= 80
    table = [line[45:].split() for line in str(t).splitlines()[1:]]
    assert {len(number.partition(".")[2]) for row in table for number in row} == {4}


@pytest.mark.parametrize(
    ("layer", "lines"),
    [
        (0, ["layer 1, layer 2 except its output"]),
        (1, ["layer 0", "layer 2 except its output"]),
        (2, ["layers 0 to 1"]),
    ],
)
def test_the_teardown_names_the_layers_it_omits(layer: int, lines: list[str], folder: Path) -> None:
    """If patterns are given, no layer is omitted."""
    t = trace(Model(*load_folder(folder), folder=folder), TEXT)
    said = [line for line in teardown(t, layer).splitlines() if "left out" in line]
    assert said == [f"... left out: {each} (--layer N shows one)" for each in lines]
    assert "left out" not in teardown(t, layer, ["*.weights"])


def test_the_teardown_ends_with_what_the_last_layer_writes() -> None:
    t = trace(load("gpt2-austen"), "It is")
    assert [name for name in shown_stages(t) if name.startswith("layers.4")] == ["layers.4.ffn_residual"]
    assert shown_stages(t, 4)[-3:] == ["norm", "logits", "probabilities"]


def test_the_teardown_of_a_translation_shows_a_layer_of_each_stack() -> None:
    t = trace(load("en-de-multi30k"), "A dog.")
    lines = teardown(t, 1).splitlines()
    assert [line for line in lines if line in ("encoder", "decoder")] == ["encoder", "decoder"]
    of_layers = {line.split(".attention.query ")[0] for line in lines if ".attention.query " in line}
    assert of_layers == {"encoder.layers.1", "decoder.layers.1"}
    assert sum("left out" in line for line in lines) == 4
    for name, tokens in (("encoder.layers.1.ffn.output", t.key_tokens), ("decoder.layers.1.ffn.output", t.tokens)):
        rows = teardown(t, patterns=[name]).split("\n\n")[-1].splitlines()[1:]
        assert [row.split()[1] for row in rows] == tokens
    with pytest.raises(NpformerError, match="layer: expected 0 to 3, got 4"):
        teardown(t, 4)


def test_pair_is_one_option_of_trace_view_and_classify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that --pair applies to every text of trace, view and classify."""
    run(trace_command, [TEXT, "--pair", "no", "-m", folder])
    printed = capsys.readouterr().out
    label, score = printed.splitlines()[-1].split()
    run(find("classify"), [TEXT, TEXT, "--pair", "no", "-m", folder])
    classified = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in classified] == [[label, f"{float(score):.4f}"]] * 2
    run(view_command, [TEXT, "--pair", "no", "-m", folder])
    assert "7 [SEP]" in capsys.readouterr().out


def test_the_teardown_of_a_long_text_shows_its_ends_and_wraps(folder: Path) -> None:
    t = trace(Model(*load_folder(folder), folder=folder), "you and your movie " * 9)
    text = teardown(t, patterns=["embeddings.norm", "layers.0.attention.weights"])
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines().count("...") == 2
    assert text.count("token ") > 2


def test_trace_shows_the_chosen_stages_and_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trace_command, [TEXT, "-m", folder, "--stage", "*.weights", "--layer", 1])
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("layers")] == [
        "layers.1.attention.weights  (4, 6, 6)  W_h = softmax(scores); head 0 of 4"
    ]
    run(trace_command, [TEXT, "-m", folder, "--stage", "*.weights", "--stage", "logits"])
    assert capsys.readouterr().out.count("softmax(scores)") == 3
    run(trace_command, [TEXT, "-m", folder, "--layer", 2])
    assert "layers.2.ffn.hidden" in capsys.readouterr().out
    for layer in (3, -1):
        with pytest.raises(NpformerError, match=f"layer: expected 0 to 2, got {layer}"):
            run(trace_command, [TEXT, "-m", folder, "--layer", layer])
    with pytest.raises(NpformerError, match=r"\*\.wights.*did you mean layers"):
        run(trace_command, [TEXT, "-m", folder, "--stage", "*.wights"])


def test_the_json_of_a_translation_has_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    run(trace_command, ["A dog.", "-m", "en-de-multi30k", "--json", "--stage", "logits"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["source_tokens"] == ["▁A", "▁dog", ".", "</s>"]
    assert (len(shown["source_ids"]), len(shown["tokens"])) == (4, shown["stages"][0]["shape"][0])


def test_trace_describes_each_stage_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trace_command, [TEXT, "--pair", "no", "-m", folder, "--json", "--stage", "*.query", "--layer", "1"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["tokens"] == ["[CLS]", "i", "love", "ice", "cream", "[SEP]", "no", "[SEP]"]
    assert shown["label"] in ("NEGATIVE", "POSITIVE")
    (stage,) = shown["stages"]
    assert (stage["name"], stage["shape"]) == ("layers.1.attention.query", [8, 32])
    assert stage["huggingface"] == "bert.encoder.layer.1.attention.self.query"
    assert np.shape(stage["corners"]) == (8, 6)


def test_trace_writes_every_stage_to_a_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trace_command, [TEXT, "-m", folder, "--stage", "logits", "-o", tmp_path / "t.safetensors"])
    t = Trace.load(tmp_path / "t.safetensors")
    assert len(t) == 5 + 3 * 18 + 4
    with pytest.raises(NpformerError, match=r"ends in \.safetensors"):
        run(trace_command, [TEXT, "-m", folder, "-o", tmp_path / "t.txt"])
    capsys.readouterr()


# --- golden ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "golden.safetensors"
    assert run(golden_command, ["record", TEXT, "no", "-m", folder, "-o", path]) == 0
    assert "63 stages of 2 texts" in capsys.readouterr().out
    return path


def test_golden_compare_passes_a_trace_of_the_same_texts(folder: Path, recorded: Path, tmp_path: Path, capsys) -> None:
    trace(Model(*load_folder(folder), folder=folder), [TEXT, "no"]).save(tmp_path / "t.safetensors")
    assert run(golden_command, ["compare", recorded, tmp_path / "t.safetensors", "-m", folder]) == 0
    assert capsys.readouterr().out.endswith("no stage diverges: all 63 are within their budgets\n")


def test_golden_compare_shows_and_diagnoses_a_divergence_with_exit_code_3(
    folder: Path, recorded: Path, tmp_path: Path, capsys
) -> None:
    from dataclasses import replace

    config, weights = load_folder(folder)
    wrong = Model(replace(config, activation="gelu_tanh"), weights, folder)
    trace(wrong, [TEXT, "no"]).save(tmp_path / "t.safetensors")
    assert run(golden_command, ["compare", recorded, tmp_path / "t.safetensors", "-m", folder]) == 3
    printed = capsys.readouterr().out
    assert "the first stage that diverges: layers.0.ffn.activation" in printed
    assert "cause: tanh GELU for erf" in printed
    # the golden file contains the model's path
    assert run(golden_command, ["compare", recorded, tmp_path / "t.safetensors"]) == 3
    assert "cause: tanh GELU for erf" in capsys.readouterr().out


@pytest.mark.slow
def test_golden_compare_has_another_exit_code_for_bad_input_than_for_a_divergence(
    recorded: Path, tmp_path: Path, capsys
) -> None:
    np.savez(tmp_path / "off.npz", logits=np.zeros((2, 2), np.float32))
    codes = [main(["golden", "compare", str(recorded), str(tmp_path / name)]) for name in ("off.npz", "missing.npz")]
    assert codes == [3, 1]
    main(["--help"])
    assert "1 bad input" in (printed := capsys.readouterr().out)
    assert "3 golden compare" in printed


def test_golden_compare_without_the_model_has_no_diagnosis(folder: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / "g.safetensors"
    model = Model(*load_folder(folder), folder=folder)
    golden.record(model, "no", name="./elsewhere").save(path)
    save_arrays(tmp_path / "t.safetensors", {"logits": np.zeros((1, 2), np.float32)}, {})
    assert run(golden_command, ["compare", path, tmp_path / "t.safetensors"]) == 3
    assert "no diagnosis: ./elsewhere" in capsys.readouterr().out
    other = tiny.folder(tmp_path / "other", "bert", seed=1, n_layers=3)
    with pytest.raises(NpformerError, match="whose weights differ from this model's"):
        run(golden_command, ["compare", path, tmp_path / "t.safetensors", "-m", other])


def test_golden_compare_checks_weights_that_come_along(folder: Path, recorded: Path, tmp_path: Path, capsys) -> None:
    assert run(golden_command, ["compare", recorded, folder / "model.safetensors"]) == 0
    assert "weights: all 57 equal the model's" in capsys.readouterr().out
    _, tree = load_folder(folder)
    key = "layers.2.attention.key.weight"
    save_arrays(tmp_path / "w.safetensors", {key: tree["layers"][2]["attention"]["key"]["weight"] * 2}, {})
    assert run(golden_command, ["compare", recorded, tmp_path / "w.safetensors"]) == 3
    said = capsys.readouterr().out
    assert key in said
    assert "scaled by a constant" in said


def test_golden_compare_reads_a_map_of_names(recorded: Path, tmp_path: Path, capsys) -> None:
    reference = golden.load(recorded)
    np.savez(tmp_path / "a.npz", answer=np.stack(reference.stages["logits"]))
    (tmp_path / "names.json").write_text('{"answer": "logits"}')
    assert run(golden_command, ["compare", recorded, tmp_path / "a.npz", "--names", tmp_path / "names.json"]) == 0
    for text, message in (
        ('{"answer": 3}', "expected an object that maps the port"),
        ("[", "not JSON"),
        ('{"a": "b"}', "no such"),
    ):
        (tmp_path / "names.json").write_text(text)
        with pytest.raises(NpformerError, match=message):
            run(golden_command, ["compare", recorded, tmp_path / "a.npz", "--names", tmp_path / "names.json"])
    capsys.readouterr()


def test_golden_compare_finds_the_tiny_model_next_to_its_file(tmp_path: Path, capsys) -> None:
    """The model is found without an option if the golden file is in its folder."""
    for seed in ([], ["--seed", 3]):
        out = tmp_path / f"tiny{len(seed)}"
        assert run(golden_command, ["record", "--tiny", "distilbert", *seed, "-o", out]) == 0
        assert run(golden_command, ["compare", out / "golden.safetensors", out / "model.safetensors"]) == 0
        assert "weights: all 40 equal the model's" in capsys.readouterr().out
    assert (tmp_path / "tiny0/model.safetensors").read_bytes() != (tmp_path / "tiny2/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["record", "no"], "expected -o FILE"),
        (["record", "-o", "g"], "golden record: expected at least one text"),
        (["record", "-m", "m", "-o", "g"], "at least one text"),
        (["record", "no", "--tiny", "bert", "-o", "g"], "--tiny makes its own model and texts"),
        (["record", "no", "-m", "m", "-o", "g", "--seed", "1"], "--seed: needs --tiny"),
        (["record", "no", "-m", "m", "-o", "g", "--torch", "m"], "--torch is an option of golden compare"),
        (["compare", "g", "h", "-o", "x"], "--output is an option of golden record"),
        (["compare", "g"], "expected a golden file and either the port's arrays"),
        (["compare", "g", "h", "--torch", "m"], "expected a golden file and either the port's arrays or --torch"),
        (["compare", "nothing.safetensors", "h"], r"nothing\.safetensors: No such file"),
    ],
)
def test_wrong_arguments_of_golden_are_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(NpformerError, match=message):
        run(golden_command, arguments)
