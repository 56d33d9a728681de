"""Views of a model's stages and attention: one offline HTML file, a notebook cell, SVG or plain text.

Each view takes a model and a text, a trace, or plain arrays; `interpret/stacks.py` brings these to one form. `document.py`
makes the pages, and each `*_view.py` is one view.
"""

from npformer.view.attribution_view import AttributionView, attribution
from npformer.view.head_view import HeadView, heads
from npformer.view.model_view import ModelView, model
from npformer.view.neuron_view import NeuronView, neurons
from npformer.view.document import View
from npformer.view.stage_view import StageView, stages

__all__ = [
    "AttributionView", "HeadView", "ModelView", "NeuronView", "StageView", "View",
    "attribution", "heads", "model", "neurons", "stages",
]  # fmt: skip
