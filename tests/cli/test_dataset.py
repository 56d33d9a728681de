"""Errors of --input: the extra `data` or a required option is missing, or an option applies only to texts."""

import sys

import pytest

from npformer import NpformerError
from tests.support.cli_runner import run


@pytest.fixture
def model(models):
    return models["classify"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--column", "text", "ice"), "--column needs --input"),
        (("--pair-column", "text", "ice"), "--pair-column needs --input"),
        (("--limit", "3", "ice"), "--limit needs --input"),
        (("--output", "o.csv", "ice"), "--output needs --input"),
        (("--input", "in.csv", "--output", "o.csv"), "--column: missing; --input needs --column NAME and --output OUT"),
        (("--input", "in.csv", "--column", "text"), "--output: missing; --input needs --column NAME and --output OUT"),
        (("--input", "in.csv", "in2.csv"), "a text: not allowed with --input; for several files, give their folder"),
        (("--input", "in.csv", "-f", "a.txt"), "--file: not allowed with --input"),
        (("--input", "in.csv", "--pair", "ice"), "--pair: not allowed with --input"),
        (
            ("--input", "in.csv", "--json"),
            "--json: not allowed with --input; answers go to --output; texts come from --column",
        ),
    ],
)
def test_incompatible_options_are_refused(arguments, message, model):
    code, output, said = run("classify", "-m", model, *arguments)
    assert (code, output) == (1, "")
    assert said.startswith(f"npformer: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--column", "text", "ice"), "a query: not allowed with --input"),
        (
            ("--column", "text", "--output", "o.csv"),
            "--pair-column: missing; --input needs --column NAME --pair-column NAME and --output OUT",
        ),
    ],
)
def test_rerank_takes_two_columns_and_no_query(arguments, message, models):
    code, output, said = run("rerank", "-m", models["rerank"], "--input", "in.csv", *arguments)
    assert (code, output) == (1, "")
    assert said.startswith(f"npformer: {message}")


def test_json_is_refused_with_an_array(models, tmp_path):
    code, output, said = run("embed", "-m", models["embed"], "-o", tmp_path / "x.npy", "--json", "ice")
    assert (code, output, list(tmp_path.iterdir())) == (1, "", [])
    assert said.startswith("npformer: --json: not allowed with --output, which writes an array")


def test_the_extra_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "npformer.dataset", raising=False)
    with pytest.raises(NpformerError, match=r'a dataset needs pyarrow: pip install "npformer\[data\] @ git'):
        import npformer.dataset  # noqa: F401
