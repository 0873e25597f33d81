"""The order in which configurations are tried.

`Search.ask` returns the next point, and `Search.tell` records a point's cost. Costs may come in any order, because
several points are compiled while one is timed. No point is returned twice, so a random search ends when the space is
exhausted.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from cudakit.tuning.space import MOST_LISTED, Point, Space

SEARCHES = ("auto", "exhaustive", "random")
# Random points at the start of a climb, and moves of two constants that are tried from its best point.
STARTS, PAIRS = 12, 24


class _Climb:
    """A climb: random points, then moves from the best point found so far."""

    def __init__(self) -> None:
        self.drawn = 0
        self.cost = math.inf
        self.moves: Iterator[Point] = iter(())


class Search:
    """Returns the points of a space, one after another.

    kind: "exhaustive" is every point in the order of the declarations. "random" is a series of climbs: random points,
    then moves of one constant (and a few of two) from the best of them while they find a better one, then a new climb
    from new random points. "auto" is random, then every remaining point if the budget is enough (see `pace`). first:
    points that are returned before all others and belong to the first climb.
    """

    def __init__(self, space: Space, kind: str = "auto", seed: int = 0, first: tuple[Point, ...] = ()) -> None:
        if kind not in SEARCHES:
            raise ValueError(f"unknown search {kind!r}; known are {', '.join(SEARCHES)}")
        self.space = space
        self.kind = kind
        self._rng = random.Random(seed)
        self._first = list(first)
        self._climbs = [_Climb()]
        self._owner: dict[Point, _Climb] = {}  # the climb of each returned point
        self._listed: Iterator[Point] | None = None
        self._all = kind == "exhaustive"
        self._count: int | None = None

    def tell(self, point: Point, cost: float | None) -> None:
        """Record the cost of a point; the cost is None if the point is unusable."""
        climb = self._owner[point]
        if cost is not None and cost < climb.cost:
            climb.cost = cost
            ones, pairs = self.space.neighbours(point, self._rng)
            climb.moves = itertools.chain(ones, itertools.islice(pairs, PAIRS))

    def pace(self, seconds_each: float, left_s: float) -> None:
        """Record the seconds per point and the remaining budget; "auto" then decides whether to try all points."""
        if self.kind == "auto" and not self._all and self.space.size <= MOST_LISTED:
            self._all = (self.count - len(self._owner)) * seconds_each <= left_s

    @property
    def lists_all(self) -> bool:
        """Whether every point will be tried."""
        return self._all

    @property
    def count(self) -> int:
        """The number of supported points of the space. Lists all points, which takes time."""
        if self._count is None:
            self._count = sum(1 for _ in self.space.every())
        return self._count

    def ask(self) -> Point | None:
        """Return the next new point; None if the space is exhausted, or if no new point was found."""
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
        # most supported points were returned before
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
        """Assign a new point to `climb`. Return False if the point was returned before."""
        if point in self._owner:
            return False
        self._owner[point] = climb
        return True
