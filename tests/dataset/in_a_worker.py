"""What tests have Dask's workers do to themselves; they import it by this module's name."""

from __future__ import annotations

import time

from npformer.dataset import work
from npformer.tasks.text_classification import TextClassification


def slow(seconds: float) -> None:
    """Makes every text of this worker take longer."""
    real = TextClassification.answer

    def answer(self, requests, options):
        time.sleep(seconds)
        return real(self, requests, options)

    TextClassification.answer = answer


def pretend(name: str, value: str) -> None:
    """Makes this worker say another `npformer` or other `bits` than it has."""
    real = work.machine
    work.machine = lambda: {**real(), name: value}
    if name == "bits":
        work.probe = lambda: value
