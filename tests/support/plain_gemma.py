"""Gemma 2 and 3 in plain NumPy, without npformer's code: a port in which mistakes are planted by name.

stages = PlainGemma(model.config, flatten(model.weights), {"no softcap"}).run(ids)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from npformer.config import Config

#: Name of a planted mistake -> its name in the diagnosis.
PLANTED = {
    "w for 1 + w": "1 + weight of RMSNorm misused",
    "no norm after attention": "missing norm after a block",
    "no norm after the FFN": "missing norm after a block",
    "Llama's places": "norms in the wrong places",
    "norm of the sum": "norm of the sum, not of a block's output",
    "no cap of scores": "soft cap of scores left out",
    "no cap of logits": "soft cap of logits left out",
    "1 / sqrt(d_head)": "scores divided by sqrt(d_head)",
    "no window": "wrong local window",
    "exclusive window": "wrong local window",
    "window everywhere": "wrong local window",
    "unscaled embeddings": "embeddings scaled differently",
    "heads not normalized": "norms of queries and keys left out",
    "rotated first": "norms of queries and keys after the rotation",
    "w for 1 + w in heads": "1 + weight of RMSNorm misused",
    "thetas exchanged": "rotation with the wrong base",
    "silu": "wrong activation",
}


class PlainGemma:
    """A model that reads one text at a time. `planted` holds names from PLANTED."""

    def __init__(self, config: Config, weights: Mapping[str, np.ndarray], planted: Collection[str] = ()) -> None:
        self.c, self.w, self.planted = config, weights, planted
        self.stages: dict[str, np.ndarray] = {}

    def run(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        x = self.w["embeddings.token.weight"][ids]
        if "unscaled embeddings" not in self.planted:
            x = x * np.float32(np.sqrt(self.c.d_model))
        x = self.keep("embeddings.token", x)
        for i in range(self.c.n_layers):
            self.at = f"layers.{i}."
            is_local = i in self.c.local.layers
            before, after, ffn = "attention_norm", "attention.output_norm", "ffn_norm"
            if "Llama's places" in self.planted:
                after, ffn = ffn, after
            y = self.attention(self.norm("attention_norm", x, before), i, is_local)
            x = self.add("attention", x, y, after)
            x = self.add("ffn", x, self.feed_forward(self.norm("ffn_norm", x, ffn)), "ffn.output_norm")
        self.at = ""
        x = self.norm("norm", x, "norm")
        if self.c.head != "causal-lm":
            return self.stages
        logits = self.keep("head.output", x @ self.w["head.output.weight"])
        capped = self.c.logit_cap * np.tanh(logits / self.c.logit_cap)
        self.keep("logits", logits if "no cap of logits" in self.planted else capped)
        return self.stages

    def keep(self, name: str, array: np.ndarray) -> np.ndarray:
        self.stages[name] = array
        return array

    def norm(self, stage: str, x: np.ndarray, weight: str) -> np.ndarray:
        w = self.w[f"{self.at}{weight}.weight"]
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c.eps)
        return self.keep(self.at + stage, scaled * (w if "w for 1 + w" in self.planted else 1 + w))

    def add(self, block: str, x: np.ndarray, y: np.ndarray, weight: str) -> np.ndarray:
        title = {"attention": "attention", "ffn": "the FFN"}[block]
        if "norm of the sum" in self.planted:
            return self.keep(f"{self.at}{block}_residual", self.norm(f"{block}.output_norm", x + y, weight))
        if f"no norm after {title}" not in self.planted:
            y = self.norm(f"{block}.output_norm", y, weight)
        return self.keep(f"{self.at}{block}_residual", x + y)

    def feed_forward(self, x: np.ndarray) -> np.ndarray:
        gate, up, down = (self.w[f"{self.at}ffn.{name}.weight"] for name in ("gate", "up", "output"))
        h = x @ gate
        h = h / (1 + np.exp(-h)) if "silu" in self.planted else self.gelu(h)
        return self.keep(f"{self.at}ffn.output", (h * (x @ up)) @ down)

    @staticmethod
    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def attention(self, x: np.ndarray, layer: int, is_local: bool) -> np.ndarray:
        heads, own, width = self.c.n_heads, self.c.kv_heads, self.c.d_head
        q, k, v = (
            self.keep(f"{self.at}attention.{name}", x @ self.w[f"{self.at}attention.{name}.weight"]).reshape(
                len(x), n, width
            )
            for name, n in (("query", heads), ("key", own), ("value", own))
        )
        mechanisms = {type(each).__name__: each for each in self.c.mechanisms_of(layer)}
        theta = mechanisms["Rotary"].theta
        if "thetas exchanged" in self.planted:
            theta = next(each.theta for each in self.c.mechanisms_of(self.other(is_local)) if hasattr(each, "theta"))
        steps = {"rotated": lambda h, name: self.rotated(h, theta)}
        if "ZeroCentredHeadNorm" in mechanisms and "heads not normalized" not in self.planted:
            steps = (
                {**steps, "normed": self.normed}
                if "rotated first" in self.planted
                else {"normed": self.normed, **steps}
            )
        for done, step in steps.items():
            q, k = step(q, "query"), step(k, "key")
            for name, h in (("query", q), ("key", k)):
                self.keep(f"{self.at}attention.{name}_{done}", h.reshape(len(x), -1))
        for name, h in (("query", q), ("key", k), ("value", v)):
            self.keep(f"{self.at}attention.{name}_heads", h.swapaxes(0, 1))
        k, v = (h.repeat(heads // own, axis=1) for h in (k, v))
        scale = self.c.score_scale or width**-0.5
        scores = np.einsum("ihk,jhk->hij", q, k) * (width**-0.5 if "1 / sqrt(d_head)" in self.planted else scale)
        cap = mechanisms["SoftCap"].cap if "SoftCap" in mechanisms else 0
        if cap and "no cap of scores" not in self.planted:
            scores = cap * np.tanh(scores / cap)
        self.keep(f"{self.at}attention.scores", scores)
        weights = np.exp(np.where(self.seen(len(x), is_local), scores, -np.inf))
        weights /= weights.sum(-1, keepdims=True)
        self.keep(f"{self.at}attention.weights", weights)
        context = np.einsum("hij,jhk->ihk", weights, v).reshape(len(x), -1)
        output = self.keep(f"{self.at}attention.combined", context) @ self.w[f"{self.at}attention.output.weight"]
        return self.keep(f"{self.at}attention.output", output)

    def other(self, is_local: bool) -> int:
        """Returns the first global layer if is_local, otherwise the first local layer."""
        return next(i for i in range(self.c.n_layers) if (i in self.c.local.layers) is not is_local)

    def seen(self, length: int, is_local: bool) -> np.ndarray:
        """True where a query may attend to a key."""
        distance = np.arange(length) - np.arange(length)[:, None]  # key - query
        seen = distance <= 0 if self.c.causal else np.ones((length, length), bool)
        if "no window" in self.planted or not (is_local or "window everywhere" in self.planted):
            return seen
        reach = next(each.reach for each in self.c.local.mechanisms if hasattr(each, "reach"))
        return seen & (np.abs(distance) <= reach - ("exclusive window" in self.planted))

    def rotated(self, x: np.ndarray, theta: float) -> np.ndarray:
        angles = np.arange(len(x))[:, None] / theta ** (np.arange(0, x.shape[-1], 2) / x.shape[-1])
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def normed(self, x: np.ndarray, name: str) -> np.ndarray:
        w = self.w[f"{self.at}attention.{name}_norm.weight"]
        scaled: Any = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c.eps)
        return scaled * (w if "w for 1 + w in heads" in self.planted else 1 + w)
