"""A value of the wrong type or size in any field of config.json raises only NpformerError, in every family."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from npformer.checkpoint.parameters import parameters
from npformer.common.errors import NpformerError
from npformer.families import FAMILIES, ignored, names_head, parts_of, read_config, unread_code, write_config
from npformer.families.unsupported import FIELDS, IGNORED, QUANTIZATION
from npformer.generation.settings import resolve
from npformer.tasks.pipelines import tasks_of
from tests.support import tiny

#: A value of every type of JSON, and numbers that are negative, huge, or not finite.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 2**31, 10**400, 0.5, -2.5, 1e39, math.nan, math.inf, -math.inf),
    *("", "x", "linear", "1", [], ["x"], [[]], [{}], [None], [0.5], [10**400], {}, {"x": 1}, {"0": []}, {"a": {}}),
]
#: Fields that a config.json may have besides the fields that npformer writes.
MORE = (
    *FIELDS, *IGNORED, *QUANTIZATION, "auto_map", "layer_types", "mlp_layer_types", "num_labels", "id2label",
    "pruned_heads", "problem_type", "head_dim", "num_key_value_heads", "sliding_window", "use_sliding_window",
    "max_window_layers", "partial_rotary_factor", "original_max_position_embeddings", "no_rope_layers",
    "task_specific_params", "is_decoder", "add_cross_attention", "text_config", "bos_token_id", "eos_token_id",
    "pad_token_id", "decoder_start_token_id", "max_length", "sliding_window_pattern", "rope_local_base_freq",
)  # fmt: skip
#: Fields of an object with the settings of rotary embeddings.
ROTARY = (
    "rope_type", "type", "rope_theta", "factor", "short_factor", "long_factor", "attention_factor", "beta_fast",
    "beta_slow", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "truncate", "mscale",
    "partial_rotary_factor", "full_attention", "sliding_attention",
)  # fmt: skip
KINDS = ("default", "linear", "dynamic", "longrope", "su", "llama3", "yarn")
NAMES = list(FAMILIES)


@lru_cache
def described(name: str) -> dict[str, Any]:
    family = FAMILIES[name]
    if name == "transformer":
        sizes = {"d_model": 8, "n_heads": 2, "d_ffn": 8, "n_layers": 1, "vocab_size": 9, "max_length": 8}
        return {"model_type": name, "architectures": ["nn.TransformerEncoder"], **sizes}
    heads = list(family.architectures.values())
    head = next(each for each in ("sequence-classification", "causal-lm", "translation", *heads) if each in heads)
    return json.loads(json.dumps(write_config(tiny.config(name, head))))


class Settings(dict[str, Any]):
    """Settings of rotary embeddings with an arbitrary value in one field. `read` becomes True when that field or all
    fields are read. While it is False, the value has had no effect."""

    def __init__(self, place: tuple[str, str], fields: dict[str, Any], field: str) -> None:
        super().__init__(fields)
        self.key, self.field, self.read = (*place, field), field, False


def _of_a_field(name: str) -> Any:
    def method(self: Settings, field: Any, *default: Any) -> Any:
        self.read |= field == self.field
        return getattr(dict, name)(self, field, *default)

    return method


def _of_all_fields(name: str) -> Any:
    def method(self: Settings, *others: Any) -> Any:
        self.read |= not others or isinstance(others[0], dict)  # a comparison with None does not read the fields
        return getattr(dict, name)(self, *others)

    return method


for _name in ("__getitem__", "__contains__", "get", "pop", "setdefault"):
    setattr(Settings, _name, _of_a_field(_name))
for _name in ("__iter__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__", "keys", "values", "items", "copy"):
    setattr(Settings, _name, _of_all_fields(_name))


def changes(name: str) -> Iterator[dict[str, Any]]:
    """Yields every field with every value, and then every field of rotary settings for every kind of scaling."""
    for field in dict.fromkeys([*described(name), *MORE]):
        for value in VALUES:
            yield {field: value}
    scaled = {"factor": 2.0, "original_max_position_embeddings": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for outer in ("rope_scaling", "rope_parameters"):
        for kind in KINDS:
            for field in ROTARY:
                for value in VALUES:
                    yield {outer: Settings((outer, kind), {"rope_type": kind, **scaled, field: value}, field)}
        for field in ROTARY:
            for value in VALUES:
                for each in ("full_attention", "sliding_attention"):
                    yield {outer: {each: Settings((outer, each), {field: value}, field)}}


def used(data: dict[str, Any]) -> None:
    """Reads a config.json as `load` and `info` do, and makes the parts of the model."""
    names_head(data)
    config = read_config(data)
    parts_of(config)
    if max(config.n_layers, config.decoder.n_layers) < 9 and len(config.labels) < 99:
        parameters(config)
    ignored(data, FAMILIES[config.model_type])
    unread_code(data, config)
    tasks_of(config, data)
    write_config(config)
    if config.head in ("causal-lm", "translation"):
        resolve(None, config, {})


def check(name: str, some: Iterator[dict[str, Any]]) -> None:
    """Checks the changes; skips further values of a setting that the family does not read."""
    unread = set[tuple[str, ...]]()
    for change in some:
        settings = _settings(change)
        if settings is not None and settings.key in unread:
            continue
        try:
            used({**described(name), **change})
        except NpformerError:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {change!r:.300}: {type(error).__name__}: {error}") from error
        finally:
            if settings is not None and not settings.read:
                unread.add(settings.key)


def _settings(change: dict[str, Any]) -> Settings | None:
    [value] = change.values()
    inner = next(iter(value.values()), None) if type(value) is dict else value
    return inner if isinstance(inner, Settings) else None


@pytest.mark.parametrize("name", NAMES)
def test_some_values_of_every_field(name):
    """Each family tries a different sample of the values, so all families together quickly try every value."""
    start = NAMES.index(name)
    check(name, (each for i, each in enumerate(changes(name)) if (i + start) % 29 == 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_values_of_every_field(name):
    check(name, changes(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_a_kind_of_rotation_that_is_no_name_is_refused(name, field):
    for kind in ("rope_type", "type"):
        for value in (["linear"], {"a": 1}, 3, None):
            check(name, iter([{field: {kind: value, "factor": 2.0}}]))
