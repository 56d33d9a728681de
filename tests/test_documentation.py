"""Every code block of the pages and every example of the help texts runs unchanged, in another folder.

A page's blocks run in order: `python` blocks in one process and one namespace, `console` blocks in bash. Blocks marked
`text` do not run: they are the output of a program, or commands that need the network, an hour or a file that npformer
does not include. A `text` block below a command is that command's output, except for numbers and `...`. If an example
names a model by its id on the hub, it gets a tiny model of the same family and head from a hub on loopback.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import npformer
from npformer.cli.main import COMMANDS, find
from npformer.plain import source
from tests.support import chatters, hub_server, reference, sentence_folders, seq2seq_models, service, tiny, writers
from tests.support.slow import slow_after

ROOT = Path(__file__).parent.parent
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ("README.md", "examples/README.md", *DOCS, "tests/benchmarks/README.md")
COURSE = "docs/learn/course.md"  # does not run: its commands need a learner's answers
HOWTO = [page for page in DOCS if page.startswith("docs/howto/") and not page.endswith("/checkpoints.md")]
#: Page that needs an extra -> a package of that extra.
NEEDS = {
    "docs/howto/datasets.md": "pyarrow",
    "docs/howto/dask.md": "distributed",
    "docs/howto/serve.md": "starlette",
    "docs/howto/chat.md": "jinja2",
}
HOME = "https://github.com/npformer/npformer/blob/main/"
PICTURES = "https://raw.githubusercontent.com/npformer/npformer/main/"
LEFT_OUT = ("weights/en-de-multi30k/", "weights/gpt2-austen/")  # not in the source distribution
READING = "docs/how-it-works/index.md"  # lists the files with the mathematics in reading order
RUN = ("python", "console")
SHOWN = ("text", "json", "yaml", "javascript", "rust", "c")  # golden/test_format.py runs JavaScript, Rust and C

#: Models on the hub: id -> family, head and settings of a tiny model.
MODELS = {
    "distilbert/distilbert-base-uncased": ("distilbert", "masked-lm", {}),
    "distilbert/distilbert-base-cased-distilled-squad": ("distilbert", "question-answering", {}),
    "dslim/bert-base-NER": ("bert", "token-classification", {}),
    "sentence-transformers/all-MiniLM-L6-v2": ("bert", "base", {}),
    "naver/splade-cocondenser-ensembledistil": ("bert", "masked-lm", {}),
    "cross-encoder/ms-marco-MiniLM-L6-v2": ("bert", "sequence-classification", {"labels": ("LABEL_0",)}),
    "typeform/distilbert-base-uncased-mnli": (
        "distilbert",
        "sequence-classification",
        {"labels": ("ENTAILMENT", "NEUTRAL", "CONTRADICTION")},
    ),
}
WRITER = "openai-community/gpt2"
CHATTER = "Qwen/Qwen2.5-0.5B-Instruct"
EMBEDDER = "Qwen/Qwen3-Embedding-0.6B"
TOKEN_VECTORS, LAYER = "BAAI/bge-m3", np.ones((6, 33), np.float32)
BARTS = ("facebook/bart-large-cnn", "eugenesiow/bart-paraphrase")
TRANSLATORS = ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-en-ROMANCE")
TEXTS = ("I love ice cream", "not my music")
ROWS = "label\ttext\n" + "POSITIVE\tI love ice cream\nNEGATIVE\tno\n" * 4
#: A port of DistilBERT that passes every case: it writes the golden stages.
PORT = '#!/bin/sh\ncp "$1/golden.safetensors" "$3"\n'
#: Input files that the examples in the help texts read.
FILES = {
    "reviews.txt": "\n".join(TEXTS),
    "reviews.tsv": "".join(f"{number}\t{text}\n" for number, text in enumerate(TEXTS)),
    "sentences.txt": "\n".join(TEXTS),
    "report.txt": "I live in Paris.",
    "prompts.txt": "I live in\nParis. ",
    "questions.txt": "Where do I live?\nWho am I?",
    "letter.txt": "dogs\nnews",
    **dict.fromkeys(("novel.txt", "one.txt", "two.txt", "three.txt"), "I live in Paris. " * 9),
    "names.json": '{"answer": "logits"}',
    "port": PORT,
    "submissions/anna.py": "def linear(x, weight, bias):\n    return x @ weight + bias\n",
    **dict.fromkeys(("train.tsv", "dev.tsv", "test.tsv"), ROWS),
    **dict.fromkeys(("train.en", "dev.en", "test.en"), "a dog\nthe news\n" * 4),
    **dict.fromkeys(("train.de", "dev.de", "test.de"), "ein Hund\nNeues\n" * 4),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A user's environment: npformer and python on PATH, a hub, an empty cache, and a browser that shows nothing."""
    with hub_server.Hub() as hub:
        for number, (name, (family, head, settings)) in enumerate(MODELS.items()):
            hub.add(name, tiny.folder(tmp_path_factory.mktemp(f"model{number}"), family, head, **settings))
        for name in TRANSLATORS:
            hub.add(name, seq2seq_models.folder_of_letters(tmp_path_factory.mktemp("translator")))
        for name in BARTS:
            hub.add(name, seq2seq_models.bart_folder(tmp_path_factory.mktemp("bart")))
        hub.add(CHATTER, chatters.folder(tmp_path_factory.mktemp("chatter")))
        hub.add(EMBEDDER, sentence_folders.decoder(tmp_path_factory.mktemp("embedder") / "model", "Query:"))
        token_heads = sentence_folders.write_token_heads
        hub.add(TOKEN_VECTORS, token_heads(tiny.folder(tmp_path_factory.mktemp("m3"), "bert", "base"), colbert=LAYER))
        hub.add(WRITER, writers.folder(tmp_path_factory.mktemp("writer")))
        given = hub_server.environment(hub, tmp_path_factory.mktemp("home"))
        del given["PYTHONPATH"]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        yield given | {"PATH": path, "BROWSER": "true", "PYTHONUTF8": "1"}


