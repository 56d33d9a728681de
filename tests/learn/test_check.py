"""`learn check`: the sentence for each problem in a learner's file, and the report."""

from __future__ import annotations

import doctest
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import npformer
from npformer.cli.main import main
from npformer.common.errors import NpformerError
from npformer.learn import Report, solution, start
from npformer.learn.chapters import EXERCISES
from npformer.learn.contents import split
from npformer.learn.judge import UNWRITTEN, Verdict, judge
from npformer.learn.source import loaded
from npformer.learn.template import empty, signatures, template
from npformer.learn.worker import WorkerRequest, _judged
from tests.support.cli_runner import heed_ctrl_c

check = partial(npformer.learn.check, limit=100.0)  # seconds for a function, for busy machines
ROOT = Path(__file__).parents[2]


def solved() -> str:
    """Returns the learner's file with the solution of every exercise pasted."""
    text = template()
    for name in EXERCISES:
        assert text.count(empty(name)) == 1
        text = text.replace(empty(name), solution(name))
    return text


PLAIN = solved()


def written(folder: Path, functions: dict[str, str], text: str | None = None) -> Path:
    """Writes a learner's folder: the template, or `text`, with these functions filled in."""
    made = template() if text is None else text
    for name, code in functions.items():
        pattern = rf"def {name}\(.*?(?=\n\n\n|\Z)"
        made, count = re.subn(pattern, lambda _, code=code: code.strip("\n"), made, count=1, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1
    folder.mkdir(exist_ok=True)
    (folder / "new.py").write_text(made, encoding="utf-8")
    (folder / "new.py").replace(folder / "my_transformer.py")  # so `--watch` never sees a half-written file
    return folder


def problems(report: Report) -> dict[str, str]:
    return {each.name: each.problem for each in report.verdicts if each.state == "wrong"}


def judged(folder: Path) -> dict[str, str]:
    """Returns the problem of each wrong function in a file, judged in this process without a search for causes."""
    module = loaded(str(folder / "my_transformer.py")).module
    assert module is not None
    verdicts = (judge(each, getattr(module, name), signatures()[name], module.__file__ or "").verdict
                for name, each in EXERCISES.items())  # fmt: skip
    return {each.name: each.problem for each in verdicts if each.state == "wrong"}


def test_each_problem_has_its_own_sentence(tmp_path: Path) -> None:
    """The functions are judged one at a time, so one file can show many problems."""
    file = written(
        tmp_path,
        {
            "embed": "def embed(tokens, positions, eps, token, position, norm):\n    return 0",
            "layer_norm": "def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):\n    x -= x.mean(-1, keepdims=True)\n"
            "    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias",
            "gelu": "def gelu(x):\n    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))",
            "linear": "def linear(x, weight, bias=0.0):\n    y = x @ weight + bias",
            "split_heads": "def split_heads(x, n_heads):\n    return x.reshape(len(x), n_heads, -1)",
            "combine_heads": "def combine_heads(x):\n    return np.concatenate(x, axis=3)",
            "multi_head_attention": "def multi_head_attention(x, source, mask, n_heads, query, key, value, output):\n"
            "    return [x[0]]",
            "cross_entropy": "def cross_entropy(logits, targets):\n    raise SystemExit(3)",
            "linear_backward": "def linear_backward(grad, x, weight, bias=0.0):\n    return grad @ weight.T, {'weight': x.T @ grad}",
            "softmax_backward": "def softmax_backward(grad, y):\n    return np.random.default_rng().normal(size=y.shape)",
            "layer_norm_backward": "def layer_norm_backward(grad, x, weight=1.0, bias=0.0, eps=1e-5):\n"
            "    return grad.astype(np.float16), {'weight': weight, 'bias': weight}",
            "gelu_tanh": "gelu_tanh = 3",
            "softmax": "def softmax(x, axis=-1):\n    return np.frompyfunc(math.exp, 1, 1)(x)",
            "top_p": "def top_p(logits, p):\n    return np.random.default_rng().normal(size=logits.shape)",
        },
    )
    found = judged(file)
    assert found["embed"] == (
        "The signature was changed: expected embed(ids, positions, eps, token, position, norm), "
        "got embed(tokens, positions, eps, token, position, norm)."
    )
    assert found["layer_norm"] == "It writes to its argument x. Return a new array, and change copies only."
    assert "gelu" not in found
    assert found["linear"] == "It returns None. Is a return missing?"
    assert found["split_heads"] == "Wrong shape: expected (2, 3, 2), got (3, 2, 2)."
    assert re.fullmatch(
        r"Line \d+, `return np.concatenate\(x, axis=3\)`, raises AxisError: axis 3 is out of bounds .*",
        found["combine_heads"],
    )
    assert found["multi_head_attention"] == "Expected an array, got a list of 1."
    assert re.fullmatch(r"Line \d+, `raise SystemExit\(3\)`, raises SystemExit: 3", found["cross_entropy"])
    assert found["linear_backward"] == "The dict for gradients lacks bias."
    assert found["softmax_backward"] == "Two calls with the same arguments give different answers."
    assert found["gelu_tanh"] == "gelu_tanh is no longer a function."
    assert found["top_p"] == "Two calls with the same arguments give different answers."
    assert found["layer_norm_backward"] == "Wrong dtype: expected float32, got float16, which has only three digits."
    assert found["softmax"] == (
        "Expected an array, got an array of dtype object; .astype(np.float32) makes it an array of numbers."
    )
    assert len(found) == 13


def test_the_truth_of_a_mask_is_a_known_mistake(tmp_path: Path) -> None:
    body = "def masked_softmax(scores, mask):\n    if mask:\n        scores = np.where(mask, scores, -np.inf)\n"
    body += "    return softmax(scores) * mask"
    report = check(written(tmp_path, {"masked_softmax": body}), chapter=2)
    [verdict] = [each for each in report.verdicts if each.name == "masked_softmax"]
    assert verdict.cause == "truth of the mask"


def test_values_removed_from_an_argument_are_noticed(tmp_path: Path) -> None:
    encoder = (
        "    while layers:\n        x = encoder_layer(x, mask, n_heads, activation, eps, **layers.pop(0))\n    return x"
    )
    ffn = "    b = hidden.pop('bias')\n    return linear(activation(linear(x, bias=b, **hidden)), **output)"
    file = written(
        tmp_path,
        {
            "encoder": f"def encoder(x, mask, n_heads, activation, eps, layers):\n{encoder}",
            "feed_forward": f"def feed_forward(x, activation, hidden, output):\n{ffn}",
        },
        PLAIN,
    )
    found = judged(file)
    assert found["encoder"].startswith("It changes its argument layers, at 0.")
    assert found["feed_forward"].startswith("It changes its argument hidden, at bias.")


@pytest.mark.slow
def test_a_whole_model_that_raises_is_reported_with_its_line(tmp_path: Path) -> None:
    body = "    assert len(layers) < 6\n    return encoder(embed(ids, positions, eps, **embeddings), mask, n_heads, "
    body += "activation, eps, layers)"
    head = "def distilbert(ids, positions, mask, n_heads, activation, eps, embeddings, layers):\n"
    wrong = {"distilbert": f"{head}{body}"}
    report = check(written(tmp_path, wrong, PLAIN), chapter=4)
    assert report.passed == len(report.verdicts)
    assert not report.ok
    [run] = report.runs
    assert run.name == "classify"
    assert re.fullmatch(
        r"Your whole model cannot run. Line \d+, `assert len\(layers\) < 6`, raises AssertionError", run.text
    )


@pytest.mark.slow
def test_an_endless_loop_and_an_end_of_the_process_are_reported(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {
            "softmax": "def softmax(x, axis=-1):\n    while True:\n        pass",
            "causal_mask": "def causal_mask(n_queries, n_keys=0):\n    import os\n    os._exit(7)",
        },
    )
    found = problems(check(file, chapter=2, limit=4.0))
    assert re.fullmatch(
        r"It did not end within 4 seconds of processor time. It was at line \d+, `.*`. Is there an endless loop\?",
        found["softmax"],
    )
    assert found["causal_mask"] == "It ended the process with exit code 7."


def test_the_search_for_a_cause_is_not_part_of_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the search may exceed the limit. If its time counted, a fast function would be reported as
    an endless loop."""
    events: list[str] = []
    monkeypatch.setattr("npformer.learn.judge.cause", lambda *_: (events.append("search"), ("", ""))[1])

    @contextmanager
    def within(name: str, limit: float) -> Iterator[None]:
        events.append("starts")
        yield
        events.append("ends")

    file = written(tmp_path, {"layer_norm": "def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):\n    return x"})
    found = loaded(str(file / "my_transformer.py"))
    known = {name: "not yet written" for name in EXERCISES if name != "layer_norm"}
    request = WorkerRequest(str(file / "my_transformer.py"), "", "", known, [1], limit=1.0, run_limit=1.0)
    _judged(request, found, lambda **_: None, within)
    assert events[:3] == ["starts", "ends", "search"]


def test_a_wrong_function_shows_its_numbers_and_the_cause(tmp_path: Path) -> None:
    code = """
def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):
    n = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + eps)
    return n * weight + bias
