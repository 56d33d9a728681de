"""The tab `Step`: the page's lines and arrays agree with the engine, and a changed line can do only arithmetic."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import NpformerError
from npformer.families import FAMILIES, encoders
from npformer.interpret.answer import outcome_of
from npformer.interpret.edits import edit
from npformer.interpret.study_inputs import read_inputs
from npformer.pages.find import page_of
from npformer.pages.run import answers
from npformer.view.explorer import page_worker
from npformer.view.explorer.changes import ChangeLine
from npformer.view.explorer.page_edit import changed_page, statements
from npformer.view.explorer.page_program import PageProgram, page_program
from npformer.view.explorer.parts import Parts
from npformer.view.explorer.recorder import first_lines, picture, record
from npformer.view.explorer.state import read_state
from npformer.view.explorer.step_part import page_answer, stepped
from tests.support import tiny
from tests.support.explorer_client import state

TEXT = "I love good ice cream"
SCORES = "scores = q @ k.mT / math.sqrt(q.shape[-1])"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return Parts({"m": npformer.load(tiny.folder(tmp_path_factory.mktemp("models") / "model", "distilbert"))})


@pytest.fixture(scope="module")
def text(parts: Parts) -> str:
    return "\n".join(parts.part(read_state(state(TEXT)), "step")["view"]["source"])


def line_of(text: str, statement: str) -> int:
    return next(line for line, each in statements(text).items() if each == statement)


def changed(text: str, old: str, to: str) -> dict[str, Any]:
    return {"kind": "line", "line": line_of(text, old), "old": old, "to": to}


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"marian", "bart", "t5", "mt5", "transformer"}))
def test_the_text_of_every_family_computes_what_its_page_does(family: str) -> None:
    made = tiny.model(family, "base") if family in encoders() else tiny.model(family, "causal-lm")
    (inputs,) = read_inputs(made, [5, 6, 7, 8]).inputs
    program = page_program(made, inputs)
    found, recording = record(program)
    expected = answers(page_of(made.config), made.config, made.weights, inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert len(recording.steps) > 20
    assert ">>>" not in program.text


@pytest.mark.parametrize("name", ["distilbert-sst2", "gpt2-austen", "en-de-multi30k"])
def test_a_bundled_model_s_page_gives_its_answer(name: str) -> None:
    model = npformer.load(name)
    given = Parts({name: model})
    asked = read_state(state("A man rides a bike."))
    run = given.stepped(asked)
    ours = given.seen(asked).answer
    assert run.answer is not None
    assert ours is not None
    assert [each for each, _ in run.answer.outcomes] == [each for each, _ in ours.outcomes]
    np.testing.assert_allclose([p for _, p in run.answer.outcomes], [p for _, p in ours.outcomes], 1e-3, 1e-6)


def test_the_array_of_a_line_is_the_stage_of_the_engine(parts: Parts, text: str) -> None:
    """The second call of attention computes the scores of layer 1, for each head."""
    run = parts.stepped(read_state(state(TEXT)))
    line = line_of(text, SCORES)
    made = [each[3]["scores"] for each in run.recording.steps if each[1] == line]
    assert len(made) == 2
    stage = npformer.trace(parts.models[0], TEXT)["layers.1.attention.scores"]
    np.testing.assert_allclose(run.recording.values[made[1]]["data"], stage, 1e-4, 1e-5)
    part = parts.part(read_state(state(TEXT)), f"value:{made[1]}")
    assert (part["shape"], part["counts"]) == ([4, 7, 7], [4, 7, 7])


def test_steps_know_their_callers_and_what_they_made(parts: Parts) -> None:
    recording = parts.stepped(read_state(state(TEXT))).recording
    functions = [frame[0] for frame in recording.frames]
    assert functions[:2] == ["distilbert", "embed"]
    assert functions.count("encoder_layer") == 2
    for frame, line, depth, _, _ in recording.steps:
        caller = recording.frames[frame][1]
        assert line > 0
        assert depth == (0 if caller < 0 else recording.steps[caller][2] + 1)


def test_a_large_array_keeps_its_shape_range_and_some_numbers() -> None:
    array = np.arange(40 * 100 * 200, dtype=np.float32).reshape(40, 100, 200)
    found = picture(array)
    assert found["shape"] == [40, 100, 200]
    assert found["data"].shape == (32, 64, 64)
    assert found["range"][:2] == [0.0, array.size - 1.0]
    np.testing.assert_array_equal(found["data"], array[np.ix_(*found["picked"])])
    assert [picture(np.ones(shape))["counts"] for shape in ((), (3,), (2, 3), (2, 2, 2, 3))] == [
        [1, 1, 1], [1, 1, 3], [1, 2, 3], [4, 2, 3],
    ]  # fmt: skip
    assert not picture(np.array([1.0, np.nan]))["finite"]


# --- changing a line -------------------------------------------------------------------------------------------------


def test_a_changed_line_gives_the_answer_of_the_same_edit_of_the_engine(parts: Parts, text: str) -> None:
    """Dividing by K instead of its root is the same as scaling the engine's scores by 1 / sqrt(K)."""
    asked = read_state(state(TEXT, edits=[changed(text, SCORES, "scores = q @ k.mT / q.shape[-1]")]))
    run = parts.stepped(asked)
    model = parts.models[0]
    with edit({"*.scores": lambda scores: scores / math.sqrt(8)}):
        (inputs,) = read_inputs(model, TEXT).inputs
        expected = outcome_of(model, inputs, model.run([inputs])[0])
    assert run.answer is not None
    assert expected is not None
    np.testing.assert_allclose([p for _, p in run.answer.outcomes], [p for _, p in expected.outcomes], 1e-4)
    view = parts.part(asked, "step")["view"]
    assert view["before"] == parts.seen(read_state(state(TEXT))).answer.outcomes  # type: ignore[union-attr]
    assert view["before"] != view["outcomes"]
    assert parts.part(asked, "answer")["before"] is None  # the engine is unchanged


