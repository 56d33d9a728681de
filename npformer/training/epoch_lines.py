"""Shows the progress of training: a line that is updated on a terminal, and a line for each finished epoch."""

from __future__ import annotations

import time
from collections import deque
from typing import TextIO

from npformer.common.progress import Line, clock, hidden, width
from npformer.training.run_folder import TrainingState

BAR = 10  # characters


class Progress:
    """Shows loss and accuracy of the current epoch, tokens per second over the last 100 steps, and the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._line = Line(stream)
        self._steps: deque[tuple[int, float]] = deque(maxlen=100)  # tokens, seconds
        self._shown = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts a finished step."""
        self._steps.append((tokens, seconds))

    def show(self, epoch: int, epochs: int, state: TrainingState, per_epoch: int, total: int) -> None:
        """Updates the progress line at most ten times a second, if the stream is a terminal."""
        if not self._line.stream.isatty() or (time.monotonic() - self._shown < 0.1 and state.step % per_epoch):
            return
        self._shown = time.monotonic()
        done = (state.step - 1) % per_epoch + 1
        tokens, seconds = (sum(each) for each in zip(*self._steps, strict=True))
        left = (total - state.step) * seconds / len(self._steps)
        bar = "#" * (BAR * done // per_epoch)
        parts = [
            f"epoch {epoch}/{epochs} [{bar:<{BAR}}] {done}/{per_epoch}",
            f"{clock(left)} left",
            f"loss {state.loss / done:.4f}",
            f"accuracy {state.right / state.count:.4f}",
            f"{tokens / seconds:,.0f} tokens/s",
        ]
        while len("  ".join(parts)) > width():
            parts.pop()
        self._line.show("  ".join(parts))

    def epoch(self, row: dict[str, float]) -> None:
        """Writes a line for a finished epoch."""
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in row.items() if name not in ("epoch", "seconds"))
        with hidden():
            self._line.stream.write(f"epoch {row['epoch']:.0f}  {numbers}  {clock(row['seconds'])}\n")
            self._line.stream.flush()
