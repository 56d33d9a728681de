"""The most that a request may ask for, and how much may wait."""

from __future__ import annotations

from dataclasses import dataclass, fields
from http import HTTPStatus

from npformer.common.checks import number, whole
from npformer.common.errors import NpformerError
from npformer.serve.fields import Refusal


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of a service.

    Parameters
    ----------
    body : int, bytes of a request
    texts : int, texts of a request
    tokens : int, tokens of a request's texts together
    seconds : float, from the end of a request's body to its answer; a stream may take as long for each token
    queue : int, texts that wait and requests that are open at the same time; what comes then gets 429
    batch_tokens : int, tokens that are computed together
    wait_ms : float, milliseconds that a text waits for company while nothing else is computed
    grace : float, seconds that a service takes at most to answer what it has accepted when it is stopped
    """

    body: int = 4_000_000
    texts: int = 256
    tokens: int = 65_536
    seconds: float = 60.0
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
        if self.texts > self.queue:
            raise NpformerError(f"texts: a request of {self.texts} never fits into a queue of {self.queue}")

    def check_texts(self, where: str, count: int) -> None:
        if count > self.texts:
            raise _too_large(f"{where}: {count} texts, and a request may have {self.texts}")

    def check_tokens(self, where: str, count: int) -> None:
        if count > self.tokens:
            raise _too_large(f"{where}: {count} tokens in all, and a request may have {self.tokens}")

    def check_body(self, count: int) -> None:
        if count > self.body:
            raise _too_large(f"body: more than {self.body} bytes, which a request may have")


def _too_large(message: str) -> Refusal:
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
