"""A task that npformer lacks, declared as CONTRIBUTING.md describes: the entropy of a classifier's labels for a text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from npformer.cli.main import COMMANDS
from npformer.cli.task_commands import TASK_COMMANDS, TaskCommand
from npformer.common.checks import one_of
from npformer.engine.output_heads.formulas import probabilities
from npformer.tasks.catalogue import TASKS
from npformer.tasks.declaration import Command, Declaration, Form, option
from npformer.tasks.options import Options
from npformer.tasks.task import Request, Task, logits_of_texts

NAME, PLACE = "label-entropy", "label_entropy"


@dataclass(frozen=True)
class EntropyOptions(Options):
    """Options of `LabelEntropy`."""

    unit: str = "nats"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("unit", self.unit, ("nats", "bits"))


class LabelEntropy(Task):
    """Returns a dict with "label" and "entropy", -sum(p log p) over the labels, for each text or pair."""

    name = NAME
    options_type = EntropyOptions
    form = Form({"label": str, "entropy": np.floating}, line="{entropy:.4f}  {label}", layout="beside")

    def answer(self, requests: list[Request], options: EntropyOptions) -> list[Any]:
        p = probabilities(logits_of_texts(requests))
        entropies = -(p * np.log(p)).sum(axis=-1) / (np.log(2) if options.unit == "bits" else 1)
        labels = [self.model.config.labels[i] for i in p.argmax(axis=-1)]
        return [{"label": label, "entropy": float(each)} for label, each in zip(labels, entropies, strict=True)]


DECLARATION = Declaration(
    f"{PLACE}.LabelEntropy",
    "sequence-classification",
    "a classifier",
    aliases=("entropy",),
    route="/entropy",
    command=Command(
        "entropy",
        "how unsure a classifier is of each text",
        "Show how unsure a classifier is of each text.",
        """example:
  npformer entropy --unit bits "I love ice cream\"""",
        (option("--unit", "the unit of entropies (%(default)s)", "unit", choices=("nats", "bits"), default="nats"),),
        reads="pair",
    ),
)


def declare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds the task to the catalogue, and to the tables that are made from the catalogue at import."""
    assert DECLARATION.command
    monkeypatch.setitem(sys.modules, f"npformer.tasks.{PLACE}", sys.modules[__name__])
    monkeypatch.setitem(TASKS, NAME, DECLARATION)
    monkeypatch.setitem(TASK_COMMANDS, "entropy", TaskCommand(NAME, DECLARATION.command))
    monkeypatch.setitem(COMMANDS, "entropy", DECLARATION.command.summary)
