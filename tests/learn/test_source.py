"""A mistake in one part of a file does not hide the other functions, and the origin of functions is reported."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer
from npformer.learn.chapters import EXERCISES
from npformer.learn.contents import PAGES, right
from npformer.learn.judge import PASSED, Verdict, judge
from npformer.learn.source import LARGEST, blocks, loaded
from npformer.learn.template import signatures, template
from tests.learn.test_check import PLAIN, problems, written

linear: Any = right("linear")
LINEAR = "def linear(x, weight, bias=0.0):\n    return x @ weight + bias\n"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("def gelu(x):\n    return (x\n", "Line 2, `return (x`, is not Python: '(' was never closed."),
        ('def gelu(x):\n    """A docstring.\n    return x\n', "unterminated triple-quoted string literal"),
        ("def gelu(x):\n", "expected an indented block after function definition on line 1"),
        ("@np.vectorize\ndef gelu(x:\n    return x\n", "'(' was never closed"),
        ("gelu = lambda x: x +\n", "Line 1, `gelu = lambda x: x +`, is not Python: invalid syntax."),
    ],
)
def test_a_function_that_is_not_python_hides_no_other(broken: str, said: str, tmp_path: Path) -> None:
    text = f"{broken}\n\n# --- next ---\n\n{LINEAR}"
    found = loaded(str(written(tmp_path, {}, text) / "my_transformer.py"))
    assert found.module is not None
    assert list(found.broken) == ["gelu"]
    assert said in found.broken["gelu"]
    assert found.module.linear(np.ones((1, 2)), np.ones((2, 1)), np.ones(1)) == 3


@pytest.mark.slow
def test_one_syntax_error_leaves_the_other_verdicts(tmp_path: Path) -> None:
    report = npformer.learn.check(written(tmp_path, {"gelu": "def gelu(x):\n    return (x"}, PLAIN), limit=100.0)
    assert list(problems(report)) == ["gelu"]
    assert problems(report)["gelu"].endswith("is not Python: '(' was never closed.")
    assert (report.passed, len(report.verdicts)) == (len(EXERCISES) - 1, len(EXERCISES))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("print(softmax(3))", "Line 1, `print(softmax(3))`, raises NameError: name 'softmax' is not defined"),
        ("raise SystemExit(3)", "Line 1, `raise SystemExit(3)`, raises SystemExit: 3"),
        ("import no_such_module", "Line 1, `import no_such_module`, raises ModuleNotFoundError"),
        ("def helper(x:\n    pass", "Line 1, `def helper(x:`, is not Python: '(' was never closed."),
    ],
)
def test_a_statement_that_raises_hides_no_function(statement: str, said: str, tmp_path: Path) -> None:
    found = loaded(str(written(tmp_path, {}, f"{statement}\n\n\n{LINEAR}") / "my_transformer.py"))
    assert found.problem.startswith(said)
    assert found.module is not None
    assert hasattr(found.module, "linear")


def test_the_report_has_the_problem_and_the_verdicts(tmp_path: Path) -> None:
    report = npformer.learn.check(written(tmp_path, {}, f"{LINEAR}\nlinear(1)\n"), chapter=1, limit=100.0)
    first, rest = str(report).split("\n\n", 1)
    assert "Line 4, `linear(1)`, raises TypeError" in " ".join(first.split())
    assert "linear                        passed" in rest
    assert not report.ok


def test_the_file_keeps_its_future_imports_and_docstring(tmp_path: Path) -> None:
    text = f'"""Mine."""\n\nfrom __future__ import annotations\n\n\ndef helper(x: Unknown) -> Unknown:\n    return x\n\n\n{LINEAR}'
    found = loaded(str(written(tmp_path, {}, text) / "my_transformer.py"))
    assert found.module is not None
    assert (found.problem, found.module.__doc__) == ("", "Mine.")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    found = loaded(str(written(tmp_path, {}, "#" * (LARGEST + 1)) / "my_transformer.py"))
    assert found.module is None
    assert found.problem.endswith("expected at most 4194304 bytes, got 4194305.")


