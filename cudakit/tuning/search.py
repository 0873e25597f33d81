"""The order in which configurations are tried.

A search is asked for the next point and told what points cost, in any order: several are compiled while one is timed.
It never returns a point twice, so a random search ends once the space is exhausted.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from cudakit.tuning.space import MOST_LISTED, Point, Space

SEARCHES = ("auto", "exhaustive", "random")
# Random points that a climb begins with, and moves of two constants that are tried from its best point.
STARTS, PAIRS = 12, 24


class _Climb:
    """Random points, and then moves from the best of what the climb has found."""

    def __init__(self) -> None:
        self.drawn = 0
        self.cost = math.inf
        self.moves: Iterator[Point] = iter(())


class Search:
    """The points of a space, one after another.

    kind: "exhaustive" is every point in the order of the declarations. "random" is climbs: random points, then moves of
    one constant (and a few of two) from the best of them, as long as they find a better one, then a climb from new
    random points. "auto" is random, and goes on to every point that is left once the budget suffices (see `pace`).
    first: points that come before all others, and belong to the first climb.
    """

    def __init__(self, space: Space, kind: str = "auto", seed: int = 0, first: tuple[Point, ...] = ()) -> None:
        if kind not in SEARCHES:
            raise ValueError(f"there is no search {kind!r}; there are {', '.join(SEARCHES)}")
        self.space = space
        self.kind = kind
        self._rng = random.Random(seed)
        self._first = list(first)
        self._climbs = [_Climb()]
        self._owner: dict[Point, _Climb] = {}  # of every point that was returned
        self._listed: Iterator[Point] | None = None
        self._all = kind == "exhaustive"
        self._count: int | None = None

    def tell(self, point: Point, cost: float | None) -> None:
        """Takes note of what a point costs; None if it cannot be used."""
        climb = self._owner[point]
        if cost is not None and cost < climb.cost:
            climb.cost = cost
            ones, pairs = self.space.neighbours(point, self._rng)
            climb.moves = itertools.chain(ones, itertools.islice(pairs, PAIRS))

    def pace(self, seconds_each: float, left_s: float) -> None:
        """Takes note of how long a point takes, and how much of the budget is left: "auto" then decides whether all
        points fit."""
        if self.kind == "auto" and not self._all and self.space.size <= MOST_LISTED:
            self._all = (self.count - len(self._owner)) * seconds_each <= left_s

    @property
    def lists_all(self) -> bool:
        """Whether every point is to be tried."""
        return self._all

    @property
    def count(self) -> int:
        """How many points of the space are not refused. It lists them."""
        if self._count is None:
            self._count = sum(1 for _ in self.space.every())
        return self._count

    def ask(self) -> Point | None:
        """The next point, which was not returned before; None if there is none left, or none can be found."""
        climb = self._climbs[-1]
        while self._first:
            point = self._first.pop(0)
            if self.space.refusal(point) is None and self._take(point, climb):
                return point
        if self._all:
            return self._next_listed(climb)
        if climb.drawn >= STARTS:
            for one in sorted(self._climbs, key=lambda each: each.cost):
                found = next((point for point in one.moves if self._take(point, one)), None)
                if found is not None:
                    return found
            self._climbs.append(climb := _Climb())
        climb.drawn += 1
        return self._random(climb)

    def _random(self, climb: _Climb) -> Point | None:
        for _ in range(50):
            point = self.space.draw(self._rng)
            if point is None:
                break
            if self._take(point, climb):
                return point
        # most of what is not refused was returned before
        return self._next_listed(climb) if self.space.size <= MOST_LISTED else None

    def _next_listed(self, climb: _Climb) -> Point | None:
        if self._listed is None:
            points = self.space.every()
            if self.kind != "exhaustive":
                shuffled = list(points)
                self._rng.shuffle(shuffled)
                points = iter(shuffled)
            self._listed = points
        return next((point for point in self._listed if self._take(point, climb)), None)

    def _take(self, point: Point, climb: _Climb) -> bool:
        """Whether a point was not returned before; it now belongs to `climb`."""
        if point in self._owner:
            return False
        self._owner[point] = climb
        return True
