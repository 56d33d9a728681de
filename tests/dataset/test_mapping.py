"""A run resumes after an interruption, recomputes damaged parts, and refuses to mix two runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import npformer
from npformer import NpformerError
from npformer.checkpoint.convert import convert
from npformer.checkpoint.read import OWN_WEIGHTS
from npformer.checkpoint.safetensors import read_tensors
from npformer.dataset import Report, map
from npformer.dataset import mapping as module
from npformer.dataset.sinks import Sink
from tests.dataset.conftest import files_in
from tests.support import tiny
from tests.support.cli_runner import ENVIRONMENT, ROOT

SINKS = ("out", "out.parquet", "out.csv.gz", "out.jsonl", "out.arrow")


@pytest.fixture
def source(rows, tmp_path) -> Path:
    """Returns a folder with two files, of 60 and 40 rows."""
    folder = tmp_path / "in"
    folder.mkdir()
    pa.parquet.write_table(rows.slice(0, 60), folder / "a.parquet", row_group_size=11)
    pa.parquet.write_table(rows.slice(60), folder / "b.parquet")
    return folder


def run(task, source, sink, **how) -> dict[str, bytes]:
    """Runs in parts of 25 rows; returns the output's files."""
    sink.parent.mkdir(exist_ok=True)
    map(task, source, sink, **{"column": "text", "part_rows": 25, **how})
    return files_in(sink.parent)


class Broken(Exception):
    pass


def breaking_after(parts: int, monkeypatch) -> None:
    """Interrupts runs after this many parts."""
    real, made = module.answer, []

    def answer(*arguments):
        if len(made) == parts:
            raise Broken
        made.append(1)
        return real(*arguments)

    monkeypatch.setattr(module, "answer", answer)


@pytest.mark.parametrize("sink", SINKS)
def test_a_resumed_run_ends_with_the_same_bytes(sink, classify, source, tmp_path, monkeypatch):
    whole = run(classify, source, tmp_path / "whole" / sink)
    for parts in range(5):
        with monkeypatch.context() as patch:
            breaking_after(parts, patch)
            with pytest.raises(Broken):
                run(classify, source, tmp_path / f"{parts}" / sink)
        assert len(list((tmp_path / f"{parts}").rglob("part-*"))) == parts
        assert not list((tmp_path / f"{parts}").rglob(".in-use"))
        with monkeypatch.context() as patch:
            breaking_after(5 - parts, patch)  # no part is computed twice
            assert run(classify, source, tmp_path / f"{parts}" / sink) == whole
    with monkeypatch.context() as patch:
        breaking_after(0, patch)
        assert run(classify, source, tmp_path / "0" / sink) == whole  # the run has nothing left to do


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_no_byte(threads, model, classify, source, tmp_path):
    task = npformer.pipeline("text-classification", model, threads=threads)
    assert run(task, source, tmp_path / "one" / "out") == run(classify, source, tmp_path / "other" / "out")


def test_parts_hold_their_rows_across_file_boundaries(classify, source, tmp_path):
    run(classify, source, tmp_path / "out")
    counts = {path.name: pa.parquet.read_metadata(path).num_rows for path in (tmp_path / "out").glob("part*")}
    names = ["00000-000000", "00000-000001", "00000-000002", "00001-000000", "00001-000001"]
    assert counts == dict(zip([f"part-{name}.parquet" for name in names], [25, 25, 10, 25, 15], strict=True))


def test_a_damaged_or_lost_part_is_recomputed(classify, source, tmp_path, monkeypatch):
    whole = run(classify, source, tmp_path / "out" / "parts")
    spoilt, lost = (tmp_path / "out" / "parts" / f"part-0000{i}-000000.parquet" for i in (0, 1))
    spoilt.write_bytes(spoilt.read_bytes()[:-3] + b"???")
    lost.unlink()
    breaking_after(2, monkeypatch)
    assert run(classify, source, tmp_path / "out" / "parts") == whole


