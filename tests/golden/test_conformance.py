"""Every behaviour of a port's program gets a verdict with a reason, and reports contain the verdicts."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.checkpoint.archive import load_arrays, save_arrays
from npformer.common.errors import NpformerError
from npformer.golden import reports
from npformer.golden.conformance import FAULTS, HINTS
from tests.support.service import alive

pytestmark = pytest.mark.numbers

CASE = "bert-sequence-classification"
#: A port in Python, of any family: it reads the ids, runs the model and saves every stage.
PORT = """
import sys
import numpy as np, npformer
from npformer.checkpoint.archive import load_arrays
folder, inputs, output = sys.argv[1:]
arrays, _ = load_arrays(inputs)
of = lambda name: [arrays[f"{i}/{name}"] for i in range(9) if f"{i}/{name}" in arrays]
model = npformer.load(folder)
with npformer.trace() as trace:
    if of("source_ids"):
        model.run([(npformer.Text(a), npformer.Text(b)) for a, b in zip(of("source_ids"), of("ids"))])
    else:
        token_type_ids = of("segments") or [None] * 9
        model.run([npformer.Text(a, b) for a, b in zip(of("ids"), token_type_ids)])
trace.save(output)
"""


def shell(script: str) -> list[str]:
    """Returns a program: a line of sh, in which $1, $2 and $3 are the model's folder, the ids and the output."""
    return ["sh", "-c", script, "port"]


def judged(suite: Path, command: list[str], case: str = CASE, timeout: float = 300) -> golden.Verdict:
    (verdict,) = golden.run_suite(suite, command, [case], timeout)
    assert verdict.case == case
    return verdict


def changed(suite: Path, tmp_path: Path, change: Callable[[dict[str, np.ndarray]], object]) -> list[str]:
    """A program that writes the golden stages with a change."""
    arrays = {
        name: a for name, a in load_arrays(suite / CASE / "golden.safetensors")[0].items() if "float64" not in name
    }
    made = {name: np.array(array) for name, array in arrays.items()}
    change(made)
    save_arrays(tmp_path / "made.safetensors", made, {})
    return shell(f"cp {tmp_path}/made.safetensors $3")


