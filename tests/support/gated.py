"""`npformer serve` with a gate before its batches, so a test decides how long each batch takes.

Run as a program, this module is the server. Each batch is recorded in the folder $GATE, and waits until its number
is allowed. Workers import the module, too. $APART replaces the number of seconds within which repeated signals count as
one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.service import Server


class Gated(Server):
    """A running server with a gate, which is open at the start."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="npformer-gate-")
        self.open()
        program = [sys.executable, "-m", "tests.support.gated", "serve", *map(str, arguments), "--port", "0"]
        super().__init__(program=program, GATE=self.folder.name, **environment)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.folder.cleanup()

    def open(self) -> None:
        self.allow(sys.maxsize)

    def allow(self, batches: int) -> None:
        """Allows each process to compute its first batches, up to this number."""
        new = Path(self.folder.name, "new")
        new.write_text(str(batches))
        new.rename(Path(self.folder.name, "allowed"))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Stops new batches at the gate during the block. The server must have a single process and be idle."""
        self.allow(len(self.batches()))
        try:
            yield
        finally:
            self.open()

    def batches(self) -> list[int]:
        """Returns the number of texts in each batch that has reached the gate."""
        path = Path(self.folder.name, "batches")
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def hold_batches(folder: Path) -> None:
    """Makes the batches of this process wait for the gate."""
    from npformer.serve import batching

    numbers, real = count(1), batching.computed

    def held(batch: Sequence[Any]) -> list[Any]:
        number = next(numbers)
        with open(folder / "batches", "a") as file:
            file.write(f"{len(batch)}\n")
        while int((folder / "allowed").read_text()) < number:
            time.sleep(0.005)
        return real(batch)

    batching.computed = held  # type: ignore[assignment]


if __name__ in ("__main__", "__mp_main__"):  # this process is the server or one of its workers
    hold_batches(Path(os.environ["GATE"]))
if __name__ == "__main__":
    from npformer.__main__ import main
    from npformer.serve import supervisor

    supervisor.APART = float(os.environ.get("APART", supervisor.APART))
    sys.exit(main())
