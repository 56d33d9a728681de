"""`pipeline`: a task by its name, ready to be called with texts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npformer.errors import NpformerError
from npformer.model import Model
from npformer.tasks.inputs import unknown

if TYPE_CHECKING:  # a task's own modules wait until one is asked for: `import npformer` is quick
    from npformer.tasks.task import Task

#: Task -> its module in this folder, and its class there.
TASKS = {
    "text-classification": ("text_classification", "TextClassification"),
    "zero-shot-classification": ("zero_shot_classification", "ZeroShotClassification"),
    "token-classification": ("token_classification", "TokenClassification"),
    "question-answering": ("question_answering", "QuestionAnswering"),
    "fill-mask": ("fill_mask", "FillMask"),
    "feature-extraction": ("feature_extraction", "FeatureExtraction"),
    "sentence-embedding": ("sentence_embedding", "SentenceEmbedding"),
    "translation": ("translation", "Translation"),
}
ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}
DEFAULTS = {"text-classification": "distilbert-sst2"}  # bundled models

#: What to look for where a task has no default model.
WANTED = {
    "zero-shot-classification": "a classifier trained on natural-language inference",
    "token-classification": "a model with a token-classification head, for named entities say",
    "question-answering": "a model with a question-answering head, trained on SQuAD say",
    "fill-mask": "a masked-language model",
    "feature-extraction": "any encoder",
    "sentence-embedding": "an encoder, best a sentence-transformers one",
    "translation": "a Marian translation model, Helsinki-NLP/opus-mt-en-de say",
}


def pipeline(
    task: str,
    model: str | Path | Model | None = None,
    threads: int | None = None,
    *,
    revision: str | None = None,
    offline: bool = False,
    dtype: Any = np.float32,
    **options: Any,
) -> Task:
    """What answers texts for a task: `pipeline("text-classification")("I love ice cream")`.

    task: one of TASKS, or the aliases "sentiment-analysis" and "ner". model: a bundled model's name, a folder, a hub id
    or a Model; text-classification has a default. threads: cores to use. revision, offline, dtype: as in `load`.
    options: the task's own, as a default for every call; see each task's class.
    Raises NpformerError for an unknown task or option, and for a model that does not fit the task.
    """
    name = ALIASES.get(task, task)
    if name not in TASKS:
        raise unknown("task", task, [*TASKS, *ALIASES])
    module, class_name = TASKS[name]
    kind: type[Task] = getattr(import_module(f"npformer.tasks.{module}"), class_name)
    if isinstance(model, Model):
        made = model if threads is None else _with_threads(model, threads)
    else:
        made = _loaded(name, model, threads, revision, offline, dtype)
    return kind(made, **options)


def _loaded(
    task: str, name: str | Path | None, threads: int | None, revision: str | None, offline: bool, dtype: Any
) -> Model:
    from npformer.loading import find_folder, load

    if name is None:
        name = DEFAULTS.get(task)
    if name is None:
        raise NpformerError(
            f"{task}: no model comes with npformer; give model=, the folder or Hugging Face id of {WANTED[task]}"
        )
    if task == "sentence-embedding":
        from npformer.tasks.sentence_embedding import encoder_folder

        name, revision = encoder_folder(find_folder(name, revision, offline)), None
    return load(name, revision=revision, offline=offline, dtype=dtype, threads=threads)


def _with_threads(model: Model, threads: int) -> Model:
    made = type(model)(model.config, model.weights, model.folder, threads)
    if "tokenizer" in vars(model):
        made.tokenizer = model.tokenizer
    return made
