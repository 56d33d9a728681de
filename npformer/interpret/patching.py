"""Measures the effect of parts of a forward on a metric: heads left out, and stages taken from another text's run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from npformer.errors import NpformerError
from npformer.interpret.edit import ablate_head, edit, from_trace
from npformer.interpret.effects import Effects
from npformer.interpret.trace import texts_of, trace
from npformer.model import Model


def ablate_heads(model: Model, texts: Any) -> Effects:
    """Measures the effect of each attention head on the label, by leaving out one head at a time.

    Parameters
    ----------
    model : Model that gives a text a label
    texts : str, Pair, token ids, or a list of these

    Returns
    -------
    Effects
        `values` (layers, heads): the change in the label's logit, averaged over the texts. The label of a text is the
        answer of the unchanged model.

    Raises
    ------
    NpformerError
        If the model gives texts no labels.

    References
    ----------
    Michel, Levy and Neubig, 2019, "Are Sixteen Heads Really Better than One?", section 3.2, has the ablation.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> ablate_heads(model, "I love ice cream").values.shape
    (6, 12)
    """
    inputs, _, _ = texts_of(model, texts)
    whole = _logits(model, inputs)
    labels = whole.argmax(axis=-1)
    config = model.config
    values = np.zeros((config.n_layers, config.n_heads))
    for layer, head in np.ndindex(*values.shape):
        with edit(ablate_head(layer, head)):
            change = _logits(model, inputs) - whole
        values[layer, head] = np.take_along_axis(change, labels[:, None], axis=1).mean()
    layers = (f"layer {layer}" for layer in range(config.n_layers))
    return Effects(values, tuple(layers), tuple(f"head {head}" for head in range(config.n_heads)))


def patch(model: Model, clean: Any, corrupted: Any, stages: str | Iterable[str] = "layers.*.ffn_norm") -> Effects:
    """Measures what one stage at one token contributes to the label, by activation patching.

    The corrupted text runs with the stage, at that token, taken from the run on the clean text.

    Parameters
    ----------
    model : Model that gives a text a label
    clean, corrupted : str, Pair or token ids
        Two texts of equally many tokens that differ in the words under study.
    stages : name of a stage, pattern, or several; each has one row for each token

    Returns
    -------
    Effects
        `values` (stages, tokens): the change in the logit of the clean text's label.

    Raises
    ------
    NpformerError
        If the texts have different numbers of tokens, a stage has no row for each token, or the model gives texts no
        labels.

    References
    ----------
    Zhang and Nanda, 2024, "Towards Best Practices of Activation Patching in Language Models", section 2.

    Examples
    --------
    >>> model = npformer.load("distilbert-sst2")
    >>> print(patch(model, "I love ice cream", "I hate ice cream", "layers.[34].ffn_norm"))
                       [CLS]      i   hate    ice  cream  [SEP]
    layers.3.ffn_norm +0.001 +1.289 +3.901 +0.644 +1.075 +1.793
    layers.4.ffn_norm +0.382 +0.728 +1.802 +0.917 +0.617 +0.611
    """
    source = trace(model, clean, stages)
    inputs, tokens, _ = texts_of(model, corrupted)
    if len(inputs) != 1 or len(source.ids) != len(inputs[0]) or source.ids.ndim != 1:
        raise NpformerError("patch: expected two single texts of as many tokens; change words for words of one token")
    label = int(_logits(model, texts_of(model, clean)[0])[0].argmax())
    before = _logits(model, inputs)[0, label]
    values = np.zeros((len(source), len(inputs[0])))
    for (row, name), position in ((pair, i) for pair in enumerate(source) for i in range(len(inputs[0]))):
        with edit(from_trace(source, name, position)):
            values[row, position] = _logits(model, inputs)[0, label] - before
    return Effects(values, tuple(source), tuple(tokens[0]))


def _logits(model: Model, inputs: Any) -> np.ndarray:
    """Runs a model with labels for whole texts: the logits (B, C)."""
    if model.config.head not in ("sequence-classification", "next-sentence"):
        raise NpformerError(
            f"a {model.config.head} model gives a text no label; use edit() and measure what you look for"
        )
    return np.stack([answer["logits"] for answer in model.run(inputs)])
