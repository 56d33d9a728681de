"""The option --input of every command reads rows from a file and writes them with answers; errors are one line."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.support import seq2seq_models
from tests.support.cli_runner import ENVIRONMENT, command, make_models, run, run_apart
from tests.support.terminals import run_on_terminal

COMMANDS = {
    "classify": ([], ["label", "score"]),
    "zero-shot": (["-l", "ice,music"], ["labels"]),
    "tag": (["--strategy", "none"], ["entities"]),
    "answer": (["--context-column", "second"], ["answer", "score", "start", "end"]),
    "fill": (["-k", "1"], ["masks"]),
    "embed": ([], ["embedding"]),
    "rerank": (["--pair-column", "second"], ["score"]),
    "translate": (["--max-tokens", "4"], ["translation"]),
    "summarize": (["--max-tokens", "4", "--best", "2"], ["summaries"]),
    "text2text": (["--max-tokens", "4", "--sample", "--seed", "1"], ["generated_text"]),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    bart = seq2seq_models.bart_folder(folder / "bart")
    translator = seq2seq_models.folder_of_letters(folder / "translate")
    return {**make_models(folder), "translate": translator, "summarize": bart, "text2text": bart}


@pytest.fixture
def place(tmp_path):
    texts = ["I love [MASK] cream", "not my [MASK]"] * 4
    pa.parquet.write_table(pa.table({"text": texts, "second": ["she was in Paris"] * 8}), tmp_path / "in.parquet")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_the_rows_of_a_dataset(name, models, place):
    options, names = COMMANDS[name]
    given = ("-m", models[name], "--input", "in.parquet", "--column", "text", "--output", "o.parquet", "--limit", "7")
    assert run(name, *given, *options, "--prefix", "p_", cwd=place) == (0, "", "")
    table = pa.parquet.read_table(place / "o.parquet")
    assert table.column_names == ["text", "second", *(f"p_{each}" for each in [*names, "truncated", "error"])]
    assert (len(table), table["p_error"].null_count) == (7, 7)


def test_a_finished_output_is_left_and_other_options_are_refused(models, place):
    given = ("-m", models["fill"], "--input", "in.parquet", "--column", "text", "--output", "o.parquet", "--limit", "7")
    for _ in range(2):
        assert run("fill", *given, "--prefix", "p_", cwd=place) == (0, "", "")
    code, output, said = run("fill", *given, cwd=place)
    assert (code, output) == (1, "")
    assert "prefix was 'p_', is now ''" in said


def test_pairs_are_two_columns(models, place):
    given = ("-m", models["zero-shot"], "--input", "in.parquet", "--column", "text", "--pair-column", "second")
    assert run("classify", *given, "-o", "o.jsonl", cwd=place) == (0, "", "")
    pair = run(
        "classify", "-m", models["zero-shot"], "--json", "not my [MASK]", "--pair", "she was in Paris", cwd=place
    )
    label = pair[1].partition('"label": ')[2].partition(",")[0]
    assert f'"label": {label}, ' in (place / "o.jsonl").read_text().splitlines()[1]


def test_rows_without_an_answer_and_files_that_cannot_be_read_are_exit_code_1(models, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "ice"}\n{"text": null}\n' + '{"text": "%s"}\n' % ("ice " * 99))
    (tmp_path / "in" / "b.jsonl").write_text("{")
    given = ("classify", "-m", models["classify"], "--input", "in", "--column", "text", "--output", "o.csv")
    code, output, said = run_apart(*given, cwd=tmp_path)
    assert (code, output) == (1, "")
    broken, goes_on, cut, errors = said.splitlines()
    assert broken.startswith("npformer: in/b.jsonl:1: not JSON")
    assert goes_on == "npformer: make these files readable, then run the same command to continue"
    assert cut == "npformer: truncated texts: 1; see the column truncated"
    assert errors == "npformer: 1 of 3 rows have no answer; see the column error"
    assert (tmp_path / "o.csv").read_text().count("\n") == 4


def test_progress_on_a_terminal(models, place):
    """The progress bar shows the rows done, their total, the rate and the time left."""
    given = ("-m", models["classify"], "--input", "in.parquet", "--column", "text", "--output", "o.csv")
    code, _, said = run_on_terminal(command("classify", *given), 80, cwd=place, env=ENVIRONMENT)
    assert code == 0
    assert b"] 0/8 rows" in said
    assert b"\r8 rows in " in said


def test_pipes_are_refused_with_a_remedy(models, place):
    given = ("classify", "-m", models["classify"], "--column", "text")
    said = run_apart(*given, "--input", "in.parquet", "--output", "-", cwd=place)
    assert said[:2] == (1, "")
    assert said[2].startswith("npformer: -: not a regular file or folder, which an interrupted run needs to resume")
    assert run_apart(*given, "--input", "-", "--output", "o.csv", cwd=place)[2] == (
        "npformer: -: not a regular file or folder; a dataset is read twice, so save it to a file first\n"
    )
    assert [each.name for each in place.iterdir()] == ["in.parquet"]
