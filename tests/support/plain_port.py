"""BERT, DistilBERT, RoBERTa, GPT-2 and ModernBERT as people port them to plain NumPy: padded batches, one method per
formula, float32.

    port = PlainPort(model, texts); port.gelu = lambda x: x; stages = port.run()

It shares no code with npformer, so a mistake planted here, by replacing a method or a weight, is made independently of
the diagnosis. `run` returns every stage by npformer's name, padded (B, L, ...).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npformer.checkpoint import flatten
from npformer.model import Model
from npformer.runtime.packing import Text

erf = np.vectorize(math.erf, otypes=[np.float64])


class PlainPort:
    def __init__(self, model: Model, texts: list[Text]) -> None:
        self.c = model.config
        self.w: dict[str, Any] = {name: np.array(array) for name, array in flatten(dict(model.weights)).items()}
        self.heads, self.eps, self.layers = self.c.n_heads, 1e-12, list(range(self.c.n_layers))
        width = max(map(len, texts))
        self.ids, self.mask, self.types = (np.zeros((len(texts), width), int) for _ in range(3))
        self.ids += self.c.pad_id or 0
        for i, text in enumerate(texts):
            self.ids[i, : len(text)], self.mask[i, : len(text)] = text.ids, 1
            if text.token_type_ids is not None:
                self.types[i, : len(text)] = text.token_type_ids
        self.positions = np.broadcast_to(np.arange(width), self.ids.shape)
        if self.c.positions.skips_padding:
            real = self.ids != self.c.pad_id
            self.positions = real.cumsum(1) * real + self.c.pad_id
        self.scale = 1 / math.sqrt(self.c.d_model // self.heads)
        self.out: dict[str, np.ndarray] = {}

    def note(self, name: str, x: np.ndarray) -> np.ndarray:
        self.out[name] = x
        return x

    # --- formulas ------------------------------------------------------------------------------------------------

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def gelu(self, x: np.ndarray) -> np.ndarray:
        return (0.5 * x * (1 + erf(x / math.sqrt(2)))).astype(np.float32)

    def normalize(self, x: np.ndarray) -> np.ndarray:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + self.eps)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.normalize(x) * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def softmax(self, x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    # --- the model -----------------------------------------------------------------------------------------------

    def token(self) -> np.ndarray:
        return self.w["embeddings.token.weight"][self.ids]

    def position(self) -> np.ndarray:
        return self.w["embeddings.position.weight"][self.positions]

    def segment(self) -> np.ndarray:
        return self.w["embeddings.segment.weight"][self.types]

    def embed(self) -> np.ndarray:
        x = self.note("embeddings.token", self.token()) + self.note("embeddings.position", self.position())
        if self.c.n_token_types:
            x = x + self.note("embeddings.segment", self.segment())
        return self.note("embeddings.norm", self.norm(self.note("embeddings.sum", x), "embeddings.norm"))

    def split(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)

    def merge(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1, 3).reshape(len(x), x.shape[2], -1)

    def masked(self, scores: np.ndarray) -> np.ndarray:
        return np.where(self.mask[:, None, None, :] == 1, scores, np.float32(-1e9))

    def weigh(self, scores: np.ndarray) -> np.ndarray:
        return self.softmax(self.masked(scores))

    def scores(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return q @ k.swapaxes(-1, -2) * np.float32(self.scale)

    def project(self, context: np.ndarray, at: str) -> np.ndarray:
        return self.linear(context, f"{at}.output")

    def attention(self, x: np.ndarray, at: str) -> np.ndarray:
        q, k, v = (self.note(f"{at}.{name}", self.linear(x, f"{at}.{name}")) for name in ("query", "key", "value"))
        q, k, v = (
            self.note(f"{at}.{name}_heads", self.split(each)) for name, each in (("query", q), ("key", k), ("value", v))
        )
        weights = self.note(f"{at}.weights", self.weigh(self.note(f"{at}.scores", self.scores(q, k))))
        context = self.note(f"{at}.combined", self.merge(self.note(f"{at}.context", weights @ v)))
        return self.note(f"{at}.output", self.project(context, at))

    def ffn(self, x: np.ndarray, at: str) -> np.ndarray:
        h = self.note(f"{at}.hidden", self.linear(x, f"{at}.hidden"))
        return self.note(f"{at}.output", self.linear(self.note(f"{at}.activation", self.gelu(h)), f"{at}.output"))

    def layer(self, x: np.ndarray, at: str) -> np.ndarray:
        y = self.note(f"{at}.attention_residual", x + self.attention(x, f"{at}.attention"))
        y = self.note(f"{at}.attention_norm", self.norm(y, f"{at}.attention_norm"))
        z = self.note(f"{at}.ffn_residual", y + self.ffn(y, f"{at}.ffn"))
        return self.note(f"{at}.ffn_norm", self.norm(z, f"{at}.ffn_norm"))

    def first(self, x: np.ndarray) -> np.ndarray:
        return x[:, 0]

    def pool(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x) if self.c.pooler == "tanh" else np.maximum(x, 0)

    def classify(self, x: np.ndarray) -> np.ndarray:
        return self.linear(x, "head.output")

    def run(self) -> dict[str, np.ndarray]:
        x = self.embed()
        for i in self.layers:
            x = self.layer(x, f"layers.{i}")
        pooled = self.note("pooled", self.pool(self.note("pooler", self.linear(self.first(x), "pooler"))))
        logits = self.note("logits", self.classify(pooled))
        self.note("probabilities", self.probabilities(logits))
        return self.out

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return self.softmax(logits)


class PlainGpt2(PlainPort):
    """Norms before the blocks and after the last, tanh GELU, a causal mask, and the last token's row for the head."""

    def __init__(self, model: Model, texts: list[Text]) -> None:
        super().__init__(model, texts)
        self.eps = 1e-5

    def gelu(self, x: np.ndarray) -> np.ndarray:
        return (
            np.float32(0.5) * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)))
        )

    def embed(self) -> np.ndarray:
        x = self.note("embeddings.token", self.token()) + self.note("embeddings.position", self.position())
        return self.note("embeddings.sum", x)

    def seen(self, n: int) -> np.ndarray:
        return np.tri(n, dtype=bool)

    def masked(self, scores: np.ndarray) -> np.ndarray:
        hidden = super().masked(scores)
        return np.where(self.seen(scores.shape[-1]), hidden, np.float32(-1e9))

    def layer(self, x: np.ndarray, at: str) -> np.ndarray:
        h = self.note(f"{at}.attention_norm", self.norm(x, f"{at}.attention_norm"))
        y = self.note(f"{at}.attention_residual", x + self.attention(h, f"{at}.attention"))
        h = self.note(f"{at}.ffn_norm", self.norm(y, f"{at}.ffn_norm"))
        return self.note(f"{at}.ffn_residual", y + self.ffn(h, f"{at}.ffn"))

    def last(self, x: np.ndarray) -> np.ndarray:
        return x[np.arange(len(x)), self.mask.sum(1) - 1]

    def run(self) -> dict[str, np.ndarray]:
        x = self.embed()
        for i in self.layers:
            x = self.layer(x, f"layers.{i}")
        x = self.note("norm", self.norm(x, "norm"))
        logits = self.note("logits", self.last(x) @ self.w["head.output.weight"])
        self.note("probabilities", self.probabilities(logits))
        return self.out


