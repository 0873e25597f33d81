"""DeviceArray: device memory with a shape, a dtype and strides. `makers` has the functions that make one.

Memory comes from the device's stream-ordered pool, on the stream that asks: it may be used on that stream at once, and
on another stream after an event, and is freed in the order of its own stream once the last view is dropped.
`used_on(stream)` orders the free after another stream's work as well; copies and fills here do that by themselves.

Nothing is ordered between two streams but by events: an array written on one stream and read on another needs
`other.wait(stream.record())` in between, exactly as in CUDA.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.stream import LEGACY_DEFAULT, Event, Stream
from cudakit.errors import Closed, DeviceMismatch
from cudakit.memory import copies, dlpack, interop, layout, shown
from cudakit.memory.allocation import Allocation
from cudakit.memory.layout import Shape
from cudakit.memory.strided import Strided


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype as numpy has it; the names of ml_dtypes ("bfloat16", "float8_e4m3fn", ...) too.

    Raises TypeError for dtypes that hold Python objects or bytes in the other order, which no kernel could read.
    """
    if isinstance(dtype, str) and (dtype == "bfloat16" or dtype.startswith(("float8_", "float4_", "float6_"))):
        import ml_dtypes

        dtype = getattr(ml_dtypes, dtype, dtype)
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"{kind} holds Python objects, which do not exist on a device")
    if not kind.isnative:
        raise TypeError(f"{kind} has its bytes in the other order: convert it with astype({kind.newbyteorder('=')})")
    return kind


