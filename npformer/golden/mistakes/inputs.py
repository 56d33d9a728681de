"""Mistakes in the model's inputs: token ids, the decoder's shifted ids, and padding with its mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npformer.engine.functions import softmax
from npformer.engine.runtime.packing import Text
from npformer.golden.at import At
from npformer.golden.graph import parted
from npformer.golden.mistake import Mistake, Rule, Rules, Ways
from npformer.golden.mistakes.nearest import nearest, nearest_normalized, put_first
from npformer.golden.mistakes.parts.rotary import ROTATED, rotated_in
from npformer.golden.port import Port

MOST = 1 << 31  # wrong ids are searched for only up to this product of the table's size and the number of tokens

WEIGHTS = "*.attention.weights"
LOWERED = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0, 12.0, 15.0, 16.0, 20.0, 30.0, 50.0, 100.0)
HIDDEN = -1e8  # scores below this are masked
LOWEST = float(np.finfo(np.float32).min)
Formula = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (scores, whether each key is a token) -> weights


def masked(formula: Formula, left: bool = False) -> Rules:
    """Computes the attention weights from the scores with a given formula."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        scores = at.causal(at.near)
        return formula(scores, at.is_token(scores, left))

    return {WEIGHTS: rule}


def hidden(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The correct softmax, over keys that are tokens, or over all keys for a query that sees no token."""
    return softmax(np.where(seen, scores, -1e9))


#: Queries and keys rotated by positions counted from each text's first token; padding before it has position 0.
FROM_FIRST: Rules = dict.fromkeys(
    ROTATED,
    lambda y, at: rotated_in(at.source, at, positions=np.maximum(np.arange(len(y)) - (len(y) - at.n_real), 0)),
)


def mask_ignored(port: Port) -> Ways:
    if port.has_padding:
        yield from port.paddings.items()
    if port.has_padding and port.config.decoder and (batch := port.in_a_batch()) is not None:
        of_source: Rules = {"*.cross_attention.weights": lambda y, at: softmax(at("attention.scores"))}
        yield "in attention to the source", batch.ruling(of_source)
    if port.has_padding and port.config.causal and (padded := port.padded(left=True)):
        before = replace(padded, at_end=True)
        yield "of padding before the texts", before
        yield "of padding before the texts, at position 0 like the first token", before.ruling(FROM_FIRST)


def mask_inverted(port: Port) -> Ways:
    port = port.padded() or port
    ways: dict[str, Formula] = {
        "lowest float32 number added": lambda scores, seen: softmax(
            (scores + np.where(seen, LOWEST, 0)).astype(np.float32)
        ),
        "-10000 added": lambda scores, seen: softmax(scores + np.where(seen, -1e4, 0)),
        "-10000 added in half precision": lambda scores, seen: softmax(
            (scores + np.where(seen, -1e4, 0)).astype(np.float16).astype(np.float64)
        ),
        "filled with -1e9": lambda scores, seen: softmax(np.where(seen, -1e9, scores)),
    }
    for way, formula in ways.items():
        yield way, port.ruling(masked(formula))


def mask_misused(port: Port) -> Ways:
    if not port.has_padding:
        return
    ways: dict[str, Formula] = {
        "applied after the softmax": lambda scores, seen: softmax(scores) * seen,
        "-10000 added after the softmax": lambda scores, seen: softmax(scores) + np.where(seen, 0, -1e4),
        "one place late": lambda scores, seen: hidden(scores, np.insert(seen[:-1], 0, True)),
        "one place early": lambda scores, seen: hidden(scores, np.append(seen[1:], False)),
        "added unchanged, as 1 and 0": lambda scores, seen: softmax(scores + seen),
        "multiplied by the scores": lambda scores, seen: softmax(scores * seen),
        "set to 1e-9, not -1e9": lambda scores, seen: softmax(np.where(seen, scores, 1e-9)),
        "set to the smallest positive number": lambda scores, seen: softmax(np.where(seen, scores, 1e-38)),
        **{
            f"too weak, {low:g}": lambda scores, seen, low=low: softmax(scores + np.where(seen, 0, low))
            for low in (-1.0, -2.0, -5.0, -10.0, -20.0, -100.0)
        },
    }
    for said, padded in (port.paddings or {"": port}).items():
        for way, formula in ways.items():
            yield f"{way}{said and f', {said}'}", padded.ruling(masked(formula))
        for i in range(len(port.texts)):
            yield f"text {i}'s mask for all texts{said and f', {said}'}", padded.ruling({WEIGHTS: _with_mask_of(i)})


def _with_mask_of(text: int) -> Rule:
    def rule(y: np.ndarray, at: At) -> np.ndarray:
        scores = at.causal(at.near)
        return hidden(np.maximum(scores, -1e9), at.is_token(scores, text=text))

    return rule


def lowered(port: Port) -> Ways:
    """Adds a number that is not low enough to masked scores, or replaces the scores with it."""
    if not any(name.endswith("attention.weights") for name in port.span):
        return
    for c in (*_solved(port), *LOWERED):
        yield f"{-c:g} added", {WEIGHTS: lambda y, at, c=c: _hiding(at, lambda scores: scores - c)}
        yield f"{-c:g} instead of the scores", {WEIGHTS: lambda y, at, c=c: _hiding(at, lambda scores: 0 * scores - c)}


def _solved(port: Port) -> list[float]:
    """Recovers the number that was added to masked scores.

    This is possible because log(weights) and the scores differ only by a constant per row.
    """
    scores = port.given.get(port.stage.removesuffix("weights") + "scores", [])
    found = list[np.ndarray]()
    for s, theirs, ours in zip(scores, port.theirs, port.rightly, strict=False):
        hidden = (ours == 0) & (theirs > 0)
        own = np.broadcast_to(np.argmax(ours, axis=-1)[..., None], ours.shape)  # a visible key as reference
        with np.errstate(all="ignore"):
            lost = s - np.log(theirs)
            found.append((lost - np.take_along_axis(lost, own, axis=-1))[hidden])
    numbers = np.concatenate(found) if found else np.zeros(0)
    return [float(f"{np.median(numbers):.6g}")] if numbers.size else []


def _hiding(at: At, hide: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Applies `hide` to the scores that the model masks, and returns the softmax of all scores."""
    scores = at("attention.scores")
    return softmax(np.where(at.scores < HIDDEN, hide(scores), scores))


def left_padding(port: Port) -> Ways:
    if port.has_padding and (padded := port.padded(left=True)):
        yield "", padded.ruling(masked(hidden, left=True))
        yield "and the mask ignored", padded
        yield "and the mask of padding on the right", padded.ruling(masked(hidden))


def other_ids(port: Port) -> Ways:
    """Tries common mistakes, then finds the ids with the nearest rows in the token table."""
    if not port.from_ids:
        return
    size = port.config.vocab_size
    changes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "one too high": lambda ids: (ids + 1) % size,
        "one too low": lambda ids: (ids - 1) % size,
        "in reverse order": lambda ids: ids[::-1],
        "without the first": lambda ids: np.append(ids[1:], 0),
        "without the last": lambda ids: np.append(ids[:-1], port.config.pad_id or 0),
        "after another one": lambda ids: np.insert(ids[:-1], 0, ids[0]),
    }
    for way, change in changes.items():
        yield way, port.reading(lambda text, i, change=change: replace(text, ids=change(text.ids)))
    texts = texts_of(port)
    unpadded = list(map(len, texts)) == list(map(len, port.theirs))
    if parted(port.stage)[2] == "embeddings.token" and unpadded:
        scale = port.config.token_scale
        rows = port.weights[f"{port.stage}.weight"].astype(np.float64) * scale
        ids = [nearest(array, rows) for array in port.theirs]
        found = port.ruling({port.stage: lambda y, at: put_first(y, rows[ids[at.text]])})
        if not port.config.decoder:
            found = port.reading(lambda text, i: replace(text, ids=ids[i]))
        yield f"{ids[0].tolist()!s:.60}", found
    elif parted(port.stage)[2] in ("embeddings.sum", "embeddings.norm"):
        yield "found by the nearest rows of the table", {f"{parted(port.stage)[0]}embeddings.sum": _nearest(port)}