RIGHT = shell("cp $1/golden.safetensors $3")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["bert-masked-lm", "electra-untied", "transformer-base", "marian-two-vocabularies"])
def test_a_right_port_of_any_family_passes(case: str, suite: Path, tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(PORT)
    verdict = judged(suite, [sys.executable, str(tmp_path / "port.py")], case)
    assert verdict.ok, verdict.details
    assert verdict.why.endswith(" stages")
    assert verdict.compared > 25
    assert verdict.seconds > 0


@pytest.mark.parametrize(
    ("script", "kind", "why"),
    [
        ("echo useless; echo bad weights >&2; exit 3", "crash", "exit code 3: bad weights"),
        ("cp $1/golden.safetensors $3; exit 1", "crash", "exit code 1; nothing printed"),
        ("kill -KILL $$", "crash", "killed by SIGKILL; nothing printed"),  # not SIGSEGV: an emulator reports it
        ("kill -40 $$", "crash", "killed by signal 40; nothing printed"),
        ("echo fine", "no output", "exit code 0, but no file"),
        ("head -c 900 $1/golden.safetensors > $3", "unreadable", ""),
        ("echo '{}' > $3", "unreadable", ""),
        ("mkdir $3", "unreadable", "not a regular file"),
        ("mkfifo $3", "unreadable", "not a regular file"),
        ("cp $2 $3", "unreadable", "no array has the name of a stage"),
        ("cp $1/../bert-lengths/golden.safetensors $3", "unreadable", "expected the golden file's token ids"),
    ],
)  # fmt: skip
def test_a_file_without_stages_to_compare_has_its_own_verdict(script: str, kind: str, why: str, suite: Path) -> None:
    verdict = judged(suite, shell(script))
    assert (verdict.kind, verdict.ok, verdict.compared) == (kind, False, 0)
    assert kind in FAULTS
    assert why in verdict.why
    assert verdict.why
    assert "npformer-" not in verdict.why  # the path of a temporary folder would be useless


def test_a_program_that_hangs_is_stopped_with_all_that_it_started(suite: Path, tmp_path: Path) -> None:
    script = f"sleep 3000 & echo $! > {tmp_path}/new; echo waiting; mv {tmp_path}/new {tmp_path}/child; wait"
    for timeout in (1, 4, 16, 64):  # on a busy machine, the shell may need more than a second until it waits
        began = time.monotonic()
        verdict = judged(suite, shell(script), timeout=timeout)
        assert time.monotonic() - began < 1000
        assert verdict.kind == "timeout"
        if (tmp_path / "child").exists():
            break
    assert verdict.why == f"stopped after {timeout} s: waiting"
    child = int((tmp_path / "child").read_text())
    for _ in range(1000):  # waits until its new parent has reaped it
        if not alive(child):
            break
        time.sleep(0.1)
    assert not alive(child)


def test_a_program_that_leaves_a_child_behind_is_not_waited_for(suite: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    assert judged(suite, shell(f"cp $1/golden.safetensors $3; sleep 1000 & echo $! > {tmp_path}/child")).ok
    assert time.monotonic() - began < 500
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_program_reads_nothing_from_our_stdin_and_may_print_anything(suite: Path) -> None:
    verdict = judged(suite, shell(r"cat; printf '\033[2J\000\377 <b>&amp;'; exit 9"))
    assert verdict.kind == "crash"
    verdicts = [verdict]
    printed = reports.row(verdict, 30)
    assert "\x1b" not in printed
    assert "\x00" not in printed
    failure = ElementTree.fromstring(reports.junit(verdicts)).find(".//error")
    assert "<b>&amp;" in failure.attrib["message"]
    assert json.loads(reports.verdicts_json(verdicts))["cases"][0]["kind"] == "crash"


def halve(arrays: dict[str, np.ndarray]) -> None:
    arrays["0/layers.0.attention.scores"] = arrays["0/layers.0.attention.scores"] * 2
    arrays["1/layers.0.attention.scores"] = arrays["1/layers.0.attention.scores"] * 2


def without(*ends: str) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        for name in [name for name in arrays if name.endswith(ends)]:
            del arrays[name]

    return change


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        (without("probabilities"), "pass", "44 of 45 stages"),
        (without("heads", "norm", "residual"), "pass", "30 of 45 stages"),
        (without("logits"), "incomplete", "no logits; 44 of 45 stages, all correct"),
        (without("1/logits"), "diverges", "logits: expected one array for each text, 0 to 1, got [0]"),
        (halve, "diverges", "layers.0.attention.scores: unscaled scores"),
        (lambda arrays: arrays["0/logits"].fill(np.nan), "diverges", "logits: nan at 0, 0; 2 values of text 0 are not finite"),
        (lambda arrays: arrays.update({"0/pooler": np.zeros(3)}), "diverges", "pooler: expected (16,)"),
        (lambda arrays: arrays.update({"layers.0.ffn.hidden.weight": np.zeros((16, 24), np.float32)}), "diverges",
         "layers.0.ffn.hidden.weight: all zeros"),
    ],
)  # fmt: skip
def test_diverging_and_missing_stages_are_named(
    change: Callable, kind: str, why: str, suite: Path, tmp_path: Path
) -> None:
    verdict = judged(suite, changed(suite, tmp_path, change))
    assert (verdict.kind, why in verdict.why) == (kind, True), verdict.why
    assert bool(verdict.stage) == (kind == "diverges" and "weight" not in why)


def test_the_cause_is_reported_with_the_stage(suite: Path, tmp_path: Path) -> None:
    verdict = judged(suite, changed(suite, tmp_path, halve))
    assert (verdict.stage, verdict.causes) == ("layers.0.attention.scores", ("unscaled scores",))
    assert "q k^T must be divided by sqrt(d_head)" in verdict.details