@pytest.mark.parametrize("tail", [b'{"part": "part-00000-0000', b"\xff", b"{"])
def test_an_unfinished_line_of_the_manifest_is_dropped(tail, classify, source, tmp_path):
    whole = run(classify, source, tmp_path / "out" / "o")
    manifest = tmp_path / "out" / "o" / "_manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:3]) + tail)
    assert run(classify, source, tmp_path / "out" / "o") == whole


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_manifest_is_an_error_of_one_line(number, classify, source, tmp_path):
    """A field is missing or has the wrong type, or a whole line is not a JSON object of the right form."""
    out = tmp_path / "out" / "o"
    run(classify, source, out)
    manifest = out / "_manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    good = json.loads(lines[number])
    damaged = [7, None, [], "part", {}, [good]]
    damaged += [{**good, "input": [1]}, {**good, "machine": {}}] if number == 0 else []
    names = ("format", "input", "machine") if number == 0 else ("part", "rows", "errors", "truncated", "sha256")
    damaged += [{key: value for key, value in good.items() if key != name} for name in names]
    damaged += [{**good, name: other} for name in names for other in (None, {}, [])]
    for line in [*(json.dumps(each).encode() + b"\n" for each in damaged), b"[" * 100_000 + b"\n", b"\xff\n", b"\n"]:
        manifest.write_bytes(b"".join([*lines[:number], line, *lines[number + 1 :]]))
        with pytest.raises(NpformerError, match=r"_manifest\.jsonl: (damaged, or not a manifest|belongs to a run)"):
            run(classify, source, out)


def test_a_removed_output_is_rewritten_and_a_changed_one_is_not(classify, source, tmp_path):
    out = tmp_path / "out" / "o.csv"
    whole = run(classify, source, out)
    out.unlink()
    assert run(classify, source, out) == whole
    out.write_text("edited by hand")
    with pytest.raises(NpformerError, match="has changed since a run wrote it"):
        run(classify, source, out)
    assert out.read_text() == "edited by hand"


def test_changes_since_the_last_run_are_reported_and_nothing_is_written(model, classify, source, tmp_path):
    out = tmp_path / "out" / "o"
    whole = run(classify, source, out)
    two = npformer.pipeline("text-classification", model, top_k=2)
    other = npformer.pipeline("text-classification", tiny.folder(tmp_path / "other", seed=1))
    cased = npformer.pipeline("text-classification", tiny.folder(tmp_path / "cased", lowercase=False))
    for task, how, message in (
        (two, {}, "options top_k was 'best', is now 2"),
        (other, {}, "weights was"),
        (cased, {}, "tokenizer was"),
        (classify, {"limit": 10}, "limit was None, is now 10"),
        (classify, {"part_rows": 50}, "part rows was 25, is now 50"),
        (classify, {"column": "odd"}, "columns was a list, is now a list"),
        (classify, {"prefix": "x_"}, "prefix was '', is now 'x_'"),
    ):
        with pytest.raises(NpformerError, match="belongs to a run with other settings") as raised:
            run(task, source, out, **how)
        assert message in str(raised.value)
        assert str(raised.value).endswith("Use the same settings, or another output")
    (source / "c.parquet").write_bytes((source / "b.parquet").read_bytes())
    with pytest.raises(NpformerError, match=r"input c\.parquet is new"):
        run(classify, source, out)
    (source / "c.parquet").rename(source / "b.parquet")  # the file has its original bytes and name again
    assert run(classify, source, out) == whole
    pa.parquet.write_table(pa.parquet.read_table(source / "b.parquet").slice(1), source / "b.parquet")
    with pytest.raises(NpformerError, match=r"input b\.parquet bytes was \d+, is now \d+; input b\.parquet sha256 was"):
        run(classify, source, out)
    assert files_in(out.parent) == whole


def test_the_manifest_names_the_weights_by_the_sha256_of_their_converted_file(classify, source, tmp_path):
    made = run(classify, source, tmp_path / "out" / "o")
    convert(classify.model.folder, tmp_path / "converted", dtype="float32")
    _, metadata = read_tensors(tmp_path / "converted" / OWN_WEIGHTS)
    assert json.loads(made["o/_manifest.jsonl"].splitlines()[0])["weights"] == metadata["sha256"]