"""
    report = check(written(tmp_path, {"layer_norm": code}))
    [verdict] = [each for each in report.verdicts if each.name == "layer_norm"]
    assert verdict.cause == "unbiased variance"
    assert str(report).startswith(
        """\
Chapter 1: From words to rows         0 of 4 passed
  linear                        not yet written
  layer_norm                    wrong
      The numbers are wrong.
      x       [[1. 2. 6.]
               [0. 4. 8.]]
      weight  [1. 1. 2.]
      bias    [0.  1.  0.5]
      yours   [[-0.7559  0.622   2.7678]
               [-1.      1.      2.5   ]]
      right   [[-0.9258  0.5371  3.2775]
               [-1.2247  1.      2.9495]]
      Cause: The divisor of the variance is D - 1. It should be D.
"""
    )


@pytest.mark.slow
def test_no_cause_is_named_for_numbers_that_no_known_mistake_gives(tmp_path: Path) -> None:
    code = "def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):\n    return x * weight * 3 + bias"
    report = check(written(tmp_path, {"layer_norm": code}))
    [verdict] = [each for each in report.verdicts if each.name == "layer_norm"]
    assert (verdict.state, verdict.cause) == ("wrong", "")
    assert "Cause" not in str(report)


@pytest.mark.slow
def test_a_right_function_passes_although_it_calls_a_wrong_one(tmp_path: Path) -> None:
    """The layer is correct, although it calls a wrong layer norm and a linear function that is not yet written."""
    wrong = {
        "layer_norm": "def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):\n    return x",
        "linear": "def linear(x, weight, bias=0.0):\n    raise NotImplementedError",
    }
    report = check(written(tmp_path, wrong, PLAIN), chapter=4)
    states = {each.name: each.state for each in report.verdicts}
    assert {name for name, state in states.items() if state != "passed"} == {"layer_norm", "linear"}
    assert "layer_norm was replaced by npformer's version in the functions that call it." in str(report)
    assert report.runs == ()  # a run of the whole model would use only some of the learner's functions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import math\n\ndef linear(x:\n    return x\n",
            "Line 3, `def linear(x:`, is not Python: '(' was never closed.",
        ),
        ("x = 1\0\n", "The file is not Python: source code string cannot contain null bytes. Save it as UTF-8 text."),
        ("import helpers\n", "Line 2 of helpers.py, `return (1`, is not Python: '(' was never closed."),
        ("import numpy as np\nnp.ones(3) @ np.ones(4)\n", "Line 2, `np.ones(3) @ np.ones(4)`, raises ValueError"),
        (
            "import numpy as np\nnp.exp = lambda x: 1 + x\n",
            "The file changes np.exp for the whole program. Give your own function a different name.",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_says_why(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "exp", np.exp)  # restores np.exp after the test
    (tmp_path / "helpers.py").write_text("def one():\n    return (1\n", encoding="utf-8")
    found = loaded(str(written(tmp_path, {}, text) / "my_transformer.py"))
    assert found.module is None
    assert found.problem.startswith(said)


def test_a_file_that_does_not_end_is_reported(tmp_path: Path) -> None:
    file = written(tmp_path, {}, "while True:\n    pass\n")
    assert "The file cannot be loaded. It did not end within 0.5 seconds of" in str(check(file, limit=0.5))


@pytest.mark.slow
def test_a_file_that_is_not_python_is_reported(tmp_path: Path) -> None:
    file = written(tmp_path, {}, "def linear(x:\n    return x\n")
    assert str(check(file)).endswith("my_transformer.py: Line 1, `def linear(x:`, is not Python: '(' was never closed.")


def test_a_missing_function_and_what_the_file_prints_are_reported(tmp_path: Path) -> None:
    report = check(written(tmp_path, {}, "print('so far so good')\n"), chapter=1)
    assert problems(report)["gelu"] == "The file has no function gelu. `npformer learn reset gelu` adds its empty form."
    assert str(report).endswith("Your file printed:\n  so far so good")


def test_the_whole_path(tmp_path: Path) -> None:
    """A file with all solutions runs the bundled classifier, trains a model, and writes text with a checkout's GPT."""
    report = check(written(tmp_path, {}, PLAIN))
    assert report.ok, str(report)
    assert report.passed == len(EXERCISES)
    classify, learn, write = report.runs
    assert classify.text == 'Your file answers "I love ice cream" with distilbert-sst2: POSITIVE, 99.94%.'
    assert (learn.ok, learn.text[:37]) == (True, "Your file learns: the loss of six tex")
    if write.ok is None:
        pytest.skip(write.text)  # a source distribution has no GPT
    assert write.text.startswith("Your file writes with gpt2-austen: It is a truth universally acknowledged")


