"""The arguments of one launch, and the memory that it can access."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from cudakit import tracebacks
from cudakit.compile.compiler import Compiled
from cudakit.driver.context import Context
from cudakit.launch.arguments import pointer_dtypes
from cudakit.launch.following import Index3, Layout, SentLaunch
from cudakit.launch.kernel import Kernel
from cudakit.launch.signature import Parameter
from cudakit.memory import tensor_map
from cudakit.recording import code, memory
from cudakit.recording.code import Code
from cudakit.recording.file import MemberWriter, RecordingError
from cudakit.recording.launches import ArrayArgument, Link, MapArgument, Region, State
from cudakit.recording.memory import Described, Finder

#: The dtypes whose elements may be pointers; "" is unknown.
_MAYBE_POINTERS = ("", "uint64", "int64", "uint8", "int8", "void")
#: Libraries whose frames are not the caller's.
_LIBRARIES = ("torch", "triton", "contextlib")
_PACKAGE = os.path.dirname(tracebacks.__file__)
Span = tuple[int, int]


class Config(NamedTuple):
    """The configuration of a launch."""

    grid: Index3
    block: Index3
    shared: int
    cluster: Index3 | None
    cooperative: bool
    programmatic: bool


@dataclass(frozen=True)
class Call:
    """A launch that is about to be sent.

    module: an object that identifies its code. packed: the bytes of the arguments. offsets: the place of each parameter
    in them. arrays: the arrays among the arguments by parameter, if known; layouts: those of arrays of which only the
    address is known. launched: FILE:LINE.
    refusals: why it cannot be replayed.
    """

    name: str
    mangled: str
    module: object
    code: Code
    config: Config
    packed: bytes
    offsets: tuple[int, ...]
    parameters: Sequence[Parameter]
    arrays: dict[int, Described]
    launched: str
    carveout: int = -1
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    refusals: tuple[str, ...] = field(default=())


def call_of(kernel: Kernel, launch: SentLaunch, packed: bytes, offsets: tuple[int, ...], arguments: Any) -> Call:
    """Return the call of a kernel of cudakit. arguments: the Python objects, or None."""
    module = kernel.module
    compiled = module.compiled  # type: ignore[attr-defined]
    resources = {name: asdict(one) for name, one in compiled.resources.items()}
    arch = getattr(compiled, "arch", "")
    nvrtc = compiled if isinstance(compiled, Compiled) and compiled.nvrtc_version != (0, 0) else None
    made = Code(compiled.name, arch, compiled.ptx, compiled.cubin, compiled.source, resources, module.handle, nvrtc)
    found = {index: memory.described(value) for index, value in enumerate(arguments or ())}
    context = kernel.context
    attribute = context.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    return Call(
        kernel.name,
        kernel.mangled,
        module,
        made,
        Config(*launch[1:]),
        packed,
        offsets,
        kernel.parameters,
        {index: one for index, one in found.items() if one is not None},
        caller(),
        int(context.call("cuFuncGetAttribute", attribute, kernel.handle)),
        {index: value for index, value in enumerate(arguments or ()) if isinstance(value, Layout)},
    )


def caller() -> str:
    """Return FILE:LINE of the innermost frame outside this package, torch and Triton."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None:
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES
        if not (library or frame.f_code.co_filename.startswith(_PACKAGE)):  # generated code has no module
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass(frozen=True)
class Snapshot:
    """The memory of one launch. scanned: whether each region may have pointers in it."""

    values: bytes
    links: tuple[Link, ...]
    maps: tuple[MapArgument, ...]
    arrays: tuple[ArrayArgument, ...]
    regions: tuple[Region, ...]
    scanned: tuple[bool, ...]
    stack: int
    heap: int
    refusals: tuple[str, ...]

    @property
    def spans(self) -> list[Span]:
        return [(region.address, region.address + region.size) for region in self.regions]

    def save(self, context: Context, file: MemberWriter) -> tuple[State, ...]:
        """Write the contents of the regions as they are now."""
        read, spans = memory.reading(context), self.spans
        states = []
        for region, scan in zip(self.regions, self.scanned, strict=True):
            data, undefined = read(region.address, region.size)
            states.append(
                State(
                    file.data("memory", data),
                    "" if undefined is None else file.data("memory", memory.packed_bits(undefined)),
                    memory.links(data, region.address, spans) if scan else (),
                )
            )
        return tuple(states)


