"""The text of pages: a standalone file has all that a page uses, and computes a model's answers with only NumPy."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import npformer
from npformer.pages.find import names
from npformer.pages.source import source
from npformer.pages.standalone import standalone_model
from tests.plain.test_pages import TEXTS, TOLERANCE, cases, model_of
from tests.support.cli_runner import run
from tests.support.one_file import answering, executed

IDS = TEXTS[0]


@pytest.mark.parametrize("name", names())
def test_a_standalone_page_imports_only_numpy_and_runs(name: str, tmp_path: Path) -> None:
    text = source(name, standalone=True)
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {each.name for node in imported for each in node.names} <= {"numpy", "math"}
    assert not re.search(r"^import numpy as np\n\n(def |@)", text, re.M)  # two blank lines
    scope = executed(text, tmp_path / "page.py")
    own = {each for each, value in vars(npformer.plain.page(name)).items() if inspect.isfunction(value)}
    assert own <= scope.keys() | {"encode"}  # `encode`, defined twice, has a longer name in the file


@pytest.mark.parametrize(("model_type", "head"), cases())
def test_a_standalone_model_gives_the_answers(model_type: str, head: str, tmp_path: Path) -> None:
    model = model_of(model_type, head)
    got = answering(model, IDS, tmp_path)(IDS)
    ids = [[IDS]] if head == "multiple-choice" else IDS
    targets = {"decoder_input_ids": [model.config.decoder.start_id]} if head == "translation" else {}
    for name, expected in model(ids, **targets).items():
        np.testing.assert_allclose(got[name].ravel(), expected.ravel(), err_msg=name, **TOLERANCE)


def test_a_long_call_in_a_standalone_model_has_a_line_for_each_argument() -> None:
    text, _ = standalone_model(model_of("distilbert", "sequence-classification"), IDS)
    assert "\n        n_heads=" in text


def test_a_list_with_an_entry_for_each_of_many_layers_has_several_lines(tmp_path: Path) -> None:
    model = model_of("smollm3", "base", n_layers=30)
    got = answering(model, IDS, tmp_path)(IDS)["last_hidden_state"]
    np.testing.assert_allclose(got, model(IDS).last_hidden_state[0], **TOLERANCE)
    with np.load(tmp_path / "model.npz") as arrays:
        assert len([name for name in arrays.files if name.startswith("sizes.")]) <= 2  # equal arrays are stored once


def test_a_tied_table_is_stored_once() -> None:
    _, arrays = standalone_model(model_of("bert", "masked-lm"))
    assert "embeddings.token.weight" in arrays
    assert "head.output.weight" not in arrays


def test_the_command_writes_a_model_that_runs_without_npformer(tmp_path: Path) -> None:
    code, output, _ = run("page", "-m", "distilbert-sst2", "--standalone", "-o", "model.py", cwd=tmp_path)
    assert code == 0
    assert output.startswith("model.py, model.npz: ")
    answers = subprocess.run(
        [sys.executable, "-c", "import sys, runpy; sys.modules['npformer'] = None; runpy.run_path('model.py', run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    logits = np.array(answers.stdout.split("[")[1].strip(" ]\n").split(), float)
    model = npformer.load("distilbert-sst2")
    np.testing.assert_allclose(logits, model(model.tokenizer.encode("I love ice cream").ids).logits[0], atol=1e-4)


def test_the_command_writes_a_translator(tmp_path: Path) -> None:
    """The file answers its text with the ids of the translator's own tokenizer."""
    code, output, errors = run("page", "-m", "en-de-multi30k", "--standalone", "-o", "model.py", cwd=tmp_path)
    assert (code, errors, output.startswith("model.py, model.npz: ")) == (0, "", True)
    ids = npformer.load("en-de-multi30k").tokenizer.encode("I love ice cream")
    assert f"or {ids})" in (tmp_path / "model.py").read_text()


@pytest.mark.parametrize("name", ["model.npz", "model.NPZ", "folder", "folder/", "", ".", "/dev/stdout", "no/model.py"])
def test_an_output_that_cannot_be_written_leaves_no_file(name: str, tmp_path: Path) -> None:
    """A program named model.npz would overwrite its own weights."""
    (tmp_path / "folder").mkdir()
    code, _, errors = run("page", "-m", "distilbert-sst2", "--standalone", "-o", name, cwd=tmp_path)
    assert (code, errors.count("\n"), errors.count("Traceback")) == (1, 1, 0)
    assert [each.name for each in tmp_path.rglob("*")] == ["folder"]
    assert not Path("/dev/stdout.npz").exists()


