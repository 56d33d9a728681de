"""A page with views of the learner's model and of npformer's model."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npformer.checkpoint.archive import load_arrays
from npformer.common.errors import NpformerError
from npformer.engine.functions import softmax
from npformer.engine.taps import tap
from npformer.interpret.study_inputs import read_inputs
from npformer.interpret.traces import Trace, trace
from npformer.learn.checking import check, learners_file
from npformer.learn.judge import UNWRITTEN
from npformer.learn.running import run_worker
from npformer.learn.whole import CLASSIFIER, TEXT
from npformer.loading import load

if TYPE_CHECKING:
    from npformer.view.document import View
    from npformer.view.page_view import PageView


def look(folder: str | os.PathLike[str] = ".", text: str = TEXT) -> PageView:
    """Draws the learner's classifier and npformer's classifier, with the same weights, as two texts on one page.

    Functions that are not yet written are replaced by npformer's functions. Wrong functions run unchanged.

    Parameters
    ----------
    folder : folder of the learner's file
    text : str, the text that both models read

    Returns
    -------
    PageView
        The method `save` writes the page to a file.

    Raises
    ------
    NpformerError
        There is no such file, or its model cannot be run.

    Examples
    --------
    >>> folder = npformer.learn.start("my_model")
    >>> [views[0].kind for views in npformer.learn.look(folder).texts]
    Traceback (most recent call last):
    npformer.common.errors.NpformerError: learn look: no function of your model is written yet
    """
    from npformer.view.page_view import PageView  # imported here, because it loads all views

    verdicts = check(folder, chapter=4).verdicts
    if all(each.state == UNWRITTEN for each in verdicts):
        raise NpformerError("learn look: no function of your model is written yet")
    unwritten = [each.name for each in verdicts if each.state == UNWRITTEN or each.kind in ("missing", "syntax")]
    model = load(CLASSIFIER)
    right = trace(model, text)
    stages = learners_stages(learners_file(folder), unwritten, text)
    stages = {name: array for name, array in stages.items() if array.shape == right[name].shape}
    if "layers.0.attention.weights" not in stages:
        why = "masked_softmax must call softmax once for all heads"
        raise NpformerError(f"learn look: your attention weights cannot be shown: {why}")
    yours = Trace("*", model.config)
    read = read_inputs(model, text)
    yours.describe(read.tokens, read.token_type_ids)
    with yours:
        tap("ids", read.texts[0].ids)
        tap("lengths", np.array([len(read.texts[0])]))
        for name in right:
            if name in stages:
                array = stages[name]
                tap(name, array if array.ndim == 2 else array[None])  # adds an axis for texts to the logits
        tap("probabilities", softmax(stages["logits"])[None])
    return PageView((_views(yours, f"yours: {text}"), _views(right, f"npformer: {text}")), (None, None))


def learners_stages(file: Path, unwritten: list[str], text: str) -> dict[str, np.ndarray]:
    """Returns the stages of the learner's model for a text, computed in a separate process."""
    with tempfile.TemporaryDirectory(prefix="npformer-") as work:
        path = Path(work) / "stages.safetensors"
        known = dict.fromkeys(unwritten, UNWRITTEN)
        ended = run_worker(file, known=known, chapters=[], limit=20.0, stages=str(path), text=text)
        if not path.exists():
            problem = next((told["problem"] for told in ended.told if told.get("problem")), "")
            said = [problem] if problem else ended.printed.splitlines()[-1:] or ["it did not end"]
            advice = "`npformer learn check` shows which functions are wrong"
            raise NpformerError(f"learn look: your model cannot be run: {said[0]}; {advice}")
        return load_arrays(path)[0]


def _views(of_trace: Trace, title: str) -> tuple[View, ...]:
    """Returns the views of a trace, with `title` as the name of its text."""
    from npformer.view.page_view import page
    from npformer.view.stage_view import StageView

    [views] = page(of_trace).texts
    return tuple(replace(each, texts=(title,)) if isinstance(each, StageView) else each for each in views)