def test_progress_and_hints_are_in_the_folder(tmp_path: Path) -> None:
    folder = start(tmp_path / "course")
    assert [len(npformer.learn.hint("gelu", folder)) for _ in range(4)] == [1, 2, 3, 3]
    report = check(
        written(folder, {"linear": "def linear(x, weight, bias=0.0):\n    return x @ weight + bias"}), chapter=1
    )
    assert json.loads((folder / "progress.json").read_text(encoding="utf-8")) == {
        "passed": ["linear"],
        "hints": {"gelu": 3},
    }
    assert {each["name"]: each["hints"] for each in report.as_dict()["functions"]}["gelu"] == 3
    assert "Next: layer_norm. `npformer learn hint layer_norm` gives a hint." in str(report)


def test_after_the_last_hint_the_report_names_the_solution() -> None:
    known = {"gelu": 3}
    report = Report("", tuple(Verdict(name, UNWRITTEN) for name in ("gelu", "linear")), hints=known)
    assert " ".join(str(report).split()).endswith("Next: gelu. `npformer learn solution gelu` shows a right function.")


def test_the_template_shows_no_answer() -> None:
    """Each function to write only raises NotImplementedError, and no other text of the file contains its body."""
    for name in EXERCISES:
        _, docstring, body = split(name)
        assert template().count(f"{docstring}\n    raise NotImplementedError") == 1
        assert body not in template()


