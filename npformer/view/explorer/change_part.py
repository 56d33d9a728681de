"""The tab `Change`: words, heads, blocks and rows that users can change with a click. Script: `assets/change.js`."""

from __future__ import annotations

import re
from typing import Any

from npformer.common.errors import NpformerError
from npformer.interpret.answer import CONTEXT
from npformer.interpret.metric import MASKS
from npformer.interpret.patching import contexts
from npformer.interpret.text_parts import has_source_rows
from npformer.interpret.traces import Trace
from npformer.text.words import piece_names
from npformer.view.explorer.changes import place

LAYER = re.compile(r"((?:\w+\.)*layers\.\d+)\.")
NOTES = [
    "Removing a head sets its output to 0; removing an attention block or an FFN sets the vector that it adds to 0.",
    "A row of text B replaces the row of text A at the same position, in the output of a layer.",
    "The direction is the mean row of text B minus the mean row of text A, in the unchanged model.",
]


def change_view(model: Any, recorded: Trace, others: Trace | str | None, text: str) -> dict[str, Any]:
    """Returns the data of the tab. others: the trace of text B, or the reason why there is none."""
    outputs = layer_outputs(recorded)
    return {
        "kind": "change", "heading": "Change the model", "subtitle": text, "title": f"Change the model: {text}",
        "arrays": {}, "notes": NOTES,
        "rows": [row(stage.removesuffix(CONTEXT), count, recorded) for stage, (_, count) in contexts(model).items()],
        "layers": [{"stage": stage, "title": place(LAYER.match(stage)[1] + ".attention")} for stage in outputs],  # type: ignore[index]
        "tokens": piece_names(recorded.tokens),
        "others": piece_names(others.tokens) if isinstance(others, Trace) else None,
        "problem": others if isinstance(others, str) else "",
        "masks": _masks(model),
    }  # fmt: skip


def row(attention: str, heads: int, recorded: Trace) -> dict[str, Any]:
    """Returns a row of the grid: an attention block, its heads, and the layer's FFN if no other attention follows."""
    layer, _, block = attention.rpartition(".")
    last = "cross_attention" if f"{layer}.cross_attention{CONTEXT}" in recorded else "attention"
    ffn = f"{layer}.ffn.output"
    return {
        "title": place(attention),
        "attention": attention,
        "heads": heads,
        "whole": f"{attention}.output" if f"{attention}.output" in recorded else None,
        "ffn": ffn if block == last and ffn in recorded else None,
    }


def layer_outputs(recorded: Trace) -> list[str]:
    """Returns, for each layer, the name of its last stage with a row for each token of the text."""
    last: dict[str, str] = {}
    for name in recorded:
        layer = LAYER.match(name)
        if layer and not has_source_rows(name) and recorded[name].shape[:-1] == (len(recorded.tokens),):
            last[layer[1]] = name
    return list(last.values())


def _masks(model: Any) -> bool:
    try:
        return any(model.tokenizer.token_to_id(name) is not None for name in MASKS)
    except (NpformerError, AttributeError):  # no tokenizer; or a translator's, which has no token_to_id
        return False
