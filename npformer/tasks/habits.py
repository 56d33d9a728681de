"""The keywords of transformers.pipeline that change nothing here: one table.

A pipeline looks up every keyword here, when it is made and when it is called. A keyword of the table is accepted and
ignored; a value that would change the answer is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from npformer.checks import shown
from npformer.errors import NpformerError


class Habit(NamedTuple):
    """A keyword that is accepted and ignored."""

    accepts: Callable[[Any], bool]
    reason: str  # why other values are refused


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _among(*known: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str | int | None) and value in known  # an array answers `in` with an array


HABITS = {
    "batch_size": Habit(_is_count, "expected a whole number; texts are batched as suits the model best"),
    "device": Habit(
        lambda value: value in (None, -1) if isinstance(value, int | None) else str(value) in ("-1", "cpu"),
        "everything runs on the CPU: -1 or 'cpu'",
    ),
    "device_map": Habit(_among(None, "auto", "cpu"), "everything runs on the CPU: 'cpu' or 'auto'"),
    "framework": Habit(_among(None, "np"), "everything runs on NumPy: 'np'"),
    "num_workers": Habit(_is_count, "expected a whole number; threads= says how many cores to use"),
    "padding": Habit(_among(None, True, False, "longest", "do_not_pad"), "texts are never padded; leave it out"),
    "return_all_scores": Habit(_among(None, False), "top_k=None gives the scores of all labels"),
    "token": Habit(lambda value: value is None, "the environment's HF_TOKEN is used"),
    "tokenizer": Habit(lambda value: value is None, "the tokenizer comes with the model; leave it out"),
    "torch_dtype": Habit(_among(None, "auto", "float32"), "give dtype= when the pipeline is made"),
    "trust_remote_code": Habit(_among(None, False), "a checkpoint's code is never run"),
    "use_fast": Habit(_among(None, True, False), "leave it out"),
}

#: Which of two texts is cut (`Task.cut`) -> Transformers' name for it.
STRATEGIES = {"longest": "longest_first", "first": "only_first", "second": "only_second"}


def translated(given: Mapping[str, Any], cut: str) -> dict[str, Any]:
    """Translates Transformers' keywords to ours: drops those of `HABITS`, and turns `truncation` into `long`.

    `cut` says which of two texts this task cuts. Raises NpformerError for a value that is not supported.
    """
    for name in given.keys() & HABITS.keys():
        if not HABITS[name].accepts(given[name]):
            raise NpformerError(f"{name}: {shown(given[name])} is not supported; {HABITS[name].reason}")
    kept = {name: value for name, value in given.items() if name not in HABITS}
    truncation = kept.pop("truncation", None)
    if truncation is None:
        return kept
    if "long" in kept:
        raise NpformerError("truncation: long= says the same; give one of the two")
    if not isinstance(truncation, str | bool) or truncation not in (True, False, STRATEGIES[cut], "do_not_truncate"):
        raise NpformerError(f"truncation: expected True, False or {STRATEGIES[cut]!r}, got {shown(truncation)}")
    return {**kept, "long": "error" if truncation in (False, "do_not_truncate") else "truncate"}
