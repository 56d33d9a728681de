"""The keywords of transformers.pipeline and sentence-transformers that are accepted and ignored.

A pipeline looks up keywords here when it is made and when it is called. A value that would change the answer is
rejected, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from npformer.common.checks import boolean, shown
from npformer.common.errors import NpformerError


class Habit(NamedTuple):
    """A keyword that is accepted and ignored."""

    accepts: Callable[[Any], bool]
    reason: str  # the error message for other values


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _among(*known: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str | int | None) and value in known  # for an array, `in` alone would raise


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and not value)


ENTRIES = "pass its entries as separate arguments, such as truncation=True"
ARRAYS = "answers are NumPy arrays; torch.from_numpy(array) converts one to a tensor"
STREAMS = "the method stream yields answers, or the pieces of a text, as they are computed"

TRANSFORMERS = {
    "attn_implementation": Habit(lambda value: isinstance(value, str | None), "leave it out"),
    "batch_size": Habit(_is_count, "expected a whole number, which is ignored"),
    "cache_dir": Habit(_among(None), "set HF_HUB_CACHE in the environment"),
    "config": Habit(_among(None), "the config comes with the model; leave it out"),
    "device": Habit(
        lambda value: value in (None, -1) if isinstance(value, int | None) else str(value) in ("-1", "cpu", "cpu:0"),
        "everything runs on the CPU; pass -1 or 'cpu'",
    ),
    "device_map": Habit(_among(None, "auto", "cpu"), "everything runs on the CPU; pass 'cpu' or 'auto'"),
    "feature_extractor": Habit(_among(None), "models read texts only; leave it out"),
    "framework": Habit(_among(None, "np"), "everything runs on NumPy; pass 'np'"),
    "grouped_entities": Habit(_among(None, False), "pass aggregation_strategy='simple'"),
    "image_processor": Habit(_among(None), "models read texts only; leave it out"),
    "low_cpu_mem_usage": Habit(_among(None, True, False), "leave it out"),
    "max_question_len": Habit(_is_count, "expected a whole number, which is ignored; only slow tokenizers read it"),
    "model_kwargs": Habit(_is_empty, ENTRIES),
    "num_workers": Habit(_is_count, "expected a whole number, which is ignored; threads= sets the number of cores"),
    "padding": Habit(
        _among(None, True, False, "longest", "max_length", "do_not_pad"), "texts are never padded; leave it out"
    ),
    "processor": Habit(_among(None), "models read texts only; leave it out"),
    "return_all_scores": Habit(_among(None, False), "top_k=None gives the scores of all labels"),
    "stream": Habit(_among(None, False), STREAMS),
    "streamer": Habit(_among(None), STREAMS),
    "text_pair": Habit(_among(None), "pass npformer.Pair(text, text_pair) as the input"),
    "token": Habit(_among(None, True), "set HF_TOKEN in the environment, or log in with `hf auth login`"),
    "tokenize_kwargs": Habit(_is_empty, ENTRIES),
    "tokenizer": Habit(lambda value: value is None, "the tokenizer comes with the model; leave it out"),
    "tokenizer_kwargs": Habit(_is_empty, ENTRIES),
    "torch_dtype": Habit(_among(None, "auto", "float32"), "pass dtype= when the pipeline is made"),
    "trust_remote_code": Habit(_among(None, False), "a checkpoint's code is never run"),
    "use_auth_token": Habit(_among(None, True), "set HF_TOKEN in the environment, or log in with `hf auth login`"),
    "use_cache": Habit(_among(None, True, False), "leave it out"),
    "use_fast": Habit(_among(None, True, False), "leave it out"),
}
SENTENCE_TRANSFORMERS = {
    "apply_softmax": Habit(_among(None, True, False), "softmax needs several labels; leave the argument out"),
    "backend": Habit(_among(None), "everything runs on NumPy; leave it out"),
    "cache_folder": Habit(_among(None), "set HF_HUB_CACHE in the environment"),
    "chunk_size": Habit(_is_count, "expected a whole number, which is ignored"),
    "convert_to_numpy": Habit(_among(None, True), ARRAYS),
    "convert_to_sparse_tensor": Habit(_among(None, False), ARRAYS),
    "convert_to_tensor": Habit(_among(None, False), ARRAYS),
    "output_value": Habit(
        _among("sentence_embedding"), "pipeline('feature-extraction', model, return_tensors=True) gives token vectors"
    ),
    "pool": Habit(_among(None), "threads= sets the number of cores"),
    "precision": Habit(
        _among(None, "float32"),
        "vectors have the model's dtype; np.packbits(vectors > 0, axis=-1) gives 'ubinary', and the scale of 'int8' "
        "depends on all vectors",
    ),
    "processor_kwargs": Habit(_is_empty, ENTRIES),
    "save_to_cpu": Habit(_among(None, True, False), "leave it out"),
}
#: Keywords of both libraries.
IGNORED = TRANSFORMERS | SENTENCE_TRANSFORMERS

#: `Task.cut`, the text of a pair to truncate -> Transformers' name for this truncation.
STRATEGIES = {"longest": "longest_first", "first": "only_first", "second": "only_second"}


def translated(given: Mapping[str, Any], cut: str) -> dict[str, Any]:
    """Translates keywords of other libraries: drops `IGNORED`, renames `truncation` and `show_progress_bar`.

    `cut` is the text of a pair that the task truncates. Raises NpformerError for an unsupported value.
    """
    for name in given.keys() & IGNORED.keys():
        if not IGNORED[name].accepts(given[name]):
            raise NpformerError(f"{name}: {shown(given[name])} is not supported; {IGNORED[name].reason}")
    kept = {name: value for name, value in given.items() if name not in IGNORED}
    if "show_progress_bar" in kept:
        bar = kept.pop("show_progress_bar")
        kept["progress"] = boolean("show_progress_bar", False if bar is None else bar)
    truncation = kept.pop("truncation", None)
    if truncation is None:
        return kept
    if "long" in kept:
        raise NpformerError("truncation: conflicts with long=; pass only one of the two")
    if not isinstance(truncation, str | bool) or truncation not in (True, False, STRATEGIES[cut], "do_not_truncate"):
        raise NpformerError(f"truncation: expected True, False or {STRATEGIES[cut]!r}, got {shown(truncation)}")
    return {**kept, "long": "error" if truncation in (False, "do_not_truncate") else "truncate"}


def loading(given: Mapping[str, Any], model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits a pipeline's keywords into the task's options and arguments of `load`, under npformer's names.

    `tokenizer` and `config` may be the model's name, or the tokenizer and config of the loaded model.
    """
    options = {name: value for name, value in given.items() if not _is_of(model, name, value)}
    found = {}
    if isinstance(more := options.get("model_kwargs"), Mapping):  # the dtype is often passed in model_kwargs
        dtypes = {name: more[name] for name in ("dtype", "torch_dtype") if name in more}
        options = {**options, "model_kwargs": {k: v for k, v in more.items() if k not in dtypes}}
        found["dtype"] = next(iter(dtypes.values()), None)
    if (only := options.pop("local_files_only", None)) is not None:
        found["offline"] = boolean("local_files_only", only)
    if (dtype := options.pop("torch_dtype", None)) is not None:
        found["dtype"] = dtype
    return options, {name: value for name, value in found.items() if value is not None}


def _is_of(model: Any, name: str, value: Any) -> bool:
    if name not in ("tokenizer", "config") or value is None:
        return False
    if isinstance(model, str | Path):
        return isinstance(value, str | Path) and Path(value) == Path(model)
    return getattr(model, name, None) is value
