"""`pipeline` makes a task, which is called with texts, from its name. `typed_pipeline.pyi` has the types."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npformer.checkpoint.read import CONFIG, config_of, read_description
from npformer.checkpoint.tree import parameter_dtype
from npformer.common.checks import shown, unknown
from npformer.common.errors import NpformerError
from npformer.common.limits import LIMITS, Limits
from npformer.config import Config
from npformer.families import family_of, names_head
from npformer.model import Model, Seq2Seq
from npformer.tasks.catalogue import ALIASES, TASK_OF, TASKS
from npformer.tasks.ignored_keywords import loading
from npformer.tasks.task_settings import TRANSLATION, languages_of, pairs_of

if TYPE_CHECKING:  # tasks are imported when they are first used, so that `import npformer` stays fast
    from npformer.tasks.task import Task

TEXT_TO_TEXT = ("summarization", "text2text-generation")  # tasks of encoder-decoders, except translation


def pipeline(
    task: str | None = None,
    model: str | Path | Model | Seq2Seq | None = None,
    threads: int | None = None,
    *,
    revision: str | None = None,
    offline: bool = False,
    dtype: Any = None,
    limits: Limits = LIMITS,
    mapped: bool = True,
    allow_nonfinite: bool = False,
    keep: str = "float32",
    **options: Any,
) -> Task:
    """Makes a task from its name. Call the task with one text, a list of texts or a generator.

    Parameters
    ----------
    task : str, optional
        A name in TASKS or an alias ("sentiment-analysis", "ner", "rerank", "translation_en_to_de").
        Without a name, the head in the model's config determines the task.
    model : str, Path or Model, optional
        A bundled model, a folder, a Hugging Face id or a loaded model; text-classification has a default model. If
        config.json in a folder names no class or an unknown class in `architectures`, the model is read with the task's
        head.
    threads : int, optional
        Cores to use; by default all.
    dtype : optional, float32 (the default) or float64, as in `load`; a loaded model keeps its dtype
    revision, offline, limits, mapped, allow_nonfinite, keep : as in `load`, unless the model is already loaded
    **options : options of the task, as defaults for every call; see `Options` and the task's class
        Keywords of transformers.pipeline that change nothing here (batch_size, padding, device="cpu", ...) are
        accepted; local_files_only=True means offline=True, and torch_dtype means dtype.

    Returns
    -------
    Task

    Raises
    ------
    NpformerError
        If the task or an option is unknown, the model does not fit the task, or a loaded model has a different dtype.

    Examples
    --------
    >>> classify = npformer.pipeline("text-classification")
    >>> classify("I love ice cream")["label"]
    'POSITIVE'
    >>> [answer["label"] for answer in classify(["I love ice cream", "not my music"])]
    ['POSITIVE', 'NEGATIVE']
    """
    name = None if task is None else _known(task)
    options, given = loading(options, model)
    offline, dtype = given.get("offline", offline), given.get("dtype", dtype)
    if isinstance(model, Model | Seq2Seq):
        if dtype not in (None, "auto") and parameter_dtype(dtype) != model.dtype:
            raise NpformerError(
                f"dtype: expected {model.dtype}, the loaded model's, got {shown(dtype)}; pass dtype= to npformer.load"
            )
        for where, is_given in (("revision", revision is not None), ("keep", keep != "float32")):
            if is_given:
                raise NpformerError(f"{where}: the model is already loaded; pass {where}= to npformer.load")
        kind = class_of(name or _task_of(model.config, _described(model.folder, limits)))
        made: Any = model if threads is None else _with_threads(model, threads)
    else:
        from npformer.loading import find_folder, load

        folder = find_folder(_default(task, name) if model is None else model, revision, offline)
        kind = class_of(name or _inferred(folder, limits))
        if kind.name in ("sentence-embedding", "sparse-embedding"):
            from npformer.checkpoint.modules import encoder_folder

            folder = encoder_folder(folder)
        head = None if names_head(_described(folder, limits)) else TASKS[kind.name].head
        made = load(
            folder, dtype="auto" if dtype is None else dtype, threads=threads, head=head, limits=limits, mapped=mapped,
            allow_nonfinite=allow_nonfinite, keep=keep,
        )  # fmt: skip
    target = TRANSLATION.fullmatch(task or "")
    if target and made.config.head == "translation" and (made.tokenizer.languages or pairs_of(made)):
        options = {"to": target[2], **options}
    return kind(made, **options)


def _known(task: str) -> str:
    """Returns a task's name in TASKS, given the name itself or an alias."""
    if not isinstance(task, str):
        raise NpformerError(f"task: expected a task's name, got {shown(task)}; pass a model as model=")
    name = "translation" if TRANSLATION.fullmatch(task) else ALIASES.get(task, task)
    if name not in TASKS:
        from npformer.loading import bundled

        if "/" in task or task in bundled():
            raise NpformerError(
                f"task: {task!r:.80} is not a task; to load a model of this name, use pipeline(model={task!r:.80})"
            )
        raise unknown("task", task, [*TASKS, *ALIASES, "translation_XX_to_YY"])
    return name


