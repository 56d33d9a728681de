"""The package's structure: imports go one way, `import npformer` is fast and needs no torch, and files are short."""

from __future__ import annotations

import ast
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import npformer

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "npformer"
PYTHON = sorted(path for folder in ("npformer", "tests", "examples") for path in (ROOT / folder).rglob("*.py"))
LONGEST = 450  # lines; a longer file has two subjects

# Modules from the lowest to the highest. A module imports only modules in earlier lines or in its own line.
# Each package has one line, and some of its modules have separate lines.
ORDER = (
    *(
        "version",
        "common.errors",
        "common.other_libraries",
        "common.checks",
        "common.arraylike",
        "common",
        "plain",
        "pages",
        "engine.taps",
        "engine.descriptions",
        "engine.direction",
        "engine.runtime",
        "engine.replay",
    ),
    *(
        "engine.functions",
        "engine.norms",
        "engine.activations",
        "engine.tape",
        "engine.masks",
        "engine.mechanisms",
        "engine.attention",
        "engine.packed_attention",
        "engine.multi_head",
        "engine.blocks",
        "engine.layers",
        "engine.embeddings",
    ),
    *("engine.output_heads", "engine.token_projections", "engine.parts", "engine.transformer"),
    *(
        "config",
        "families",
        "base_model",
        "checkpoint",
        "text",
        "generation",
        "generating_model",
        "model",
    ),
    "loading",
    *("tasks", "dataset", "serve", "training", "interpret", "golden", "view", "learn"),
    *("cli", "__main__"),
)
#: Modules that define nothing: they name functions of other modules, which they import on first use.
NAMES_ONLY = {"npformer", "npformer.plain"}
INDEPENDENT = {
    "common.errors": set(),
    "engine.taps": {"common.errors"},
    "common.checks": {"common.errors"},
    "common.arraylike": {"common.errors", "common.checks"},
    "config": {"common", "common.errors", "common.checks", "common.other_libraries"},
    "common.other_libraries": {"common.errors"},
}  # module -> the only modules of npformer that it imports


