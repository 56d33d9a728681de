"""All that a transformers model returns is compared, even if it computes the answer after its last module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npformer import golden
from npformer.checkpoint import load_folder
from npformer.engine.runtime.packing import Text
from npformer.model import Model
from tests.support import tiny

#: A model of each kind of answer; Gemma 2 caps the logits of its last module.
CASES = {
    ("gemma2", "causal-lm"): {"logit_cap": 1.5},
    ("llama", "causal-lm"): {},
    ("llama", "sequence-classification"): {},
    ("modernbert", "base"): {},
    ("bert", "base"): {},
    ("bert", "question-answering"): {},
    ("distilbert", "multiple-choice"): {},
    ("electra", "replaced-token"): {},
    ("opt", "base"): {},
}  # fmt: skip


def live(folder: Path, family: str, head: str, **fields: Any) -> tuple[Model, golden.Golden, Any]:
    folder = tiny.folder(folder, family, head, **fields)
    model, random = Model(*load_folder(folder), folder=folder), np.random.default_rng(1)
    lengths = (6, 6) if head == "multiple-choice" else (9, 6)
    recorded = golden.record(model, [Text(random.integers(8, model.config.vocab_size, n)) for n in lengths])
    return model, recorded, golden.load_torch(str(folder), recorded)


@pytest.mark.parametrize(("family", "head"), CASES)
def test_an_answer_that_is_changed_after_the_last_module_diverges(family: str, head: str, tmp_path: Path) -> None:
    _, recorded, theirs = live(tmp_path / "m", family, head, **CASES[family, head])
    assert golden.compare(recorded, theirs).passes
    own = type(theirs).forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        output = own(theirs, *args, **kwargs)
        for name in ("last_hidden_state", "logits", "end_logits"):
            if name in output:
                output[name] = output[name] + 1
        return output

    theirs.forward = changed
    comparison = golden.compare(recorded, theirs)
    assert comparison.first is not None
    assert comparison.first.stage in recorded.answers


def test_gemma_2_without_its_last_soft_cap_is_named(tmp_path: Path) -> None:
    model, recorded, theirs = live(tmp_path / "m", "gemma2", "causal-lm", logit_cap=1.5)
    theirs.config.final_logit_softcapping = None
    diagnosis = golden.diagnose(recorded, theirs, model)
    assert (diagnosis.stage, diagnosis.causes) == ("logits", ["soft cap of logits left out"])


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemma_s_scale_is_right_in_each_dtype_in_which_transformers_runs(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Transformers may round sqrt(D) to bfloat16. Its stages are compared in float32."""
    _, _, wide = live(tmp_path / "wide", family, "causal-lm", scale_dtype="bfloat16")
    wide.to(torch.bfloat16).save_pretrained(tmp_path / "m")
    recorded = golden.record(Model(*load_folder(tmp_path / "m")), [Text(np.arange(8, 15)), Text(np.arange(20, 24))])
    theirs = type(wide).from_pretrained(tmp_path / "m", dtype=dtype, attn_implementation="eager").float().eval()
    comparison = golden.compare(recorded, theirs)
    assert comparison.passes, str(comparison)
    assert ("not rounded" in str(comparison)) == (dtype == torch.float32)
