"""The search space: the variants of a family, with the values of their constants."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The most configurations that are listed; of a larger space only a sample is searched.
MOST_LISTED = 200_000
# How often an unsupported random configuration is redrawn before all are listed.
DRAWS = 500


@dataclass(frozen=True)
class Point:
    """One configuration of one variant. places: the index of each constant's value."""

    variant: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Axes:
    """A variant's constants in order, and their values."""

    variant: str
    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @property
    def size(self) -> int:
        """The number of configurations, including unsupported ones."""
        return math.prod(map(len, self.values))


class Space:
    """The configurations of several variants.

    tunes: the values of constants, by the variant's name; a variant without constants has one configuration.
    refuses(variant, configuration): returns the reason why a configuration is unsupported, or None; called once per
    configuration.
    """

    def __init__(
        self, tunes: Mapping[str, Mapping[str, Sequence[Any]]], refuses: Callable[[str, dict[str, Any]], str | None]
    ) -> None:
        self.axes = {
            name: Axes(name, tuple(tune), tuple(tuple(values) for values in tune.values()))
            for name, tune in tunes.items()
        }
        self._refuses = refuses
        self._refusals: dict[Point, str | None] = {}

    @property
    def size(self) -> int:
        """The number of configurations, including unsupported ones."""
        return sum(axes.size for axes in self.axes.values())

    def configuration(self, point: Point) -> dict[str, Any]:
        """Return the values of a point's constants, by name."""
        axes = self.axes[point.variant]
        return {name: values[place] for name, values, place in zip(axes.names, axes.values, point.places, strict=True)}

    def point(self, variant: str, configuration: Mapping[str, Any]) -> Point:
        """Return the point of a configuration. Raise ValueError for a value that is not in the space."""
        axes = self.axes[variant]
        return Point(
            variant,
            tuple(values.index(configuration[name]) for name, values in zip(axes.names, axes.values, strict=True)),
        )

    def refusal(self, point: Point) -> str | None:
        """Return the reason why a point is unsupported, or None."""
        if point not in self._refusals:
            self._refusals[point] = self._refuses(point.variant, self.configuration(point))
        return self._refusals[point]

    @property
    def refused(self) -> dict[str, int]:
        """The number of unsupported points so far by reason, the most frequent first."""
        counts: dict[str, int] = {}
        for why in self._refusals.values():
            if why is not None:
                counts[why] = counts.get(why, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def every(self) -> Iterator[Point]:
        """Yield all supported points, in the order of the declarations."""
        for axes in self.axes.values():
            for places in itertools.product(*(range(len(values)) for values in axes.values)):
                point = Point(axes.variant, places)
                if self.refusal(point) is None:
                    yield point

    def draw(self, rng: random.Random) -> Point | None:
        """Return a random supported point, with the same probability for each variant; None after DRAWS unsupported
        points."""
        variants = list(self.axes.values())
        for _ in range(DRAWS):
            axes = rng.choice(variants)
            point = Point(axes.variant, tuple(rng.randrange(len(values)) for values in axes.values))
            if self.refusal(point) is None:
                return point
        return None

    def neighbours(self, point: Point, rng: random.Random) -> tuple[Iterator[Point], Iterator[Point]]:
        """Return the supported points that differ from `point` in one constant, nearest values first; and those that
        differ in two, in random order."""
        values = self.axes[point.variant].values
        moves = [
            (number, other)
            for number, place in enumerate(point.places)
            for other in range(len(values[number]))
            if other != place
        ]
        rng.shuffle(moves)
        moves.sort(key=lambda move: abs(move[1] - point.places[move[0]]))
        pairs = [pair for pair in itertools.combinations(moves, 2) if pair[0][0] != pair[1][0]]
        rng.shuffle(pairs)
        return self._moved(point, ((move,) for move in moves)), self._moved(point, pairs)

    def _moved(self, point: Point, moves: Iterable[Sequence[tuple[int, int]]]) -> Iterator[Point]:
        for changes in moves:
            places = list(point.places)
            for number, other in changes:
                places[number] = other
            moved = Point(point.variant, tuple(places))
            if self.refusal(moved) is None:
                yield moved
