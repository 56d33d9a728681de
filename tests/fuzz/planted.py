"""Forbidden actions, planted by tests that check that the fuzzer finds each of them."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from npformer.common.errors import NpformerError
from tests.fuzz.draw import Draw, Plain
from tests.fuzz.kinds import Kind, Seed
from tests.fuzz.uses import USES


def _raise() -> None:
    raise KeyError("a")


def _panic() -> None:
    raise type("PanicException", (BaseException,), {})("a panic of Rust")


def _warn() -> None:
    np.float32(1e38) * np.float32(10)


def _deprecated() -> None:
    warnings.warn("old", DeprecationWarning, stacklevel=1)


class Long(NpformerError):
    """An error whose message is too long, because it is not truncated."""

    def __str__(self) -> str:
        return "a" * 2001


def _long() -> None:
    raise Long("a")


def _hang() -> None:
    time.sleep(1000)


def _slow() -> None:
    until = time.process_time() + 1
    while time.process_time() < until:
        pass


def _die() -> None:
    os.abort()


def _grow() -> None:
    np.ones(20_000_000)


def _too_much() -> None:
    np.ones(200_000_000)


def _outside() -> None:
    Path("../outside/new").write_text("a", encoding="utf-8")


def _execute() -> None:
    os.system("true")


def _canary() -> None:
    Path("canary").touch()


PLANTED: dict[str, Callable[[], None]] = {
    each.__name__[1:]: each
    for each in (
        _raise,
        _panic,
        _warn,
        _deprecated,
        _long,
        _hang,
        _slow,
        _die,
        _grow,
        _too_much,
        _outside,
        _execute,
        _canary,
    )
}


def _use(name: str) -> Callable[..., None]:
    def use(folder: Path, draw: Draw, texts: object) -> None:
        if not isinstance(draw, Plain):  # no fault is planted in the valid corpus
            PLANTED[name]()

    return use


KINDS = {
    f"planted-{name}": Kind(
        f"planted-{name}", lambda name=name: [Seed({"a": b"valid"}, {"a": lambda *_: b"bad"}, f"planted-{name}")]
    )
    for name in PLANTED
}
USES.update({f"planted-{name}": _use(name) for name in PLANTED})
