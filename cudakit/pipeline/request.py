"""A checked request for a run of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.memory.layout import span
from cudakit.pipeline.chunk import Progress
from cudakit.pipeline.file_sinks import ToFile, ToMap
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.folder_sink import ToFolder
from cudakit.pipeline.folder_source import FromFiles
from cudakit.pipeline.framed import FramedFile
from cudakit.pipeline.fsspec_sink import ToFSSpec
from cudakit.pipeline.fsspec_source import FromFSSpec
from cudakit.pipeline.hdf5 import FromHDF5
from cudakit.pipeline.origin import RunOrigin
from cudakit.pipeline.parquet import FromParquet
from cudakit.pipeline.parquet_sink import ToParquet
from cudakit.pipeline.sink import Sink
from cudakit.pipeline.sinks import ToArray
from cudakit.pipeline.sources import Blocks, FromArray, FromFile, Item, Source
from cudakit.pipeline.tiff import FromTIFF
from cudakit.pipeline.zarr_sink import ToZarr
from cudakit.pipeline.zarr_source import FromZarr

MEASURED_BYTES = 10**9


@dataclass(frozen=True)
class Options:
    """Arguments of `run` that do not depend on others. chunk, memory, host_memory, measure: None for the default."""

    chunk: int | None
    streams: int
    memory: int | None
    host_memory: int | None
    readers: int
    writers: int
    resume: bool
    overwrite: bool
    finite: bool
    progress: Callable[[Progress], Any] | None
    timeline: bool
    measure: bool | None

    def check(self) -> None:
        """Raise ValueError if a number is not a whole number of at least 1."""
        optional = {"chunk": self.chunk, "memory": self.memory, "host_memory": self.host_memory}
        given = {name: value for name, value in optional.items() if value is not None}
        _expect_numbers({"streams": self.streams, "readers": self.readers, "writers": self.writers} | given)


@dataclass(frozen=True)
class RunRequest:
    """The checked arguments of `run`.

    sources: one `Blocks`, or sources that can be read in any order. inputs, outputs: one item of each source and of
    each sink. count: number of items; for a generator the maximum, or None for all.
    """

    function: Callable[..., Any]
    sources: Sequence[Source | Blocks]
    sinks: Sequence[Sink]
    inputs: tuple[Item, ...]
    outputs: tuple[Item, ...]
    count: int | None
    devices: Sequence[Device]
    options: Options

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        sources: Sequence[Source | Blocks],
        sinks: Sequence[Sink],
        outputs: Any,
        count: int | None,
        devices: Sequence[Device],
        options: Options,
    ) -> RunRequest:
        """Check arguments of `run` and return the request. Raises ValueError or TypeError if the run cannot succeed.

        devices: from `devices_of`; none in the client of a cluster.
        """
        blocks = next((source for source in sources if isinstance(source, Blocks)), None)
        if blocks is not None and len(sources) > 1:
            raise ValueError("a generator must be the only source: let it yield a tuple of arrays, one per input")
        indexed = [source for source in sources if isinstance(source, Source)]
        inputs = blocks.items if blocks is not None else tuple(source.item for source in indexed)
        if count is not None and (not isinstance(count, (int, np.integer)) or count < 0):
            raise ValueError(f"count must be a whole number of items, at least 0, got {count!r}")
        count = count if blocks is not None else _count(indexed, count)
        made = _outputs(outputs, sinks, inputs)
        if not callable(function):
            raise TypeError(f"function must be callable as function(chunk, *inputs, *outputs), got {function!r}")
        options.check()
        _expect_apart(indexed, sinks)
        if any(sink.ordered for sink in sinks):
            options = replace(options, writers=1)
        if blocks is not None:
            options = replace(options, readers=1, chunk=options.chunk or blocks.length)
        return cls(function, sources, sinks, inputs, made, count, devices, options)

    @property
    def blocks(self) -> Blocks | None:
        """The generator of blocks, if the items come from one."""
        return next((source for source in self.sources if isinstance(source, Blocks)), None)

    @cached_property
    def indexed(self) -> list[Source]:
        """The sources that can be read in any order: all of them, or none if there is a generator."""
        return [source for source in self.sources if isinstance(source, Source)]

    @property
    def total(self) -> int | None:
        """The number of items; None if it is unknown until a generator ends."""
        return None if self.blocks is not None else self.count

    @property
    def staged(self) -> tuple[bool, bool]:
        """Whether inputs and outputs are copied through the pipeline's pinned buffers."""
        context = self.devices[0].context
        read = self.blocks is None and all(source.pinned(context, 0, 1) is not None for source in self.indexed)
        written = all(sink.pinned(context, 0, 0) is not None for sink in self.sinks)
        return not read, not written

    @property
    def on_device(self) -> list[bool]:
        """Whether each input is read to device memory."""
        return [source.on_device for source in self.indexed] if self.blocks is None else [False] * len(self.inputs)

    def expect_device(self) -> None:
        """Raise an error if a source cannot read to the memory of the devices."""
        for source in (source for source in self.indexed if source.on_device):
            if len(self.devices) > 1:
                raise ValueError(
                    f"{type(source).__name__} reads to the memory of one device, got {len(self.devices)}: pass one of "
                    "them, and use the others in processes of their own, such as workers of a cluster (on=client)"
                )
            source.expect_device(self.devices[0].context)

    @property
    def measured(self) -> bool:
        """Whether the link is measured before the run."""
        if self.options.measure is not None:
            return self.options.measure
        passing = sum(item.nbytes for item in (*self.inputs, *self.outputs))
        return self.count is None or self.count * passing >= MEASURED_BYTES

    @cached_property
    def origin(self) -> RunOrigin:
        """The sources, for the sinks."""
        return RunOrigin(self.sources, self.count)