def test_a_run_of_another_machine_resumes_with_a_warning(classify, source, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        breaking_after(1, patch)
        with pytest.raises(Broken):
            run(classify, source, tmp_path / "out" / "o")
    here = module.machine()
    monkeypatch.setattr(module, "machine", lambda: {**here, "bits": "0123", "kernels": "other"})
    monkeypatch.setattr(module, "probe", lambda: "0123")
    with pytest.warns(match=r"began on a BLAS that adds in a different order \(.*; here other\)"):
        made = run(classify, source, tmp_path / "out" / "o")
    lines = made["o/_manifest.jsonl"].decode().splitlines()
    assert ['"bits": "0123"' in line for line in lines] == [False, False, True, True, True, True]


def test_a_second_run_on_the_same_output_is_refused(classify, source, tmp_path):
    for sink in (tmp_path / "out.csv", tmp_path / "out"):
        with Sink(sink, source).locked(), pytest.raises(NpformerError, match="in use by process"):
            map(classify, source, sink, column="text")
        map(classify, source, sink, column="text")


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("taken", "taken: already exists and was not written by a run"),
        ("taken.csv", r"taken.csv: already exists and was not written by a run"),
        ("in/out", "the output overlaps the input"),
        ("in", "the output overlaps the input"),
        (".", "the output overlaps the input"),
        ("pipe.jsonl", r"pipe\.jsonl: not a regular file or folder, .*; write to a file such as out\.jsonl first"),
        ("/dev/stdout", "/dev/stdout: not a regular file or folder"),
        ("bare", "bare: not a regular file or folder"),
        ("out.txt", "unknown suffix; supported formats"),
        ("out.parquet.gz", "unknown suffix; supported formats"),
        ("no/such/out.csv", "No such file or directory"),
    ],
)
def test_an_output_that_cannot_be(sink, message, classify, source, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    (tmp_path / "taken.csv").write_text("mine")
    (tmp_path / "bare").write_text("mine")
    os.mkfifo(tmp_path / "pipe.jsonl")
    before = files_in(tmp_path)
    with pytest.raises(NpformerError, match=message):
        map(classify, source, tmp_path / sink, column="text")
    assert files_in(tmp_path) == before


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"column": "txt"}, "column: 'txt' is not known; did you mean 'text'"),
        ({"column": ("text", "tet")}, "column: 'tet' is not known; did you mean 'text'"),
        ({"column": "id"}, "column 'id': expected texts, got int64"),
        ({"column": "text", "part_rows": 0}, "part_rows"),
        ({"column": "text", "limit": 0}, "limit"),
    ],
)
def test_wrong_settings_leave_nothing(how, message, classify, source, tmp_path):
    for sink in ("out", "out.csv"):
        with pytest.raises(NpformerError, match=message):
            map(classify, source, tmp_path / sink, **how)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_names_that_clash_take_a_prefix(classify, source, tmp_path):
    map(classify, source, tmp_path / "one.parquet", column="text")
    with pytest.raises(NpformerError, match="column 'label': both the input and the result have this column"):
        map(classify, tmp_path / "one.parquet", tmp_path / "two.parquet", column="text")
    map(classify, tmp_path / "one.parquet", tmp_path / "two.parquet", column="text", prefix="new_")
    names = pa.parquet.read_schema(tmp_path / "two.parquet").names
    assert names[3:] == ["label", "score", "truncated", "error", "new_label", "new_score", "new_truncated", "new_error"]


def test_columns_that_the_output_cannot_hold_are_known_before_the_answers(classify, tmp_path, monkeypatch):
    (tmp_path / "in.jsonl").write_text('{"text": "ice", "meta": {}}\n')
    monkeypatch.setattr(module, "answer", lambda *_: pytest.fail("answered"))
    spans = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    pa.feather.write_feather(pa.table({"text": ["ice"], "x": spans}), tmp_path / "in.arrow")
    for source, sink, message in (
        ("in.jsonl", "o.parquet", "no child field"),
        ("in.jsonl", "out", "no child field"),
        ("in.arrow", "o.csv", "Unsupported cast"),
    ):
        with pytest.raises(NpformerError, match=message):
            map(classify, tmp_path / source, tmp_path / sink, column="text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.arrow", "in.jsonl"]


