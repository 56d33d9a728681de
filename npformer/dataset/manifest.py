"""The manifest of a run: what makes its output what it is, and which parts are done, a line of JSON each.

Lines are only added, so that a run of many parts does not write the whole manifest for each. A line that a broken run
left unfinished is dropped. At the end it is written anew in the order of the parts: whichever way a run went, the
manifest of the same output has the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npformer.common.checks import shown
from npformer.common.errors import NpformerError
from npformer.common.files import written_whole
from npformer.dataset.formats import explained

FORMAT = "npformer-dataset-1"
LOOSE = ("machine",)  # what may change from run to run, and does not refuse it

#: The fields of a manifest's lines that are read, and their types.
HEADER = {"format": str, "input": list, "machine": dict}
MACHINE = {"bits": str, "kernels": str}
PART = {"part": str, "rows": int, "errors": int, "truncated": int, "sha256": str}
OUTPUT = {"output": str}


class Manifest:
    """A run's header, its finished parts and the checksum of its output file."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """Begins the manifest, or goes on with that of an earlier run of the same header.

        Raises NpformerError, which says what has changed, if the header is another.
        """
        self.path = path
        self.header: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **header}))
        self.parts: dict[str, dict[str, Any]] = {}
        self.outputs: list[str] = []  # sha256 of the files that the parts were put together to, the last one last
        if path.exists():
            self._go_on()
        else:
            self._write_whole()

    def add(self, part: str, **facts: Any) -> None:
        """Notes that a part is done."""
        self.parts[part] = {"part": part, **facts}
        self._append(self.parts[part])

    def set_output(self, sha256: str) -> None:
        """Notes the checksum of the output file, before the file gets its name."""
        if sha256 not in self.outputs:
            self._append({"output": sha256})
            self.outputs.append(sha256)

    def finish(self) -> None:
        """Writes the manifest anew, with the parts in order."""
        self.parts, self.outputs = dict(sorted(self.parts.items())), self.outputs[-1:]
        self._write_whole()

    def _lines(self) -> Iterator[dict[str, Any]]:
        yield self.header
        yield from self.parts.values()
        yield from ({"output": each} for each in self.outputs)

    def _append(self, line: dict[str, Any]) -> None:
        with explained(self.path), open(self.path, "ab") as file:
            file.write(_encoded(line))
            file.flush()
            os.fsync(file.fileno())

    def _write_whole(self) -> None:
        whole = b"".join(map(_encoded, self._lines()))
        if self.path.exists() and self.path.read_bytes() == whole:
            return
        with written_whole(self.path) as partial:
            partial.write_bytes(whole)

    def _go_on(self) -> None:
        with explained(self.path):
            data = self.path.read_bytes()
        lines = data.split(b"\n")[:-1]  # what follows the last line end was not finished
        try:
            header, *others = [json.loads(line) for line in lines]
            _check(header, HEADER)
            _check(header["machine"], MACHINE)
            if header["format"] != FORMAT or not all(isinstance(each["name"], str) for each in header["input"]):
                raise ValueError
            for line in others:
                if "part" in line:
                    _check(line, PART)
                    self.parts[line["part"]] = line
                else:
                    _check(line, OUTPUT)
                    self.outputs.append(line["output"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NpformerError(
                f"{self.path}: damaged, or not a manifest of {FORMAT}; remove it and the output, or give another output"
            ) from None
        changed = list(_differences(_fixed(header), _fixed(self.header)))
        if changed:
            raise NpformerError(
                f"{self.path}: belongs to a run with other settings: {'; '.join(changed[:5])}"
                f"{' ...' if len(changed) > 5 else ''}. Go on with the same, or give another output"
            )
        self.header = {**self.header, **{name: header[name] for name in LOOSE}}
        if sum(map(len, lines)) + len(lines) < len(data) or header != self.header:
            self._write_whole()


def _check(line: Any, kinds: Mapping[str, type]) -> None:
    """Raises KeyError or TypeError if a line of a manifest lacks a field, or has one of another type."""
    for name, kind in kinds.items():
        if type(line[name]) is not kind:
            raise TypeError


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _fixed(header: dict[str, Any]) -> dict[str, Any]:
    """What may not change: a file that could not be read is not held to anything, so that it can be mended."""
    files = {each["name"]: each for each in header["input"]}
    return {name: value for name, value in header.items() if name not in LOOSE} | {"input": files}


def _differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Says in words where two nested values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        if where.startswith("input ") and ("error" in old or "error" in new):
            if "error" not in old:
                yield f"{where} cannot be read any more"
            return
        for name in [*old, *(each for each in new if each not in old)]:
            here = f"{where} {name}".strip()
            if name not in new or name not in old:
                yield f"{here} is {'gone' if name in old else 'new'}"
            else:
                yield from _differences(old[name], new[name], here)
    elif old != new:
        yield f"{where} was {shown(old)}, is {shown(new)}"
