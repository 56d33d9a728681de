"""The map of Hugging Face's modules to stages, for every family and every choice that a config makes.

`tests/oracle/test_module_map.py` compares it with the modules of transformers.
"""

from __future__ import annotations

import numpy as np
import pytest

from npformer import golden
from npformer.config import Config
from npformer.engine.runtime.packing import Text
from npformer.families import family_of, parts_of
from npformer.golden.suite import cases
from npformer.interpret import stages as table
from npformer.interpret.traces import trace
from npformer.model import Model
from tests.support import tiny

AFTER_BLOCKS = {"norm_first": False, "final_norm": False}
CONFIGS = {case.name: case.config for case in cases() if case.dtype == "float32"}
CONFIGS |= {
    f"opt-after-blocks-{head}": tiny.config("opt", head, **AFTER_BLOCKS) for head in ("base", "sequence-classification")
}
IDS = [np.array([5, 6, 7, 8]), np.array([9, 3])]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_module_outputs_no_stage_before_those_of_its_inner_modules(name: str) -> None:
    config = CONFIGS[name]
    modules, order = table.modules(config), table.names(config)
    for path, stage in modules.items():
        inner = [each for within, each in modules.items() if within.startswith(f"{path}.")]
        assert all(order.index(each) <= order.index(stage) for each in inner), (path, stage, inner)


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.model_type == "opt"])
def test_a_layer_s_module_outputs_the_layer_s_last_stage(name: str) -> None:
    config = CONFIGS[name]
    prefix = "" if config.head == "base" else family_of(config).prefix
    for i, layer in enumerate(parts_of(config).stack.layers):
        assert table.modules(config)[f"{prefix}decoder.layers.{i}"] == f"layers.{i}.{layer.output}"


def last_stages(config: Config) -> list[str]:
    return [f"layers.{i}.{layer.output}" for i, layer in enumerate(parts_of(config).stack.layers)]


@pytest.mark.parametrize(
    ("model", "last"),
    [
        (tiny.model("opt", "causal-lm"), "ffn_residual"),
        (tiny.model("opt", "causal-lm", **AFTER_BLOCKS), "ffn_norm"),
        (tiny.model("bart", "causal-lm"), "ffn_norm"),  # only BART's decoder, whose paths are OPT's
    ],
    ids=["before", "after", "bart"],
)
def test_a_trace_finds_the_output_of_a_layer_by_its_path(model: Model, last: str) -> None:
    stages, pattern = [f"layers.0.{last}", f"layers.1.{last}"], "model.decoder.layers.*"
    assert last_stages(model.config) == stages
    t = trace(model, IDS[0])
    assert t["model.decoder.layers.1"] is t[stages[1]]
    assert list(t.select(pattern)) == list(trace(model, IDS[0], pattern)) == stages


#: A model of each family with each head.
OF_HEADS = {f"{c.model_type}-{c.head}": c for c in reversed(CONFIGS.values()) if not c.decoder and table.modules(c)}


@pytest.mark.parametrize("name", OF_HEADS)
def test_arrays_named_by_modules_are_right(name: str) -> None:
    """With and without the encoder's prefix. In BERT, the module "pooler" outputs the stage "pooled"."""
    config = OF_HEADS[name]
    recorded = golden.record(Model(config, tiny.weights(config)), [Text(each) for each in IDS])
    prefix = family_of(config).prefix
    modules = {path: stage for path, stage in table.modules(config).items() if stage in recorded.stages}
    for of_path in (lambda path: path, lambda path: path.removeprefix(prefix)):
        arrays = {
            f"{i}/{of_path(path)}": each
            for path, stage in modules.items()
            for i, each in enumerate(recorded.stages[stage])
        }
        comparison = golden.compare(recorded, arrays)
        assert comparison.ok, str(comparison)
        assert {row.stage for row in comparison.rows} == set(modules.values())


def test_pooler_is_a_stage_among_names_of_stages() -> None:
    config = tiny.config("bert", "base")
    recorded = golden.record(Model(config, tiny.weights(config)), [Text(each) for each in IDS])
    arrays = {f"{i}/{name}": each for name, arrays in recorded.stages.items() for i, each in enumerate(arrays)}
    assert golden.compare(recorded, arrays).ok
    assert golden.compare(recorded, {name: arrays[name] for name in ("0/pooler", "1/pooler")}).ok
