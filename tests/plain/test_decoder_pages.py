"""The pages of decoders: every option of a config, texts read in steps, and torch's values without the engine."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import npformer
from npformer import plain
from npformer.checkpoint import load_folder
from npformer.config import Local
from npformer.engine.mechanisms import HeadNorm, PartialRotary, Rotary, RowNorm, SoftCap, Window, ZeroCentredHeadNorm
from npformer.engine.mechanisms.rotary_scaling import Dynamic, Linear, Llama3, LongRope, Yarn
from npformer.engine.runtime.padding import unpadded
from npformer.engine.transformer import stages
from npformer.families import read_config, write_config
from npformer.pages.sizes import SCALINGS, bind
from tests.plain.test_pages import ODD, TEXTS, TOLERANCE, assert_same_stages, model_of
from tests.support import tiny, torch_values
from tests.support.one_file import answering
from tests.support.page_stages import Page

BASE = 30.0  # with this low base, the angles of a short text differ
ROTARY, WINDOW = Rotary(BASE), Window(2)
#: Scalings of heads with 6 columns. The text has 7 tokens, more than `original` in the scalings that read its length.
SCALED = {
    "linear": Linear(3.0),
    "dynamic": Dynamic(2.0, 4),
    "dynamic-short": Dynamic(2.0, 7),
    "llama3": Llama3(8.0, 0.3, 4.0, 64),
    "yarn": Yarn(4.0, 64),
    "yarn-not-rounded": Yarn(4.0, 64, truncate=False),
    "yarn-magnitude": Yarn(4.0, 64, attention=1.3),
    "yarn-step": Yarn(4.0, 64, fast=2.0, slow=2.0, truncate=False),
    "yarn-shrinks": Yarn(0.5, 64),
    "longrope": LongRope((1.0, 1.5, 2.0), (2.0, 3.0, 5.0), 4, 8.0),
    "longrope-short": LongRope((1.0, 1.5, 2.0), (2.0, 3.0, 5.0), 7, 8.0),
    "longrope-magnitude": LongRope((1.0, 1.5, 2.0), (2.0, 3.0, 5.0), 4, 8.0, attention=1.3),
    "longrope-shrinks": LongRope((1.0, 1.5, 2.0), (2.0, 3.0, 5.0), 4, 0.5),
}
OF_LLAMA: dict[str, dict[str, Any]] = {
    "wide-heads": {"head_width": 10},
    "no-groups": {"n_kv_heads": 0},
    "one-group": {"n_kv_heads": 1},
    "eps": {"eps": 0.1},
    "relu": {"activation": "relu"},
    "gelu": {"activation": "gelu"},
    "gelu-tanh": {"activation": "gelu_tanh"},
}
UNTIED, TIED = {"untied": {"tied": False}}, {"tied": {"tied": True}}
BIASED = {"biased": {"bias": True}}
#: Family -> head -> id -> fields of Config.
CHOICES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "gpt2": {
        "base": {
            **{name: {"activation": name} for name in ("gelu", "relu", "silu")},
            "inner": {"d_ffn": 96},
            "eps": {"eps": 0.1},
        },
        "causal-lm": UNTIED,
    },
    "opt": {
        "base": {
            **{
                f"{'before' if first else 'after'}{'' if last else '-no-last-norm'}{'-narrow' if width else ''}": {
                    "norm_first": first, "final_norm": last, "d_embedding": width,
                }
                for first, last in ((True, True), (True, False), (False, False))
                for width in (0, 16)
            },
            "unbiased": {"bias": False},
            "gelu": {"activation": "gelu"},
        },
        "causal-lm": UNTIED,
    },
    "bloom": {
        "base": {"three-heads": {"n_heads": 3}, "eight-heads": {"n_heads": 8}, "one-head": {"n_heads": 1}},
        "causal-lm": UNTIED,
    },
    "gpt_neox": {
        "base": {
            "sequential": {"parallel": False},
            "unbiased": {"bias": False},
            "most-columns": {"mechanisms": (PartialRotary(BASE, columns=4),)},
            "whole-heads": {"mechanisms": (ROTARY,)},
            "relu": {"activation": "relu"},
            "dynamic": {"mechanisms": (PartialRotary(BASE, columns=4, scaling=Dynamic(2.0, 4)),), "max_length": 8},
            "yarn": {"mechanisms": (PartialRotary(BASE, columns=4, scaling=Yarn(4.0, 64)),)},
        },
        "causal-lm": TIED,
    },
    "llama": {
        "base": {
            **OF_LLAMA,
            **BIASED,
            "base": {"mechanisms": (ROTARY,)},
            **{
                name: {
                    "mechanisms": (Rotary(BASE, scaling=each),),
                    "max_length": each.longest if isinstance(each, Dynamic) else 64,
                }
                for name, each in SCALED.items()
            },
        },
        "causal-lm": TIED,
    },
    "mistral": {
        "base": {
            **OF_LLAMA,
            "window": {"mechanisms": (ROTARY, WINDOW)},
            "window-of-one": {"mechanisms": (ROTARY, Window(0))},
            "window-scaled": {"mechanisms": (Rotary(BASE, scaling=SCALED["yarn"]), WINDOW)},
            "no-window": {"mechanisms": (ROTARY,)},
        },
        "causal-lm": TIED,
    },
    "qwen2": {
        "base": {
            **OF_LLAMA,
            "some-windows": {"mechanisms": (ROTARY,), "local": Local((1, 2), (ROTARY, WINDOW))},
            "no-windows": {"mechanisms": (ROTARY,)},
            "scaled": {"mechanisms": (Rotary(BASE, scaling=SCALED["yarn"]),)},
        },
        "causal-lm": TIED,
    },
    "qwen3": {
        "base": {
            **OF_LLAMA,
            **BIASED,
            "some-windows": {
                "mechanisms": (HeadNorm(), ROTARY),
                "local": Local((0, 2), (HeadNorm(), ROTARY, WINDOW)),
            },
            "scaled": {"mechanisms": (HeadNorm(), Rotary(BASE, scaling=SCALED["yarn"]))},
        },
        "causal-lm": TIED,
    },
    "gemma": {
        "base": {
            # Gemma reads "gelu" as "gelu_tanh"
            **{name: each for name, each in OF_LLAMA.items() if name != "gelu"},
            **BIASED,
            "bfloat16": {"scale_dtype": "bfloat16"},
            "float16": {"scale_dtype": "float16"},
            "scaled": {"mechanisms": (Rotary(BASE, scaling=SCALED["linear"]),)},
        },
        "causal-lm": UNTIED,
    },
    "gemma2": {
        "base": {
            **OF_LLAMA,
            **BIASED,
            "bfloat16": {"scale_dtype": "bfloat16"},
            "low-cap": {"mechanisms": (ROTARY, SoftCap(1.5)), "local": Local((1,), (ROTARY, SoftCap(1.5), WINDOW))},
            "no-cap": {"mechanisms": (ROTARY,), "local": Local((1,), (ROTARY, WINDOW))},
            "no-window": {"mechanisms": (ROTARY, SoftCap(50.0)), "local": Local((), (ROTARY, SoftCap(50.0), WINDOW))},
            "scale": {"score_scale": 7**-0.5},
        },
        "causal-lm": {**UNTIED, "no-logit-cap": {"logit_cap": 0.0}, "low-logit-cap": {"logit_cap": 1.5}},
    },
    "gemma3_text": {
        "base": {
            **OF_LLAMA,
            **BIASED,
            "bidirectional": {"causal": False},
            "two-bases": {
                "mechanisms": (ZeroCentredHeadNorm(), Rotary(BASE, scaling=SCALED["yarn"])),
                "local": Local((0, 2), (ZeroCentredHeadNorm(), Rotary(9.0, scaling=SCALED["linear"]), WINDOW)),
            },
            "bidirectional-scaled": {
                "causal": False,
                "mechanisms": (ZeroCentredHeadNorm(), Rotary(BASE, scaling=SCALED["llama3"])),
                "local": Local((0, 2), (ZeroCentredHeadNorm(), Rotary(9.0), Window(1))),
            },
            "scale": {"score_scale": 7**-0.5},
        },
        "causal-lm": {**UNTIED, "logit-cap": {"logit_cap": 1.5}},
    },
    "phi3": {
        "base": {
            **OF_LLAMA,
            "window": {"mechanisms": (ROTARY, WINDOW)},
            "partial": {"mechanisms": (PartialRotary(BASE, columns=4), WINDOW)},
            "partial-longrope": {
                "mechanisms": (PartialRotary(BASE, columns=4, scaling=LongRope((1.0, 2.0), (3.0, 5.0), 4, 8.0)),)
            },
            **{name: {"mechanisms": (Rotary(BASE, scaling=SCALED[name]),)} for name in SCALED if "longrope" in name},
        },
        "causal-lm": TIED,
    },
    "smollm3": {
        "base": {
            **OF_LLAMA,
            **BIASED,
            "windows": {"mechanisms": (ROTARY,), "local": Local((1,), (WINDOW,))},
            "all-rotated": {"mechanisms": (ROTARY,), "local": Local((), ())},
            "none-rotated": {"mechanisms": (ROTARY,), "local": Local((0, 1, 2), ())},
            "scaled": {"mechanisms": (Rotary(BASE, scaling=SCALED["yarn"]),), "local": Local((1,), ())},
            "dynamic": {
                "mechanisms": (Rotary(BASE, scaling=SCALED["dynamic"]),), "local": Local((1,), ()), "max_length": 8,
            },
        },
        "causal-lm": UNTIED,
    },
    "olmo2": {
        "base": {
            **OF_LLAMA,
            **BIASED,
            "scaled": {"mechanisms": (RowNorm(), Rotary(BASE, scaling=SCALED["yarn"]))},
        },
        "causal-lm": TIED,
    },
}  # fmt: skip
ALL = [
    pytest.param(model_type, head, fields, id=f"{model_type}-{head}-{name}")
    for model_type, heads in CHOICES.items()
    for head, choices in heads.items()
    for name, fields in choices.items()
]
#: Pages that store the keys and values of earlier tokens.
CACHED = [each for each in CHOICES if "past" in inspect.signature(plain.page(each).MODEL).parameters]
STEPS = {"tokens": [1] * 7, "chunks": [3, 1, 3], "prompt": [6, 1]}


@pytest.mark.parametrize(("model_type", "head", "fields"), ALL)
def test_a_page_has_every_choice_of_a_config(model_type: str, head: str, fields: dict[str, Any]) -> None:
    model = model_of(model_type, head, **fields)
    assert_same_stages(model, npformer.Text(np.array(TEXTS[0])))


@pytest.mark.parametrize(("model_type", "head", "fields"), ALL)
def test_config_json_has_the_choice(model_type: str, head: str, fields: dict[str, Any]) -> None:
    """Users cannot load an option that no config.json can have, so tests of it would be useless."""
    config = model_of(model_type, head, **fields).config
    read = read_config(write_config(config), head)
    assert {name: getattr(read, name) for name in fields} == fields
    assert read == config


@pytest.mark.parametrize("model_type", CHOICES)
def test_a_page_keeps_float32(model_type: str) -> None:
    model = tiny.model(model_type, "causal-lm", **ODD)
    page = Page(model_type).run(model, npformer.Text(np.array(TEXTS[0])))
    page.setdefault("embeddings.sum", page["embeddings.token"])
    assert {page[stage.name].dtype for stage in stages(model.weights, model.parts)} == {np.dtype(np.float32)}


def test_every_scaling_is_on_the_page() -> None:
    assert set(SCALINGS) == {type(each).__name__ for each in SCALED.values()}


@pytest.mark.parametrize("sizes", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    ("model_type", "head", "fields"),
    [each for each in ALL if each.values[0] in CACHED and each.values[2].get("causal", True)],
)
def test_a_text_read_in_steps_has_the_rows_of_the_whole_text(
    model_type: str, head: str, fields: dict[str, Any], sizes: list[int]
) -> None:
    model, ids = model_of(model_type, head, **fields), np.array(TEXTS[0])
    read = bind(plain.page(model_type).MODEL, model.config, model.weights, npformer.Text(ids))
    whole, whole_past = read()
    rows, past, start = [], read.keywords["past"], 0
    for size in sizes:
        places = np.arange(start, start + size)
        some, past = read(ids=ids[places], positions=places, past=past)
        rows.append(some)
        start += size
    np.testing.assert_allclose(np.concatenate(rows), whole, **TOLERANCE)
    np.testing.assert_allclose(past, whole_past, **TOLERANCE)


@pytest.mark.parametrize(("model_type", "head", "fields"), ALL)
def test_a_standalone_model_has_the_choice(model_type: str, head: str, fields: dict[str, Any], tmp_path: Path) -> None:
    model, ids = model_of(model_type, head, **fields), TEXTS[0]
    answers = answering(model, ids, tmp_path)
    for each in (ids, ids[:2]):  # the file computes texts of any length, not only of the example's length
        got = answers(each)
        for name, expected in model(each).items():
            np.testing.assert_allclose(got[name], expected[0], err_msg=name, **TOLERANCE)


WINDOWED = [each for each in ALL if "window" in each.id or each.id.endswith(("low-cap", "two-bases", "bidirectional"))]


@pytest.mark.parametrize(("model_type", "head", "fields"), WINDOWED)
@pytest.mark.parametrize("mask", [[1, 1, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1], [1, 0, 0, 0, 1, 1, 0]])
def test_padding_may_be_anywhere(model_type: str, head: str, fields: dict[str, Any], mask: list[int]) -> None:
    """A window counts positions, and padding tokens have positions."""
    model = model_of(model_type, head, **fields)
    for name, expected in model(TEXTS[:1], [mask]).items():
        np.testing.assert_allclose(plain.run(model, TEXTS[:1], [mask])[name], expected, err_msg=name, **TOLERANCE)


# --- torch's golden values -------------------------------------------------------------------------------------------

#: Two runs in float64 differ in the order of their sums, as in tests/test_against_torch.py.
FLOAT64 = 1e-13
OF_DECODERS = [case for case in torch_values.CASES if case.split("-")[0] in CHOICES]


@pytest.mark.parametrize("case", OF_DECODERS)
def test_a_page_has_torchs_golden_values(case: str) -> None:
    config, weights = load_folder(torch_values.DATA / case, "float64")
    model, page = SimpleNamespace(config=config, weights=weights), Page(config.model_type)
    given = torch_values.inputs(case)
    mask = given["attention_mask"].astype(bool)
    texts = unpadded(given["input_ids"], mask, None, config.uncounted, config.positions.skips_masked)
    found = [page.run(model, text) for text in texts]
    for name, truth in torch_values.stages(case, "float64").items():
        # with a single table, the sum is the token's row
        own = "embeddings.token" if name == "embeddings.sum" and name not in found[0] else name
        got = np.concatenate([of_text[own].ravel() for of_text in found])
        np.testing.assert_allclose(got, truth, rtol=0, atol=FLOAT64 * np.abs(truth).max(), err_msg=name)


def test_every_decoder_page_has_golden_values() -> None:
    """Gemma has no golden values, but Gemma 2 and 3 have its norms and embeddings."""
    assert {case.split("-")[0] for case in OF_DECODERS} == CHOICES.keys() - {"gemma"}
