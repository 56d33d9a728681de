"""`lazy_names`: imports a file of a package when one of the file's public names is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, files: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package. files: the public names of each file, separated by spaces.

    Loading a model thus imports only the mechanisms and blocks of that model. PEP 562.
    """
    file_of = {name: file for file, names in files.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in file_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{file_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *file_of})

    return __getattr__, __dir__
