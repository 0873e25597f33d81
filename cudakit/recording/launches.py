"""The records of a recording: launches, their arguments, and the memory before and after each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np

from cudakit.compile.compiler import Resources
from cudakit.memory.array import as_dtype
from cudakit.recording import fields
from cudakit.recording.fields import Extent, Signed, Size
from cudakit.recording.file import MemberReader, RecordingError

FORMAT = 1
Carveout = Annotated[int, range(-1, 101)]
SavedType = TypeVar("SavedType", bound="SavedLaunches")
Index3 = tuple[Extent, Extent, Extent]
#: A pointer among some bytes: its place in them, the number of the region it points to, and the offset there.
Link = tuple[Size, Size, Size]


@dataclass(frozen=True)
class Region:
    """Memory that a launch can access: an allocation, a tensor's storage, or a variable of the module.

    address, size: on the recorded device, in bytes. name: of the parameters that point to it, or the variable's.
    variable: the mangled name of a variable of the module, else "".
    """

    address: Size
    size: Size
    name: str
    variable: str = ""


@dataclass(frozen=True)
class State:
    """The contents of a region. undefined: a bit per byte, set if it was never written; known on the simulated device
    only. links: the pointers in it."""

    memory: str
    undefined: str = ""
    links: tuple[Link, ...] = ()


@dataclass(frozen=True)
class ArrayArgument:
    """An array among the arguments. offset: its first element's, in bytes from the region's begin. dtype: numpy's or
    ml_dtypes' name; "" if it is not known. strides: in bytes. of: its Python type, "" if only its address is known."""

    parameter: int
    name: str
    region: int
    offset: Size
    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Signed, ...]
    of: str = ""

    @property
    def kind(self) -> np.dtype[Any]:
        """The dtype, bytes if it is not known."""
        return as_dtype(self.dtype) if self.dtype else np.dtype(np.uint8)


@dataclass(frozen=True)
class MapArgument:
    """A tensor map among the arguments. at: its place in their bytes. The rest are the numbers that
    cuTensorMapEncodeTiled takes; modes: interleave, swizzle, promotion, fill."""

    at: Size
    region: int
    offset: Size
    data_type: int
    dims: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[Extent, ...]
    element_strides: tuple[Extent, ...]
    modes: tuple[int, int, int, int]


@dataclass(frozen=True, repr=False)
class RecordedLaunch:
    """One launch.

    number: counted from 1. module: the folder of its code in the file. values: the bytes of the arguments in the
    driver's layout, as hexadecimal digits. offsets: the place of each parameter in them. links: the pointers in them.
    stack, heap: the context's limits, in bytes. carveout: the preferred percentage of shared memory, -1 for the
    driver's choice. launched: `FILE:LINE` of the launch. refusals: why it cannot be replayed. after: None if it did not
    end. error: the failure's text.
    """

    number: int
    kernel: str
    mangled: str
    module: str
    grid: Index3
    block: Index3
    shared: Size
    cluster: Index3 | None
    cooperative: bool
    programmatic: bool
    values: str
    offsets: tuple[Size, ...]
    links: tuple[Link, ...]
    maps: tuple[MapArgument, ...]
    arrays: tuple[ArrayArgument, ...]
    regions: tuple[Region, ...]
    before: tuple[State, ...]
    stack: Size
    heap: Size
    carveout: Carveout
    launched: str
    refusals: tuple[str, ...] = ()
    after: tuple[State, ...] | None = None
    error: str = ""

    def __repr__(self) -> str:
        return f"RecordedLaunch({self.number}: {self.kernel}, grid={self.grid}, block={self.block})"

    @cached_property
    def packed(self) -> bytes:
        """The bytes of the arguments."""
        return bytes.fromhex(self.values)

    def named(self, name: str) -> ArrayArgument:
        """Return the array argument with a name, or the variable as one. Raises RecordingError if there is none."""
        for array in self.arrays:
            if name in (array.name, str(array.parameter)):
                return array
        for index, region in enumerate(self.regions):
            if region.variable and name in (region.name, region.variable):
                return ArrayArgument(-1, region.name, index, 0, "", (region.size,), (1,))
        names = [array.name or str(array.parameter) for array in self.arrays]
        names += [region.name for region in self.regions if region.variable]
        raise RecordingError(
            f"launch {self.number} ({self.kernel}) has no array {name!r}; it has {', '.join(names) or 'none'}"
        )


@dataclass(frozen=True)
class Build:
    """How NVRTC compiled a module: its options without include folders, the name expressions, the include folders
    without CUDA's own, and the texts of the headers that it may have opened, by path."""

    options: tuple[str, ...]
    names: tuple[str, ...]
    folders: tuple[str, ...]
    headers: dict[str, str]


