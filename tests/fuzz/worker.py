"""Runs cases in a process, and judges each: `python -m tests.fuzz.worker`, started by `pool.py`.

It reads lines of the form "kind seed first count", and writes a line of JSON at the start and at the end of each case.
An audit hook, and files next to the case's folder, detect executed code and writes outside it.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

MEMORY = 512 * 2**20  # address space that a case may use beyond the worker's initial one
GROWTH = 96 * 2**20  # memory that a case may actually use
MESSAGE = 2000  # maximum length of an error or a warning
WRITTEN = 64 * 2**20  # maximum size of a file that a case writes: copies of sparse files could fill the disk

#: Forbidden audit events, such as running a program, opening a connection or reading a real pickle.
FORBIDDEN = (
    "pickle.find_class", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
    "subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo", "os.kill",
    "builtins.input", "urllib.Request", "webbrowser.open", "ctypes.dlopen",
)  # fmt: skip
#: Audit events that change files, with paths as arguments; allowed within the case's folder.
CHANGING = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "shutil.rmtree",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Audit:
    """Records a case's forbidden actions."""

    def __init__(self, home: str) -> None:
        self.home, self.active, self.events = home, False, list[str]()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in FORBIDDEN:
            self.events.append(f"executed {event}: {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self._changed(event, arguments[:1])
        elif event in CHANGING:
            self._changed(event, arguments[:2])

    def _changed(self, event: str, paths: tuple[Any, ...]) -> None:
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                place = os.path.abspath(os.fsdecode(path))
                if not place.startswith(self.home) and place != os.devnull:
                    self.events.append(f"changed by {event}: {place:.200}")


class Place:
    """A folder for the cases, with a second folder that must stay unchanged."""

    def __init__(self, root: Path) -> None:
        self.root, self.case, self.outside = root, root / "case", root / "outside"
        self.outside.mkdir()
        (self.outside / "victim").write_bytes(b"untouched")
        self.before = self.look()

    def look(self) -> list[Any]:
        victim = (self.outside / "victim").read_bytes()
        return [
            sorted(os.listdir(self.root)),
            sorted(os.listdir(self.outside)),
            victim,
            self.outside.stat().st_mtime_ns,
        ]

    def fresh(self) -> Path:
        self.case.mkdir()
        os.chdir(self.case)
        self.before = self.look()
        return self.case

    def leave(self) -> list[str]:
        """Clears the folder; returns changes outside it, and files in it made by executed code."""
        after = self.look()
        problems = [] if after == self.before else [f"changed outside of the folder: {after} for {self.before}"]
        if (self.case / "canary").exists():
            problems.append("something in a file was executed: it made the canary")
        os.chdir(self.root)
        shutil.rmtree(self.case)
        return problems


def status() -> dict[str, int]:
    """Returns the size of the address space, the current memory and the peak memory, in bytes."""
    found = dict.fromkeys(("VmSize", "VmRSS", "VmHWM"), 0)
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return found


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


class Judge:
    """Runs cases in a folder, and reports the outcome of each."""

    def __init__(self, place: Place, audit: Audit, seconds: float) -> None:
        self.place, self.audit, self.seconds = place, audit, seconds
        self.unraisable: list[str] = []
        sys.unraisablehook = lambda args: self.unraisable.append(f"{args.exc_value!r:.200} in {args.object!r:.200}")

    def judge(self, case: Any) -> dict[str, Any]:
        """Returns the outcome of a case (loaded, refused or a finding), its seconds, its memory, and the finding."""
        from npformer.common.errors import NpformerError, NpformerWarning
        from tests.fuzz import folder as folders
        from tests.fuzz.uses import USES

        folder = self.place.fresh()
        limit_files(resource.RLIM_INFINITY)
        size = folders.write(folder, case.files)
        limit_files(WRITTEN)
        self.audit.events.clear()
        self.unraisable.clear()
        forget_peak()
        before, started = status()["VmRSS"], time.process_time()
        outcome, said, found, where = "loaded", "", list[str](), ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.audit.active = True
            try:
                USES[case.use](folder, case.draw, case.texts)
            except NpformerError as error:
                outcome, said = "refused", str(error)[:300]
                if len(str(error)) > MESSAGE:
                    found.append(f"an error of {len(str(error))} characters: {error!s:.300}")
                    where = place_of(error)
            except BaseException as error:
                found.append("".join(traceback.format_exception(error, limit=-6)).strip()[-1500:])
                where = place_of(error)
            finally:
                self.audit.active = False
        if os.strerror(errno.EFBIG) in said:
            found.append(f"a file of more than {WRITTEN} bytes was written: {said}")
        seconds = time.process_time() - started
        memory = max(0, status()["VmHWM"] - before)
        found += [
            f"{each.category.__name__}: {each.message!s:.300} ({each.filename}:{each.lineno})"
            for each in caught
            if each.category is not NpformerWarning or len(str(each.message)) > MESSAGE
        ]
        found += self.audit.events + self.unraisable + self.place.leave()
        if seconds > self.seconds:
            found.append(f"slow: {seconds:.1f} s of computing in {case.use}")
        if memory > GROWTH:
            found.append(f"memory: {memory / 2**20:.0f} MB for {size / 2**20:.3f} MB of files")
        return {
            "outcome": "finding" if found else outcome, "seconds": seconds, "memory": memory, "what": found[:4], "said": said,
            "where": where or (found[0].partition("\n")[0].replace(str(self.place.root), "")[-150:] if found else ""),
        }  # fmt: skip


def place_of(error: BaseException) -> str:
    """Returns the type of an error, and the last line of npformer's code in its traceback."""
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if f"{os.sep}npformer{os.sep}" in each.filename
    ]
    last = (
        f"{frames[-1].filename.rpartition('npformer' + os.sep)[2]}:{frames[-1].lineno}"
        if frames
        else "outside npformer"
    )
    return f"{type(error).__name__} at {last}"


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def limit_memory(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def main() -> None:
    """Checks the valid corpus of some kinds, then runs the requested cases. Arguments: a folder, the maximum seconds
    per case, and kinds."""
    root = Path(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    noise = os.open(root / "noise", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(noise, 1)
    os.dup2(noise, 2)

    def tell(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")

    from tests.fuzz import kinds, planted

    kinds.KINDS.update(planted.KINDS)
    judge = Judge(Place(root), Audit(str(root / "case")), float(sys.argv[2]))
    judge.judge(kinds.valid("npformer")[0])  # a process's first call loads libraries and tests BLAS
    for kind in sys.argv[3:]:
        for number, case in enumerate(kinds.valid(kind)):
            tell(kind=kind, start=-1 - number)
            tell(kind=kind, number=-1 - number, **judge.judge(case))
    gc.collect()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tell(ready=True)
    for line in sys.stdin:
        kind, seed, first, count = line.split()
        for number in range(int(first), int(first) + int(count)):
            tell(kind=kind, start=number)
            limit_memory(resource.RLIM_INFINITY)  # no limits apply while a case is made
            case = kinds.make(kind, int(seed), number)
            limit_memory(status()["VmSize"] + MEMORY)
            tell(kind=kind, number=number, digest=case.digest().hex()[:16], **judge.judge(case))
        tell(ready=True)


if __name__ == "__main__":
    main()
