"""SmolLM3 (Bakouch et al., 2025): Llama's layers, some of which attend without positions (NoPE).

By default, every fourth layer does not rotate queries and keys. In these layers, only the causal mask, and possibly a
window, depends on positions (Kazemnejad et al., 2023; Yang et al., 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npformer.common import checks
from npformer.common.errors import NpformerError
from npformer.config import MOST, Config, Local
from npformer.engine.mechanisms import Mechanism, Rotary, Window
from npformer.families.encoder_table import decoder_classes, usual_length
from npformer.families.layer_types import read_layer_types, write_layer_types
from npformer.families.llama import WITHOUT_BIAS, Llama, kin_of_llama, window_of, window_size
from npformer.families.rope import read_rotary

THETA = 2_000_000.0


class SmolLM3(Llama):
    """The family of SmolLM3. In `Config`, its local layers are the layers without rotation."""

    kinds: tuple[type[Mechanism], ...] = (Rotary, Window)

    def config(self, head: str, **fields: Any) -> Config:
        """As in `Family`.

        By default, every fourth layer has no rotation, or the last layer if there are fewer than four.
        """
        count = fields["n_layers"]
        return super().config(head, **{"local": Local(every(min(4, count), count), ()), **fields})

    def own_fields(self, data: Mapping[str, Any], head: str, n_layers: int) -> dict[str, Any]:
        own = super().own_fields({"num_key_value_heads": 4, **data}, head, n_layers)
        unrotated = _unrotated(data, n_layers)
        return own | {"local": Local(unrotated, _windows(data, unrotated, n_layers))}

    def rotary(self, data: Mapping[str, Any], d_head: int) -> Rotary:
        return read_rotary({"rope_theta": THETA, **data})

    def write_config(self, config: Config) -> dict[str, Any]:
        local: Local = config.local or Local((), ())
        size = window_size(local.mechanisms)
        return super().write_config(config) | {
            "no_rope_layers": [int(i not in local.layers) for i in range(config.n_layers)],
            "use_sliding_window": size is not None,
            "sliding_window": size,
            "layer_types": write_layer_types(local.layers if size else (), config.n_layers),
        }


def every(period: int, n_layers: int) -> tuple[int, ...]:
    """The last layer of each period."""
    return tuple(range(period - 1, n_layers, period))


def _unrotated(data: Mapping[str, Any], n_layers: int) -> tuple[int, ...]:
    """The layers without rotation: the layers with 0 in `no_rope_layers`, or by default every fourth layer."""
    rotated = data.get("no_rope_layers")
    if rotated is None:
        name = "no_rope_layer_interval"
        return every(checks.whole(name, data.get(name, 4), 1, MOST), n_layers)
    if not isinstance(rotated, list) or len(rotated) < n_layers or any(each not in (0, 1) for each in rotated):
        raise NpformerError(f"no_rope_layers: expected 0 or 1 for each of {n_layers} layers")
    return tuple(i for i, each in enumerate(rotated[:n_layers]) if not each)


def _windows(data: Mapping[str, Any], unrotated: tuple[int, ...], n_layers: int) -> tuple[Mechanism, ...]:
    """The window of the layers without rotation, if any."""
    kinds, size = data.get("layer_types"), data.get("sliding_window")
    if kinds is None:
        has_window = size is not None and checks.boolean("use_sliding_window", data.get("use_sliding_window", False))
    else:
        local = read_layer_types(kinds, n_layers)
        has_window = bool(local)
        if local and local != unrotated:
            raise NpformerError("layer_types: expected a window in no layer, or in the layers without rotation")
    return (window_of(size),) if has_window else ()


SMOLLM3 = kin_of_llama(
    SmolLM3,
    "smollm3",
    decoder_classes("SmolLM3"),
    {"tied": True, "local": Local((), ()), "mechanisms": (Rotary(THETA),)},
    ids={"bos_token_id": 128_000, "eos_token_id": 128_001, "pad_token_id": 128_004},
    usual=usual_length(32_768),
    settings=WITHOUT_BIAS,
)
