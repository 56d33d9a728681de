"""BART as people port it to plain NumPy: `PlainPort`'s formulas in an encoder and a decoder, on padded batches.

    port = PlainBart(model, texts); stages = port.run()              PlainBart(model, targets, sources)

Without sources, encoder and decoder read the same texts, and a head reads the decoder.
"""

from __future__ import annotations

import math

import numpy as np

from npformer.model import Model, Seq2Seq
from npformer.runtime.packing import Text
from tests.support.plain_port import PlainPort


class PlainBart(PlainPort):
    def __init__(self, model: Model | Seq2Seq, texts: list[Text], sources: list[Text] | None = None) -> None:
        super().__init__(model, sources or texts)
        self.eps, self.start, self.end = 1e-5, self.c.decoder.start_id, self.c.decoder.end_ids[0]
        self.embed_scale = math.sqrt(self.c.d_model) if self.c.scale_embedding else 1.0
        self.counts = {"encoder": self.c.n_heads, "decoder": self.c.decoder.n_heads}
        self.targets = PlainPort(model, texts).ids if sources else None
        self.first_row = 2

    # --- inputs --------------------------------------------------------------------------------------------

    def read(self) -> np.ndarray:
        """The decoder's ids: the given targets, or the texts shifted by one token."""
        if self.targets is not None:
            return self.targets
        ids = np.roll(self.ids, 1, axis=1)
        ids[:, 0] = self.start
        return ids

    def embed_side(self, side: str, ids: np.ndarray) -> np.ndarray:
        at = f"{side}.embeddings"
        token = self.note(f"{at}.token", self.w[f"{at}.token.weight"][ids] * np.float32(self.embed_scale))
        rows = self.w[f"{at}.position.weight"][np.arange(ids.shape[1]) + self.first_row]
        position = self.note(f"{at}.position", np.broadcast_to(rows, token.shape))
        return self.note(f"{at}.norm", self.norm(self.note(f"{at}.sum", token + position), f"{at}.norm"))

    def seen_by_encoder(self) -> np.ndarray:
        return self.mask[:, None, None, :] == 1

    seen_of_source = seen_by_encoder

    def seen_by_decoder(self, length: int) -> np.ndarray:
        return np.tri(length, dtype=bool)

    # --- layers --------------------------------------------------------------------------------------------------

    def attend(self, x: np.ndarray, source: np.ndarray, seen: np.ndarray, at: str) -> np.ndarray:
        self.heads = self.counts[at.split(".")[0]]
        q = self.note(f"{at}.query", self.linear(x, f"{at}.query"))
        k, v = (self.note(f"{at}.{name}", self.linear(source, f"{at}.{name}")) for name in ("key", "value"))
        q, k, v = (
            self.note(f"{at}.{name}_heads", self.split(each)) for name, each in (("query", q), ("key", k), ("value", v))
        )
        self.scale = self.scale_of(q, at)
        scores = self.note(f"{at}.scores", self.scores(q, k))
        weights = self.note(f"{at}.weights", self.softmax(np.where(seen, scores, np.float32(-1e9))))
        context = self.note(f"{at}.combined", self.merge(self.note(f"{at}.context", weights @ v)))
        return self.note(f"{at}.output", self.project(context, at))

    def scale_of(self, q: np.ndarray, at: str) -> float:
        return 1 / math.sqrt(q.shape[-1])

    def added(self, x: np.ndarray, block: np.ndarray, at: str) -> np.ndarray:
        total = self.note(f"{at}_residual", x + block)
        return self.note(f"{at}_norm", self.norm(total, f"{at}_norm"))

    def encoder_layer(self, x: np.ndarray, at: str) -> np.ndarray:
        y = self.added(x, self.attend(x, x, self.seen_by_encoder(), f"{at}.attention"), f"{at}.attention")
        return self.added(y, self.ffn(y, f"{at}.ffn"), f"{at}.ffn")

    def decoder_layer(self, x: np.ndarray, source: np.ndarray, at: str) -> np.ndarray:
        seen = self.seen_by_decoder(x.shape[1])
        y = self.added(x, self.attend(x, x, seen, f"{at}.attention"), f"{at}.attention")
        z = self.added(y, self.across(y, source, f"{at}.cross_attention"), f"{at}.cross_attention")
        return self.added(z, self.ffn(z, f"{at}.ffn"), f"{at}.ffn")

    def across(self, x: np.ndarray, source: np.ndarray, at: str) -> np.ndarray:
        return self.attend(x, source, self.seen_of_source(), at)

    def row(self) -> np.ndarray:
        """The index of each text's last end token."""
        return np.array([np.flatnonzero(ids == self.end)[-1] for ids in self.ids])

    def run(self) -> dict[str, np.ndarray]:
        source = self.embed_side("encoder", self.ids)
        for i in range(self.c.n_layers):
            source = self.encoder_layer(source, f"encoder.layers.{i}")
        x = self.embed_side("decoder", self.read())
        for i in range(self.c.decoder.n_layers):
            x = self.decoder_layer(x, source, f"decoder.layers.{i}")
        if self.c.head == "translation":
            self.note("logits", self.classify(x))
            return self.out
        pooled = self.note("pooled", self.pool(self.note("pooler", self.linear(self.first(x), "pooler"))))
        self.note("probabilities", self.probabilities(self.note("logits", self.classify(pooled))))
        return self.out

    def first(self, x: np.ndarray) -> np.ndarray:
        return x[np.arange(len(x)), self.row()]
