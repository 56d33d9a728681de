"""Arrays for the views, the same in every run: attention from random scores, stages of random heads, hostile tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npformer.interpret.direct_attribution import LogitAttribution
from npformer.interpret.head_effects import HeadEffects
from npformer.interpret.logit_lens import LogitLens

WORDS = ("[CLS]", "time", "flies", "like", "an", "arrow", "[SEP]")
PAIR = ("[CLS]", "time", "flies", "[SEP]", "fruit", "flies", "like", "##ly", "[SEP]")
SEGMENTS = (0, 0, 0, 0, 1, 1, 1, 1, 1)
HOSTILE = (
    "</script><img src=x onerror=document.title='owned'>", "<script>document.title='owned'</script>", "<!--", "]]>",
    "{{meta}}", "${1}", "\u202eevil\u202c", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627",
    "a\x00\x1b[2Jb\n", "\"'&amp;&", "\ud800", "", "\u732b", "w" * 300,
)  # fmt: skip


def weights(seed: int, *shape: int, dtype: type = np.float32, sharp: float = 2.0) -> np.ndarray:
    """Returns the softmax of normally distributed scores: (..., L queries, L keys)."""
    scores = sharp * np.random.default_rng(seed).standard_normal(shape)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(dtype)


def head_stages(
    seed: int, layers: int = 2, heads: int = 3, length: int = len(WORDS), width: int = 8, dtype: type = np.float32
) -> dict[str, np.ndarray]:
    """Returns the attention stages that the neuron view reads, computed from random queries, keys and values."""
    rng, found = np.random.default_rng(seed), {}
    for layer in range(layers):
        query, key, value = rng.standard_normal((3, heads, length, width)).astype(dtype)
        scores = (query @ key.swapaxes(1, 2) / width**0.5).astype(dtype)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        arrays = {
            "query_heads": query, "key_heads": key, "value_heads": value,
            "scores": scores, "weights": shares, "context": shares @ value,
        }  # fmt: skip
        found |= {f"layers.{layer}.attention.{name}": array for name, array in arrays.items()}
    return found


def logit_parts(tokens: Sequence[str], layers: int = 2, heads: int = 3) -> LogitAttribution:
    """Returns random parts of a logit at token 1, with the labels that the logit lens finds."""
    rng, length = np.random.default_rng(31), len(tokens)
    lens = rng.standard_normal((layers + 1, 2))
    return LogitAttribution(
        "the logit of YES", 1.25, tuple(tokens), min(1, length - 1), {"token": 0.5, "position": -0.25},
        rng.standard_normal((layers, heads, length)), rng.standard_normal(layers),
        {"embeddings.norm": 0.125, "layers.0.ffn.output": -0.5, "logits": 0.0625}, lens, lens[:, 0], ("NO", "YES", "NO"),
    )  # fmt: skip


def logit_lens_of(words: Sequence[str], layers: int = 2, most: int = 3) -> LogitLens:
    """Returns a logit lens of random logits at two tokens. `words` names the tokens and the vocabulary's entries."""
    logits = np.random.default_rng(32).standard_normal((layers + 1, 2, len(words)))
    numbers = np.argsort(-logits, axis=-1)[..., :most]
    largest = np.take_along_axis(logits, numbers, -1)
    shares = np.exp(largest) / np.exp(logits).sum(axis=-1, keepdims=True)
    names = tuple(tuple(tuple(words[i] for i in cell) for cell in row) for row in numbers.tolist())
    rows = ("embeddings", *(f"layer {i}" for i in range(layers)))
    followed = tuple(cell[0] for cell in names[-1])
    places = np.ones(shares.shape[:2], int)
    return LogitLens(rows, tuple(words[:2]), (3, 4), names, numbers, largest, shares, followed, shares[..., 0], places)


def head_effects_on(words: Sequence[str], layers: int = 2, heads: int = 3) -> HeadEffects:
    """Returns random probabilities of two answers with each head ablated. The first two words name the answers."""
    shares = np.random.default_rng(33).uniform(0.1, 0.9, (layers, heads))
    outcomes = tuple(tuple(((words[0], s), (words[1], 1 - s)) for s in row) for row in shares.tolist())
    names = tuple(f"layers.{i}.attention" for i in range(layers))
    return HeadEffects(words[0], 0.5, names, shares - 0.5, outcomes, ((words[0], 0.5), (words[1], 0.5)))


def encoder_decoder(
    source: Sequence[str], target: Sequence[str], layers: int = 2, heads: int = 4
) -> dict[str, np.ndarray]:
    """Returns the three kinds of attention of an encoder-decoder; the decoder's self-attention is causal."""
    found = {}
    for layer in range(layers):
        causal = np.tril(np.ones((len(target), len(target)), np.float32))
        own = weights(50 + layer, heads, len(target), len(target)) * causal
        found[f"encoder.layers.{layer}.attention.weights"] = weights(40 + layer, heads, len(source), len(source))
        found[f"decoder.layers.{layer}.attention.weights"] = own / own.sum(axis=-1, keepdims=True)
        found[f"decoder.layers.{layer}.cross_attention.weights"] = weights(60 + layer, heads, len(target), len(source))
    return found
