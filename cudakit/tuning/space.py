"""The space that is searched: the variants of a family, each with the values that its constants may have."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The most configurations that are listed one by one; of a larger space a sample is searched.
MOST_LISTED = 200_000
# How often a random configuration that is refused is drawn again before all are listed.
DRAWS = 500


@dataclass(frozen=True)
class Point:
    """One configuration of one variant. places: for each constant, the number of its value."""

    variant: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class Axes:
    """A variant's constants in order, and the values of each."""

    variant: str
    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @property
    def size(self) -> int:
        """How many configurations there are, refused ones included."""
        return math.prod(map(len, self.values))


class Space:
    """The configurations of several variants.

    tunes: by variant's name, the values of its constants; a variant without any has one configuration.
    refuses(variant, configuration): why a configuration cannot be tried, or None; asked once per configuration.
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
        """How many configurations there are, refused ones included."""
        return sum(axes.size for axes in self.axes.values())

    def configuration(self, point: Point) -> dict[str, Any]:
        """The values of a point's constants, by name."""
        axes = self.axes[point.variant]
        return {name: values[place] for name, values, place in zip(axes.names, axes.values, point.places, strict=True)}

    def point(self, variant: str, configuration: Mapping[str, Any]) -> Point:
        """The point of a configuration. Raises ValueError for a value that the space does not have."""
        axes = self.axes[variant]
        return Point(
            variant,
            tuple(values.index(configuration[name]) for name, values in zip(axes.names, axes.values, strict=True)),
        )

    def refusal(self, point: Point) -> str | None:
        """Why a point cannot be tried, or None."""
        if point not in self._refusals:
            self._refusals[point] = self._refuses(point.variant, self.configuration(point))
        return self._refusals[point]

    @property
    def refused(self) -> dict[str, int]:
        """How many of the points that were looked at were refused, by reason, the commonest first."""
        counts: dict[str, int] = {}
        for why in self._refusals.values():
            if why is not None:
                counts[why] = counts.get(why, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def every(self) -> Iterator[Point]:
        """All points that are not refused, in the order of the declarations."""
        for axes in self.axes.values():
            for places in itertools.product(*(range(len(values)) for values in axes.values)):
                point = Point(axes.variant, places)
                if self.refusal(point) is None:
                    yield point

    def draw(self, rng: random.Random) -> Point | None:
        """A random point that is not refused; each variant is as likely as the others. None if DRAWS were refused."""
        variants = list(self.axes.values())
        for _ in range(DRAWS):
            axes = rng.choice(variants)
            point = Point(axes.variant, tuple(rng.randrange(len(values)) for values in axes.values))
            if self.refusal(point) is None:
                return point
        return None

    def neighbours(self, point: Point, rng: random.Random) -> tuple[Iterator[Point], Iterator[Point]]:
        """The points that differ from `point` in one constant, those with the nearest values first; and those that
        differ in two, in random order. Refused ones are left out."""
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