def test_weights_that_cannot_be_written_leave_no_program(tmp_path: Path) -> None:
    (tmp_path / "model.npz").mkdir()
    code, _, errors = run("page", "-m", "distilbert-sst2", "--standalone", "-o", "model.py", cwd=tmp_path)
    assert (code, errors) == (1, "npformer: model.npz: cannot be written: it is a folder; expected a file\n")
    assert [each.name for each in tmp_path.rglob("*")] == ["model.npz"]


@pytest.mark.parametrize("name", ["IDS START.npz", "a\"b'c\n\\.npz", "\udcff.npz"])
def test_a_file_of_weights_may_have_any_name(name: str) -> None:
    text, _ = standalone_model(model_of("bert", "masked-lm"), IDS, name)
    names = [node.value for node in ast.walk(ast.parse(text.encode())) if isinstance(node, ast.Constant)]
    assert name in names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("page",), "expected the name of a family or -m MODEL"),
        (("page", "lama"), "got 'lama'; did you mean 'llama'?"),
        (("page", "llama", "-m", "gpt2-austen"), "expected a name or -m MODEL, got both, 'llama' and 'gpt2-austen'"),
        (("page", "-m", "distilbert-sst2", "--standalone"), "--output: expected a file"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], message: str) -> None:
    code, output, errors = run(*arguments)
    assert (code, output) == (1, "")
    assert message in errors


def test_a_page_is_printed() -> None:
    code, output, _ = run("page", "llama")
    assert code == 0
    assert output == source("llama")
    assert output.startswith('"""Llama: ')


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("DistilBERT", "got 'DistilBERT'; write 'distilbert'"),
        ("llama_layer", "got 'llama_layer'; llama_layer is a function of the page llama"),
        ("lama", r"got 'lama'; did you mean 'llama'\?"),
        ("nothing", "got 'nothing'"),
    ],
)
def test_a_wrong_name_of_a_page_is_answered(name: str, answer: str) -> None:
    with pytest.raises(npformer.NpformerError, match=f"^page: expected .*{answer}$"):
        source(name)


def test_run_needs_a_loaded_model() -> None:
    with pytest.raises(npformer.NpformerError, match=r"^run: expected a loaded model, .*, got 'distilbert-sst2'"):
        npformer.plain.run("distilbert-sst2", IDS)


def test_the_help_of_the_command_says_that_a_model_is_an_alternative() -> None:
    _, out, _ = run("page", "--help")
    assert "(instead of NAME)" in " ".join(out.split())
    assert "required" not in out


def test_a_page_is_an_attribute_of_the_package() -> None:
    code = "import npformer; print(npformer.plain.gpt2.gpt2_layer.__name__, 't5' in dir(npformer.plain))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "gpt2_layer True\n"
    with pytest.raises(AttributeError, match=r"^module 'npformer\.plain' has no attribute 'nothing'$"):
        _ = npformer.plain.nothing


def test_a_text_needs_a_name_or_a_loaded_model() -> None:
    with pytest.raises(npformer.NpformerError, match=r"^source: expected the name of a page or a loaded model, got"):
        source(npformer.gelu)


@pytest.mark.parametrize("ids", [[5, -1], [5, 10**6], [5] * 10**4])
@pytest.mark.parametrize(("model_type", "head"), [("distilbert", "sequence-classification"), ("marian", "translation")])
def test_run_refuses_the_ids_that_the_model_refuses(model_type: str, head: str, ids: list[int]) -> None:
    """NumPy would count a negative id from the end of the table."""
    model = model_of(model_type, head)
    given = {"decoder_input_ids": [3]} if head == "translation" else {}
    with pytest.raises(npformer.NpformerError, match=r"^input_ids: ") as expected:
        model(ids, **given)
    with pytest.raises(npformer.NpformerError, match=f"^{re.escape(str(expected.value))}$"):
        npformer.plain.run(model, ids, **given)
