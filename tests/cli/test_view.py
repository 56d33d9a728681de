"""`npformer view`: output of every kind, errors, and hostile or long texts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from npformer import Model, Pair, load, view
from npformer.cli import view as command
from npformer.cli.main import main
from tests.support import tiny
from tests.support.cli_runner import run_apart
from tests.support.extras import needs

TEXT, OTHER = "I love ice cream", "it is hotter"
HOSTILE = "</script><img src=x onerror=alert(1)> \x1b[2J \u202elive\u202c שלום {{meta}} ${1}"
MARIAN = Path(__file__).parents[1] / "golden" / "seq2seq" / "marian-files"
HEADINGS = {
    "heads": "Attention heads", "model": "Attention of every head", "neurons": "Attention, neuron by neuron",
    "stages": "From text to label", "attribution": "Words that count", "page": "Inside the model",
    "logit": "What adds up to the logit of NEGATIVE", "lens": "The answer at each layer",
    "ablation": "The answer without a head",
}  # fmt: skip
PRINTED = {
    "heads": "Self-attention, layer 0, all 4 heads", "model": "Self-attention: layers down, heads across",
    "neurons": "Self-attention, layer 0, head 0, from 0 [CLS]", "stages": TEXT, "attribution": "Leave one word out",
    "page": "Self-attention, layer 0, all 4 heads", "logit": "What adds up to the logit of ",
    "lens": "The answer at each layer", "ablation": "The answer without a head",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("models") / "model", "bert", n_layers=3, max_length=128)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Returns the exit code, stdout and stderr of `npformer view ...`; checks that no error is a traceback."""
    code = main(["view", *map(str, arguments)])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def check_page(page: str) -> None:
    """Checks that a page is self-contained: it fetches nothing and contains no markup from texts."""
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert re.findall(r"<link[^>]*>", page) == ['<link rel="icon" href="data:,">']  # prevents a request for favicon.ico
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\")|src=\"|href=\"(?!data:,)|@import|url\(|<img", page)
    assert page.count("</script>") == page.count("<script")
    assert "default-src 'none'" in page


def test_every_kind_has_a_test() -> None:
    assert set(command.KINDS) == set(HEADINGS) == set(PRINTED)


@pytest.mark.parametrize("kind", command.KINDS)
@pytest.mark.parametrize("pair", [(), ("--pair", OTHER)], ids=["text", "pair"])
def test_view_writes_one_whole_page(
    kind: str, pair: tuple[str, ...], folder: Path, model: Model, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "view.html"
    assert run(capsys, TEXT, *pair, "-m", folder, "--kind", kind, "-o", path) == (0, "", "")
    page = path.read_text(encoding="utf-8")
    check_page(page)
    assert f"<title>{HEADINGS[kind]}: " in page
    assert [each.name for each in tmp_path.iterdir()] == ["view.html"]
    assert page == getattr(view, kind)(model, Pair(TEXT, OTHER) if pair else TEXT).html()


@pytest.mark.parametrize("kind", command.KINDS)
def test_view_without_a_file_prints_eighty_columns(kind: str, folder: Path, capsys) -> None:
    code, out, err = run(capsys, TEXT, "-m", folder, "--kind", kind)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(PRINTED[kind])
    assert max(map(len, out.splitlines())) <= 80
    assert all(word in out for word in ("love", "ice", "cream")) or kind == "model"


def test_view_without_a_kind_makes_a_page_of_all_views(folder: Path, tmp_path: Path, capsys) -> None:
    assert run(capsys, TEXT, "-m", folder) == run(capsys, TEXT, "-m", folder, "--kind", "heads")
    assert run(capsys, TEXT, "-m", folder, "--method", "gradient", "-o", tmp_path / "view.html") == (0, "", "")
    page = (tmp_path / "view.html").read_text(encoding="utf-8")
    assert re.findall(r'"kind":"(\w+)","heading"', page) == list(command.KINDS[1:])
    assert "Gradient \\u00d7 input" in page
    assert "Leave one word out" not in page


@pytest.mark.parametrize("kind", command.KINDS)
def test_view_writes_a_picture_to_a_file_or_to_stdout(kind: str, folder: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "view.svg"
    assert run(capsys, TEXT, "-m", folder, "--kind", kind, "--svg", "-o", path) == (0, "", "")
    picture = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"href=\"http|<script", picture)
    assert run(capsys, TEXT, "-m", folder, "--kind", kind, "--svg") == (0, picture + "\n", "")


def test_layer_and_head_set_the_first_selection(folder: Path, tmp_path: Path, capsys) -> None:
    _, out, _ = run(capsys, TEXT, "-m", folder, "--layer", 2, "--head", 3)
    assert out.startswith("Self-attention, layer 2, head 3\n")
    _, out, _ = run(capsys, TEXT, "-m", folder, "--layer", 2)
    assert out.startswith("Self-attention, layer 2, all 4 heads\n")
    _, out, _ = run(capsys, TEXT, "-m", folder, "--kind", "neurons", "--layer", 1, "--head", 2)
    assert out.startswith("Self-attention, layer 1, head 2, from 0 [CLS]\n")
    path = tmp_path / "view.html"
    run(capsys, TEXT, "-m", folder, "--layer", 2, "--head", 3, "-o", path)
    assert '"shown":{"stack":0,"layer":2,"heads":[3],' in path.read_text(encoding="utf-8")


def test_measures_can_be_chosen(folder: Path, capsys) -> None:
    code, out, _ = run(capsys, TEXT, "-m", folder, "--kind", "attribution", "--method", "logit", "--method", "gradient")
    assert code == 0
    titles = [line for line in out.splitlines() if line in ("Gradient × input", "Logit attribution")]  # noqa: RUF001
    assert titles == ["Gradient × input", "Logit attribution"]  # noqa: RUF001
    assert "Leave one word out" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer", 3), "layer=3: expected one of 0, 1, 2"),
        (("--head", 4), "head=4: expected one of 0, 1, 2, 3"),
        (("--kind", "neurons", "--layer", 9), "layer=9: expected one of 0, 1, 2"),
        (("--kind", "neurons", "--head", 9), "head=9: expected one of 0, 1, 2, 3"),
        (("--kind", "model", "--layer", 0), "--layer: expected --kind page, heads or neurons, got model"),
        (("--kind", "model", "--head", 0), "--head: expected --kind page, heads or neurons, got model"),
        (("--kind", "stages", "--layer", 0), "--layer: expected --kind page, heads or neurons, got stages"),
        (("--kind", "attribution", "--head", 1), "--head: expected --kind page, heads or neurons, got attribution"),
        (("--kind", "model", "--method", "logit"), "--method: expected --kind attribution or page, got model"),
        (("--open",), "--open: expected a file; give -o FILE"),
        (("-o", "nowhere/view.html"), "view.html"),
        (("-o", "."), ".: expected a file for the page, such as view.html, got a folder"),
        (("-o", ".."), "..: cannot be written"),
        (("--svg", "-o", "nowhere/view.svg"), "view.svg"),
    ],
)
def test_an_impossible_view_is_an_error_of_one_line(
    arguments: tuple[object, ...], message: str, folder: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, TEXT, "-m", folder, *arguments)
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "hats"), "invalid choice: 'hats'"),
        (("--layer", "two"), "invalid int value: 'two'"),
        ((), "npformer view: error: expected TEXT"),
    ],
)
def test_wrong_arguments_of_view_are_explained(arguments: tuple[object, ...], message: str, capsys) -> None:
    text = (TEXT,) if arguments else ()
    assert main(["view", *text, *map(str, arguments)]) == 2
    assert message in capsys.readouterr().err


