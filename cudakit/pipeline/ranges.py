"""Ranges of items: finished and remaining ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Range = tuple[int, int]  # the first item, and the item after the last


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same items in as few ranges as possible, in order."""
    result: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def common(a: Iterable[Range], b: Iterable[Range]) -> list[Range]:
    """Return the items that are in both."""
    b = list(b)
    return merged((max(s, other), min(e, end)) for s, e in a for other, end in b)


def covers(ranges: Iterable[Range], start: int, stop: int) -> bool:
    """Whether all items start..stop are in the merged `ranges`."""
    return start >= stop or any(s <= start and stop <= e for s, e in ranges)


def aligned(ranges: Iterable[Range], unit: int, count: int | None) -> list[Range]:
    """Return the whole units of the merged ranges: the parts that start at a multiple of `unit`, and end at one or at
    `count`, the number of items (None if it is unknown)."""
    return merged(
        (-(-start // unit) * unit, stop if stop == count else stop // unit * unit) for start, stop in ranges
    )  # fmt: skip


def left(finished: Iterable[Range], count: int, chunk: int, periods: Iterable[int] = ()) -> Iterator[Range]:
    """Yield chunks of at most `chunk` items, with the items of 0..count outside the merged ranges `finished`.

    No chunk goes across a multiple of one of `periods`.
    """
    periods, start = tuple(periods), 0
    for done, after in [*finished, (count, count)]:
        while start < min(done, count):
            stop = min(start + chunk, done, count, *(start - start % period + period for period in periods))
            yield start, stop
            start = stop
        start = max(start, after)


def gaps(finished: Iterable[Range], start: int, stop: int) -> Iterator[Range]:
    """Yield the parts of start..stop outside the merged ranges `finished`."""
    for done, after in [*finished, (stop, stop)]:
        if start < min(done, stop):
            yield start, min(done, stop)
        start = max(start, after)