@pytest.mark.parametrize(
    "to",
    [
        "scores = q @ k.mT", "scores = np.tanh(q @ k.mT)", "scores = -(q @ k.mT) * 2.5e-3 + mask",
        "scores = softmax(q @ k.mT)", "scores = np.where(q @ k.mT > 0, 1.0, 0.0)", "scores = (q @ k.mT).clip(-1, 1)",
        "scores = np.zeros((4, 7, 7), np.float32)", "scores = q[..., :4] @ k[..., :4].mT", "return v",
    ],
)  # fmt: skip
def test_arithmetic_with_the_page_s_names_is_allowed(to: str, text: str) -> None:
    found = changed_page(text, [ChangeLine(line_of(text, SCORES), SCORES, to)])
    compile(found, "page", "exec")
    assert len(found.splitlines()) == len(text.splitlines())
    assert [a for a, b in zip(text.splitlines(), found.splitlines(), strict=True) if a != b] == [f"    {SCORES}"]


@pytest.mark.parametrize(
    "to",
    [
        "import os", "scores = __import__('os')", "scores = open('/etc/passwd')", "scores = q.__class__",
        "scores = np.load('x')", "scores = np.__loader__", "scores = np.lib.npyio", "scores = math.__name__",
        "scores = (lambda: 1)()", "scores = [x for x in q]", "scores = eval('1')", "scores = q.tofile('x')",
        "scores = q.dump('x')", "scores = getattr(q, 'x')", "scores = f'{q}'", "scores = exec", "scores = os",
        "scores = (s := q)", "scores = q; v = k", "scores = 1\nv = 2", "np = q", "linear = q", "len = q", "q.shape = 1",
        "q[0] = 1", "scores = b'x'", "scores = 1j", "scores =", "del q", "while True: pass", "pass", "scores = yield",
        "scores = await q", "scores = q.ctypes", "scores = q.data", "scores = np.memmap('x')", "scores = q.base",
        "scores = np.frompyfunc", "scores = np.ctypeslib", "scores = np.fromfile('x')", "scores = {1: 2}[q](3)",
        "scores = np.sum.__self__", "scores = (q)(k)(v)", "scores = np.random", "scores: int = 1", "global q",
        "scores = q" + " + q" * 200, "raise q"
        "scores = '%d' % q if _x else 1", "scores = breakpoint()", "scores = np.vectorize(len)", "scores = input()",
    ],
)  # fmt: skip
def test_anything_else_is_refused_before_it_runs(to: str, text: str) -> None:
    with pytest.raises(NpformerError, match=r"^line \d+: "):
        changed_page(text, [ChangeLine(line_of(text, SCORES), SCORES, to)])