def module_name(path: Path) -> str:
    parts = ["npformer", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def nodes(*words: str) -> Iterator[tuple[str, ast.AST]]:
    """Yields (module, node) for each node of the modules that contain one of these words. Others are not parsed."""
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield from ((name, node) for node in ast.walk(ast.parse(text)))


@cache
def imports(name: str) -> frozenset[str]:
    """Returns the full names of all imports of a module: at the top, in functions, and for type checkers."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    return frozenset[str]().union(*(imported(node, name) for node in ast.walk(tree)))


def imported(node: ast.AST, importer: str) -> frozenset[str]:
    """Returns the modules that one statement imports: npformer's by file, others by the first part of the name."""
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = importer.split(".") if MODULES[importer].name == "__init__.py" else importer.split(".")[:-1]
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
        names = {full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names}
    else:
        names = set()
    return frozenset(name if name.split(".")[0] == "npformer" else name.split(".")[0] for name in names)


def reached(name: str) -> set[str]:
    """Returns all npformer modules that a module imports, directly or indirectly, except NAMES_ONLY."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        others = imports(waiting.pop()) & MODULES.keys() - NAMES_ONLY
        waiting.extend(others - found)
        found |= others
    return found


def place(name: str) -> int:
    """Returns a module's index in ORDER, by its own name or by the smallest package that has a line."""
    parts = name.removeprefix("npformer.").split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next(ORDER.index(each) for each in names if each in ORDER)


def test_every_module_has_a_place() -> None:
    """A room is a module or package directly in npformer or in its engine."""
    names = [
        name.removeprefix("npformer.").split(".") for name in MODULES if name not in ("npformer", "npformer.engine")
    ]
    rooms = {".".join(each[: 2 if each[0] == "engine" else 1]) for each in names}
    assert sorted(each for each in ORDER if each in rooms or "." not in each) == sorted(rooms)
    assert [each for each in ORDER if f"npformer.{each}" not in MODULES] == []


@pytest.mark.parametrize("name", sorted(MODULES.keys() - NAMES_ONLY))
def test_imports_point_one_way(name: str) -> None:
    ours = imports(name) & MODULES.keys() - NAMES_ONLY
    assert sorted(each for each in ours if place(each) > place(name)) == []


def test_only_commands_import_names_from_the_top_level() -> None:
    """`npformer` itself comes after all other packages in the order, so only commands import from it."""
    above = {name for name in MODULES if "npformer" in imports(name)}
    assert {name.split(".")[1] for name in above} <= {"cli", "__main__"}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_modules_stay_independent(name: str) -> None:
    ours = {each.removeprefix("npformer.") for each in imports(f"npformer.{name}") if each.startswith("npformer")}
    assert ours <= INDEPENDENT[name]


def test_imports_have_no_cycle() -> None:
    """The test covers imports at the top of a file, in its functions, and for type checkers."""
    circles = [name for name in MODULES if name in reached(name)]
    assert circles == []


#: Module -> files that it opens itself. All others use `files`, which refuses pipes, devices and outside links.
OPENS = {
    "npformer.common.files": "any",
    "npformer.common.locks": "its locks",
    "npformer.cli.process": "/dev/null",
    "npformer.cli.texts": "what a user names, which may be a pipe",
    "npformer.cli.run_task": "the partial file that it writes",
    "npformer.checkpoint.convert": "the partial file that it writes",
    "npformer.checkpoint.safetensors": "the partial file that it writes",
    "npformer.loading": "where pip says the package came from",
    "npformer.engine.runtime.threads": "the kernel's",
    "npformer.view.document": "the package's own",
    "npformer.view.explorer.page_worker": "the kernel's",
    "npformer.cli.serve": "the file of a key that a user names",
    "npformer.dataset.formats": "a run's parts",
    "npformer.dataset.manifest": "a run's manifest",
    "npformer.learn.worker": "the files of its process",
    "npformer.learn.running": "the files of that process",
}


def test_files_are_opened_in_one_place() -> None:
    methods = {"read_text", "read_bytes", "from_file", "load_file", "memmap", "fromfile"}
    calls = {(name, ast.unparse(node.func)) for name, node in nodes("open", *methods) if isinstance(node, ast.Call)}
    found = {
        name for name, call in calls if call in ("open", "os.open") or ("." in call and call.split(".")[-1] in methods)
    }
    assert sorted(found - OPENS.keys()) == []
    assert sorted(OPENS.keys() - found) == []


def test_torch_is_imported_only_for_comparisons() -> None:
    """Only `golden` imports torch or transformers, to run their models. Reading, training and running checkpoints does
    not need them."""
    users = {name for name in MODULES if imports(name) & {"torch", "transformers", "onnxruntime"}}
    assert {name for name in users if not name.startswith("npformer.golden")} == set()


def test_the_engine_imports_only_itself_and_what_all_packages_share() -> None:
    """The engine imports no pages. Tests compare the two, so a shared formula would be compared with itself."""
    engine = [name for name in MODULES if name.startswith("npformer.engine")]
    ours = {each for name in engine for each in imports(name) if each.startswith("npformer.")}
    assert sorted(each for each in ours if not each.startswith(("npformer.engine", "npformer.common"))) == []


def test_the_maths_does_not_know_the_mistakes_of_ports() -> None:
    """Every mistake is in `golden.mistakes`, which is loaded to diagnose ports, but not to run a model."""
    maths = [name for name in MODULES if name.startswith(("npformer.engine", "npformer.families"))]
    assert [name for name in maths if "mistake" in MODULES[name].read_text(encoding="utf-8").lower()] == []
    assert [name for name in maths if any(each.startswith("npformer.golden") for each in imports(name))] == []
    code = """
from npformer.cli.main import main
assert main(["classify", "I love it"]) == 0
print([name for name in sys.modules if name.startswith("npformer.golden")])
"""
    assert python(code).splitlines()[-1] == "[]"


def test_both_kinds_of_model_have_one_interface() -> None:
    """Tasks refuse models of the wrong class, and `pipeline` accepts both classes. No other code tests the class."""
    askers = {
        name
        for name, node in nodes("Seq2Seq")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and "Seq2Seq" in ast.unparse(node)
    }
    assert askers == {"npformer.tasks.pipelines", "npformer.tasks.text_to_text"}


def python(code: str) -> str:
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_import_loads_numpy_and_nothing_heavier() -> None:
    """Every exported name exists. NumPy is imported only when a name is used, because the command must set up its
    process first.
    """
    code = """
import npformer
assert "numpy" not in sys.modules
import numpy
before = set(sys.modules) - {"npformer"}
for name in npformer.__all__:
    getattr(npformer, name)
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - sys.stdlib_module_names))
"""
    assert python(code) == "['npformer']\n"


def test_exported_names_are_imported_from_where_type_checkers_see_them() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [
        node for node in typed.body if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "npformer")
    ]
    seen = {each.name: node.module for node in imports for each in node.names}
    found = {name: f"npformer.{module}" for name, module in npformer._MODULE_OF.items()}
    stubs = {"pipeline": "npformer.tasks.typed_pipeline"}
    assert found | stubs == seen
    assert sorted([*found, "golden", "learn", "plain", "training", "view"]) == sorted(npformer.__all__)