class _Gathered:
    """Collects the memory of a launch."""

    def __init__(self, context: Context, call: Call, limit: int) -> None:
        self.context, self.call, self.limit = context, call, limit
        self.variables = code.variables(context, call.code)
        self.find = Finder(context, call.arrays.values(), [span for span, _ in self.variables])
        self.spans: set[Span] = {span for span, _ in self.variables}
        self.open: set[Span] = {span for span in self.spans if span[1] - span[0] >= memory.WORD}
        self.addresses: list[tuple[int, int]] = []  # place in the arguments, address
        self.maps: list[tuple[int, Any]] = []  # place in the arguments, fields
        self.refusals = [*call.refusals, *code.unknown_variables(call.code)]

    def add(self, address: int, *, scan: bool) -> bool:
        """Add the memory at an address; returns whether there is any."""
        span = self.find(address)
        if span is None:
            return False
        self.spans.add(span)
        if scan:
            self.open.add(span)
        return True

    def arguments(self) -> None:
        """Add the memory that the arguments point to."""
        for index, parameter in enumerate(self.call.parameters):
            at, size = parameter.offset, parameter.size
            data = self.call.packed[at : at + size]
            if parameter.kind in ("pointer", "bits"):
                address = int.from_bytes(data, "little")
                if address and self.add(address, scan=self.dtype(index) in _MAYBE_POINTERS):
                    self.addresses.append((at, address))
                elif address and parameter.kind == "pointer":
                    self.refusals.append(
                        f"{parameter.label} is the address {address:#x}, which is not in memory that is allocated"
                    )
            elif parameter.kind not in ("int", "float", "bool", "enum"):
                self._structure(parameter.label, at, data)
                unused = not any(data)
                if parameter.kind == "tensor map" and not unused and tensor_map.fields_of(data) is None:
                    self.refusals.append(
                        f"the tensor map in {parameter.label} was not made by cudakit.TensorMap, so its fields are "
                        "unknown"
                    )

    def _structure(self, label: str, at: int, data: bytes) -> None:
        place = 0
        while place + memory.WORD <= len(data):
            fields = tensor_map.fields_of(data[place : place + tensor_map.SIZE])
            if fields is not None:
                if self.add(fields.address, scan=False):
                    self.maps.append((at + place, fields))
                else:
                    self.refusals.append(f"the array of the tensor map in {label} was freed")
                place += tensor_map.SIZE
                continue
            address = int.from_bytes(data[place : place + memory.WORD], "little")
            if memory.is_plausible(address) and self.add(address, scan=True):
                self.addresses.append((at + place, address))
            place += memory.WORD

    def dtype(self, index: int) -> str:
        """Return the dtype of the elements that a pointer parameter points to; "" if it is not known."""
        array, target = self.call.arrays.get(index), self.call.parameters[index].type.target
        if target is not None and target.kind == "pointer":
            return "uint64"
        if array is not None:
            return array.dtype
        if index in self.call.layouts:
            return self.call.layouts[index].dtype
        names = None if target is None else pointer_dtypes(target)
        return "" if names is None or "void" in names else names[0]

    def reached(self) -> list[Span]:
        """Return the memory of the arguments, and all memory that pointers in it lead to."""
        read, seen = memory.reading(self.context), set()
        while True:
            spans = memory.merged(self.spans)
            self._expect_limit(spans)
            todo = [span for span in spans if span not in seen and self.scans(span)]
            if not todo:
                return spans
            for span in todo:
                seen.add(span)
                for address in self.find.pointers(read(span[0], span[1] - span[0]).data):
                    inside = any(begin <= address < end for begin, end in spans)
                    if not inside:
                        self.add(address, scan=True)

    def names(self, span: Span) -> list[str]:
        """Return the names of the parameters with pointers to some memory."""
        places = [at for at, address in self.addresses if span[0] <= address < span[1]]
        places += [at for at, fields in self.maps if span[0] <= fields.address < span[1]]
        return [
            parameter.name or f"parameter {parameter.index}"
            for parameter in self.call.parameters
            if any(parameter.offset <= at < parameter.offset + parameter.size for at in places)
        ]

    def scans(self, span: Span) -> bool:
        return any(begin < span[1] and span[0] < end for begin, end in self.open)

    def _expect_limit(self, spans: list[Span]) -> None:
        need = sum(end - begin for begin, end in spans)
        if need > self.limit:
            largest = max(end - begin for begin, end in spans)
            raise RecordingError(
                f"{self.call.name} can access {need} bytes of memory (the largest array has {largest}), more than "
                f"limit={self.limit}; pass a larger limit to record(), or record other kernels only (only=)"
            )


