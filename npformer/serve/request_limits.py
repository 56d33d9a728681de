"""The limits on requests and on the queue."""

from __future__ import annotations

from dataclasses import dataclass, fields

from npformer.common.checks import number, positive, whole
from npformer.common.errors import NpformerError
from npformer.serve.fields import too_large


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of a service.

    Parameters
    ----------
    body : int, maximum bytes in a request, and maximum characters of its texts if one text is read several times
    texts : int, maximum texts in a request
    tokens : int, maximum tokens in all texts of a request
    seconds : float, maximum seconds from the end of a request's body to its answer, and for each token of a stream
    answers : int, maximum bytes of all unread answers; above it, the slowest client is disconnected, or requests get
    503 if no client is slow
    queue : int, maximum waiting texts, and maximum open requests; further requests get 429. A request that needs at
    most an equal share of the queue is accepted even if other requests fill it
    batch_tokens : int, maximum tokens in a batch
    wait_ms : float, milliseconds that a text waits for other texts for its batch while the batcher is idle
    grace : float, maximum seconds to answer accepted requests at shutdown
    """

    body: int = 4_000_000
    texts: int = 256
    tokens: int = 65_536
    seconds: float = 60.0
    answers: int = 2**28
    queue: int = 1024
    batch_tokens: int = 4096
    wait_ms: float = 0.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "int":
                whole(each.name, value, 1)
            else:
                number(each.name, value, 0, 1e6)
        positive("seconds", self.seconds)
        if self.texts > self.queue:
            raise NpformerError(
                f"texts: expected at most {self.queue}, the size of the queue, got {self.texts}; lower --max-texts or "
                "raise --max-queue"
            )

    def check_texts(self, where: str, count: int) -> None:
        if count > self.texts:
            raise too_large(f"{where}: expected at most {self.texts} texts in a request, got {count}")

    def check_characters(self, where: str, count: int) -> None:
        """Checks the number of characters in texts that are read several times, such as the query of a ranking."""
        if count > self.body:
            repeated = "counting a query with each text, and a text with each label"
            raise too_large(f"{where}: expected at most {self.body} characters, {repeated}, got {count}")

    def check_tokens(self, where: str, count: int) -> None:
        if count > self.tokens:
            raise too_large(f"{where}: expected at most {self.tokens} tokens in a request, got {count}")

    def check_body(self, count: int) -> None:
        if count > self.body:
            raise too_large(f"body: expected at most {self.body} bytes, got more")