def class_of(name: str) -> type[Task]:
    """Returns the class of a task in `catalogue.TASKS`."""
    module, class_name = TASKS[name].place.split(".")
    kind: type[Task] = getattr(import_module(f"npformer.tasks.{module}"), class_name)
    return kind


def _default(task: str | None, name: str | None) -> str:
    """Returns the default model of a task. Raises NpformerError for a task without one."""
    if task is None or name is None:
        raise NpformerError("pipeline: expected a task or a model, such as pipeline('text-classification')")
    if not TASKS[name].default:
        raise NpformerError(
            f"{task}: no default model; pass model=, the folder or Hugging Face id of {TASKS[name].wanted}"
        )
    return TASKS[name].default


def tasks_of(config: Config, described: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the tasks of a model, beginning with the task of its head. An encoder with any head can make vectors.

    `described` is the content of config.json, which may have settings for summarization.
    """
    own = _task_of(config, described or {}) if config.head in TASK_OF else "feature-extraction"
    if config.head == "translation":
        several = (*TEXT_TO_TEXT, *(["translation"] if languages_of(described or {}) else []))
        return [own, *(each for each in several if each != own and own in TEXT_TO_TEXT)]
    known = [name for name, task in TASKS.items() if task.fits(config)]
    return sorted(known, key=lambda name: 2 if TASKS[name].head == "base" else name != own)


def _task_of(config: Config, described: Mapping[str, Any]) -> str:
    """Returns the task of a model's head, or summarization if config.json has settings for it."""
    if config.head not in TASK_OF:
        raise NpformerError(f"task: no task for a {config.head} model; use npformer.load")
    task = TASK_OF[config.head]
    if task != "translation" or (writes := family_of(config).writes) == task:
        return task
    specific = described.get("task_specific_params")
    known = list(specific) if isinstance(specific, dict) else []
    summarizes = known and all(name.startswith("summarization") for name in known)  # T5 can also translate
    return "summarization" if summarizes else writes


def _described(folder: Path | None, limits: Limits) -> dict[str, Any]:
    """Returns the content of config.json in a folder, or an empty dict if the file is missing."""
    return read_description(folder, limits) if folder and (folder / CONFIG).exists() else {}


def _inferred(folder: Path, limits: Limits) -> str:
    """Infers the task of a folder's model from its class in sentence-transformers or, without one, from its head."""
    from npformer.checkpoint.modules import MODULES, home
    from npformer.tasks.logit_score import is_logit_score
    from npformer.tasks.sentence_folder import is_cross_encoder, is_sparse, was_cross_encoder

    outer = home(folder)
    if is_logit_score(outer):
        return "text-ranking"
    if (outer / MODULES).exists() and not is_cross_encoder(outer):
        return "sparse-embedding" if is_sparse(outer) else "sentence-embedding"
    described = _described(folder, limits)
    if not names_head(described):
        reason = (
            f"from the class {shown(named[0])}"
            if (named := described.get("architectures"))
            else "without architectures"
        )
        raise NpformerError(f"{folder / CONFIG}: cannot infer the task {reason}; pass the task")
    config = config_of(folder, described, limits=limits)
    if (is_cross_encoder(outer) or was_cross_encoder(described)) and "text-ranking" in tasks_of(config):
        return "text-ranking"
    return _task_of(config, described)


def _with_threads(model: Any, threads: int) -> Any:
    made = type(model)(model.config, model.weights, model.folder, threads, model.same_bits, model.limits)
    if "tokenizer" in vars(model):
        made.tokenizer = model.tokenizer
    return made