def _expect_numbers(values: dict[str, Any]) -> None:
    """Raise ValueError if a value is not a whole number of at least 1."""
    for name, value in values.items():
        if type(value) is bool or not isinstance(value, (int, np.integer)) or value < 1:
            unit = " (bytes)" if "memory" in name else ""
            raise ValueError(f"{name} must be a whole number of at least 1{unit}, got {value!r}")


def _expect_apart(sources: Sequence[Source], sinks: Sequence[Sink]) -> None:
    """Raise ValueError if two sinks would write to one place, or a sink would overwrite other items of a source.

    A memory map or a Zarr array may be its own source; such a run is marked as one that cannot be resumed.
    """
    folders = {folder for source in sources if isinstance(source, FromFiles) for folder in source.folders}
    folders |= {source.path.resolve() for source in sources if isinstance(source, FromParquet)}
    files = {source.path.resolve() for source in sources if isinstance(source, (FromFile, FromHDF5, FromTIFF))}
    zarrs = {str(source.place) for source in sources if isinstance(source, FromZarr)}
    urls = {source.url.rstrip("/") for source in sources if isinstance(source, FromFSSpec)}
    for sink in sinks:
        if isinstance(sink, ToFSSpec) and sink.url in urls:
            raise ValueError(f"the folder for results is a source, {sink.url}: pass another URL")
        if isinstance(sink, (ToFolder, ToParquet)) and sink.path.resolve() in folders:
            raise ValueError(f"the place for results is a source, {sink.path}: pass another path")
        if isinstance(sink, FramedFile) and sink.path.resolve() in files:
            raise ValueError(f"the file for results is a source, {sink.path}: pass another file")
        in_place = isinstance(sink, ToMap) and sink.path.resolve() in files
        if isinstance(sink, ToZarr) and str(sink.place) in zarrs:
            if sink.place.url:
                raise ValueError(f"the array for results is a source, {sink.place}: pass another URL")
            in_place = sink.in_place
        if in_place:
            sink.forgets = "it overwrites its own source, so a chunk that was written cannot be computed again"
            sink.private = "it overwrites its own source, and a worker's items may have to be computed again"
    places: list[object] = [sink.path.resolve() for sink in sinks if isinstance(sink, (ToFile, ToFolder, ToParquet))]
    places += [str(sink.place) for sink in sinks if isinstance(sink, ToZarr)]
    places += [sink.url for sink in sinks if isinstance(sink, ToFSSpec)]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"two sinks write to {place}: pass different paths")
    arrays = [sink.array for sink in sinks if isinstance(sink, (ToArray, ToMap))]
    if any(_overlap(*pair) for pair in combinations(arrays, 2)):
        raise ValueError("two sinks write to the same memory: pass an array for each")
    for source in (source for source in sources if isinstance(source, FromArray)):
        for array in arrays:
            if _overlap(source.array, array) and (
                source.count > len(source.array) or not _in_place(source.array, array)
            ):
                raise ValueError(
                    "the array for results shares memory with other items of a source: pass a separate array, or the "
                    "source's own array, so that each result replaces its own item"
                )


