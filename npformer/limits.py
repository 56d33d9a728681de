"""The most that a file or a text may ask for before memory or time is spent on it."""

from __future__ import annotations

from dataclasses import dataclass

from npformer.errors import NpformerError


@dataclass(frozen=True)
class Limits:
    """The most that files and texts may ask for; what asks for more is refused, with the name of the limit.

    Parameters
    ----------
    json : int, bytes of a JSON file of a folder: config.json, tokenizer.json, the index of shards
    """

    json: int = 64_000_000

    def check(self, name: str, found: int, where: object) -> None:
        """Raises NpformerError if `found` is more than the limit of this name."""
        most = getattr(self, name)
        if found > most:
            raise NpformerError(
                f"{where}: {found:,} is more than the limit `{name}` of {most:,}; if you trust the source, "
                f"allow it: load(..., limits=Limits({name}={found}))"
            )


LIMITS = Limits()  # what holds unless the user gives others
