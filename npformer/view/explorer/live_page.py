"""The explorer's page: the frame and views of `npformer.view.page`, with scripts that request data from the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from npformer.view.ablation_view import AblationView
from npformer.view.attribution_view import AttributionView
from npformer.view.document import page_of_views
from npformer.view.explorer.parts import SLOW
from npformer.view.head_view import HeadView
from npformer.view.lens_view import LensView
from npformer.view.logit_view import LogitView
from npformer.view.model_view import ModelView
from npformer.view.neuron_view import NeuronView
from npformer.view.stage_view import StageView


class LiveView(NamedTuple):
    """A view that only the explorer has: its kind and scripts, as in `View`."""

    kind: str
    scripts: tuple[str, ...]


VIEWS: tuple[Any, ...] = (
    HeadView, ModelView, NeuronView, StageView, AttributionView, LogitView, LensView, AblationView,
    LiveView("change", ("change_words", "change_rows", "change")),
    LiveView("step", ("step_array", "step_place", "step_layer", "step_edit", "step")),
    LiveView("write", ("write_beams", "write")),
    LiveView("compare", ("compare",)),
)  # fmt: skip
STYLES = ("explore.css",)
SCRIPTS = ("explore.js", "explore_changes.js", "explore_text.js")


def live_page(models: Sequence[str], texts: Sequence[Sequence[str]], writes: bool, pairs: bool) -> str:
    """Makes the page, which starts with `texts` unless the URL encodes a saved state.

    writes: whether a model writes text. pairs: whether every model reads two texts together.
    """
    shown = [view for view in VIEWS if writes or view.kind != "write"]
    views = [
        {"kind": view.kind, "heading": "", "title": "npformer", "subtitle": "", "notes": [], "arrays": None}
        for view in shown
    ]
    meta = {
        "texts": [views],
        "answers": [None],
        "live": {"models": models, "pairs": pairs, "slow": SLOW, "state": {"texts": texts, "edits": [], "options": {}}},
    }
    return page_of_views(
        "npformer explore", meta, shown, more_styles=STYLES, more_scripts=SCRIPTS, policy="; connect-src 'self'"
    )
