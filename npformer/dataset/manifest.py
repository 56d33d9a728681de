"""The manifest of a run: the settings that determine the output, and the finished parts, one JSON object per line.

Lines are only appended, so that a run does not rewrite the manifest for each part. An incomplete line from an
interrupted run is dropped. At the end, the manifest is rewritten in the order of the parts, so that manifests of equal
outputs have equal bytes.
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
LOOSE = ("machine",)  # fields of the header that may differ between runs

#: The fields that are read from the lines of a manifest, and their types.
HEADER = {"format": str, "input": list, "machine": dict}
MACHINE = {"bits": str, "kernels": str}
PART = {"part": str, "rows": int, "errors": int, "truncated": int, "sha256": str}
OUTPUT = {"output": str}


class Manifest:
    """The header, the finished parts and the checksum of the output file of a run."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """Starts a manifest, or continues the manifest of an earlier run with the same header.

        Raises an NpformerError that lists the changes if the header differs.
        """
        self.path = path
        self.header: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **header}))
        self.parts: dict[str, dict[str, Any]] = {}
        self.outputs: list[str] = []  # the sha256 of each output file that was joined from the parts, newest last
        if path.exists():
            self._go_on()
        else:
            self._write_whole()

    def add(self, part: str, **facts: Any) -> None:
        """Records a finished part."""
        self.parts[part] = {"part": part, **facts}
        self._append(self.parts[part])

    def set_output(self, sha256: str) -> None:
        """Records the checksum of the output file, before the file is renamed."""
        if sha256 not in self.outputs:
            self._append({"output": sha256})
            self.outputs.append(sha256)

    def finish(self) -> None:
        """Rewrites the manifest with the parts in order."""
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
        lines = data.split(b"\n")[:-1]  # text after the last line end is incomplete
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
                f"{self.path}: damaged, or not a manifest of {FORMAT}; remove it and the output, or use another output"
            ) from None
        changed = list(_differences(_fixed(header), _fixed(self.header)))
        if changed:
            raise NpformerError(
                f"{self.path}: belongs to a run with other settings: {'; '.join(changed[:5])}"
                f"{' ...' if len(changed) > 5 else ''}. Use the same settings, or another output"
            )
        self.header = {**self.header, **{name: header[name] for name in LOOSE}}
        if sum(map(len, lines)) + len(lines) < len(data) or header != self.header:
            self._write_whole()


def _check(line: Any, kinds: Mapping[str, type]) -> None:
    """Raises KeyError or TypeError if a line of a manifest lacks a field or has a field of the wrong type."""
    for name, kind in kinds.items():
        if type(line[name]) is not kind:
            raise TypeError


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _fixed(header: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a header that must not change. The input files become a dict by name."""
    files = {each["name"]: each for each in header["input"]}
    return {name: value for name, value in header.items() if name not in LOOSE} | {"input": files}


def _differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Describes the differences between two nested values, except for unreadable files, which may be repaired."""
    if isinstance(old, dict) and isinstance(new, dict):
        if where.startswith("input ") and ("error" in old or "error" in new):
            if "error" not in old:
                yield f"{where} can no longer be read"
            return
        for name in [*old, *(each for each in new if each not in old)]:
            here = f"{where} {name}".strip()
            if name not in new or name not in old:
                yield f"{here} is {'gone' if name in old else 'new'}"
            else:
                yield from _differences(old[name], new[name], here)
    elif old != new:
        yield f"{where} was {shown(old)}, is now {shown(new)}"
