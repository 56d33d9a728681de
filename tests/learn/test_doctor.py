"""Mistakes that no exercise lists are named by the diagnosis of ports, and correct functions get no diagnosis."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer.learn import Report, right, worker
from npformer.learn.chapters import EXERCISES
from npformer.learn.doctor import QUESTIONS, Doctor
from npformer.learn.judge import PASSED, Verdict
from tests.learn.test_check import PLAIN, written


@pytest.fixture(scope="module")
def doctor() -> Doctor:
    return Doctor(seconds=600)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_right_function_has_no_mistake(doctor: Doctor, name: str) -> None:
    """Correct answers get no cause, so each question names the stage that its function computes."""
    arrays = doctor.answers(name, EXERCISES[name].right)
    assert arrays is not None
    assert doctor.cause(name, arrays) == ("", "")


def norm_twice(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-12) -> np.ndarray:
    return right.layer_norm(right.layer_norm(x, weight, bias, eps), weight, bias, eps)


def always_causal(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    return right.scaled_dot_product_attention(q, k, v, np.tri(q.shape[1], k.shape[1], dtype=bool))


def leaky(x: np.ndarray) -> np.ndarray:
    """An activation that the diagnosis does not list."""
    return np.where(x > 0, x, 0.37 * x)


@pytest.mark.parametrize(
    ("name", "wrong", "cause"),
    [
        ("layer_norm", norm_twice, "norm applied twice"),
        ("scaled_dot_product_attention", always_causal, "causal mask"),
        ("gelu", leaky, ""),
    ],
)
def test_a_mistake_of_ports_is_named(doctor: Doctor, name: str, wrong: object, cause: str) -> None:
    arrays = doctor.answers(name, wrong)  # type: ignore[arg-type]
    assert arrays is not None
    assert doctor.cause(name, arrays)[0] == cause


def test_a_factor_has_a_sentence_for_learners(doctor: Doctor) -> None:
    """A port's diagnosis speaks of stages and guesses the factor's origin, so learners get a different sentence."""
    arrays = doctor.answers("layer_norm", lambda x, **norm: 0.5 * right.layer_norm(x, **norm))
    assert arrays is not None
    said = "All numbers of the answer differ from the right numbers by the same factor or offset."
    assert doctor.cause("layer_norm", arrays) == ("scaled by a constant", said)


def test_a_doctor_without_time_names_nothing() -> None:
    doctor = Doctor(seconds=0.0)
    arrays = doctor.answers("layer_norm", norm_twice)
    assert arrays is not None
    assert doctor.cause("layer_norm", arrays) == ("", "")


@pytest.mark.slow
def test_the_check_asks_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs in this process, with a doctor who has time on any machine."""
    code = """
def layer_norm(x, weight, bias, eps=1e-12):
    for _ in range(2):
        n = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        x = n * weight + bias
    return x
"""
    monkeypatch.setattr(worker, "Doctor", lambda: Doctor(seconds=600))
    file = str(written(tmp_path, {"layer_norm": code}, PLAIN) / "my_transformer.py")
    known = {name: PASSED for name in EXERCISES if name != "layer_norm"}
    request = worker.WorkerRequest(file, "", "", known, [1], limit=600.0, run_limit=600.0)
    module, problem = worker.loaded(file)
    assert module is not None, problem
    told: list[dict[str, Any]] = []
    worker._judged(request, module, lambda **fields: told.append(fields), lambda name, limit: nullcontext())
    first, second = (Verdict(**each["verdict"]) for each in told)
    assert (first.cause, second.cause) == ("", "norm applied twice")
    report = Report(file, (second,))
    assert "Cause: Norm applied twice: each layer norm is computed once." in " ".join(str(report).split())
