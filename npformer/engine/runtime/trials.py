"""`Trial`: chooses the fastest of several ways to do the same work, by timing the work itself.

The gain from a second thread or from another layout of weights depends on the machine and its load, so a fixed cost
model would not work. A trial runs real work several times in each way, in turn, and compares the median times. All ways
must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Generic, TypeVar

from npformer.engine.runtime.recording import recorder

Way = TypeVar("Way")
Result = TypeVar("Result")

TURNS = 5  # runs of each way in a trial; the median tolerates two slow runs
GAIN = 0.95  # because of noise, a way replaces the current way only if it takes at most this fraction of the time
SHARE = 0.01  # maximum fraction of the total time that trials may lose to slower ways
PATIENCE = 0.05  # seconds of work before the first trial, so that a process for a single sentence runs no trial


class Trial(Generic[Way]):
    """Runs work in the fastest of several ways.

    The first way is a guess. A trial begins after PATIENCE seconds of work. Trials are repeated, because a core that
    was busy during one trial may be free later. The next trial begins when the time lost in the previous trial is at
    most SHARE of the working time since then.

    Threads may share a trial without a lock, because a race loses at most one measured time.
    """

    def __init__(self, ways: Sequence[Way], first: Way) -> None:
        self.ways = tuple(ways)
        self.way = self.ways.index(first)
        self.decided = False  # whether a trial has ended
        self._times: list[list[float]] | None = None  # times of each way, per unit of work; None between trials
        self._worked = 0.0  # seconds of work since the last trial
        self._pause = PATIENCE

    def run(self, work: Callable[[Way], Result], amount: float = 1.0) -> Result:
        """Returns work(way). amount: size of the work in any unit; trials compare times per unit."""
        if len(self.ways) == 1:
            return work(self.ways[0])
        if (hears := recorder()) is not None:  # replays repeat the recorded work without this trial
            hears.tried = True
            hears.settled &= self.decided
            return work(self.ways[self.way])
        times = self._times
        way = self.way if times is None else min(range(len(times)), key=lambda each: len(times[each]))
        start = perf_counter()
        result = work(self.ways[way])
        seconds = perf_counter() - start
        if times is None:
            self._worked += seconds
            if self._worked > self._pause:
                self._times = [[] for _ in self.ways]
        else:
            times[way].append(seconds / amount)
            if min(map(len, times)) >= TURNS:
                self._decide(times, amount)
        return result

    def _decide(self, times: list[list[float]], amount: float) -> None:
        median = [sorted(each)[len(each) // 2] for each in times]
        quickest = median.index(min(median))
        if median[quickest] <= GAIN * median[self.way]:
            self.way = quickest
        lost = amount * sum(max(0.0, each - median[self.way]) for of_way in times for each in of_way)
        self._worked, self._pause = 0.0, max(PATIENCE, lost / SHARE)
        self._times, self.decided = None, True
