"""The command to install npformer, and the error for missing packages of an extra."""

from __future__ import annotations

from npformer.common.errors import NpformerError

REPOSITORY = "https://github.com/npformer/npformer"  # npformer is not on PyPI


def installation(extra: str) -> str:
    """Returns the command that installs npformer with an extra."""
    return f'pip install "npformer[{extra}] @ git+{REPOSITORY}"'


def lacks(what: str, packages: str, extra: str, otherwise: str = "") -> NpformerError:
    """The error for `what`, which needs packages of an extra that is not installed. otherwise: a clause to append."""
    return NpformerError(f"{what} needs {packages}: {installation(extra)}{otherwise}")