@dataclass(frozen=True)
class RecordedModule:
    """The code of a kernel: `name` of its source, PTX, machine code, the source's text, and facts by ptxas per
    kernel. files: the texts of the source and its headers, by their names in the PTX. build: None if NVRTC did not
    compile it."""

    name: str
    arch: str
    ptx: str
    cubin: bytes
    source: str
    resources: dict[str, Resources]
    files: dict[str, str]
    build: Build | None = None


@dataclass(repr=False)
class SavedLaunches:
    """The contents of a recording's file. `recordings.Recording` can also replay them.

    Attributes:
        path: The file.
        launches: Its launches, in order.
        device: Name, architecture, driver and NVRTC of the recorded device.
        complete: Whether the file was closed; False after a crash of the process.
        exception: The exception that ended the block, as text; "" if there was none.
        notes: Sentences about what was not recorded.
    """

    path: Path
    launches: tuple[RecordedLaunch, ...]
    device: dict[str, str]
    complete: bool
    exception: str
    notes: tuple[str, ...]
    reader: MemberReader
    _modules: dict[str, RecordedModule] = field(default_factory=dict)

    def __repr__(self) -> str:
        state = "" if self.complete else ", not closed"
        name = self.device.get("name", "no device")
        return f"{type(self).__name__}({str(self.path)!r}: {len(self.launches)} launches on {name}{state})"

    def __enter__(self: SavedType) -> SavedType:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.reader.close()

    def launch(self, number: int) -> RecordedLaunch:
        """Return the launch with a number. Raises RecordingError if there is none."""
        for launch in self.launches:
            if launch.number == number:
                return launch
        have = f"{self.launches[0].number} to {self.launches[-1].number}" if self.launches else "none"
        raise RecordingError(f"{self.path} has no launch {number}; it has {have}")

    def memory(self, region: Region, state: State) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of a region in a state. Raises RecordingError if the file is damaged."""
        return np.frombuffer(self.reader.data(state.memory, region.size), np.uint8)

    def undefined(self, region: Region, state: State) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Return which bytes of a region were never written; None if all were, or if it is not known."""
        if not state.undefined:
            return None
        bits = np.frombuffer(self.reader.data(state.undefined, -(-region.size // 8)), np.uint8)
        return np.unpackbits(bits, count=region.size).astype(bool)

    def values(self, launch: RecordedLaunch, array: ArrayArgument, *, after: bool = False) -> np.ndarray[Any, Any]:
        """Return the elements of an array argument before or after a launch, as a numpy array."""
        states = launch.after if after else launch.before
        if states is None:
            raise RecordingError(
                f"launch {launch.number} ({launch.kernel}) did not end: {launch.error or 'it crashed'}"
            )
        data = self.memory(launch.regions[array.region], states[array.region])
        return np.ndarray(array.shape, array.kind, data.data, array.offset, array.strides)

    def module(self, launch: RecordedLaunch) -> RecordedModule:
        """Return the code of a launch."""
        found = self._modules.get(launch.module)
        if found is None:
            found = self._modules[launch.module] = _module(self.reader, launch.module)
        return found


def folder(number: int) -> str:
    """Return the folder of a launch in the file."""
    return f"launches/{number:06}"


def as_json(launch: RecordedLaunch) -> dict[str, Any]:
    """Return the record of a launch before it runs."""
    found = asdict(launch)
    del found["after"], found["error"]
    return found


@dataclass(frozen=True)
class _Module:
    """module.json. files, and the headers of `build`: the members with the texts."""

    name: str
    arch: str
    cubin: bool
    source: str
    resources: dict[str, Resources]
    files: dict[str, str]
    build: Build | None = None


def _module(reader: MemberReader, name: str) -> RecordedModule:
    cubin = f"{name}/module.cubin"
    try:
        facts = fields.made(_Module, reader.json(f"{name}/module.json"), f"{name}/module.json")
    except ValueError as error:
        raise RecordingError(f"{reader.path} is damaged: {error}") from error
    build = facts.build
    if build is not None:
        build = replace(build, headers={file: reader.text(member) for file, member in build.headers.items()})
    return RecordedModule(
        facts.name,
        facts.arch,
        reader.text(f"{name}/module.ptx"),
        reader.data(cubin, reader.size(cubin)) if facts.cubin else b"",
        facts.source,
        facts.resources,
        {file: reader.text(member) for file, member in facts.files.items()},
        build,
    )
