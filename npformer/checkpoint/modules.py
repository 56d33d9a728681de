"""The files of a sentence-transformers folder: modules.json, and the folders of the modules that it lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from npformer.checkpoint.read import CONFIG
from npformer.checks import shown
from npformer.errors import NpformerError
from npformer.files import read_text

MODULES = "modules.json"


class Module(NamedTuple):
    """A module: the last part of its type, "Pooling" say, and its folder's name, "" for the model's own folder."""

    kind: str
    path: str


def read_modules(folder: Path) -> list[Module]:
    """Reads the modules of a folder, in the order in which they compute; none where there is no modules.json.

    Raises NpformerError for a file that lists no modules, and for a module that is not in a folder beside it.
    """
    path = folder / MODULES
    if not path.exists():
        return []
    text = read_text(path)
    try:
        found = [Module(str(each["type"]).rsplit(".", 1)[-1], str(each["path"])) for each in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NpformerError(f"{path}: expected a list of modules, each with a type and a path") from None
    if not all(re.fullmatch(r"[\w-]{0,100}", each.path) for each in found):
        paths = ", ".join(shown(each.path) for each in found[:9])
        raise NpformerError(f"{path}: expected the modules in folders beside it, got {paths}")
    linked = next((each.path for each in found if each.path and (folder / each.path).is_symlink()), None)
    if linked is not None:
        raise NpformerError(f"{folder / linked}: a link, which is not followed; put the folder itself there")
    return found


def module_files(folder: Path) -> list[str]:
    """The files that the modules after the encoder may have, by their names within the folder."""
    return [f"{each.path}/{CONFIG}" for each in read_modules(folder)[1:] if each.path]