@pytest.mark.parametrize("package", [npformer.engine.blocks, npformer.engine.mechanisms])
def test_names_of_a_package_are_imported_from_where_type_checkers_see_them(package: Any) -> None:
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    seen = {each.name: node.module for node in imports for each in node.names}
    names = package._FILES.items()
    assert seen == {name: f"{package.__name__}.{file}" for file, some in names for name in some.split()}
    assert sorted(seen) == package.__all__
    assert {getattr(package, name).__module__ for name in seen} == {*seen.values()}
    assert set(seen) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = package.Nothing


def test_no_module_has_a_public_name() -> None:
    """No name is both a function and a module.

    There are two exceptions: files of the command are named after subcommands, and pages after subjects.
    """
    rooms = {f"npformer.{each}" for each in ("golden", "learn", "plain", "training", "view")}  # public as modules
    modules = {
        name.split(".")[-1]: name
        for name in MODULES.keys() - rooms
        if not name.startswith(("npformer.cli.", "npformer.plain."))
    }
    assert {name: modules[name] for name in npformer.__all__ if name in modules} == {}


def test_modules_are_found_by_their_names() -> None:
    code = """
import npformer.engine.embeddings
import npformer
print(npformer.plain.formulas.linear is npformer.linear.__wrapped__, npformer.golden.__name__, hasattr(npformer, "nothing"))
print(npformer.engine.embeddings.shift_right is npformer.shift_right)
"""
    assert python(code) == "True npformer.golden False\nTrue\n"


def test_caches_have_a_bound() -> None:
    """A service may read any number of configs, so a cache may be unbounded only if it has one entry per dtype."""
    unbounded = set()
    for _, node in nodes("cache"):
        if isinstance(node, ast.FunctionDef):
            names = {ast.unparse(each).removeprefix("functools.") for each in node.decorator_list}
            unbounded |= {node.name for name in names if name == "cache" or "maxsize=None" in name}
    assert unbounded <= {"_kernels", "same_bits"}


def test_files_are_short() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}


def test_functions_of_the_maths_have_few_arguments() -> None:
    """A function has at most eight arguments. Arrays and options that belong together are one object."""
    maths = [path for name, path in MODULES.items() if name.startswith(("npformer.engine", "npformer.families"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in maths}
    found = [
        (path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    ]
    counts = {f"{path.stem}.{node.name}": len([*node.args.args, *node.args.kwonlyargs]) for path, node in found}
    assert {name: count for name, count in counts.items() if count > 8} == {}


def test_every_module_describes_itself() -> None:
    """A module's docstring describes its content. The docstring is the first statement, so the test reads only the
    beginning of a file."""
    assert [str(path.relative_to(ROOT)) for path in PYTHON if not docstring(path)] == []


def docstring(path: Path) -> str:
    """Returns the string that is the first statement of a file, or ""."""
    with open(path, encoding="utf-8") as file:
        tokens = (
            each for each in tokenize.generate_tokens(file.readline) if each.type not in (tokenize.COMMENT, tokenize.NL)
        )
        first = [*islice(tokens, 2)]
    is_text = [each.type for each in first] == [tokenize.STRING, tokenize.NEWLINE]
    return str(ast.literal_eval(first[0].string)).strip() if is_text else ""