class PlainModernBert(PlainPort):
    """Norms before the blocks and after the last, rotated queries and keys, local layers, a gated FFN; no biases."""

    def __init__(self, model: Model, texts: list[Text]) -> None:
        super().__init__(model, texts)
        self.eps, self.reach, self.local, self.bases = 1e-5, 3, (1, 2), (160_000.0, 10_000.0)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"] + self.w.get(f"{name}.bias", np.float32(0))

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.normalize(x) * self.w[f"{name}.weight"]

    def embed(self) -> np.ndarray:
        x = self.note("embeddings.sum", self.note("embeddings.token", self.token()))
        return self.note("embeddings.norm", self.norm(x, "embeddings.norm"))

    def rotated(self, x: np.ndarray, base: float) -> np.ndarray:
        half = x.shape[-1] // 2
        angle = np.arange(x.shape[-2])[:, None] / base ** (np.arange(half) / half)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def near(self, n: int) -> np.ndarray:
        return np.abs(np.arange(n) - np.arange(n)[:, None]) <= self.reach

    def attention(self, x: np.ndarray, at: str) -> np.ndarray:
        local = int(at.split(".")[1]) in self.local
        q, k, v = (
            self.split(self.note(f"{at}.{name}", self.linear(x, f"{at}.{name}"))) for name in ("query", "key", "value")
        )
        q, k = (self.rotated(each, self.bases[local]) for each in (q, k))
        for name, each in (("query", q), ("key", k), ("value", v)):
            self.note(f"{at}.{name}_heads", each)
        scores = self.note(f"{at}.scores", self.scores(q, k))
        weights = self.note(f"{at}.weights", self.weigh(np.where(self.near(len(x[0])) | (not local), scores, -1e9)))
        context = self.note(f"{at}.combined", self.merge(self.note(f"{at}.context", weights.astype(np.float32) @ v)))
        return self.note(f"{at}.output", self.project(context, at))

    def ffn(self, x: np.ndarray, at: str) -> np.ndarray:
        gate, up = (self.note(f"{at}.{name}", self.linear(x, f"{at}.{name}")) for name in ("gate", "up"))
        gated = self.note(f"{at}.gated", self.note(f"{at}.activation", self.gelu(gate)) * up)
        return self.note(f"{at}.output", self.linear(gated, f"{at}.output"))

    def layer(self, x: np.ndarray, at: str) -> np.ndarray:
        h = x if at == "layers.0" else self.note(f"{at}.attention_norm", self.norm(x, f"{at}.attention_norm"))
        y = self.note(f"{at}.attention_residual", x + self.attention(h, f"{at}.attention"))
        h = self.note(f"{at}.ffn_norm", self.norm(y, f"{at}.ffn_norm"))
        return self.note(f"{at}.ffn_residual", y + self.ffn(h, f"{at}.ffn"))

    def run(self) -> dict[str, np.ndarray]:
        x = self.embed()
        for i in self.layers:
            x = self.layer(x, f"layers.{i}")
        x = self.note("pooled", self.first(self.note("norm", self.norm(x, "norm"))))
        x = self.note("head.activation", self.gelu(self.note("head.hidden", self.linear(x, "head.hidden"))))
        logits = self.note("logits", self.classify(self.note("head.norm", self.norm(x, "head.norm"))))
        self.note("probabilities", self.probabilities(logits))
        return self.out
