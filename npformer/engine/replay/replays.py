"""`Replays`: the programs of a model, for recurring shapes of work."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from npformer.engine.replay.passes import Arrays, Pass
from npformer.engine.runtime.recording import Changed
from npformer.engine.runtime.threads import plain_products, threads_for_parts

if TYPE_CHECKING:
    from npformer.engine.replay.program import Program

PASSES = 12  # number of passes before a program is made, which takes about as long as these passes
MOST_PASSES = 8 * PASSES  # maximum number of passes before a program is made although trials have not finished
REPLAYS = 64  # replays after which a program is made again, because later trials may choose differently
MOST_REPLAYS = 4096
SHAPES = 512  # shapes whose passes are counted
ROOM = 32 << 20  # maximum bytes of all programs of a model
IDLE = 1000  # passes of other shapes after which a program may be dropped to make room


class _Shape:
    """A shape of work, with the number of passes that had this shape, and its program."""

    def __init__(self) -> None:
        self.passes = 0
        self.needed = PASSES
        self.last = 0  # when this shape last ran: the count of all passes of the model at that time
        self.replays = REPLAYS  # number of replays after which the next program is made again
        self.left: float = 0  # remaining replays until the program is made again
        self.program: Program | None = None
        self.tested = False
        self.refused = False
        self.busy = threading.Lock()  # one thread at a time, because all calls of a program use the same memory

    def replay(self, each: Pass) -> Arrays | None:
        """Returns the answers of the program, or None if the program cannot replay this pass."""
        if self.program is None or not self.busy.acquire(blocking=False):
            return None
        try:
            program = self.program
            if program is None:
                return None
            if self.left <= 0 or not program.holds():
                self.drop()
            elif not self.tested:
                self._test(program, each)
            else:
                self.left -= 1
                return program(each.inputs, each.caches)
        except Changed:
            pass
        except BaseException:  # after Ctrl-C, another thread may still write to the program's memory
            self.drop()
            raise
        finally:
            self.busy.release()
        return None

    def _test(self, program: Program, each: Pass) -> None:
        """Compares the program with the pass, on inputs that differ from the recorded inputs."""
        others = each.others(program.inputs)
        try:
            found, expected = program(others, each.caches), each(others)
        except Exception:  # if the inputs cause the error, the pass itself also raises it
            self.refuse()
            return
        self.tested = all(found[name].tobytes() == array.tobytes() for name, array in expected.items())
        if not self.tested:
            self.refuse()

    def take(self, program: Program) -> None:
        self.left = self.replays if program.tried else math.inf
        self.replays = min(MOST_REPLAYS, 4 * self.replays)
        self.program, self.tested = program, False

    def drop(self) -> None:
        """Drops the program. The next program is made after as many passes as the first."""
        self.program, self.passes, self.needed = None, 0, PASSES

    def refuse(self) -> None:
        """Drops the program for good."""
        self.program, self.refused = None, True


class Replays:
    """Runs the passes of a model, and replays recurring passes.

    A pass is recorded as a program, which is tested on other inputs and used as long as the model has the same weight
    arrays. A pass always runs in the engine if it cannot be recorded, or if its program gives different bits.
    """

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        self._weights = _Snapshot({})
        self._making = threading.Lock()
        self._passes = 0

    def run(self, each: Pass) -> Arrays:
        """Returns the answers of a pass, with the same bits as `each()`."""
        self._passes += 1
        if not self._weights.holds(each.weights):
            self._shapes, self._weights = {}, _Snapshot(each.weights)
        name = each.shape, threads_for_parts(), plain_products()
        shape = self._shapes.get(name) or self._shape(name)
        shape.last = self._passes
        answers = shape.replay(each)
        if answers is not None:
            return answers
        shape.passes += 1
        if shape.passes <= shape.needed or shape.refused or shape.program is not None:
            return each()
        return self._recorded(shape, each)

    def _shape(self, name: Hashable) -> _Shape:
        """Adds a shape if it is new. If there are too many shapes, drops the least recently used shape."""
        if len(self._shapes) >= SHAPES:
            shapes = list(self._shapes.items())
            self._shapes.pop(min(shapes, key=lambda pair: pair[1].last)[0], None)
        return self._shapes.setdefault(name, _Shape())

    def _recorded(self, shape: _Shape, each: Pass) -> Arrays:
        """Records a program. Returns answers that the engine computed, because the program is not yet tested."""
        from npformer.engine.replay.make_program import make_program  # imported here, because a shape may never recur

        if not self._making.acquire(blocking=False):
            return each()
        try:
            program = make_program(each)
        except Exception:  # if the pass itself causes the error, each() also raises it
            shape.refuse()
            return each()
        finally:
            self._making.release()
        if not program.settled and shape.needed < MOST_PASSES:
            shape.needed *= 2  # wait longer, because only passes in the engine advance trials
        elif self._has_room(program.nbytes):
            shape.take(program)
        else:
            shape.passes = -IDLE
        return each()

    def _has_room(self, nbytes: int) -> bool:
        """Whether there is room for a program of this size. Drops idle programs if necessary."""
        shapes = sorted(self._shapes.values(), key=lambda shape: shape.last)
        sizes = {shape: program.nbytes for shape in shapes if (program := shape.program) is not None}
        room = ROOM - sum(sizes.values())
        for shape, size in sizes.items():
            if room >= nbytes or self._passes - shape.last < IDLE:
                break
            shape.drop()
            room += size
        return room >= nbytes


class _Snapshot:
    """The arrays in a tree of weights, to detect that an array was replaced."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.sizes: list[tuple[Any, int]] = []
        self.arrays: list[tuple[Any, Any, Any]] = []
        self.root = weights
        self._add(weights)

    def _add(self, tree: Any) -> None:
        self.sizes.append((tree, len(tree)))
        for key, each in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            self.arrays.append((tree, key, each))
            if isinstance(each, Mapping | list | tuple):
                self._add(each)

    def holds(self, weights: Mapping[str, Any]) -> bool:
        """Whether this is the same tree, with the same arrays."""
        if weights is not self.root:
            return False
        try:
            for tree, key, each in self.arrays:
                if tree[key] is not each:
                    return False
            return not [1 for tree, size in self.sizes if len(tree) != size]
        except (KeyError, IndexError):
            return False