def _nearest(port: Port) -> Rule:
    """Replaces tokens so that the stage comes nearest to the port's: the sum of embeddings or the normalized sum."""

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        table, theirs = at.weight("embeddings.token"), port.theirs[at.text].astype(np.float64)
        if table is None or table.shape[1] != y.shape[1] or table.size * len(theirs) > MOST:
            raise ValueError("no table of rows to compare with")
        table = table * port.config.token_scale
        rest = (y - at("embeddings.token"))[: len(theirs)]  # positions and token types
        if port.stage.endswith("sum"):
            return put_first(y, rest + table[nearest(theirs - rest, table)])
        shift = at.affine(np.zeros_like(theirs), port.stage)
        wanted = (theirs - shift) / (at.affine(np.ones_like(theirs), port.stage) - shift)
        return put_first(y, rest + table[nearest_normalized(wanted, rest, table, at.config.eps)])

    return rule


def texts_of(port: Port) -> list[Text]:
    """Returns the texts that the stage's stack reads."""
    return port.sources if port.sources and port.stack == "encoder." else port.texts


def other_texts(port: Port) -> Ways:
    """The batch has the texts in a different order, found from the nearest rows."""
    if not port.from_ids or port.rightly[0].ndim != 2:
        return
    order = []
    for theirs in port.theirs:
        rows = [min(len(theirs), len(right)) for right in port.rightly]
        apart = [np.abs(theirs[:n] - right[:n]).mean() for n, right in zip(rows, port.rightly, strict=True)]
        order.append(int(np.argmin(apart)))
    if order != sorted(order) and len(set(order)) == len(order):
        texts, pad = texts_of(port), port.config.pad_id or 0

        def moved(text: Text, i: int) -> Text:
            other, n = texts[order[i]], len(text)
            types = other.token_type_ids
            ids = np.pad(other.ids[:n], (0, n - len(other.ids[:n])), constant_values=pad)
            return Text(ids, None if types is None else np.pad(types[:n], (0, n - len(types[:n]))))

        yield f"in the order {', '.join(map(str, order))}", port.reading(moved)


