"""A few mutated files of every kind cause no finding, and the fuzzer finds planted faults."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import kinds, planted, pool
from tests.fuzz.tally import Tally

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc and limits"),
]


def test_no_mutated_file_causes_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The valid corpus of every kind loads, and each mutated case loads or is refused.

    The workers find no compiled modules, as in a fresh checkout.
    """
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    shown = io.StringIO()
    code = command.main(["15", "100", "--workers", "1"], shown)
    assert code == 0, shown.getvalue()
    assert "no findings" in shown.getvalue()


DIGESTED = ("safetensors", "torch-zip", "torch-legacy", "config", "tokenizer", "npz", "table", "texts", "state", "text")
OTHER = f"from tests.fuzz.test_fuzz import digests; print(*digests({DIGESTED}))"


def digests(names: Sequence[str]) -> list[str]:
    return [kinds.make(kind, 15, number).digest().hex()[:16] for kind in names for number in range(60)]


def test_the_same_seed_gives_the_same_cases_with_any_hash_seed() -> None:
    """Cases are the same in a different process, and differ for a different seed."""
    environment = {**os.environ, "PYTHONPATH": str(pool.ROOT), "PYTHONHASHSEED": "1"}
    shown = subprocess.run([sys.executable, "-c", OTHER], env=environment, capture_output=True, check=True).stdout
    assert shown.decode().split() == digests(DIGESTED)
    assert len(set(digests(DIGESTED))) > 500
    assert kinds.make("config", 15, 0).digest() != kinds.make("config", 16, 0).digest()


def test_every_planted_fault_is_found(tmp_path: Path) -> None:
    """Plants exceptions, warnings, long messages, hangs, deaths, too much memory, files elsewhere and executed code."""
    tally = Tally(0)
    for hang in (3, 60):  # on a busy machine, other faults may need longer than the limit for a hang
        (tmp_path / f"{hang}").mkdir()
        planted_here = [(kind, 0, 0, 1) for kind in planted.KINDS if (kind == "planted-hang") == (hang == 3)]
        for result in pool.Pool(tmp_path / f"{hang}", 2, seconds=0.5, hang=hang).run(planted_here):
            tally.add(result)
    found = {finding.kind: " ".join(finding.what) for finding in tally.findings.values()}
    expected = {
        "raise": "KeyError", "panic": "PanicException", "warn": "RuntimeWarning", "deprecated": "DeprecationWarning",
        "long": "an error of 2001 characters", "hang": "hang", "slow": "slow", "die": "death", "grow": "memory",
        "too_much": "MemoryError", "outside": "outside", "execute": "os.system", "canary": "canary",
    }  # fmt: skip
    assert {name: text for name, text in expected.items() if text not in found.get(f"planted-{name}", "")} == {}
    assert len(expected) == len(planted.KINDS)


def test_a_kind_of_case_that_never_loads_is_a_problem() -> None:
    tally = Tally(0)
    result = {"kind": "a", "seconds": 0.0, "memory": 0, "where": "", "what": [], "said": "", "digest": ""}
    for number in range(300):
        tally.add({**result, "number": number, "outcome": "refused" if number else "loaded"})
    assert tally.problems() == ["a: 0.3% of the cases are loaded, expected 5%"]
    tally.add({**result, "number": -1, "outcome": "refused", "said": "no"})
    assert "valid a refused" in tally.problems()[0]


def test_one_case_is_shown_with_its_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shown = io.StringIO()
    command.main(["15", "1", "--kind", "table", "--case", "3"], shown)
    last = shown.getvalue().splitlines()[-1]
    assert last.startswith("its files: ")
    assert any(Path(last.removeprefix("its files: ")).iterdir())