class DeviceArray(Strided):
    """An array in device memory, or a view of one: `x[2:, ::-1]`, `x.T` and `x.reshape(...)` share its memory.

    shape, strides (bytes), dtype: see Strided. pointer: the first element's address, an int (0 if empty).
    allocation: what owns the memory, shared by views; `allocation.open` is False once it was closed. context: the
    device's. readonly: whether writing to it is refused (an import that its owner said not to write to).
    contiguous: `is_contiguous`, if it is known.

    Made by `empty` and the functions of `makers`, which Device offers as methods.
    """

    __slots__ = ("__weakref__", "allocation", "context", "pointer", "readonly", "tag")

    # numpy must not take arrays of these for sequences to be walked element by element.
    __array_ufunc__ = None

    def __init__(
        self,
        allocation: Allocation,
        pointer: int,
        shape: Shape,
        strides: Shape,
        dtype: np.dtype[Any],
        readonly: bool = False,
        *,
        contiguous: bool | None = None,
    ) -> None:
        super().__init__(shape, strides, dtype, contiguous=contiguous)
        self.allocation = allocation
        self.context: Context = allocation.context
        self.pointer = pointer if 0 not in shape else 0
        self.readonly = readonly
        # An object of this array's own, by which a launch plan knows it again without keeping the array alive.
        self.tag = object()

    def __repr__(self) -> str:
        return shown.text(self)

    def _repr_html_(self) -> str:
        return shown.html(self)

    @property
    def summary(self) -> str:
        """The repr without values: shape, dtype, device, and whether it is closed or its device is lost."""
        return shown.summary(self)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a DeviceArray does not turn into a numpy array by itself: copy it with .numpy(stream)")

    def __enter__(self) -> DeviceArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether its memory was given back by close(), of this view or any other."""
        return not self.allocation.open

    @property
    def stream(self) -> Stream:
        """The stream it was made on: where its methods work unless given another, and where it is freed."""
        return self.allocation.uses.home

    # Views ------------------------------------------------------------------------------------------------------------

    def _view(self, offset: int, shape: Shape, strides: Shape, dtype: np.dtype[Any] | None = None) -> DeviceArray:
        return DeviceArray(self.allocation, self.pointer + offset, shape, strides, dtype or self.dtype, self.readonly)

    def __getitem__(self, key: Any) -> DeviceArray:
        """A view: ints, slices of any step, None and Ellipsis, as in numpy. A single element is a view of shape ()."""
        return self._view(*layout.index(self.shape, self.strides, key))

    @property
    def T(self) -> DeviceArray:
        """The view with its axes in reverse."""
        return self._view(0, self.shape[::-1], self.strides[::-1])

    def transpose(self, *axes: int) -> DeviceArray:
        """A view with its axes in another order; in reverse without arguments."""
        if not axes:
            return self.T
        order = tuple(axis + self.ndim if axis < 0 else axis for axis in axes)
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(f"{axes} is no order of the {self.ndim} axes of an array of shape {self.shape}")
        return self._view(0, tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order))

    def reshape(self, *shape: Any) -> DeviceArray:
        """A view of another shape; one extent may be -1. ValueError unless the array is contiguous."""
        new = layout.reshaped(self.shape, shape[0] if len(shape) == 1 else shape)
        if not self.is_contiguous:
            raise ValueError(
                f"an array of shape {self.shape} and strides {self.strides} has gaps or another order, so it has "
                f"no view of shape {new}: copy() it first"
            )
        return self._view(0, new, layout.contiguous(new, self.dtype.itemsize))

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as another dtype. Of another size, the last axis must be contiguous and divide evenly."""
        new = as_dtype(dtype)
        old = self.dtype.itemsize
        if new.itemsize == old:
            return self._view(0, self.shape, self.strides, new)
        if not self.shape or self.strides[-1] != old or self.shape[-1] * old % new.itemsize:
            raise ValueError(
                f"an array of {self.dtype}, shape {self.shape} and strides {self.strides} has no view as {new}: its "
                "last axis must be contiguous and hold a whole number of them"
            )
        last = self.shape[-1] * old // new.itemsize
        return self._view(0, (*self.shape[:-1], last), (*self.strides[:-1], new.itemsize), new)

    # Work -------------------------------------------------------------------------------------------------------------

    def _on(self, stream: Any) -> Stream:
        """The stream to work on, with the array in order and its later free ordered after that work."""
        if not self.allocation.open:
            raise Closed(f"{self.summary} was closed: its memory is gone")
        if stream is None:
            return self.allocation.uses.at_home()
        chosen = Stream.of(self.context, stream)
        self.allocation.uses.add(chosen)
        return chosen

    def expect_writable(self) -> None:
        """ValueError for an array that is read-only, or that overlaps itself."""
        if self.readonly:
            raise ValueError(f"{self.summary} is read-only: its owner exported it so")
        if layout.overlaps_itself(self.shape, self.strides, self.dtype.itemsize):
            raise ValueError(
                f"an array of shape {self.shape} and strides {self.strides} overlaps itself, so it cannot be written to"
            )

    def _same(self, shape: Shape, dtype: np.dtype[Any], what: str) -> None:
        if tuple(shape) != self.shape:
            raise ValueError(
                f"{what} has shape {tuple(shape)}, and the device array {self.shape}: they must be the same"
            )
        if dtype != self.dtype:
            raise TypeError(f"{what} is {dtype}, and the device array {self.dtype}: convert it with astype() first")

    def copy_from(self, source: Any, stream: Any = None) -> DeviceArray:
        """Queue a copy of a numpy or device array of the same shape and dtype into this one, any strides on both sides.

        From pageable numpy memory the source has been read when this returns; a pinned source (`pinned`) is read
        later, in the stream's order, so leave it alone until the stream has been waited for. Arrays of one device that
        overlap are copied as if through a temporary. From another device the work of its stream is waited for by the
        caller, as always; between devices that share no driver (a GPU and the simulated one) this waits.
        """
        self.expect_writable()
        if isinstance(source, DeviceArray):
            self._same(source.shape, source.dtype, "the source")
            self._copy_from_device(source, self._on(stream))
            return self
        host = np.asarray(source)
        self._same(host.shape, host.dtype, "the source")
        on = self._on(stream)
        copies.host_to_device(self.context, on.expect_open(), self.pointer, self.strides, host)
        return self

    def copy_to(self, destination: Any, stream: Any = None) -> None:
        """Queue a copy into a numpy or device array of the same shape and dtype, any strides on both sides.

        A pinned destination is filled later, in the stream's order; a pageable one has been filled when this returns.
        """
        if isinstance(destination, DeviceArray):
            destination.copy_from(self, stream)
            return
        if not isinstance(destination, np.ndarray):
            raise TypeError(f"cannot copy into {type(destination).__name__}: give a numpy or device array")
        self._same(destination.shape, destination.dtype, "the destination")
        if not destination.flags.writeable:
            raise ValueError("the destination is read-only")
        if layout.overlaps_itself(destination.shape, destination.strides, destination.itemsize):
            raise ValueError(f"the destination overlaps itself: its strides are {destination.strides}")
        on = self._on(stream)
        copies.device_to_host(self.context, on.expect_open(), destination, self.pointer, self.strides, on.synchronize)

    def numpy(self, stream: Any = None) -> npt.NDArray[Any]:
        """A new numpy array with the contents, in C order. Waits for the stream."""
        host = np.empty(self.shape, self.dtype)
        on = self._on(stream)
        copies.device_to_host(self.context, on.expect_open(), host, self.pointer, self.strides, on.synchronize)
        on.synchronize()
        return host

    def copy(self, stream: Any = None) -> DeviceArray:
        """A new contiguous array with the contents, made on the stream."""
        on = self._on(stream)
        made = empty(self.context, on, self.shape, self.dtype)
        try:
            return made.copy_from(self, on)
        except BaseException:
            made.close()
            raise

    def fill(self, value: Any, stream: Any = None) -> DeviceArray:
        """Queue writing one value to every element. Raises if the dtype has no such value."""
        self.expect_writable()
        element = np.array(value, self.dtype)
        if element.shape:
            raise ValueError(f"fill() takes one value, not an array of shape {element.shape}: use copy_from()")
        if self.dtype.kind in "iu" and element != value:
            raise ValueError(f"{value!r} is no {self.dtype}: round it first")
        on = self._on(stream)
        copies.fill(self.context, on.expect_open(), self.pointer, self.shape, self.strides, element.tobytes())
        return self

    def _copy_from_device(self, source: DeviceArray, on: Stream) -> None:
        if source.context.driver is not self.context.driver:
            # Two drivers share no memory and no order: the host is between them, and waits for both.
            copies.host_to_device(self.context, on.expect_open(), self.pointer, self.strides, source.numpy())
            on.synchronize()
            return
        if not source.allocation.open:
            raise Closed(f"{source.summary} was closed: its memory is gone")
        if self.size == 0 or (self.pointer, self.strides) == (source.pointer, source.strides):
            return
        source.allocation.uses.add(on)
        if not source.context.same_device(self.context):
            self._copy_from_peer(source, on)
            return
        if touch(self, source):
            source = source.copy(on)
        to, from_ = (self.pointer, self.strides), (source.pointer, source.strides)
        if not copies.device_to_device(self.context, on.expect_open(), self.shape, self.itemsize, to, from_):
            copies.host_to_device(self.context, on.expect_open(), self.pointer, self.strides, source.numpy(on))

    @nvtx.range("copy P2P")
    def _copy_from_peer(self, source: DeviceArray, on: Stream) -> None:
        """Between two GPUs: linear copies go from one to the other, anything else through contiguous copies on each."""
        if source.is_contiguous and self.is_contiguous:
            self.context.call(
                "cuMemcpyPeerAsync",
                self.pointer,
                self.context.handle,
                source.pointer,
                source.context.handle,
                self.nbytes,
                on.expect_open(),
            )
            return
        if not source.is_contiguous:
            # On the source's own stream; ours goes on when it is done.
            there = source._on(None)
            source = source.copy(there)
            on.wait(there)
            source.allocation.uses.add(on)
        if self.is_contiguous:
            self._copy_from_peer(source, on)
            return
        landed = empty(self.context, on, self.shape, self.dtype)
        landed._copy_from_peer(source, on)
        self._copy_from_device(landed, on)

    # Life -------------------------------------------------------------------------------------------------------------

    def used_on(self, stream: Any) -> DeviceArray:
        """Order the later free of the memory after the work that `stream` has by then."""
        if not isinstance(stream, Stream):
            stream = Stream.of(self.context, stream)
        elif stream.context.driver is not self.context.driver:
            mine, theirs = self.context, stream.context
            raise DeviceMismatch(
                f"an array of {mine.spec} is not used on a stream of {theirs.spec}{mine.told_apart(theirs)}"
            )
        self.allocation.uses.add(stream)
        return self

    def close(self) -> None:
        """Free the memory now, in stream order, for all views of it. Idempotent."""
        self.allocation.close()

    # Other libraries --------------------------------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, number): CUDA and the GPU's, or the CPU for an array of the simulated device."""
        return (dlpack.CUDA, self.context.ordinal) if self.context.kind == "gpu" else (dlpack.CPU, 0)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule over this memory, which the consumer's stream may use at once.

        stream: the consumer's, as the protocol counts (None and 1: legacy default, 2: per thread, -1: no ordering).
        dl_device: (1, 0) asks for a copy in host memory. copy: True for a copy, False to refuse one. What an array of
        the simulated device exports is host memory, and is waited for. Raises BufferError if it cannot be done.
        """
        versioned = max_version is not None and max_version[0] >= 1
        here = self.__dlpack_device__()
        wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if wanted != here and wanted[0] != dlpack.CPU:
            raise BufferError(f"an array of {self.context.spec} can be exported to {here} or the CPU, not to {wanted}")
        if self.readonly and not versioned and copy is not True:
            raise BufferError("a read-only array can only be exported by DLPack 1.0 or later, or as a copy")
        flags = dlpack.READ_ONLY if self.readonly else 0
        if wanted != here or (copy is True and here[0] == dlpack.CPU):
            if copy is False:
                raise BufferError("device memory reaches the host by a copy only, and copy=False was asked for")
            host = self.numpy()
            return dlpack.export(
                host.ctypes.data, host.shape, host.strides, host.dtype,
                device=(dlpack.CPU, 0), owner=host, versioned=versioned, flags=dlpack.COPIED,
            )  # fmt: skip
        if here[0] == dlpack.CPU:
            if stream is not None:
                raise BufferError("an array of the simulated device is one of the CPU to DLPack, and takes no stream")
            pointer, backing = interop.host_memory(self.context, self.pointer, self.shape, self.strides, self.itemsize)
            self._on(None).synchronize()
            self.allocation.uses.synchronize()
            return dlpack.export(
                pointer, self.shape, self.strides, self.dtype,
                device=here, owner=(backing, self), versioned=versioned, flags=flags,
            )  # fmt: skip
        exported = self
        if copy is True:
            exported, flags = self.copy(), dlpack.COPIED
        if stream == 0:
            raise BufferError(
                "stream=0 could mean two things; say 1 for the legacy default stream, 2 for the thread's own"
            )
        if stream != -1:
            exported._hand_to(Stream(self.context, handle=LEGACY_DEFAULT if stream is None else int(stream)))
        return dlpack.export(
            exported.pointer, exported.shape, exported.strides, exported.dtype,
            device=here, owner=exported, versioned=versioned, flags=flags,
        )  # fmt: skip

    def _hand_to(self, consumer: Stream) -> None:
        """Have a consumer's stream start after all work on this array that is known here, and outlive its use."""
        self._on(None)  # a closed home stream is replaced
        uses = self.allocation.uses
        for used in uses.waits():
            if isinstance(used, Event) or int(used) != int(consumer):
                consumer.wait(used)
        uses.add(consumer)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, with the stream to wait for. AttributeError for host memory, and for dtypes that it lacks."""
        if self.context.kind != "gpu":
            raise AttributeError("an array of the simulated device is host memory: it has __dlpack__ only")
        strides = None if self.is_contiguous else self.strides
        pointer, stream = self.pointer if self.size else 0, int(self._on(None)) or LEGACY_DEFAULT
        return dlpack.interface(pointer, self.shape, strides, self.dtype, self.readonly, stream)


def touch(one: DeviceArray, other: DeviceArray) -> bool:
    """Whether the spans of two arrays share a byte."""
    low, high = layout.span(one.shape, one.strides, one.itemsize)
    other_low, other_high = layout.span(other.shape, other.strides, other.itemsize)
    return one.pointer + low < other.pointer + other_high and other.pointer + other_low < one.pointer + high


def empty(context: Context, stream: Any, shape: Any, dtype: Any = np.float32) -> DeviceArray:
    """A new array, its contents undefined, usable on `stream` at once. Raises OutOfMemory."""
    extents = layout.as_shape(shape)
    kind = as_dtype(dtype)
    on = Stream.of(context, stream)
    allocation = Allocation.make(context, on, math.prod(extents) * kind.itemsize)
    strides = layout.contiguous(extents, kind.itemsize)
    return DeviceArray(allocation, allocation.pointer, extents, strides, kind, contiguous=True)