def test_open_shows_the_file_in_the_browser(folder: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, TEXT, "-m", folder, "-o", "a view.html", "--open")[0] == 0
    assert opened == [(tmp_path / "a view.html").resolve().as_uri()]


@pytest.mark.parametrize("kind", command.KINDS)
def test_hostile_text_is_text_in_every_view(kind: str, folder: Path, tmp_path: Path, capsys) -> None:
    code, out, _ = run(capsys, HOSTILE, "--pair", HOSTILE, "-m", folder, "--kind", kind)
    assert code == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out)
    path = tmp_path / "view.html"
    assert run(capsys, HOSTILE, "-m", folder, "--kind", kind, "-o", path)[0] == 0
    check_page(path.read_text(encoding="utf-8"))
    _, picture, _ = run(capsys, HOSTILE, "-m", folder, "--kind", kind, "--svg")
    ElementTree.fromstring(picture)


@pytest.mark.parametrize("text", ["", "   ", "!"])
@pytest.mark.parametrize("kind", command.KINDS)
def test_views_of_little_or_no_text(kind: str, text: str, folder: Path, capsys) -> None:
    code, out, err = run(capsys, text, "-m", folder, "--kind", kind)
    if kind == "attribution" and not text.strip():
        assert (code, out) == (1, "")
        assert "expected a text with at least one word" in err
    else:
        assert (code, err) == (0, "")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", command.KINDS)
def test_a_text_too_long_for_the_model_is_truncated_with_a_warning(kind: str, tmp_path: Path, capsys) -> None:
    """The view shows only the part of a text that the model reads, with one warning."""
    folder = tiny.folder(tmp_path / "model", "bert", max_length=32)
    long = run(capsys, "love " * 40, "-m", folder, "--kind", kind)
    assert long[::2] == (0, "npformer: input 0: 42 tokens, cut to 32\n")
    assert long[1].rstrip() == run(capsys, "love " * 30, "-m", folder, "--kind", kind)[1].rstrip()


@needs("translate", "sentencepiece")
@pytest.mark.parametrize("kind", command.KINDS)
def test_a_translation_model_is_viewed_from_its_source(kind: str, tmp_path: Path, capsys) -> None:
    text, path = "A dog runs.", tmp_path / "view.html"
    code, out, err = run(capsys, text, "-m", MARIAN, "--kind", kind)
    assert (code, err) == (0, "")
    assert out
    assert run(capsys, text, "-m", MARIAN, "--kind", kind, "-o", path)[0] == 0
    page = path.read_text(encoding="utf-8")
    check_page(page)
    assert "Cross-attention" in page or kind in ("stages", "attribution", "logit", "lens", "ablation")


@needs("translate", "sentencepiece")
def test_a_translation_model_has_no_second_text(capsys) -> None:
    code, _, err = run(capsys, "A dog runs.", "--pair", "Ein Hund", "-m", MARIAN)
    assert code == 1
    assert "a translation model generates the second text itself" in err


@pytest.mark.slow
def test_view_runs_in_a_subprocess(folder: Path, tmp_path: Path) -> None:
    """Checks the command's output, also in ASCII, and that a missing model leaves no file."""
    code, out, _ = run_apart("view", TEXT, "-m", folder)
    assert code == 0
    assert out.startswith("Self-attention, layer 0")
    code, _, err = run_apart("view", TEXT, "-m", tmp_path / "none", "-o", tmp_path / "view.html")
    assert code == 1
    assert "none" in err
    assert list(tmp_path.iterdir()) == []
    code, out, err = run_apart("view", TEXT, "-m", folder, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert code == 0, err