def run(command: list[str], cwd: Path, env: dict[str, str]) -> str:
    """Runs a command, which must end with exit code 0; returns its output."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def serve(command: list[str], cwd: Path, env: dict[str, str], started: str = service.STARTED) -> None:
    """Starts a server and stops it."""
    exec_ = [*command[:-1], f"exec {command[-1]}"]
    with service.Server(program=["env", "-C", str(cwd), *exec_], started=started, **env) as server:
        server.process.terminate()
        assert server.process.wait(300) == 0, server.log


def bash(script: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", script]


# --- help texts ------------------------------------------------------------------------------------------------------


def examples(command: str) -> list[str]:
    """Returns the commands under `example:` or `examples:` at the end of a help text, joining lines at a backslash."""
    indented = find(command).epilog.partition("example")[2].partition(":\n")[2].partition("\n\n")[0]
    return [re.sub(r"\s*\\\n\s*", " ", line).strip() for line in re.split(r"(?<!\\)\n", indented)]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_a_help_text_run(command, environment, tmp_path):
    """The examples run in order, in one folder with the files that they name, and end with exit code 0. If an extra is
    missing, the error names it.

    A server is stopped by SIGTERM when it has started, and must then also end with exit code 0.
    """
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "port").chmod(0o755)
    found = examples(command)
    assert found
    if "mine.npz" in " ".join(found):
        model = npformer.load("distilbert-sst2")
        logits = [npformer.trace(model, text)["logits"] for text in ("I love ice cream", "no")]
        np.savez(tmp_path / "mine.npz", answer=np.stack(logits))
    for example in found:
        assert re.search(rf"\bnpformer {command}\b", example) or command in ("finetune", "train-translation"), example
        execute = {"serve": serve, "explore": partial(serve, started=r"(http://\S+/)\n")}.get(command, run)
        needed = "sacrebleu" if "--reference" in example else "starlette" if command == "serve" else None
        if needed and not importlib.util.find_spec(needed):
            with pytest.raises(AssertionError, match=f"needs {needed}"):
                execute(bash(example), tmp_path, environment)
        else:
            execute(bash(example), tmp_path, environment)
    wrote = {path.name for path in tmp_path.iterdir()}
    assert set(re.findall(r"(?:-o|>) (\S+)", " ".join(found))) <= wrote


# --- docstrings ------------------------------------------------------------------------------------------------------


def of_docstrings() -> list[str]:
    """Returns the blocks in the reference's docstrings, except those for extras that are not installed."""
    extras = {"npformer.serve": "starlette", "npformer.dataset": "pyarrow", "Conversation": "jinja2"}
    absent = tuple(name for name, package in extras.items() if importlib.util.find_spec(package) is None)
    names = {name: each for name, each in reference.documented().items() if not name.startswith(absent or "-")}
    return [block for each in names.values() for block in reference.blocks(inspect.getdoc(each) or "")]


