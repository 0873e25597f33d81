"""Reads the launches of a file, and checks that all parts of each are there and fit each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cudakit.memory import tensor_map
from cudakit.memory.array import as_dtype
from cudakit.recording import fields
from cudakit.recording.file import MemberReader, RecordingError
from cudakit.recording.launches import (
    FORMAT,
    ArrayArgument,
    Link,
    RecordedLaunch,
    Region,
    SavedType,
    State,
    folder,
)
from cudakit.recording.memory import WORD


def load_as(kind: type[SavedType], path: Any) -> SavedType:
    """Read a recording as an object of a class. Raises RecordingError; see `recordings.load`."""
    reader = MemberReader(Path(path))
    try:
        begin = reader.json("recording.json")
        if not isinstance(begin, dict) or begin.get("format") != FORMAT:
            what = begin.get("format") if isinstance(begin, dict) else None
            raise RecordingError(
                f"{path} has format {what!r}, this version of cudakit reads format {FORMAT}; use the version that "
                "recorded it"
            )
        try:
            return kind(Path(path), *_contents(reader, begin), reader)
        except (TypeError, ValueError) as error:
            raise RecordingError(f"{path} is damaged: {error}") from error
    except BaseException:
        reader.close()
        raise


@dataclass(frozen=True)
class _Begin:
    """recording.json."""

    format: int
    device: dict[str, str]


@dataclass(frozen=True)
class _End:
    """end.json. launches: the numbers of those that were not dropped."""

    launches: tuple[int, ...]
    exception: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _After:
    """after.json. states: None if the launch failed."""

    states: tuple[State, ...] | None
    error: str = ""


def _contents(
    reader: MemberReader, begin: Any
) -> tuple[tuple[RecordedLaunch, ...], dict[str, str], bool, str, tuple[str, ...]]:
    """Return the launches, the device, whether the file was closed, the exception and the notes. begin: recording.json.
    Raises ValueError or TypeError if something is missing or wrong."""
    device = fields.made(_Begin, begin, "recording.json").device
    names = set(reader.names())
    numbers = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"launches/(\d+)/before\.json", name)))
    if "end.json" in names:
        end = fields.made(_End, reader.json("end.json"), "end.json")
        lost = sorted(set(end.launches) - set(numbers))
        if lost:
            raise ValueError(f"launch {lost[0]} is missing in it; record again")
    else:
        end = _End(tuple(numbers))
    kept = set(end.launches)
    launches = tuple(_launch(reader, number, names) for number in numbers if number in kept)
    return launches, device, reader.complete and "end.json" in names, end.exception, end.notes


def _launch(reader: MemberReader, number: int, names: set[str]) -> RecordedLaunch:
    before, after = (f"{folder(number)}/{name}.json" for name in ("before", "after"))
    launch = fields.made(RecordedLaunch, reader.json(before), before)
    if after in names:
        ended = fields.made(_After, reader.json(after), after)
        launch = replace(launch, after=ended.states, error=ended.error)
    _expect_whole(reader, number, launch)
    arrays = tuple(one if _is_known(one.dtype) else _as_bytes(one, launch.regions) for one in launch.arrays)
    launch = replace(launch, arrays=arrays)
    if not all(_is_inside(one, launch.regions[one.region].size) for one in arrays):
        raise ValueError(f"{before}: an array is not inside its memory")
    return launch


def _is_known(dtype: str) -> bool:
    """Whether numpy or ml_dtypes has a dtype. torch has others too, such as packed 4-bit floats."""
    try:
        return not dtype or bool(re.fullmatch(r"[\w\[\]]+", dtype) and as_dtype(dtype).itemsize)
    except (TypeError, ValueError):
        return False


def _as_bytes(array: ArrayArgument, regions: tuple[Region, ...]) -> ArrayArgument:
    """Return an array of an unknown dtype as the bytes from its begin to the end of its memory."""
    return replace(array, dtype="", shape=(regions[array.region].size - array.offset,), strides=(1,))


def _expect_whole(reader: MemberReader, number: int, launch: RecordedLaunch) -> None:
    """Raise ValueError unless all parts of a launch fit each other."""
    what, regions = folder(number), launch.regions
    if launch.number != number:
        raise ValueError(f"{what} has the number {launch.number}")
    if any(not region.size for region in regions):
        raise ValueError(f"{what} has a region without bytes")
    _expect_links(f"{what}: values", launch.links, len(launch.packed), regions)
    for states in (launch.before, *(() if launch.after is None else (launch.after,))):
        if len(states) != len(regions):
            raise ValueError(f"{what} has {len(regions)} regions, and the contents of {len(states)}")
        for region, state in zip(regions, states, strict=True):
            if reader.size(state.memory) != region.size:
                raise ValueError(f"{state.memory} has not the {region.size} bytes of its region")
            _expect_links(state.memory, state.links, region.size, regions)
    places = [(one.region, one.offset) for one in launch.arrays] + [(one.region, one.offset) for one in launch.maps]
    for index, offset in places:
        if not 0 <= index < len(regions) or offset > regions[index].size:
            raise ValueError(f"{what} has an argument outside of its memory")
    for one in launch.maps:
        same = 0 < len(one.dims) == len(one.strides) + 1 == len(one.box) == len(one.element_strides)
        if not same or one.at + tensor_map.SIZE > len(launch.packed):
            raise ValueError(f"{what} has a wrong tensor map")


def _expect_links(where: str, links: tuple[Link, ...], size: int, regions: tuple[Region, ...]) -> None:
    for at, region, offset in links:
        if at + WORD > size or region >= len(regions) or offset > regions[region].size:
            raise ValueError(f"{where} has a pointer outside of its memory")


def _is_inside(array: ArrayArgument, size: int) -> bool:
    """Whether all elements of an array are in its memory of `size` bytes."""
    if len(array.shape) != len(array.strides):
        return False
    if 0 in array.shape:
        return True
    reach = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)]
    first = array.offset + sum(step for step in reach if step < 0)
    last = array.offset + sum(step for step in reach if step > 0)
    return first >= 0 and last + array.kind.itemsize <= size
