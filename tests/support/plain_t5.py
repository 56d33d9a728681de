"""T5 as people port it to plain NumPy: pre-norm stacks with RMSNorm and a bias for each distance, on padded batches.

port = PlainT5(model, targets, sources); stages = port.run()
"""

from __future__ import annotations

import math

import numpy as np

from npformer.model import Model, Seq2Seq
from npformer.runtime.packing import Text
from tests.support.plain_bart import PlainBart


class PlainT5(PlainBart):
    def __init__(self, model: Model | Seq2Seq, texts: list[Text], sources: list[Text] | None = None) -> None:
        super().__init__(model, texts, sources)
        self.eps, self.factor = 1e-6, self.c.d_model**-0.5 if self.c.scale_output else 1.0
        [bias] = self.c.mechanisms
        self.most = bias.max_distance
        self.tables = {side: f"{side}.relative_bias.weight" for side in self.counts}

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[f"{name}.weight"]

    def embed_side(self, side: str, ids: np.ndarray) -> np.ndarray:
        token = self.note(f"{side}.embeddings.token", self.w[f"{side}.embeddings.token.weight"][ids])
        return self.note(f"{side}.embeddings.sum", token)

    # --- biases --------------------------------------------------------------------------------------------------

    def bucket(self, distance: int, buckets: int, both: bool) -> int:
        first = 0
        if both:
            buckets //= 2
            first = buckets if distance > 0 else 0
            distance = abs(distance)
        else:
            distance = max(-distance, 0)
        exact = buckets // 2
        if distance < exact:
            return first + distance
        step = math.log(distance / exact) / math.log(self.most / exact) * (buckets - exact)
        return first + min(exact + int(step + 1e-9), buckets - 1)

    def goes_both_ways(self, side: str) -> bool:
        return side == "encoder"

    def bias(self, side: str, rows: int, columns: int) -> np.ndarray:
        table, both = self.w[self.tables[side]], self.goes_both_ways(side)
        found = [[table[self.bucket(j - i, len(table), both)] for j in range(columns)] for i in range(rows)]
        return np.array(found).transpose(2, 0, 1)

    def biased(self, scores: np.ndarray, at: str) -> np.ndarray:
        if "cross" in at:
            return scores
        return scores + self.bias(at.split(".")[0], *scores.shape[-2:])

    # --- layers --------------------------------------------------------------------------------------------------

    def attend(self, x: np.ndarray, source: np.ndarray, seen: np.ndarray, at: str) -> np.ndarray:
        self.heads = self.counts[at.split(".")[0]]
        q = self.note(f"{at}.query", self.linear(x, f"{at}.query"))
        k, v = (self.note(f"{at}.{name}", self.linear(source, f"{at}.{name}")) for name in ("key", "value"))
        q, k, v = (
            self.note(f"{at}.{name}_heads", self.split(each)) for name, each in (("query", q), ("key", k), ("value", v))
        )
        product = q @ k.swapaxes(-1, -2) * np.float32(self.scale_of(q, at))
        scores = self.note(f"{at}.scores", self.biased(product, at))
        weights = self.note(f"{at}.weights", self.softmax(np.where(seen, scores, np.float32(-1e9))))
        context = self.note(f"{at}.combined", self.merge(self.note(f"{at}.context", weights @ v)))
        return self.note(f"{at}.output", self.project(context, at))

    def scale_of(self, q: np.ndarray, at: str) -> float:
        return 1.0

    def ffn(self, x: np.ndarray, at: str) -> np.ndarray:
        if not self.c.gated:
            h = self.note(f"{at}.hidden", self.linear(x, f"{at}.hidden"))
            h = self.note(f"{at}.activation", np.maximum(h, 0))
            return self.note(f"{at}.output", self.linear(h, f"{at}.output"))
        gate, up = (self.note(f"{at}.{name}", self.linear(x, f"{at}.{name}")) for name in ("gate", "up"))
        h = self.note(f"{at}.activation", self.gelu(gate))
        return self.note(f"{at}.output", self.linear(self.note(f"{at}.gated", h * up), f"{at}.output"))

    def gelu(self, x: np.ndarray) -> np.ndarray:
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
        return np.float32(0.5) * x * (1 + np.tanh(inner))

    def block(self, x: np.ndarray, compute: object, at: str) -> np.ndarray:
        h = self.note(f"{at}_norm", self.norm(x, f"{at}_norm"))
        return self.note(f"{at}_residual", x + compute(h))  # type: ignore[operator]

    def encoder_layer(self, x: np.ndarray, at: str) -> np.ndarray:
        own = f"{at}.attention"
        x = self.block(x, lambda h: self.attend(h, h, self.seen_by_encoder(), own), own)
        return self.block(x, lambda h: self.ffn(h, f"{at}.ffn"), f"{at}.ffn")

    def decoder_layer(self, x: np.ndarray, source: np.ndarray, at: str) -> np.ndarray:
        own, seen = f"{at}.attention", self.seen_by_decoder(x.shape[1])
        x = self.block(x, lambda h: self.attend(h, h, seen, own), own)
        x = self.block(x, lambda h: self.across(h, source, f"{at}.cross_attention"), f"{at}.cross_attention")
        return self.block(x, lambda h: self.ffn(h, f"{at}.ffn"), f"{at}.ffn")

    def scaled(self, x: np.ndarray) -> np.ndarray:
        return x * np.float32(self.factor)

    def run(self) -> dict[str, np.ndarray]:
        source = self.embed_side("encoder", self.ids)
        for i in range(self.c.n_layers):
            source = self.encoder_layer(source, f"encoder.layers.{i}")
        source = self.note("encoder.norm", self.norm(source, "encoder.norm"))
        x = self.embed_side("decoder", self.read())
        for i in range(self.c.decoder.n_layers):
            x = self.decoder_layer(x, source, f"decoder.layers.{i}")
        x = self.note("decoder.norm", self.norm(x, "decoder.norm"))
        x = self.note("head.scaled", self.scaled(x)) if self.c.scale_output else self.scaled(x)
        self.note("logits", self.classify(x))
        return self.out