@pytest.mark.slow
def test_the_blocks_of_docstrings_run(environment, tmp_path):
    """Each block imports or creates all that it needs, except npformer."""
    found = of_docstrings()
    assert len(found) >= 13  # 14 with jinja2
    write = "import pyarrow.parquet; pyarrow.parquet.write_table(pyarrow.table({'review': ['ice']}), 'reviews.parquet')"
    files = [write] if any("reviews.parquet" in block for block in found) else []
    program = "import npformer\nnames = dict(globals())\n"
    lines = "\n".join([*files, *(f"exec({block!r}, dict(names))" for block in found)])
    run([sys.executable, "-c", program + lines], tmp_path, environment)


# --- pages -----------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    language: str
    code: str


def blocks(page: str) -> list[Block]:
    """Returns a page's blocks in order, without Sphinx's directives."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = (Block(*each) for each in re.findall(r"^```(\S*)[^\n]*\n(.*?)^```$", text, re.M | re.S))
    return [block for block in found if not block.language.startswith("{")]


def program(found: list[Block]) -> str:
    """Returns a page's blocks as one Python program, in which a line with a form feed ends the output of each block."""
    lines = ["import subprocess, sys"]
    for block in found:
        if block.language == "console":
            lines.append(f"subprocess.run({bash(block.code)!r}, check=True)")
        elif block.language == "python":
            lines.append(block.code)
        lines.append('print("\\f", flush=True)')
    return "\n".join(lines)


def shape(line: str) -> str:
    """Returns a printed line without its numbers and padding, because last digits differ between machines."""
    return " ".join(re.sub(r"(?<!exit code )-?\d[\d.]*(e[-+]\d+)?", "N", line).split())


#: Each page takes seconds, so the quick tests run only the README.
@pytest.mark.parametrize(
    "page", slow_after(1, sorted({*PAGES} - {COURSE}, key=lambda page: (page != "README.md", page)))
)
def test_the_blocks_of_a_page_run(page, environment, tmp_path):
    needed = NEEDS.get(page)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"the page was NOT run: it needs {needed}; the lane `extras` has it")
    found = blocks(page)
    assert {block.language for block in found} <= {*RUN, *SHOWN}
    printed = run([sys.executable, "-c", program(found)], tmp_path, environment).split("\f")
    for before, after, output in zip(found, found[1:], printed, strict=False):
        if before.language in RUN and after.language == "text":
            rest = iter([shape(line) for line in output.splitlines()])
            for line in after.code.splitlines():  # "..." stands for lines that are left out
                assert line == "..." or shape(line) in rest, f"{line}\n\n{output}"


@pytest.mark.parametrize("page", HOWTO)
def test_a_page_of_how_to_fits_on_a_screen(page):
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "learn").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_was_run_from_its_first_cell_and_says_what_to_read_next(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == [*range(1, len(counts) + 1)], "python tests/run_notebooks.py --write"
    assert "".join(cells[-1]["source"]).startswith("**Next:** [")


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "learn").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_imports_names_that_exist(path):
    """The site's build runs the notebooks. This test finds the errors that renamed functions cause."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    tree = ast.parse(re.sub(r"^ *[%!].*$", "", code, flags=re.M))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "npformer":
            module = importlib.import_module(node.module)
            assert not [each.name for each in node.names if not hasattr(module, each.name)], node.module


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_are_in_the_checkout(page):
    """In the README, links to the repository are absolute URLs, because a package index shows the README, too."""
    text = (ROOT / page).read_text(encoding="utf-8")
    absent = [each for each in LEFT_OUT if not (ROOT / each).exists()]
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.removeprefix(HOME).removeprefix(PICTURES).partition("#")
        if path.startswith(("https://", *absent)):
            continue
        assert page != "README.md" or not path or link.startswith((HOME, PICTURES)), link
        target = ROOT / page if not path else ROOT / path if "://" in link else ROOT / Path(page).parent / path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}, link


def test_the_readme_fits_and_has_the_two_commands_that_ci_runs():
    """The README has at most 120 lines, and contains the commands that `.ci/run` uses to install and test npformer."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    first = blocks("README.md")[0]
    assert first.language == "text"
    clone, install, test = first.code.splitlines()
    assert clone == "git clone https://github.com/npformer/npformer && cd npformer"
    assert install.startswith("pip install . && npformer classify ")
    assert test == 'pip install ".[test]" && pytest'


