"""The conformance suite has every family, head and option, each with a visible effect, and reproducible bytes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.checkpoint.parameters import parameters
from npformer.checkpoint.safetensors import read_tensors
from npformer.common.errors import NpformerError
from npformer.config import ACTIVATIONS
from npformer.families import FAMILIES, distinct_encoders
from npformer.golden.budget import run
from npformer.model import Model, Seq2Seq
from tests.golden.conftest import CASES, OF_EACH, OF_FEATURES, SHOWN, WITHOUT
from tests.support import kernels

pytestmark = pytest.mark.numbers

SOME = ("bert-masked-lm", "electra-bfloat16", "transformer-base", "marian-two-vocabularies")


def loaded(folder: Path, **fields: object) -> Model | Seq2Seq:
    config, tree = load_folder(folder)
    return (Seq2Seq if config.head == "translation" else Model)(replace(config, **fields), tree)


def test_every_family_head_activation_and_dtype_has_a_case() -> None:
    pairs = {(case.config.model_type, case.config.head) for case in CASES.values()}
    for family in distinct_encoders().values():
        assert {(family.model_type, head) for head in family.architectures.values()} <= pairs
        theirs = [case for case in CASES.values() if case.config.model_type == family.model_type]
        choices = set(ACTIVATIONS) - {"tanh"} if family.activation else {"gelu_tanh"}  # only poolers have tanh
        assert {case.config.activation for case in theirs} == choices
        assert {case.dtype for case in theirs} == {"float32", "float16", "bfloat16"}
        assert {case.config.tied for case in theirs} == {True, False}
    assert {family for family, _ in pairs} == set(FAMILIES)
    options = "norm_first bias scale_embedding shared positions problem_type n_token_types sharing"
    for option in options.split():
        assert len({getattr(case.config, option) for case in CASES.values()}) > 1, option


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EACH)
def test_a_case_is_read_back_as_it_was_meant_and_its_file_is_its_model_s(name: str, large_suite: Path) -> None:
    model, recorded = loaded(large_suite / name), golden.load(large_suite / name / "golden.safetensors")
    assert model.config == recorded.config == CASES[name].config
    stages = run(model, recorded.inputs)
    golden.assert_close(recorded, {f"{i}/{each}": a for each in stages for i, a in enumerate(stages.texts(each))})
    arrays, _ = read_tensors(large_suite / name / "inputs.safetensors")
    assert arrays.keys() == recorded.input_arrays().keys()
    assert all(np.array_equal(arrays[each], array) for each, array in recorded.input_arrays().items())
    (entry,) = golden.read_suite(large_suite, [name])
    assert (entry["stages"], entry["lengths"]) == (len(recorded.stages), [len(each) for each in lengths(recorded)])
    assert set(entry["answers"]) <= set(recorded.stages)


def lengths(recorded: golden.Golden) -> list:
    return recorded.sources or recorded.texts


def test_each_feature_is_shown_by_a_quick_case() -> None:
    assert {name.partition("-")[2] for name in SHOWN} == set(WITHOUT) & {name.partition("-")[2] for name in CASES}


@pytest.mark.parametrize("name", SHOWN)
def test_a_port_without_a_feature_fails_its_case(name: str, shown: Path) -> None:
    fails_without_its_feature(name, shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_FEATURES)
def test_so_it_does_in_every_family(name: str, large_suite: Path) -> None:
    fails_without_its_feature(name, large_suite)


def fails_without_its_feature(name: str, suite: Path) -> None:
    recorded = golden.load(suite / name / "golden.safetensors")
    stages = run(loaded(suite / name, **WITHOUT[name.partition("-")[2]]), recorded.inputs)
    arrays = {f"{i}/{each}": a for each in stages for i, a in enumerate(stages.texts(each))}
    first = golden.compare(recorded, arrays).first
    assert first
    assert first.budgets > 10


@pytest.mark.slow
def test_the_suite_is_small_and_describes_each_case(large_suite: Path) -> None:
    manifest = json.loads((large_suite / "suite.json").read_text())
    names = [entry["name"] for entry in manifest["cases"]]
    assert sum(path.stat().st_size for path in large_suite.rglob("*") if path.is_file()) < 120e3 * len(names)
    assert names == list(CASES)
    for entry in manifest["cases"]:
        case = CASES[entry["name"]]
        assert (entry["tests"], entry["family"]) == (case.tests, case.config.model_type)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.config.mechanisms])
def test_a_case_has_the_weights_that_its_family_names(name: str) -> None:
    """A case that lacks a mechanism of its family, such as the norms of queries in OLMo 2, cannot be read back."""
    config = CASES[name].config
    family = FAMILIES[config.model_type]
    assert parameters(family.read_config(family.write_config(config), config.head)) == parameters(config)


def test_each_case_tests_something_else() -> None:
    assert all(case.tests for case in CASES.values())
    assert len({case.tests + case.config.model_type for case in CASES.values()}) == len(CASES)


def written(path: Path, names: tuple[str, ...] = SOME) -> dict[str, bytes]:
    return {
        f"{name}/{each}": (path / name / each).read_bytes()
        for name in names
        for each in ("config.json", "model.safetensors", "inputs.safetensors", "golden.safetensors")
    }


def test_the_suite_has_the_same_bytes_each_time(suite: Path, tmp_path: Path) -> None:
    """A case also has the same bytes without the preceding cases."""
    assert written(golden.suite(tmp_path / "again", list(SOME))) == written(suite)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", kernels.working())
def test_on_another_kernel_models_and_inputs_have_the_same_bytes_and_stages_fit_the_budgets(
    kernel: str, suite: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "npformer", "golden", "suite", str(tmp_path / "there")]
    command += [each for name in SOME for each in ("--case", name)]
    root = str(Path(__file__).parents[2])
    subprocess.run(command, env=kernels.under(kernel) | {"PYTHONPATH": root}, check=True, timeout=600)
    here, there = written(suite), written(tmp_path / "there")
    assert {name for name in here if here[name] != there[name]} <= {f"{name}/golden.safetensors" for name in SOME}
    for name in SOME:
        ours, theirs = (golden.load(path / name / "golden.safetensors") for path in (suite, tmp_path / "there"))
        stages = {f"{i}/{each}": a for each in theirs.stages for i, a in enumerate(theirs.stages[each])}
        golden.assert_close(ours, stages)
        ratios = [theirs.budgets[each] / ours.budgets[each] for each in ours.stages]
        assert 0.25 < min(ratios) <= max(ratios) < 4  # budgets come from random draws


def test_a_folder_without_a_suite_is_an_error(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match="already exists"):
        golden.suite(suite)
    with pytest.raises(NpformerError, match=r"suite\.json: No such file"):
        golden.read_suite(tmp_path)
    with pytest.raises(NpformerError, match=r"'bert-mask': no such case; did you mean bert-"):
        golden.read_suite(suite, ["electra-*", "bert-mask"])
    with pytest.raises(NpformerError, match=r"'bert-mask': no such case; did you mean bert-"):
        golden.suite(tmp_path / "none", ["distilbert-*", "bert-mask"])
    assert not (tmp_path / "none").exists()
    good = json.loads((suite / "suite.json").read_text())
    for damage, message in (
        ({"version": "2"}, "not a suite of version 1"),
        ({"cases": 3}, "damaged"),
        ({"cases": [{"name": "../elsewhere"}]}, "damaged"),
        ({"cases": [{"name": ".."}]}, "damaged"),
        ({"cases": [{"name": ""}]}, "damaged"),
        ({"cases": ["bert"]}, "damaged"),
    ):
        (tmp_path / "suite.json").write_text(json.dumps(good | damage))
        with pytest.raises(NpformerError, match=message):
            golden.read_suite(tmp_path)


def test_a_long_list_of_cases_is_read_in_a_time_that_grows_as_it_does(tmp_path: Path) -> None:
    seconds = {}
    for count in (3_000, 30_000):
        entries = [{"name": f"case-{i}"} for i in range(count)]
        manifest = {"format": "npformer-suite", "version": "1", "cases": entries}
        (tmp_path / "suite.json").write_text(json.dumps(manifest))
        seconds[count] = math.inf
        for _ in range(3):  # the least of three, because other processes slow a core's memory
            began = time.process_time()
            assert len(golden.read_suite(tmp_path)) == count
            seconds[count] = min(seconds[count], time.process_time() - began)
    assert seconds[30_000] < 40 * seconds[3_000]  # looking up each case in a list would take 100 times as long
