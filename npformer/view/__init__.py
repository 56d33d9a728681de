"""Attention you can look at: views of a model's inside as one offline HTML file, a notebook cell, SVG or plain text.

Each takes a model and a text, a trace, or plain arrays; `source.py` brings these to one form, `page.py` says how the
pages are made, and each `*_view.py` is one view.
"""

from npformer.view.attribution_view import AttributionView, attribution
from npformer.view.head_view import HeadView, heads
from npformer.view.model_view import ModelView, model
from npformer.view.neuron_view import NeuronView, neurons
from npformer.view.page import View
from npformer.view.stage_view import StageView, stages

__all__ = [
    "AttributionView", "HeadView", "ModelView", "NeuronView", "StageView", "View",
    "attribution", "heads", "model", "neurons", "stages",
]  # fmt: skip
