"""JSON Lines: every value is kept exactly, or refused with its file, line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from npformer import NpformerError
from npformer.dataset import map
from npformer.dataset.sizes import DEPTH
from tests.support.cli_runner import make_models, run, run_apart

DEEPEST = "[" * DEPTH + "]" * DEPTH


def lines(path: Path, *values: str) -> Path:
    path.write_text("".join(f'{{"text": "ice", "x": {value}}}\n' for value in values), "utf-8")
    return path


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["18446744073709551615", "0"], [2**64 - 1, 0]),
        (["9223372036854775807", "-9223372036854775808"], [2**63 - 1, -(2**63)]),
        (["9223372036854775808", "9007199254740993"], [2**63, 2**53 + 1]),
        (["9007199254740992", "1.5", "-0.0", "1E300", "5e-324"], [2.0**53, 1.5, -0.0, 1e300, 5e-324]),
        (["-0", "null", "3"], [0, None, 3]),
        (["[[1], [], null]", "[[2.5]]"], [[[1.0], [], None], [[2.5]]]),
        (
            ['{"b": 1, "a": {"c": []}}', '{"a": {"c": ["z"]}}'],
            [{"b": 1, "a": {"c": []}}, {"b": None, "a": {"c": ["z"]}}],
        ),
        (["true", "null"], [True, None]),
        (['"2024-01-01"', '"\\u0000 \\ud83d\\ude00"'], ["2024-01-01", "\0 😀"]),
        ([DEEPEST], [json.loads(DEEPEST)]),
    ],
)
def test_values_come_through_exactly(values, expected, suffix, classify, tmp_path):
    source, out = lines(tmp_path / "in.jsonl", *values), tmp_path / f"o.{suffix}"
    map(classify, source, out, column="text")
    if suffix == "jsonl":
        found = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    else:
        read = pa.parquet.read_table if suffix == "parquet" else pa.feather.read_table
        found = read(out).to_pylist()
    assert str([row["x"] for row in found]) == str(expected)  # 1 and 1.0 differ, and so do 0.0 and -0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["1.5", "9007199254740993"],
            "in.jsonl:2: column 'x': 9007199254740993 is beyond the range of exact whole numbers in float64",
        ),
        (
            ["9007199254740993", "0", "1.5"],
            "in.jsonl:1: column 'x': 9007199254740993 is beyond the range of exact whole numbers in float64",
        ),
        (
            ["9223372036854775808", "-1"],
            "in.jsonl:1: column 'x': 9223372036854775808 is beyond the range of exact whole numbers in float64",
        ),
        (
            ["-1", "18446744073709551615"],
            "in.jsonl:2: column 'x': 18446744073709551615 is beyond the range of exact whole numbers in float64",
        ),
        (["18446744073709551616"], "in.jsonl:1: column 'x': a whole number of 65 bits has more than 64 bits"),
        (
            ["[{'a': 1}]".replace("'", '"'), '[{"a": [2]}]'],
            "in.jsonl:2: column 'x[].a': a list, but a number in an earlier row",
        ),
        (["1", "true"], "in.jsonl:2: column 'x': true or false, but a number in an earlier row"),
        (["1e400"], "in.jsonl:1: not JSON: 1e400 is larger than any float64"),
        (['{"a": 1, "a": 2}'], "in.jsonl:1: not JSON: duplicate key 'a'"),
        (['1}{"text": "ice", "x": 2'], "in.jsonl:1: not JSON: Extra data"),
        (["1,\n"], "in.jsonl:1: not JSON"),
    ],
)
def test_values_without_a_common_type_are_refused(values, message, classify, tmp_path):
    """Two conflicting values are refused even if they are far apart."""
    for between in (0, 30_000):
        source = lines(tmp_path / "in.jsonl", *values[:-1], *["null"] * between, values[-1])
        expected = message.replace(f":{len(values)}:", f":{len(values) + between}:")
        with pytest.raises(NpformerError) as raised:
            map(classify, source, tmp_path / "o.parquet", column="text")
        assert str(raised.value).startswith(f"{tmp_path}/{expected}")


def test_types_of_two_files_exclude_each_other(classify, tmp_path):
    """The error names the number that the second file's type cannot represent, and the second file is skipped."""
    (tmp_path / "in").mkdir()
    lines(tmp_path / "in" / "a.jsonl", "9007199254740993")
    lines(tmp_path / "in" / "b.jsonl", "1.5")
    report = map(classify, tmp_path / "in", tmp_path / "o.jsonl", column="text")
    (said,) = report.unreadable
    assert said.startswith(
        f"{tmp_path}/in/a.jsonl:1: column 'x': 9007199254740993 is beyond the range of exact whole numbers in float64"
    )
    assert json.loads((tmp_path / "o.jsonl").read_text())["x"] == 2**53 + 1


@pytest.mark.parametrize("depth", [DEPTH + 1, 100, 1000, 5000, 100_000])
def test_deep_nesting_is_refused_by_its_line(depth, tmp_path):
    """On the command line, 10,000 nested brackets once crashed the process, and 1,000 printed a traceback.

    `run` raises any exception that a process would print as a traceback, so the test would fail.
    """
    model = make_models(tmp_path)["classify"]
    for opening, closing in (("[", "]"), ('{"a": ', "}")):
        lines(tmp_path / "in.jsonl", "null", opening * depth + "1" + closing * depth)
        given = ("classify", "-m", model, "--input", "in.jsonl", "--column", "text", "--output", "o.parquet")
        code, output, said = (run_apart if depth == 100_000 else run)(*given, cwd=tmp_path)
        assert (code, output) == (1, "")
        assert said.startswith("npformer: in.jsonl:2: ")
        assert said.endswith(f"nested more than {DEPTH} deep\n")


def test_deep_nesting_of_other_formats_is_refused_too(classify, tmp_path):
    value = ["x"]
    for _ in range(DEPTH):
        value = [value]
    pa.feather.write_feather(pa.table({"text": ["ice"], "x": [value]}), tmp_path / "in.arrow")
    with pytest.raises(NpformerError, match=rf"in\.arrow: column 'x': nested more than {DEPTH} deep"):
        map(classify, tmp_path / "in.arrow", tmp_path / "o.parquet", column="text")
