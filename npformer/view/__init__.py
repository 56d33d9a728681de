"""Views of a model's stages and attention: one offline HTML file, a notebook cell, SVG or plain text.

`page` shows all views of a text, and `explore` recomputes the views while the user types. A view takes a model and a
text, a trace, or plain arrays, which `interpret/stacks.py` converts to one form. `document.py` writes the files, each
`*_view.py` has one view, and `explorer/` has the page of `explore`.
"""

from npformer.view.ablation_view import AblationView, ablation
from npformer.view.attribution_view import AttributionView, attribution
from npformer.view.document import View
from npformer.view.explorer.session import Explorer, explore
from npformer.view.head_view import HeadView, heads
from npformer.view.lens_view import LensView, lens
from npformer.view.logit_view import LogitView, logit
from npformer.view.model_view import ModelView, model
from npformer.view.neuron_view import NeuronView, neurons
from npformer.view.page_view import PageView, page
from npformer.view.stage_view import StageView, stages

__all__ = [
    "AblationView", "AttributionView", "Explorer", "HeadView", "LensView", "LogitView", "ModelView", "NeuronView",
    "PageView", "StageView", "View", "ablation", "attribution", "explore", "heads", "lens", "logit", "model", "neurons",
    "page", "stages",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
