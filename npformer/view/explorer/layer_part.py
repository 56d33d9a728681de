"""A layer at one token: the words that its heads read, the size of its blocks' outputs, and the effect of the blocks.

The tab `Step` makes sentences from this data (`assets/step_layer.js`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from npformer.common.errors import NpformerError
from npformer.interpret.answer import ModelAnswer, outcome_of, probabilities_of
from npformer.interpret.edits import edit, replace_row
from npformer.interpret.text_parts import has_source_rows
from npformer.interpret.traces import Trace
from npformer.view.answer_data import log_odds
from npformer.view.explorer.change_part import LAYER
from npformer.view.explorer.changes import BLOCKS, place

READ = 3  # maximum number of tokens to list for each head, those with the largest weights


def layer_at(
    recorded: Trace, answer: ModelAnswer | None, layer: int, token: int, changed: frozenset[str]
) -> dict[str, Any]:
    """Returns the blocks of a layer at a token, each with the tokens that it reads and the length of its output.

    In the result, `answer` is the explained outcome with its probability, and `own` the name of the model's own answer.
    layer: an index in order of computation; an encoder's layers come first. changed: stages that the state changes.
    """
    names = list(dict.fromkeys(found[1] for name in recorded if (found := LAYER.match(name))))
    if layer >= len(names):
        raise NpformerError(f"layer: expected a number below {len(names)}, got {layer}")
    at = names[layer]
    if has_source_rows(f"{at}.ffn.output"):
        raise NpformerError("The encoder reads the source, but the chosen token belongs to the translation.")
    if token >= len(recorded.tokens):
        raise NpformerError(f"token: expected a number below {len(recorded.tokens)}, got {token}")
    blocks = [name for name in BLOCKS if f"{at}.{name}.output" in recorded]
    added = {name: recorded[_added(recorded, f"{at}.{name}")][token].astype(np.float64) for name in blocks}
    return {
        "layer": place(f"{at}.attention"),
        "answer": answer and answer.outcomes[0],
        "own": answer and answer.outcomes[0][0],
        "blocks": [
            {
                "name": BLOCKS[name],
                "stage": _added(recorded, f"{at}.{name}"),
                "reads": _reads(recorded, f"{at}.{name}.weights", token),
                "length": _length(recorded, at, name, token, added, changed),
                "without": None,
            }
            for name in blocks
        ],
    }


def _added(recorded: Trace, block: str) -> str:
    """Returns the name of the stage that a block adds to the row: its output or, if there is one, the output's norm."""
    return f"{block}.output_norm" if f"{block}.output_norm" in recorded else f"{block}.output"


def _reads(recorded: Trace, stage: str, token: int) -> dict[str, Any] | None:
    """Returns the keys with the largest weights, for the mean over heads and for each head; None for an FFN."""
    if stage not in recorded:
        return None
    weights = recorded[stage][:, token].astype(np.float64)  # (H, L)
    return {
        "of": "sources" if "cross_attention" in stage else "tokens",
        "mean": _largest(weights.mean(axis=0)),
        "heads": [_largest(each) for each in weights],
    }


def _largest(weights: np.ndarray) -> list[tuple[int, float]]:
    """Returns (position, weight) of the largest weights, without weights below a tenth of the largest."""
    order = np.argsort(-weights, kind="stable")[:READ].tolist()
    return [(i, float(weights[i])) for i in order if weights[i] >= 0.1 * weights[order[0]]]


def _length(
    recorded: Trace, at: str, block: str, token: int, added: dict[str, np.ndarray], changed: frozenset[str]
) -> float | None:
    """|block(x)| / |x|, where the layer adds block(x) to the row x. None if a change sets the sum itself."""
    sum_of = f"{at}.{block}_residual"
    terms = [block]
    if sum_of not in recorded:  # parallel blocks read the same row, and their outputs are added to it
        sum_of, terms = [name for name in recorded if name.startswith(f"{at}.")][-1], list(added)
    if sum_of in changed:
        return None
    row = recorded[sum_of][token].astype(np.float64) - sum(added[name] for name in terms)
    size = float(np.linalg.norm(row))
    return float(np.linalg.norm(added[block])) / size if size else None


def without_blocks(
    model: Any, inputs: Any, found: dict[str, Any], token: int, changed: Callable[[], AbstractContextManager[None]],
    explained: int, before: float,
) -> dict[str, Any]:  # fmt: skip
    """Adds `without` to each block's entry: the model's answer if the block adds nothing to the token's row.

    `without` is (answer, its probability, the explained outcome's probability, the change in that outcome's log-odds).
    changed: applies the changes of the state. explained, before: the explained outcome's number and its probability.
    """
    nothing = np.zeros(model.config.d_model)
    for block in found["blocks"]:
        with changed(), edit(replace_row(block["stage"], token, nothing)):
            (answers,) = model.run([inputs])
        without, outcome = probabilities_of(model, inputs, answers), outcome_of(model, inputs, answers)
        assert without is not None
        assert outcome is not None
        after = float(without[explained])
        block["without"] = (*outcome.outcomes[0], after, float(log_odds(np.array(after)) - log_odds(np.array(before))))
    return found