def take(context: Context, call: Call, limit: int) -> Snapshot:
    """Return the memory that a launch can access. Raises RecordingError if it is more than `limit` bytes."""
    found = _Gathered(context, call, limit)
    found.arguments()
    spans = found.reached()

    def placed(address: int) -> tuple[int, int]:
        index = next(i for i, (begin, end) in enumerate(spans) if begin <= address < end)
        return index, address - spans[index][0]

    variables = dict(found.variables)
    arrays = tuple(_arrays(found, spans))
    regions = []
    for span in spans:
        variable = variables.get(span, "")
        named = [code.variable_name(variable)] if variable else found.names(span)
        regions.append(Region(span[0], span[1] - span[0], " and ".join(dict.fromkeys(named)), variable))
    maps = tuple(
        MapArgument(
            at, *placed(one.address), one.data_type, one.dims, one.strides, one.box, one.element_strides,
            (one.interleave, one.swizzle, one.promotion, one.fill),
        )
        for at, one in found.maps
    )  # fmt: skip
    return Snapshot(
        call.packed,
        tuple((at, *placed(address)) for at, address in found.addresses),
        maps,
        arrays,
        tuple(regions),
        tuple(map(found.scans, spans)),
        context.limit("STACK_SIZE"),
        context.limit("MALLOC_HEAP_SIZE"),
        tuple(found.refusals),
    )


def _arrays(found: _Gathered, spans: list[Span]) -> Iterator[ArrayArgument]:
    """Yield the arrays among the arguments; those of which only the address is known extend to the memory's end."""
    at = {**dict(found.addresses), **{place: fields.address for place, fields in found.maps}}
    for index, parameter in enumerate(found.call.parameters):
        array = found.call.arrays.get(index)
        layout = found.call.layouts.get(index)
        address = at.get(parameter.offset) if array is None else array.pointer
        region = next((i for i, (begin, end) in enumerate(spans) if address and begin <= address < end), None)
        if region is None or address is None or parameter.kind not in ("pointer", "bits", "tensor map"):
            continue
        offset = address - spans[region][0]
        if array is not None:
            shape, strides, dtype, of = array.shape, array.strides, array.dtype, array.of
        elif layout is not None:
            (shape, strides, dtype), of = layout, ""
        else:
            dtype, of = found.dtype(index), ""
            size = ArrayArgument(0, "", 0, 0, dtype, (), ()).kind.itemsize
            shape, strides = ((spans[region][1] - address) // size,), (size,)
        if dtype.startswith(("void", "record")):
            dtype = ""
            shape, strides = (spans[region][1] - address,), (1,)
        yield ArrayArgument(index, parameter.name, region, offset, dtype, shape, strides, of)