def test_a_mended_file_with_other_columns_is_another_input(classify, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("{")
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "ice"}\n')
    assert len(map(classify, tmp_path / "in", tmp_path / "o.csv", column="text").unreadable) == 1
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "ice", "x": 1}\n')
    with pytest.raises(NpformerError, match="other settings: types x is new"):
        map(classify, tmp_path / "in", tmp_path / "o.csv", column="text")


@pytest.mark.parametrize("limit", [1, 25, 61, 1000])
def test_a_limit_takes_the_first_rows(limit, classify, rows, source, tmp_path):
    report = map(classify, source, tmp_path / "o.parquet", column="text", limit=limit, part_rows=25)
    kept = pa.parquet.read_table(tmp_path / "o.parquet")
    assert report.rows == len(kept) == min(limit, 100)
    assert kept["id"].to_pylist() == rows["id"].to_pylist()[:limit]


@pytest.mark.parametrize("sink", ["out", "out.parquet"])
def test_an_unreadable_file_is_named_and_answered_once_it_is_repaired(sink, classify, source, tmp_path):
    """An unreadable file is skipped. Once it is readable, the same call processes it without repeating a part."""
    whole = run(classify, source, tmp_path / "whole" / sink)
    good = (source / "a.parquet").read_bytes()
    (source / "a.parquet").write_bytes(good[:-50])
    (tmp_path / "out").mkdir()
    report = map(classify, source, tmp_path / "out" / sink, column="text", part_rows=25)
    assert isinstance(report, Report)
    assert (report.rows, len(report.unreadable)) == (40, 1)
    assert report.unreadable[0].startswith(f"{source / 'a.parquet'}: ")
    assert len(pa.parquet.read_table(tmp_path / "out" / sink)) == 40
    assert map(classify, source, tmp_path / "out" / sink, column="text", part_rows=25) == report
    (source / "a.parquet").write_bytes(good)
    assert run(classify, source, tmp_path / "out" / sink) == whole


FULL = """
import resource, sys, npformer, npformer.dataset
task = npformer.pipeline("text-classification", sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), -1))
npformer.dataset.map(task, sys.argv[2], sys.argv[3], column="text", part_rows=25)
"""


@pytest.mark.parametrize("sink", ["out", "out.jsonl"])
def test_a_run_resumes_after_a_full_disk(sink, model, classify, source, tmp_path):
    """A run with a limit on file sizes ends with an error, and resumes without the limit."""
    whole = run(classify, source, tmp_path / "whole" / sink)
    largest = max(len(each) for each in whole.values())
    for limit in (largest // 4, largest // 2, largest - 1):
        command = [sys.executable, "-c", FULL, model, source, tmp_path / f"{limit}" / sink, str(limit)]
        (tmp_path / f"{limit}").mkdir()
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=300)
        assert done.stderr.splitlines()[-1].startswith("npformer.common.errors.NpformerError: ")
        assert "File too large" in done.stderr.splitlines()[-1]
        assert not list((tmp_path / f"{limit}").rglob("*.partial"))
        assert run(classify, source, tmp_path / f"{limit}" / sink) == whole


@pytest.mark.parametrize(("sink", "how"), [("out", "steps"), ("out.parquet", "steps"), ("out.parquet", "times")])
def test_killed_runs_end_with_the_same_bytes(sink, how, model, rows, tmp_path):
    """A run is killed at each of its file operations, or at 50 random times. When resumed, it writes the same bytes."""
    pa.parquet.write_table(rows, tmp_path / "in.parquet")
    (tmp_path / "runs").mkdir()
    command = [
        sys.executable,
        # Python warns if a process with threads (of BLAS, pyarrow) forks
        *("-W", "ignore::DeprecationWarning:__main__"),
        "-m",
        "tests.dataset.killing",
        model,
        tmp_path / "in.parquet",
        tmp_path / "runs" / sink,
        how,
    ]
    environment = {**ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= (20 if how == "steps" else 50)
    assert os.listdir(tmp_path / "runs") == []
