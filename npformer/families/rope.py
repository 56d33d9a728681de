"""Rotary embeddings in config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` before Transformers 5."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST
from npformer.engine.mechanisms import PartialRotary, Rotary
from npformer.engine.mechanisms.rotary_scaling import Dynamic, Linear, Llama3, LongRope, Scaling, Yarn

FACTOR = "partial_rotary_factor"
ORIGINAL, LENGTH = "original_max_position_embeddings", "max_position_embeddings"
SETTINGS = ("rope_scaling", "rope_parameters")


def read_rotary(data: Mapping[str, Any]) -> Rotary:
    """The rotary embeddings of a config.json. Raises NpformerError for an unsupported kind of scaling."""
    name = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    given = data.get(name) or {}
    if not isinstance(given, Mapping):
        raise NpformerError(f"{name}: expected an object, got {checks.shown(given)}")
    base = given.get("rope_theta", data.get("rope_theta", 10_000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in _READERS:
        supported = ", ".join(_READERS)
        raise NpformerError(f"{name}: rope_type: {checks.shown(kind)} is not supported; supported: {supported}")
    if partial_factor(data, 1.0) != 1.0:
        factor = checks.shown(partial_factor(data, 1.0))
        raise NpformerError(f"partial_rotary_factor: expected 1, because whole heads are rotated, got {factor}")
    return Rotary(float(checks.positive("rope_theta", base)), scaling=_READERS[kind](name, given, data))


def check_even_heads(data: Mapping[str, Any]) -> None:
    """Raises NpformerError if the heads described in a config.json have an odd number of columns."""
    width, n_heads = data["hidden_size"], data["num_attention_heads"]
    if width // n_heads % 2:
        raise NpformerError(
            "hidden_size: expected heads of even width, because rotary embeddings rotate pairs of columns, "
            f"got {width} for {n_heads} heads"
        )


def read_partial_rotary(data: Mapping[str, Any], d_head: int, usual: float = 1.0) -> Rotary:
    """The rotary embeddings of a head, or of only its first columns. usual: default of `partial_rotary_factor`."""
    columns = int(d_head * checks.positive("partial_rotary_factor", partial_factor(data, usual)))
    whole = {name: {**data[name], FACTOR: 1.0} for name in SETTINGS if isinstance(data.get(name), Mapping)}
    rotary = read_rotary({**data, FACTOR: 1.0, **whole})
    return rotary if columns == d_head else PartialRotary(rotary.theta, scaling=rotary.scaling, columns=columns)


def partial_factor(data: Mapping[str, Any], usual: float) -> Any:
    """The fraction of columns of a head that are rotated."""
    inner = [data[name][FACTOR] for name in SETTINGS if isinstance(data.get(name), Mapping) and FACTOR in data[name]]
    return inner[0] if inner else data.get(FACTOR, usual)


def write_partial_rotary(rotary: Rotary, d_head: int) -> dict[str, Any]:
    """The rotary embeddings as fields of config.json. Inverse of `read_partial_rotary`."""
    columns = rotary.columns if isinstance(rotary, PartialRotary) else d_head
    factor, written = columns / d_head, write_rotary(rotary)
    if int(d_head * factor) != columns:  # rounded down
        factor = math.nextafter(factor, 1.0)
    return {**written, FACTOR: factor, "rope_parameters": {**written["rope_parameters"], FACTOR: factor}}


def longest(rotary: Rotary) -> dict[str, int]:
    """The field `max_length` of `Config` for dynamic scaling. config.json has only the length before the scaling."""
    return {"max_length": rotary.scaling.longest} if isinstance(rotary.scaling, Dynamic) else {}


def write_rotary(rotary: Rotary) -> dict[str, Any]:
    """The rotary embeddings as fields of config.json. Inverse of `read_rotary`."""
    scaling = rotary.scaling
    fields = {} if scaling is None else _written(scaling)
    kind = fields.pop("rope_type", "default")
    scaled = {"rope_scaling": {"rope_type": kind, **fields}} if fields else {"rope_scaling": None}
    return {
        "rope_theta": rotary.theta,
        "rope_parameters": {"rope_type": kind, "rope_theta": rotary.theta, **fields},
        **scaled,
        **({LENGTH: scaling.original} if isinstance(scaling, Dynamic) else {}),
        **({ORIGINAL: scaling.original} if isinstance(scaling, LongRope) else {}),
    }


def _read_linear(name: str, given: Mapping[str, Any], data: Mapping[str, Any]) -> Scaling:
    return Linear(_number(name, given, "factor"))


def _read_dynamic(name: str, given: Mapping[str, Any], data: Mapping[str, Any]) -> Scaling:
    return Dynamic(_number(name, given, "factor"), checks.whole(LENGTH, data.get(LENGTH), 1, MOST))


def _read_longrope(name: str, given: Mapping[str, Any], data: Mapping[str, Any]) -> Scaling:
    """LongRope. As in Transformers, an `original_max_position_embeddings` outside the scaling takes precedence."""
    original = _original(data if data.get(ORIGINAL) else given, data)
    most = checks.whole(LENGTH, data.get(LENGTH), 1, MOST)
    return LongRope(
        _numbers(name, given, "short_factor"),
        _numbers(name, given, "long_factor"),
        original,
        most / original if given.get("factor") is None else _number(name, given, "factor"),
        _number(name, given, "attention_factor") if given.get("attention_factor") else 0.0,
    )


def _read_llama3(name: str, given: Mapping[str, Any], data: Mapping[str, Any]) -> Scaling:
    low, high = (_number(name, given, f"{each}_freq_factor") for each in ("low", "high"))
    return Llama3(_number(name, given, "factor"), low, high, _original(given, data))


def _read_yarn(name: str, given: Mapping[str, Any], data: Mapping[str, Any]) -> Scaling:
    for each in ("mscale", "mscale_all_dim"):
        if given.get(each):
            raise NpformerError(f"{name}: {each} is not supported; supported: attention_factor")
    return Yarn(
        _number(name, given, "factor"),
        _original(given, data),
        _number(name, {"beta_fast": given.get("beta_fast") or 32.0}, "beta_fast"),
        _number(name, {"beta_slow": given.get("beta_slow") or 1.0}, "beta_slow"),
        _number(name, given, "attention_factor") if given.get("attention_factor") else 0.0,
        checks.boolean(f"{name}.truncate", given.get("truncate", True)),
    )


_READERS: dict[Any, Callable[[str, Mapping[str, Any], Mapping[str, Any]], Scaling | None]] = {
    "default": lambda name, given, data: None,
    "linear": _read_linear,
    "dynamic": _read_dynamic,
    "longrope": _read_longrope,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
}


#: Maps each scaling to its rope_type and to a mapping from fields of config.json to fields of the scaling.
_WRITTEN: dict[type[Scaling], tuple[str, dict[str, str]]] = {
    Linear: ("linear", {"factor": "factor"}),
    Dynamic: ("dynamic", {"factor": "factor"}),
    Llama3: (
        "llama3",
        {"factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high", ORIGINAL: "original"},
    ),
    Yarn: (
        "yarn",
        {"factor": "factor", ORIGINAL: "original", "beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate"},
    ),
    LongRope: (
        "longrope",
        {"short_factor": "short", "long_factor": "long", "factor": "factor", ORIGINAL: "original"},
    ),
}


def _written(scaling: Scaling) -> dict[str, Any]:
    kind, names = _WRITTEN[type(scaling)]
    values = {theirs: getattr(scaling, ours) for theirs, ours in names.items()}
    fields = {name: list(each) if isinstance(each, tuple) else each for name, each in values.items()}
    if isinstance(scaling, Yarn | LongRope) and scaling.attention:
        fields["attention_factor"] = scaling.attention
    return {"rope_type": kind, **fields}


def _number(name: str, given: Mapping[str, Any], field: str) -> float:
    if field not in given:
        raise NpformerError(f"{name}: {field}: missing, but required for this rope_type")
    return float(checks.positive(f"{name}.{field}", given[field]))


def _numbers(name: str, given: Mapping[str, Any], field: str) -> tuple[float, ...]:
    values = given.get(field)
    if not isinstance(values, list):
        raise NpformerError(f"{name}: {field}: expected a list of numbers, got {checks.shown(values)}")
    return tuple(float(checks.positive(f"{name}.{field}", each)) for each in values)


def _original(given: Mapping[str, Any], data: Mapping[str, Any]) -> int:
    """The number of positions in training, before the scaling. The default is `max_position_embeddings`."""
    value = given.get(ORIGINAL) or data.get(ORIGINAL) or data.get(LENGTH)
    return checks.whole(ORIGINAL, value, 1, MOST)