def test_a_change_of_another_statement_than_was_seen_is_refused(text: str) -> None:
    with pytest.raises(NpformerError, match="line 1: expected a statement of the page"):
        changed_page(text, [ChangeLine(1, SCORES, "scores = q")])
    with pytest.raises(NpformerError, match="expected a statement of the page"):
        changed_page(text, [ChangeLine(line_of(text, SCORES), "scores = k", "scores = q")])


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("scores = np.ones((10**6, 10**6))", "needs more than 3 GB"),
        ("scores = np.ones(3) @ np.ones(4)", r"line \d+: ValueError: matmul"),
        ("scores = q / 0 + len(1)", r"line \d+: TypeError"),
    ],
)
def test_a_changed_line_that_fails_says_where(to: str, message: str, parts: Parts, text: str) -> None:
    found = refused(parts, text, changed(text, SCORES, to))
    assert re.search(message, found["reason"])
    assert found["to"] == to


def refused(parts: Parts, text: str, change: dict[str, Any]) -> dict[str, str]:
    """Returns the reason why the page refuses a change. A refused change does not affect the page."""
    asked = read_state(state(TEXT, edits=[change]))
    view, usual = parts.part(asked, "step")["view"], parts.part(read_state(state(TEXT)), "step")["view"]
    assert {name: view[name] for name in ("source", "steps", "outcomes", "before")} == {
        name: usual[name] for name in ("source", "steps", "outcomes", "before")
    }
    assert parts.part(asked, "value:0") == parts.part(read_state(state(TEXT)), "value:0")
    return view["refused"][change["line"]]


@pytest.mark.parametrize("to", ["scores = q @@ k", "scores =", "scores = open('x')", "x y"])
def test_a_refused_line_comes_with_the_page_and_the_reason(to: str, parts: Parts, text: str) -> None:
    change = changed(text, SCORES, to)
    assert refused(parts, text, change)["reason"].startswith(f"line {change['line']}: ")


def test_other_changed_lines_run_beside_a_refused_one(parts: Parts, text: str) -> None:
    """The check finds the wrong line among several. If the run fails, the line that was changed last is refused."""
    good = changed(text, SCORES, "scores = q @ k.mT / q.shape[-1]")
    alone = parts.part(read_state(state(TEXT, edits=[good])), "step")["view"]
    for wrong in ("weights = masked_softmax(", "weights = masked_softmax(scores, mask) + np.ones(3)"):
        bad = changed(text, "weights = masked_softmax(scores, mask)", wrong)
        edits = [bad, good] if wrong.endswith("(") else [good, bad]
        view = parts.part(read_state(state(TEXT, edits=edits)), "step")["view"]
        assert list(view["refused"]) == [bad["line"]]
        assert (view["outcomes"], view["before"]) == (alone["outcomes"], alone["before"])


def test_a_state_as_python_has_the_changed_lines(parts: Parts, text: str, capsys: Any) -> None:
    folder = str(parts.models[0].folder)
    asked = read_state(state(TEXT, edits=[changed(text, SCORES, "scores = q @ k.mT / q.shape[-1]")]))
    exec(Parts({folder: parts.models[0]}).part(asked, "python")["text"], {})
    assert str(parts.stepped(asked).answer) in capsys.readouterr().out
    with pytest.raises(NpformerError, match="never closed"):
        page_answer(parts.models[0], TEXT, [ChangeLine(line_of(text, SCORES), SCORES, "scores = (")])


@pytest.mark.slow
def test_a_changed_line_without_an_end_is_stopped(parts: Parts, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_worker, "PATIENCE", 5)
    found = refused(parts, text, changed(text, SCORES, "scores = 9**9**9 + q"))
    assert "did not finish" in found["reason"]


def test_the_process_of_a_changed_page_can_write_no_file_and_its_output_is_no_pickle(tmp_path: Any) -> None:
    """Even a program that passed the check runs in a process with limits, which outputs only JSON and numbers."""
    path = tmp_path / "file"
    text = f"import numpy as np\ndef f():\n    np.ones(3).tofile({str(path)!r})\n    return np.ones(1)\ndef h(x):\n    return {{'a': x}}\n"
    with pytest.raises(NpformerError, match=r"line 3|needs more"):
        page_worker.run_apart(PageProgram(text, (("f", {}), ("h", {}))))
    assert not path.exists() or path.stat().st_size == 0


def test_a_statement_of_several_lines_is_one_step() -> None:
    text = "def f(x):\n    y = (\n        x +\n        1\n    )\n    return y\n"
    assert first_lines(text) == {2: 2, 3: 2, 4: 2, 5: 2, 6: 6}


def test_a_long_text_is_not_stepped_through(parts: Parts) -> None:
    with pytest.raises(NpformerError, match="at most 128 tokens; this one has 129"):
        stepped(parts.models[0], list(range(129)), [])
