"""A user's program: check_package.py runs it, and checks its types with `mypy --strict`.

`assert_type` does nothing at run time. mypy reports an error if the type is different or unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import numpy as np

import npformer
from npformer import Config, Model, NpformerError, Trace, edit, linear, pipeline, softmax, trace
from npformer.golden import Golden
from npformer.tasks.task import Task
from npformer.tasks.text_classification import TextClassification
from npformer.tasks.token_classification import TokenClassification
from npformer.view.head_view import HeadView

TEXT = "I love ice cream"


def largest(probabilities: np.ndarray) -> float:
    return float(probabilities.max())


model = npformer.load("distilbert-sst2")
assert_type(model, Model)
assert_type(model.config, Config)
assert_type(model.config.labels, tuple[str, ...])

stages = trace(model, TEXT)
assert_type(stages, Trace)
assert_type(npformer.golden.record(model, [TEXT]), Golden)
assert_type(npformer.view.heads(model, TEXT), HeadView)

weights = model.weights["layers"][0]["attention"]["query"]
query = linear(stages["embeddings.norm"], **weights)
assert_type(query, np.ndarray)
print(query.shape, largest(softmax(query)))

with edit({"layers.0.attention.weights": lambda weights: weights * 0}):
    model.run([npformer.Text(np.array([101, 102]))])

classify = pipeline("text-classification")
assert_type(classify, TextClassification)
print(classify(TEXT))

if TYPE_CHECKING:  # mypy knows the task's type and refuses unknown options; an unused `ignore` is an error
    assert_type(pipeline("text-classification", top_k=3, device="cpu"), TextClassification)
    assert_type(pipeline("ner", "./folder", aggregation_strategy="simple", offline=True), TokenClassification)
    assert_type(pipeline(model="./folder", num_beams=2, top_k=None, function_to_apply=None, to="fra"), Task)
    pipeline("text-classification", topk=3)  # type: ignore[call-overload]
    pipeline(model="./folder", topk=3)  # type: ignore[call-overload]

try:
    npformer.load("./no-such-folder")
except NpformerError as error:
    print(error)