def test_the_blocks_of_the_template_are_its_statements() -> None:
    assert [each.name for each in blocks(template()) if each.name] == list(PAGES)


def test_imports_and_functions_from_elsewhere_are_reported(tmp_path: Path) -> None:
    text = f"import math\n\nfrom npformer.plain.formulas import softmax, gelu as gelu\n\n\n{LINEAR}\n\nsplit_heads = math.sqrt\n"
    found = loaded(str(written(tmp_path, {}, text) / "my_transformer.py"))
    assert found.imports == ("math", "npformer.plain.formulas")
    assert found.foreign == {
        "gelu": "npformer.plain.formulas",
        "softmax": "npformer.plain.formulas",
        "split_heads": "math",
    }
    report = npformer.learn.check(tmp_path, chapter=1, limit=100.0).as_dict()
    assert report["imports"] == ["math", "npformer.plain.formulas"]
    assert report["foreign"]["gelu"] == "npformer.plain.formulas"


# --- signatures and dtypes --------------------------------------------------------------------------------------------


def verdict(name: str, function: Any) -> Verdict:
    return judge(EXERCISES[name], function, signatures()[name], __file__).with_cause()


def silent(function: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def lists(*arrays: Any) -> Any:
    x, weight, *bias = arrays
    return x @ weight + sum(bias)


def first_and_rest(x: Any, *rest: Any) -> Any:
    return x @ rest[0] + (rest[1] if len(rest) > 1 else 0)


class Layer:
    def __call__(self, x: Any, weight: Any, bias: Any = 0.0) -> Any:
        return x @ weight + bias


@pytest.mark.parametrize(
    "function",
    [silent(linear), functools.wraps(linear)(silent(linear)), lists, first_and_rest, Layer()],
    ids=["decorator", "wraps", "*args", "x, *rest", "object"],
)
def test_a_decorator_is_no_changed_signature(function: Any) -> None:
    assert verdict("linear", function).state == PASSED


def test_a_ufunc_is_called_to_see() -> None:
    erf = np.frompyfunc(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))), 1, 1)
    assert verdict("gelu", erf).problem.startswith("Expected an array, got an array of dtype object")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, bias=0.0: x,
        lambda x, weight: x,
        lambda x, weight, bias, more: x,
        lambda x, weight, bias=0.0, *, more: x,
        lambda **all_of_them: 0,
    ],
)
def test_a_changed_signature_is_still_named(function: Any) -> None:
    assert verdict("linear", function).kind == "signature"


def wide_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def wide_scale(q: Any, k: Any, v: Any, mask: Any = True) -> Any:
    number = float(np.sqrt(4.0))  # a Python number, computed in float64
    scores = q @ k.mT * number / np.sqrt(q.shape[-1]) / 2
    return right("softmax")(np.where(mask, scores, -np.inf)) @ v


def in_a_closure(wide: Any) -> Any:
    def gelu(x: Any) -> Any:
        return wide(x)

    return gelu


@pytest.mark.parametrize(
    ("name", "function", "source"),
    [
        ("gelu", wide_gelu, "`np.vectorize(math.erf)(x / np.sqrt(2))`, is float64, so"),
        ("scaled_dot_product_attention", wide_scale, "`np.sqrt(q.shape[-1])`, is float64, so"),
        ("gelu", in_a_closure(wide_gelu), "the answer is float64. A float64 number or array"),
    ],
)
def test_float64_passes_with_a_note_that_names_the_expression(name: str, function: Any, source: str) -> None:
    found = verdict(name, function)
    assert (found.state, found.problem) == (PASSED, "")
    assert source in found.note


def test_integers_for_floats_are_still_wrong() -> None:
    assert (
        verdict("causal_mask", lambda n_queries, n_keys=0: right("causal_mask")(n_queries, n_keys) + 0.0).kind
        == "dtype"
    )