def test_a_port_in_half_precision_is_held_to_its_budgets(suite: Path, tmp_path: Path) -> None:
    def rounded(arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if array.dtype == np.float32:
                arrays[name] = array.astype(np.float16)

    command = changed(suite, tmp_path, rounded)
    assert judged(suite, command).ok
    (verdict,) = golden.run_suite(suite, command, [CASE], dtype="float32")
    assert verdict.kind == "diverges"


def test_a_wrong_translator_gets_its_first_wrong_stage_and_the_cause(suite: Path, tmp_path: Path) -> None:
    arrays, _ = load_arrays(suite / "marian-relu" / "golden.safetensors")
    stage = "decoder.layers.0.cross_attention.scores"
    made = {name: a * 2 if stage in name else a for name, a in arrays.items() if "float64" not in name}
    save_arrays(tmp_path / "made.safetensors", made, {})
    verdict = judged(suite, shell(f"cp {tmp_path}/made.safetensors $3"), "marian-relu")
    assert (verdict.kind, verdict.stage, verdict.causes) == ("diverges", stage, ("scores scaled differently",))
    assert "scores scaled differently" in verdict.why


def test_a_program_that_cannot_be_started_is_an_error(suite: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for command, message in (
        (["./nothing"], "cannot be started: No such file"),
        ([str(tmp_path / "text")], "cannot be started: Permission denied"),
    ):
        with pytest.raises(NpformerError, match=message):
            list(golden.run_suite(suite, command, [CASE]))


# --- reports --------------------------------------------------------------------------------------------------------


@pytest.fixture
def verdicts(suite: Path, tmp_path: Path) -> list[golden.Verdict]:
    commands = (RIGHT, changed(suite, tmp_path, halve), shell("exit 4"))
    return [judged(suite, command) for command in commands]


def test_the_table_is_80_columns_wide(verdicts: list[golden.Verdict], suite: Path) -> None:
    width = max(len(entry["name"]) for entry in golden.read_suite(suite))
    lines = [line for verdict in verdicts for line in reports.row(verdict, width).splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"{CASE:<{width}}  pass (all 45 stages)"
    assert lines[2] == "    layers.0.attention.scores: unscaled scores"
    told = reports.summary(verdicts)
    assert told.splitlines()[1] == "1 of 3 cases pass; diverges 1, crash 1"
    assert "cause: unscaled scores" in told


def test_json_and_junit_have_every_verdict(verdicts: list[golden.Verdict]) -> None:
    told = json.loads(reports.verdicts_json(verdicts))
    assert (told["ok"], told["passed"]) == (False, 1)
    assert [case["kind"] for case in told["cases"]] == ["pass", "diverges", "crash"]
    assert told["cases"][1]["causes"] == ["unscaled scores"]
    tree = ElementTree.fromstring(reports.junit(verdicts))
    (suite,) = tree
    assert [suite.attrib[name] for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert [len(case) for case in suite] == [0, 1, 1]
    assert suite[1][0].attrib["message"] == "layers.0.attention.scores: unscaled scores"
    assert "cause: unscaled scores" in suite[1][0].text


def test_github_gets_a_line_for_each_fault_that_nothing_in_it_can_break(verdicts: list[golden.Verdict]) -> None:
    lines = reports.verdicts_github(verdicts).splitlines()
    assert lines == [
        f"::error title={CASE}%3A diverges::layers.0.attention.scores: unscaled scores",
        f"::error title={CASE}%3A crash::exit code 4; nothing printed",
    ]
    assert reports.verdicts_github(verdicts[:1]) == "::notice title=npformer golden run::1 of 1 case passes"
    odd = reports.annotation("error", "a: b, c\n", "50%\r\nd::e")
    assert odd == "::error title=a%3A b%2C c%0A::50%25%0D%0Ad::e"


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [("float16", "stored in float16: read two bytes"), ("bfloat16", "<< 16).view('<f4') reads them")],
)
def test_a_port_that_reads_stored_weights_wrongly_hears_of_their_dtype(dtype: str, hint: str, suite: Path) -> None:
    case = f"bert-{dtype}"
    crashed = judged(suite, shell("echo cannot read; exit 1"), case)
    assert crashed.why == f"exit code 1: cannot read; {HINTS[dtype]}"
    assert hint in crashed.why
    diverging = judged(suite, shell("cp $1/../bert-lengths/golden.safetensors $3"), case)
    assert hint in diverging.why
    assert hint not in judged(suite, RIGHT, case).why
    assert "stored in" not in judged(suite, shell("exit 1")).why


def test_the_hint_for_numpy_reads_bfloat16(suite: Path) -> None:
    folder = suite / "bert-bfloat16"
    path = folder / "model.safetensors"
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    entry = next(v for k, v in header.items() if k.endswith("word_embeddings.weight"))
    begin, end = entry["data_offsets"]
    data = path.read_bytes()[8 + size + begin : 8 + size + end]
    expression = HINTS["bfloat16"].partition(": ")[2].removesuffix(" reads them")
    numbers = eval(expression, {"np": np, "data": data}).reshape(entry["shape"])
    np.testing.assert_array_equal(numbers, load_folder(folder)[1]["embeddings"]["token"]["weight"])


def test_a_partial_export_reports_how_many_stages_pass(suite: Path) -> None:
    reference = golden.load(suite / CASE / "golden.safetensors")

    def compared(*names: str) -> golden.Comparison:
        arrays = {f"{i}/{name}": array for name in names for i, array in enumerate(reference.stages[name])}
        return golden.compare(reference, arrays)

    first, within = list(reference.stages)[:4], "every compared stage is within its budget"
    comparison = compared(*first, "logits")
    assert comparison.passes
    assert f"{comparison}".splitlines()[-1] == f"pass (5 of 45 stages): {within}"
    assert compared(*first, "probabilities").passes
    comparison = compared(*first)
    assert (comparison.ok, comparison.passes, comparison.unanswered) == (True, False, ["logits"])
    assert f"{comparison}".splitlines()[-2:] == [
        f"incomplete (4 of 45 stages): {within}",
        "export logits too: without the answer, nothing passes",
    ]
    partial = golden.Verdict(CASE, "", "pass", "4 of 45 stages")
    assert reports.row(partial, 10) == f"{CASE}  pass (4 of 45 stages)"