def decoder_input(port: Port) -> Ways:
    """Gives the decoder the wrong ids; the correct ones are the start token and the text without its last token."""
    if not port.config.decoder:
        return
    yield "not shifted", read_by_decoder(port, lambda read, labels: labels)
    yield "shifted twice", read_by_decoder(port, lambda read, labels: np.insert(read[:-1], 0, read[0]))


def start_token(port: Port) -> Ways:
    config = port.config
    if not config.decoder:
        return
    usual = (0, 1, 2, 3, config.pad_id, config.start_id, *config.decoder.end_ids, config.decoder.vocab_size - 1)
    for token in dict.fromkeys(each for each in usual if each is not None and each < config.decoder.vocab_size):
        if token != config.decoder.start_id:
            changed = read_by_decoder(port, lambda read, labels, token=token: np.insert(read[1:], 0, token))
            yield f"{token} instead of {config.decoder.start_id}", changed


def read_by_decoder(port: Port, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Port:
    """Returns the port with a decoder that reads change(correct ids, labels)."""
    decoder = port.config.decoder
    scale = port.config.token_scale

    def rule(y: np.ndarray, at: At) -> np.ndarray:
        ids, table = port.texts[at.text].ids, at.weight("embeddings.token")
        assert table is not None
        if port.sources:
            read, labels = ids, np.append(ids[1:], decoder.end_ids or ids[-1:])[: len(ids)]
        else:  # the decoder reads the same text as the encoder
            read, labels = np.insert(ids[:-1], 0, decoder.start_id), ids
        made = y.copy()
        made[: len(ids)] = table[change(read, labels)] * scale
        return made

    return port.ruling({"decoder.embeddings.token": rule})


MISTAKES = (
    Mistake("mask ignored", "padding is attended to; its scores must be -inf before the softmax", mask_ignored),
    Mistake("mask inverted", "the mask is 1 for tokens and 0 for padding; this port hides the tokens", mask_inverted),
    Mistake(
        "mask misused", "the scores of padding must be -inf, or far below all others, before the softmax", mask_misused
    ),
    Mistake("masked scores not low enough", "hidden keys must have scores of -inf, and thus weights of 0", lowered),
    Mistake(
        "left padding",
        "padding before a text shifts the positions of its tokens and makes row 0 padding; pad on the right",
        left_padding,
    ),
    Mistake(
        "decoder input not shifted",
        "the decoder reads the start token, then every token except the last: the labels shifted right by one",
        decoder_input,
    ),
    Mistake("wrong start token", "the decoder reads decoder_start_token_id of config.json first", start_token),
    Mistake("texts in the wrong order", "row i of the batch must be text i", other_texts, reorders=True),
    Mistake("wrong token ids", "these are embeddings of different tokens; check the tokenizer and the text", other_ids),
)
