"""The field guide, `docs/models/`: a page for each family, and the results of its generators, run without Sphinx."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import npformer
from npformer.families import FAMILIES, EncoderTable
from npformer.golden.suite import cases, encoder_config
from npformer.interpret.stages import of_model
from npformer.pages.find import names
from npformer.plain import page
from npformer.plain.formulas import rotate

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "models"


def load(name: str) -> ModuleType:
    """Loads a module of docs/_ext."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        return import_module(name)
    finally:
        sys.path.pop(0)


tree, differences, fields = map(load, ("family_tree", "page_differences", "config_fields"))
CHILDREN = [name for name, parent in tree.PARENTS.items() if parent]


def test_every_family_has_a_page_that_the_site_lists() -> None:
    described = {tree.short_name(page(family)) for family in FAMILIES}
    assert described == tree.PARENTS.keys() == {path.stem for path in GUIDE.glob("*.md")} - {"index"}
    listed = re.findall(r"^(\w+)$", (GUIDE / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert listed == [name for name, _ in tree.in_order()]


def test_every_page_is_listed_on_the_site() -> None:
    text = (ROOT / "docs" / "reference" / "plain.md").read_text(encoding="utf-8")
    shared = re.findall(r"^```\{page\} (\w+)$", text, flags=re.MULTILINE)
    assert sorted([*shared, *tree.PARENTS]) == names()


@pytest.mark.parametrize("name", tree.PARENTS)
def test_the_file_of_a_page_names_it(name: str) -> None:
    text = (GUIDE / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {tree.title(name)}\n\n```{{model}} {name}\n")


@pytest.mark.parametrize("name", CHILDREN)
def test_the_docstring_of_a_page_names_its_parent(name: str) -> None:
    parent = tree.PARENTS[name]
    expected = {"transformer": "2017", "gpt2": "GPT-2"}.get(parent, tree.title(parent))
    if name != "llama":  # Llama has too many changes to be described by its parent
        assert expected in (page(name).__doc__ or "")


@pytest.mark.parametrize("name", CHILDREN)
def test_a_page_differs_from_its_parent_in_few_lines(name: str) -> None:
    found = list(differences.differences(page(name), page(tree.PARENTS[name])))
    changed = sum(line[0] in "+-" for _, _, lines in found for line in lines)
    assert 0 < changed <= 150


def test_a_difference_pairs_functions_with_the_same_purpose() -> None:
    found = {each.__name__: (other and other.__name__, lines) for each, other, lines in
             differences.differences(page("qwen3"), page("llama"))}  # fmt: skip
    assert found["qwen3_attention"][0] == "grouped_query_attention"
    assert found["window_mask"][0] is None
    assert found["qwen3_layer"][1][2:4] == [
        "-    attended, past = qwen3_attention(normed, past, mask, heads, angles, **attention)",
        "+    attended, past = qwen3_attention(normed, past, mask, heads, angles, eps, **attention)",
    ]
    marked = differences.marked(["-f(a, b)", "+f(a, eps, b)"])
    assert marked == "<del>-f(a, b)</del><ins>+f(a, <b>eps, </b>b)</ins>"


def config_of(model_type: str) -> Any:
    family = FAMILIES[model_type]
    if isinstance(family, EncoderTable):
        return encoder_config(family, "causal-lm" if "causal" in family.constants else "sequence-classification")
    return next(each.config for each in cases() if each.config.model_type == model_type)


@pytest.mark.parametrize(
    ("model_type", "field", "sets"),
    [
        ("llama", "num_key_value_heads", ("Config", "n_kv_heads")),
        ("llama", "hidden_size", ("Config", "d_model")),
        ("gemma3_text", "rope_local_base_freq", ("local Rotary", "theta")),
        ("qwen2", "max_window_layers", ("Local", "layers")),
        ("nomic_bert", "n_embd", ("Config", "d_model")),
        ("t5", "relative_attention_max_distance", ("RelativeBias", "max_distance")),
    ],
)
def test_a_field_of_config_json_is_known_by_what_it_changes(model_type: str, field: str, sets: tuple[str, str]) -> None:
    found = {each.name: each.sets for each in fields.config_fields(model_type, config_of(model_type))}
    assert found[field] == (sets,)
    assert "architectures" not in found


@pytest.mark.parametrize("model_type", ["distilbert", "gemma2", "t5"])
def test_every_stage_has_the_line_that_computes_it(model_type: str) -> None:
    config = config_of(model_type)
    lines = load("page_source").lines_of_stages(config)
    left = {name for name in of_model(config) if name not in lines and not name.endswith("embeddings.sum")}
    assert left <= {"probabilities"}
    scores = next(place for name, place in lines.items() if name.endswith("attention.scores"))
    text = (ROOT / "npformer" / "plain" / f"{scores[0]}.py").read_text(encoding="utf-8").splitlines()
    assert "scores = " in text[scores[1] - 1]


def test_imported_names_of_a_listed_page_are_links() -> None:
    [listing, _] = load("page_source").listing("qwen3")
    _, line = inspect.getsourcelines(rotate)
    assert f'<a href="../reference/plain.html#formulas-L{line}"><span class="n">rotate</span></a>' in listing
    assert '<span id="qwen3-L1">' in listing


def test_the_maths_has_every_function_with_a_formula_above_those_that_call_it() -> None:
    text = (ROOT / "docs" / "reference" / "maths.md").read_text(encoding="utf-8")
    named = re.findall(r"^### (\w+)\n\n\$\$[^$]+\$\$\n\n```\{public-name\} npformer\.(\w+)\n", text, flags=re.MULTILINE)
    assert all(heading == name for heading, name in named)
    order = [name for name, _ in named]
    assert sorted(f"npformer.{name}" for name in order) == sorted(load("rooms").rooms(without="dataset")["maths"])
    for place, name in enumerate(order):
        function = inspect.unwrap(getattr(npformer, name))
        calls = {each.__name__ for each in differences.called(function)}
        assert calls.isdisjoint(order[place + 1 :]), name


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("softmax", r"\.\./reference/plain\.html#formulas-L\d+"),
        ("grouped_query_attention", r"\.\./models/llama\.html#llama-L\d+"),
        ("cross_entropy", r"https://github\.com/npformer/npformer/blob/main/npformer/engine/functions\.py#L\d+"),
        ("Model.__call__", r"https://github\.com/npformer/npformer/blob/main/npformer/model\.py#L\d+"),
    ],
)
def test_a_documented_name_links_to_its_source(name: str, address: str) -> None:
    found = load("page_source").source_of("py", {"module": "npformer", "fullname": name})
    assert re.fullmatch(address, found)
