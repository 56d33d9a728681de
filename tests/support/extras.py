"""Marks tests that need a package of an extra, and skips them without it. CI's lane `extras` runs `pytest -m extra`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])


def needs(extra: str, *packages: str) -> Callable[[Test], Test]:
    """Returns a decorator for tests that need these packages of an extra."""
    absent = [each for each in packages if find_spec(each) is None]
    skip = pytest.mark.skipif(bool(absent), reason=f"needs the extra `{extra}`: {', '.join(packages)}")
    return lambda test: pytest.mark.extra(skip(test))