def test_the_layer_in_the_readme_is_the_page_s() -> None:
    """The code is compared, without the docstring."""
    tree = ast.parse(source("formulas"))
    [layer] = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "encoder_layer"]
    layer.body = layer.body[1:]
    [listed] = [block.code for block in blocks("README.md") if block.code.startswith("def ")]
    assert ast.dump(ast.parse(listed).body[0]) == ast.dump(layer)


def test_the_maths_is_named_in_order_with_its_lines() -> None:
    """In the reading path, each file exists, imports no later file, and has about the stated number of lines."""
    page = (ROOT / READING).read_text(encoding="utf-8")
    named = re.findall(r"^\| \[`([\w/]+)\.py`\]\(\S+\) \| (\d+) \|", page, flags=re.MULTILINE)
    assert len(named) == 10
    for place, (name, lines) in enumerate(named):
        source = (ROOT / "npformer" / "engine" / f"{name}.py").read_text(encoding="utf-8")
        assert abs(len(source.splitlines()) - int(lines)) <= 0.1 * int(lines), name
        later = [other.replace("/", ".") for other, _ in named[place + 1 :]]
        assert (
            not re.findall(rf"^from npformer\.engine\.({'|'.join(later)}) import", source, flags=re.MULTILINE)
            or not later
        ), name


def test_the_lines_of_the_smallest_and_the_largest_family() -> None:
    """The numbers are approximate: a file may grow by a tenth before the page must change."""
    page = (ROOT / READING).read_text(encoding="utf-8")
    named = re.search(r"A family is a file of (\d+) \(DistilBERT\) to (\d+) lines \(T5\)", page)
    assert named
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "npformer" / "families").glob("*.py")}
    lines = {name: len(text.splitlines()) for name, text in texts.items() if "    model_type=" in text}
    least, most = min(lines, key=lines.__getitem__), max(lines, key=lines.__getitem__)
    assert (least, most) == ("distilbert", "t5")
    for count, stated in zip((lines[least], lines[most]), named.groups(), strict=True):
        assert abs(count - int(stated)) <= 0.1 * int(stated)


def test_the_environment_variables_are_those_of_the_code() -> None:
    """The page lists each variable that npformer reads, except two of other programs, and no unused NPFORMER name."""
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([A-Z][A-Z_]+)`", page))
    read = set[str]()
    for path in [*(ROOT / "npformer").rglob("*.py"), ROOT / "weights/hatch_build.py"]:
        code = path.read_text(encoding="utf-8")
        constants = dict(re.findall(r'^([A-Z_]+) = "([A-Z_]+)"$', code, flags=re.MULTILINE))
        for quoted, name in re.findall(r'environ(?:\.get\(|\[)(?:"(\w+)"|(\w+))', code):
            read.add(quoted or constants.get(name, name))
    assert {"NPFORMER_THREADS", "NPFORMER_API_KEY", "NPFORMER_DEMO"} <= read
    assert read - listed == {"PYTHONPATH", "COMP_LINE"}
    assert {name for name in listed - read if name.startswith("NPFORMER")} == set()


def test_the_benchmarks_page_has_the_measured_figures() -> None:
    """The page docs/how-it-works/benchmarks.md repeats figures from tests/benchmarks, in rows with the same names."""
    measured, repeated = (
        {
            name: cells.replace("*", "").split("|")
            for name, cells in re.findall(r"^\| ([^|]+) \|(.*)\|$", text, flags=re.M)
        }
        for text in (
            (ROOT / page).read_text(encoding="utf-8").split("distilbert-sst2, 384 wide")[0]
            for page in ("tests/benchmarks/README.md", "docs/how-it-works/benchmarks.md")
        )
    )
    rows = [name for name in repeated if name.startswith(("32 ", "8 x", "one sentence"))]
    assert len(rows) == 6
    for name in rows:
        assert [each.strip() for each in repeated[name]] == [each.strip() for each in measured[name][1:4]], name
