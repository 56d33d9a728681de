"""`Replays`: the programs of a model, for the shapes of work that recur."""

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

PASSES = 12  # before a program, because making and testing it takes about as long
MOST_PASSES = 8 * PASSES  # before a program that depends on trials which have not ended
REPLAYS = 64  # of a first program that depends on trials; then it is made again, as another way may be faster now
MOST_REPLAYS = 4096
SHAPES = 512  # shapes whose passes are counted
ROOM = 32 << 20  # bytes of all programs of a model
IDLE = 1000  # passes of other shapes after which a program may give its room to another one


class _Shape:
    """A shape of work: how often it ran, and its program."""

    def __init__(self) -> None:
        self.passes = 0
        self.needed = PASSES
        self.last = 0  # the number of the last pass among all passes of the model
        self.replays = REPLAYS  # of the next program
        self.left: float = 0  # replays until the program is made again
        self.program: Program | None = None
        self.tested = False
        self.refused = False
        self.busy = threading.Lock()  # a program has one memory

    def replay(self, each: Pass) -> Arrays | None:
        """The answers of the program, or None if it does not apply to this pass."""
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
        """Compares the program with the pass, for other inputs than those with which it was recorded."""
        others = each.others(program.inputs)
        try:
            found, expected = program(others, each.caches), each(others)
        except Exception:  # the pass itself raises it too, if its own inputs are to blame
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
        """Forgets the program. A later one begins with as many passes as the first."""
        self.program, self.passes, self.needed = None, 0, PASSES

    def refuse(self) -> None:
        """Never makes a program again."""
        self.program, self.refused = None, True


class Replays:
    """Runs a model's passes, replaying those that recur.

    A program is made of a pass, tested with other inputs, and used as long as the model has the same arrays of
    weights. A pass that cannot be recorded, or whose program gives other bits, always runs as the engine is written.
    """

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        self._weights = _Snapshot({})
        self._making = threading.Lock()
        self._passes = 0

    def run(self, each: Pass) -> Arrays:
        """The answers of a pass, with the same bits as `each()`."""
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
        """A new shape, in the place of the one that ran least recently if there are too many."""
        if len(self._shapes) >= SHAPES:
            shapes = list(self._shapes.items())
            self._shapes.pop(min(shapes, key=lambda pair: pair[1].last)[0], None)
        return self._shapes.setdefault(name, _Shape())

    def _recorded(self, shape: _Shape, each: Pass) -> Arrays:
        """The answers of a pass, of which a program is made. Those of recorded arrays have not been tested yet."""
        from npformer.engine.replay.make_program import make_program  # many processes end before a shape recurs

        if not self._making.acquire(blocking=False):
            return each()
        try:
            program = make_program(each)
        except Exception:  # whatever it is, the pass itself raises it too, or does not
            shape.refuse()
            return each()
        finally:
            self._making.release()
        if not program.settled and shape.needed < MOST_PASSES:
            shape.needed *= 2  # trials need passes of the engine
        elif self._has_room(program.nbytes):
            shape.take(program)
        else:
            shape.passes = -IDLE
        return each()

    def _has_room(self, nbytes: int) -> bool:
        """Whether a program of this size fits. Drops programs that have been idle, if that makes room."""
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
    """The arrays in a tree of weights, to notice that one was replaced."""

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
        """Whether the tree is the same, with the same arrays."""
        if weights is not self.root:
            return False
        try:
            for tree, key, each in self.arrays:
                if tree[key] is not each:
                    return False
            return not [1 for tree, size in self.sizes if len(tree) != size]
        except (KeyError, IndexError):
            return False
