"""GPT-NeoX, OPT, Phi-3, SmolLM3, OLMo 2 and BLOOM in plain NumPy, without npformer's code: a port in which mistakes are planted by name.

stages = PlainDecoder(model.config, flatten(model.weights), {"split in thirds"}).run(ids)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import erf
from typing import Any

import numpy as np

from npformer.config import Config

#: Family -> name of a planted mistake -> its name in the diagnosis.
PLANTED: dict[str, dict[str, str]] = {
    "gpt_neox": {
        "split in thirds": "query, key and value split in thirds",
        "one after another": "blocks one after another",
        "attention's norm for both": "one norm for both blocks",
        "norms exchanged": "one norm for both blocks",
        "whole heads": "rotation of the wrong columns",
        "last columns": "rotation of the wrong columns",
        "d_head in frequencies": "rotation of the wrong columns",
        "neighbours": "rotation of pairs instead of halves",
    },
    "phi3": {"up and gate": "gate and up swapped", "whole heads": "rotation of the wrong columns"},
    "smollm3": {
        "rotation in all layers": "rotation in the wrong layers",
        "1 without rotation": "rotation in the wrong layers",
        "one layer more without": "rotation left out or wrong",
    },
    "olmo2": {
        "norms before blocks": "norm before a block, not after it",
        "norm before attention": "norm before a block, not after it",
        "norm before the FFN, as in Llama": "norm before a block, not after it",
        "norms of the sums": "norm of the sum, not of a block's output",
        "no norm after attention": "missing norm after a block",
        "no norms after blocks": "missing norm after a block",
        "norms after blocks exchanged": "norms exchanged",
        "norms of heads": "norms of heads instead of norms of rows",
        "no norms of queries and keys": "norms of queries and keys left out",
        "rotated first": "norms of queries and keys after the rotation",
        "norms of queries and keys exchanged": "norms of queries and keys exchanged",
        "eps of 1e-6": "wrong RMSNorm eps",
        "mean subtracted from queries and keys": "mean subtracted in RMSNorm",
        "no last norm": "RMSNorm left out",
        "the FFN reads the layer's input": "the FFN reads the wrong stage",
        "the FFN first": "FFN before attention",
    },
    "bloom": {
        "split in thirds": "query, key and value split in thirds",
        "slopes of 2^(-8 h / H)": "ALiBi with wrong slopes",
        "slopes of the first heads": "ALiBi with wrong slopes",
        "wrong sign": "ALiBi with the wrong sign",
        "absolute distances": "ALiBi with the wrong sign",
        "no ALiBi": "ALiBi left out",
        "scaled": "ALiBi scaled",
    },
    "opt": {
        "no offset": "positions off by one",
        "no project_in": "missing projection of the token rows",
        "no project_out": "missing projection of the last layer's rows",
        "norms before": "pre-norm instead of post-norm",
    },
}


class PlainDecoder:
    """A model that reads one text at a time. `planted` holds names from PLANTED."""

    def __init__(self, config: Config, weights: Mapping[str, np.ndarray], planted: Iterable[str] = ()) -> None:
        self.c, self.w, self.planted = config, dict(weights), set(planted)
        self.stages: dict[str, np.ndarray] = {}
        if "split in thirds" in planted:
            self.split_in_thirds()

    def split_in_thirds(self) -> None:
        """Splits projections interleaved by head as if they held all queries, then all keys, then all values."""
        for at in (f"layers.{i}.attention." for i in range(self.c.n_layers)):
            for end in ("weight", "bias"):
                names = [f"{at}{each}.{end}" for each in ("query", "key", "value")]
                heads = [np.split(self.w[name], self.c.n_heads, axis=-1) for name in names]
                fused = np.concatenate([part for head in zip(*heads, strict=True) for part in head], axis=-1)
                self.w |= dict(zip(names, np.split(fused, 3, axis=-1), strict=True))

    def run(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        x = self.embeddings(ids)
        for i in range(self.c.n_layers):
            self.at = f"layers.{i}."
            if f"{self.at}ffn.output_norm.weight" in self.w:
                x = self.normed_outputs(x, i)
                continue
            x = self.pre_norm(x, i) if self.c.norm_first or "norms before" in self.planted else self.post_norm(x, i)
        self.at = ""
        if self.c.final_norm and "no last norm" not in self.planted:
            x = self.norm("norm", x, "norm")
        if "project.weight" in self.w:
            out = self.w["project.weight"]
            x = self.keep("project", x[:, : out.shape[1]] if "no project_out" in self.planted else x @ out)
        if self.c.head == "causal-lm":
            self.keep("logits", x @ self.w["head.output.weight"])
        return self.stages

    def embeddings(self, ids: np.ndarray) -> np.ndarray:
        x = self.keep("embeddings.token", self.w["embeddings.token.weight"][ids])
        if "embeddings.project.weight" in self.w:
            w = self.w["embeddings.project.weight"]
            padded = np.pad(x, ((0, 0), (0, w.shape[1] - w.shape[0])))
            x = self.keep("embeddings.project", padded if "no project_in" in self.planted else x @ w)
        if "embeddings.position.weight" in self.w:
            first = 0 if "no offset" in self.planted else 2
            rows = self.w["embeddings.position.weight"][first : first + len(ids)]
            x = x + self.keep("embeddings.position", rows)
        x = self.keep("embeddings.sum", x)
        self.at = ""
        return self.norm("embeddings.norm", x, "embeddings.norm") if "embeddings.norm.weight" in self.w else x

    def pre_norm(self, x: np.ndarray, layer: int) -> np.ndarray:
        first, second = self.norms
        y = self.attention(self.norm("attention_norm", x, first), layer)
        in_turn = not self.c.parallel or "one after another" in self.planted
        if in_turn and not self.c.parallel:
            self.keep(f"{self.at}attention_residual", x + y)
        z = self.feed_forward(self.norm("ffn_norm", x + y if in_turn else x, second))
        return self.keep(f"{self.at}ffn_residual", x + y + z)

    def post_norm(self, x: np.ndarray, layer: int) -> np.ndarray:
        x = self.keep(f"{self.at}attention_residual", x + self.attention(x, layer))
        x = self.norm("attention_norm", x, "attention_norm")
        x = self.keep(f"{self.at}ffn_residual", x + self.feed_forward(x))
        return self.norm("ffn_norm", x, "ffn_norm")

    def normed_outputs(self, x: np.ndarray, layer: int) -> np.ndarray:
        """A layer of OLMo 2, X + Normalize(Block(X))."""
        blocks = {"attention": lambda x: self.attention(x, layer), "ffn": self.feed_forward}
        read = x
        for name in reversed(blocks) if "the FFN first" in self.planted else blocks:
            read = x if name == "attention" or "the FFN reads the layer's input" not in self.planted else read
            x = self.with_norm(name, x, read, blocks[name])
        return x

    def with_norm(self, name: str, x: np.ndarray, read: np.ndarray, block: Callable[[np.ndarray], np.ndarray]) -> Any:
        """The rows after a block of OLMo 2 and its norm."""
        norm, said = f"{name}.output_norm", {"ffn": "the FFN"}.get(name, name)
        weight = norm
        if "norms after blocks exchanged" in self.planted:
            weight = {"attention": "ffn.output_norm", "ffn": "attention.output_norm"}[name]
        if self.planted & {"norms before blocks", f"norm before {said}"}:
            return self.keep(f"{self.at}{name}_residual", x + block(self.norm(norm, read, weight)))
        if "norm before the FFN, as in Llama" in self.planted and name == "attention":
            return self.keep(f"{self.at}{name}_residual", x + block(read))
        if "norm before the FFN, as in Llama" in self.planted:
            read = self.norm("attention.output_norm", read, "attention.output_norm")
        if "norms of the sums" in self.planted:
            return self.keep(f"{self.at}{name}_residual", self.norm(norm, x + block(read), weight))
        y = block(read)
        if not self.planted & {"no norms after blocks", f"no norm after {said}"}:
            y = self.norm(norm, y, weight)
        return self.keep(f"{self.at}{name}_residual", x + y)

    def keep(self, name: str, array: np.ndarray) -> np.ndarray:
        self.stages[name] = array
        return array

    @property
    def norms(self) -> tuple[str, str]:
        """The names of the norms before attention and before the FFN."""
        names = "attention_norm", "ffn_norm"
        if "norms exchanged" in self.planted:
            return names[1], names[0]
        return (names[0], names[0]) if "attention's norm for both" in self.planted else names

    def norm(self, stage: str, x: np.ndarray, of: str) -> np.ndarray:
        w, b = (self.w.get(f"{self.at}{of}.{end}") for end in ("weight", "bias"))
        if b is None:  # RMSNorm
            eps = 1e-6 if "eps of 1e-6" in self.planted else self.c.eps
            return self.keep(self.at + stage, x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w)
        centred = x - x.mean(-1, keepdims=True)
        return self.keep(self.at + stage, centred / np.sqrt(centred.var(-1, keepdims=True) + self.c.eps) * w + b)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        bias = self.w.get(f"{self.at}{name}.bias", np.float32(0))
        return self.keep(self.at + name, x @ self.w[f"{self.at}{name}.weight"] + bias)

    def feed_forward(self, x: np.ndarray) -> np.ndarray:
        if self.c.gated:
            names = ("ffn.up", "ffn.gate") if "up and gate" in self.planted else ("ffn.gate", "ffn.up")
            gate, up = (self.linear(x, name) for name in names)
            return self.linear(gate / (1 + np.exp(-gate)) * up, "ffn.output")
        h = self.linear(x, "ffn.hidden")
        gelu = h * (1 + np.vectorize(erf)(h / np.sqrt(2))).astype(h.dtype) / 2
        if self.c.activation == "gelu_tanh":
            gelu = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        return self.linear(np.maximum(h, 0) if self.c.activation == "relu" else gelu, "ffn.output")

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        mechanisms = {type(each).__name__: each for each in self.mechanisms(layer)}
        q, k, v = (
            self.linear(x, f"attention.{name}").reshape(len(x), -1, self.c.d_head) for name in ("query", "key", "value")
        )
        if "RowNorm" in mechanisms:
            q, k = self.normed(q, k, mechanisms["Rotary"])
        elif rotary := mechanisms.get("PartialRotary") or mechanisms.get("Rotary"):
            q, k = (self.rotated(each, rotary) for each in (q, k))
        for name, h in (("query", q), ("key", k), ("value", v)):
            self.keep(f"{self.at}attention.{name}_heads", h.swapaxes(0, 1))
        k, v = (each.repeat(self.c.n_heads // self.c.kv_heads, axis=1) for each in (k, v))
        scores = np.einsum("ihk,jhk->hij", q, k) / np.sqrt(self.c.d_head)
        if "Alibi" in mechanisms and "no ALiBi" not in self.planted:
            scores = scores + self.biases(len(x))
        self.keep(f"{self.at}attention.scores", scores)
        seen = np.tri(len(x), dtype=bool)
        if "Window" in mechanisms:
            seen &= ~np.tri(len(x), k=-1 - mechanisms["Window"].reach, dtype=bool)
        weights = np.exp(np.where(seen, scores, -np.inf))
        weights = self.keep(f"{self.at}attention.weights", weights / weights.sum(-1, keepdims=True))
        context = np.einsum("hij,jhk->ihk", weights, v).reshape(len(x), -1)
        return self.linear(self.keep(f"{self.at}attention.combined", context), "attention.output")

    def normed(self, q: np.ndarray, k: np.ndarray, rotary: Any) -> list[np.ndarray]:
        """Queries and keys of OLMo 2, normalized over all heads and rotated."""

        def norm(name: str, h: np.ndarray) -> np.ndarray:
            if "no norms of queries and keys" in self.planted:
                return h
            x = h if "norms of heads" in self.planted else h.reshape(len(h), -1)
            x = x - x.mean(-1, keepdims=True) if "mean subtracted from queries and keys" in self.planted else x
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + (1e-6 if "eps of 1e-6" in self.planted else self.c.eps))
            other = {"query": "key", "key": "query"}[name]
            name = other if "norms of queries and keys exchanged" in self.planted else name
            return (x.reshape(len(h), -1) * self.w[f"{self.at}attention.{name}_norm.weight"]).reshape(h.shape)

        def kept(stage: str, name: str, h: np.ndarray) -> np.ndarray:
            self.keep(f"{self.at}attention.{name}_{stage}", h.reshape(len(h), -1))
            return h

        steps = {"normed": norm, "rotated": lambda name, h: self.rotated(h, rotary)}
        heads = {"query": q, "key": k}
        for stage in reversed(steps) if "rotated first" in self.planted else steps:
            heads = {name: kept(stage, name, steps[stage](name, h)) for name, h in heads.items()}
        return list(heads.values())

    def mechanisms(self, layer: int) -> tuple[Any, ...]:
        """The mechanisms of a layer, of which those of SmolLM3 may lack the rotation."""
        local = self.c.local.layers if self.c.local else ()
        if "rotation in all layers" in self.planted:
            return self.c.mechanisms
        if "1 without rotation" in self.planted:
            return self.c.mechanisms if layer in local else self.c.local.mechanisms
        if "one layer more without" in self.planted and layer == 0:
            return self.c.local.mechanisms
        return self.c.mechanisms_of(layer)

    def biases(self, length: int) -> np.ndarray:
        """ALiBi, slope * (key's position - query's position): (H, L, L)."""
        distance = np.arange(length) - np.arange(length)[:, None]
        if "wrong sign" in self.planted or "absolute distances" in self.planted:
            distance = -distance if "wrong sign" in self.planted else np.abs(distance)
        count = self.c.n_heads
        below, above = 1 << count.bit_length() - 1, 1 << (count - 1).bit_length()
        first = [2 ** (-8 * h / below) for h in range(1, below + 1)]
        slopes = np.array(first + [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * below, 2)])[:count]
        if "slopes of 2^(-8 h / H)" in self.planted:
            slopes = 2 ** (-8 * np.arange(1, count + 1) / count)
        if "slopes of the first heads" in self.planted:
            slopes = 2 ** (-8 * np.arange(1, count + 1) / above)
        scale = self.c.d_head**-0.5 if "scaled" in self.planted else 1.0
        biases: np.ndarray = (slopes[:, None, None] * distance * scale).astype(np.float32)
        return biases

    def rotated(self, x: np.ndarray, rotary: Any) -> np.ndarray:
        """Rotates the first columns of each head in x (T, H, K)."""
        count = self.c.d_head if "whole heads" in self.planted else getattr(rotary, "columns", self.c.d_head)
        spread = self.c.d_head if "d_head in frequencies" in self.planted else count
        angles = np.arange(len(x))[:, None] / rotary.theta ** (np.arange(0, count, 2) / spread)
        factor = 1.0
        if scaling := rotary.scaling:  # longrope
            is_long = len(x) > scaling.original and "short factors" not in self.planted
            angles = angles / np.array(scaling.long if is_long else scaling.short)
            factor = 1.0 if "no attention factor" in self.planted else scaling.magnitude
        cos, sin = factor * np.cos(angles)[:, None], factor * np.sin(angles)[:, None]
        own = x[..., -count:] if "last columns" in self.planted else x[..., :count]
        if "neighbours" in self.planted:
            a, b = own[..., ::2], own[..., 1::2]
            made = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(own.shape)
        else:
            a, b = np.split(own, 2, axis=-1)
            made = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        rest = x[..., :-count] if "last columns" in self.planted else x[..., count:]
        return np.concatenate([rest, made] if "last columns" in self.planted else [made, rest], axis=-1)