def _overlap(one: HostArray, other: HostArray) -> bool:
    """Whether two arrays share memory."""
    return np.may_share_memory(one, other) and np.shares_memory(one, other)


def _in_place(source: HostArray, sink: HostArray) -> bool:
    """Whether each item of `sink` shares memory with no item of `source` except its own."""
    if len(source) < 2 or len(sink) < 2:
        return True
    (low, high), (first, last) = (_bounds_of_first(array) for array in (source, sink))
    return source.strides[0] == sink.strides[0] and max(high, last) - min(low, first) <= abs(source.strides[0])


def _bounds_of_first(array: HostArray) -> tuple[int, int]:
    """Return the addresses of the first item's first byte, and of the byte after its last."""
    low, high = span(array.shape[1:], array.strides[1:], array.itemsize)
    return array.ctypes.data + low, array.ctypes.data + high


def devices_of(devices: Any) -> list[Device]:
    """Return the devices of an argument of `run`. Raises TypeError or ValueError if they cannot run a pipeline."""
    given = devices if isinstance(devices, (tuple, list)) else [] if devices is None else [devices]
    if not all(isinstance(device, Device) for device in given):
        raise TypeError(
            f"devices must be a Device or a list of them, such as cudakit.Device('sim') or Device.several('gpu'), got "
            f"{devices!r}"
        )
    on = [Device()] if devices is None else list(given)
    if not on:
        raise ValueError("devices must have at least 1 device, got an empty list; pass None for the default device")
    if len({device.context.driver for device in on}) > 1:
        raise ValueError(
            f"{', '.join(device.context.spec for device in on)} have different drivers, which cannot share pinned "
            "memory: make them together with Device.several()"
        )
    return on


def _count(sources: Sequence[Source], count: int | None) -> int:
    counts = {source.count for source in sources}
    if len(counts) > 1:
        raise ValueError(
            f"all sources must have the same number of items, got {', '.join(f'{n:,}' for n in sorted(counts))}"
        )
    if not counts:
        if count is None:
            raise ValueError("the number of items is unknown without a source: pass count=")
        return count
    (there,) = counts
    if count is None:
        return there
    if not 0 <= count <= there:
        raise ValueError(f"count must be at most {there:,}, the items of the sources, got {count:,}")
    return count


def _described(output: Any) -> Item:
    if not isinstance(output, tuple) or len(output) != 2:
        raise ValueError(
            f"outputs must have (shape, dtype) per result, such as ((512, 512), 'float32'), got {output!r}"
        )
    return Item.of(*output)


def _outputs(outputs: Any, sinks: Sequence[Sink], inputs: Sequence[Item]) -> tuple[Item, ...]:
    """Return the item of each sink."""
    if outputs is None:
        passed: list[Any] = [None] * len(sinks)
    else:
        passed = [
            output if isinstance(output, Item) else _described(output)
            for output in (outputs if isinstance(outputs, list) else [outputs])
        ]
    if len(passed) != len(sinks):
        raise ValueError(f"outputs must have one (shape, dtype) per sink, {len(sinks)}, got {len(passed)}")
    made = []
    for item, sink in zip(passed, sinks, strict=True):
        described = item or sink.item() or (inputs[0] if inputs else None)
        if described is None:
            raise ValueError("the shape and dtype of a result are unknown: pass outputs=(shape, dtype)")
        made.append(described)
    return tuple(made)