def test_the_examples_of_the_file_are_right(tmp_path: Path) -> None:
    """A learner can run the examples with python -m doctest my_transformer.py."""
    module = loaded(str(written(tmp_path, {}, PLAIN) / "my_transformer.py")).module
    assert module is not None
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted > 10


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "course")
    assert main(["learn", "start", folder]) == 0
    assert main(["learn", "start", folder]) == 1
    capsys.readouterr()
    assert main(["learn", "check", "--folder", folder, "--chapter", "1", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["passed"], report["total"]) == (False, 0, 4)
    assert [each["state"] for each in report["functions"]] == ["not yet written"] * 4
    assert main(["learn", "hint", "linear", "--folder", folder]) == 0
    assert capsys.readouterr().out == "1. @ multiplies matrices.\n"
    assert [main(["learn", "hint", "linear", "--folder", folder]) for _ in range(2)] == [0, 0]
    [last] = re.findall(r"^(?!\d\.).*$", capsys.readouterr().out.rstrip("\n"), flags=re.MULTILINE)
    assert last == "That was the last hint. `npformer learn solution linear` shows a right function."
    assert main(["learn", "solution", "split_heads"]) == 0
    assert "def split_heads(x, n_heads):" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "--folder", "nowhere"], "no such file; `npformer learn start FOLDER` writes it"),
        (["check", "linear"], "linear is a function: `npformer learn check` checks all functions"),
        (["hint"], "learn hint: expected the name of a function"),
        (["hint", "lienar"], "the course has no function 'lienar'; did you mean linear?"),
        (
            ["hint", "embedding"],
            "learn: embedding is complete in my_transformer.py; the course asks for other functions",
        ),
        (["check", "--chapter", "9", "--folder", "."], "no such file"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["learn", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_complete_file_has_exit_code_0(tmp_path: Path) -> None:
    names = ("linear", "layer_norm", "gelu", "embed")
    folder = written(tmp_path, {name: solution(name) for name in names})
    assert main(["learn", "check", "--chapter", "1", "--folder", str(folder)]) == 0


def test_watch_checks_again_when_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file changes during the first pause, and Ctrl-C arrives during the second."""
    folder, checked = written(tmp_path, {}), []
    texts = iter([template() + "\n"])

    def pause(_: float) -> None:
        written(folder, {}, next(texts, None) or interrupt())

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("npformer.cli.learn.time.sleep", pause)
    monkeypatch.setattr("npformer.cli.learn._checked", lambda args: checked.append(args.chapter) or 3)
    arguments = ["learn", "check", "--watch", "--chapter", "1", "--folder", str(folder)]
    assert main(arguments) == 130
    assert checked == [1, 1]


@pytest.mark.slow
def test_watch_ends_with_ctrl_c(tmp_path: Path) -> None:
    """The command watches until Ctrl-C, and then exits with the same code as any interrupted command."""
    folder = written(tmp_path, {})
    command = [sys.executable, "-m", "npformer", "learn", "check", "--watch", "--chapter", "1", "--folder", str(folder)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(npformer.__file__).parents[1],
        preexec_fn=heed_ctrl_c,
    ) as process:
        assert process.stdout is not None
        first = next(line for line in process.stdout if "of 4 functions passed" in line)
        written(tmp_path, {"linear": "def linear(x, weight, bias=0.0):\n    return x @ weight + bias"})
        second = next(line for line in process.stdout if "of 4 functions passed" in line)
        process.send_signal(signal.SIGINT)
        assert (first[0], second[0], process.wait(300)) == ("0", "1", 130)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chapter": 7}, "chapter: expected a whole number from 1 to 6, got 7"),
        ({"chapter": "2"}, "chapter: expected a whole number from 1 to 6, got '2'"),
        ({"limit": 0}, "limit: expected a number above 0, got 0"),
        ({"limit": float("nan")}, "limit: expected a number above 0, got nan"),
        ({"limit": 1e9}, "limit: expected a number from 0 to 900.0, got 1000000000.0"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(NpformerError, match=message):
        check(written(tmp_path, {}), **options)
