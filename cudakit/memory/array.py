"""DeviceArray: device memory with a shape, a dtype and strides. `makers` has the functions that make one.

Memory is allocated from the device's stream-ordered pool, on one stream (the array's home stream). It may be used on
that stream at once, and on another stream after an event. It is freed in the order of its home stream, after the last
view is dropped. `used_on(stream)` also orders the free after another stream's work; copies and fills do so themselves.

Only events order work of two streams: an array written on one stream and read on another needs
`other.wait(stream.record())` in between, as always in CUDA.
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
    """Return the numpy dtype of `dtype`, which may also be a name of ml_dtypes ("bfloat16", "float8_e4m3fn", ...).

    Raises:
        TypeError: If the dtype holds Python objects, or its bytes are not in native order.
    """
    if isinstance(dtype, str) and (dtype == "bfloat16" or dtype.startswith(("float8_", "float4_", "float6_"))):
        import ml_dtypes

        dtype = getattr(ml_dtypes, dtype, dtype)
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds Python objects, which cannot be stored on a device; use a numeric dtype")
    if not kind.isnative:
        raise TypeError(
            f"dtype {kind} is not in native byte order; convert the array with astype({kind.newbyteorder('=')})"
        )
    return kind


class DeviceArray(Strided):
    """An array in device memory, or a view of one: `x[2:, ::-1]`, `x.T` and `x.reshape(...)` share its memory.

    Made by `empty` and the functions of `makers`, which Device offers as methods.

    Attributes:
        shape: Extents, in elements.
        strides: Strides, in bytes.
        dtype: numpy's.
        is_contiguous: Whether the elements are in C order without gaps.
        pointer: Address of the first element, an int; 0 if the array is empty.
        readonly: Whether writing is rejected, as for an import that its owner exported read-only.
        context: The device's context.
        allocation: The owner of the memory, shared by all views; `allocation.open` is False once it is closed.
    """

    __slots__ = ("__weakref__", "allocation", "context", "pointer", "readonly", "tag")

    # numpy must not treat device arrays as sequences and iterate over their elements.
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
        # Identifies this array to a launch plan, which must not keep the array alive.
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
        raise TypeError("a DeviceArray is not converted to a numpy array implicitly; copy it with .numpy(stream)")

    def __enter__(self) -> DeviceArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # State ------------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the memory was freed by close(), called on this view or any other."""
        return not self.allocation.open

    @property
    def stream(self) -> Stream:
        """The home stream: the default stream of the array's methods, and the stream on which it is freed."""
        return self.allocation.uses.home

    # Views ------------------------------------------------------------------------------------------------------------

    def _view(self, offset: int, shape: Shape, strides: Shape, dtype: np.dtype[Any] | None = None) -> DeviceArray:
        return DeviceArray(self.allocation, self.pointer + offset, shape, strides, dtype or self.dtype, self.readonly)

    def __getitem__(self, key: Any) -> DeviceArray:
        """Return a view for ints, slices of any step, None and Ellipsis, as in numpy.

        One element is a view of shape ().

        Args:
            key: An index, or a tuple of them.

        Raises:
            IndexError: If an int is out of range, or there are more indices than axes.
            TypeError: If an index is of another type; arrays and bools make no views.
        """
        return self._view(*layout.index(self.shape, self.strides, key))

    @property
    def T(self) -> DeviceArray:
        """A view with the axes in reverse order."""
        return self._view(0, self.shape[::-1], self.strides[::-1])

    def transpose(self, *axes: int) -> DeviceArray:
        """Return a view with the axes in another order.

        Args:
            axes: A permutation of the axes, negative numbers counted from the end; reverse order if none is given.

        Raises:
            ValueError: If `axes` is not a permutation of all axes.
        """
        if not axes:
            return self.T
        order = tuple(axis + self.ndim if axis < 0 else axis for axis in axes)
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(
                f"transpose() needs each of the {self.ndim} axes of an array of shape {self.shape} once, got {axes}"
            )
        return self._view(0, tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order))

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of another shape.

        Args:
            shape: The extents, as ints or one tuple; one of them may be -1, and is then computed.

        Raises:
            ValueError: If the number of elements differs, or the array is not contiguous.
        """
        new = layout.reshaped(self.shape, shape[0] if len(shape) == 1 else shape)
        if not self.is_contiguous:
            raise ValueError(
                f"an array of shape {self.shape} and strides {self.strides} cannot be viewed as shape {new}, because "
                "it is not contiguous; copy() it first"
            )
        return self._view(0, new, layout.contiguous(new, self.dtype.itemsize))

    def view(self, dtype: Any) -> DeviceArray:
        """Return a view of the same bytes as another dtype.

        Args:
            dtype: The dtype of the view. If its size differs, the last axis must be contiguous and hold a whole number
                of the new elements.

        Raises:
            ValueError: If the last axis is not contiguous, or does not hold a whole number of the new elements.
        """
        new = as_dtype(dtype)
        old = self.dtype.itemsize
        if new.itemsize == old:
            return self._view(0, self.shape, self.strides, new)
        if not self.shape or (self.strides[-1] != old and self.shape[-1] != 1) or self.shape[-1] * old % new.itemsize:
            raise ValueError(
                f"an array of {self.dtype}, shape {self.shape} and strides {self.strides} cannot be viewed as {new}: "
                f"its last axis must be contiguous and hold a whole number of {new} elements"
            )
        last = self.shape[-1] * old // new.itemsize
        return self._view(0, (*self.shape[:-1], last), (*self.strides[:-1], new.itemsize), new)

    # Work -------------------------------------------------------------------------------------------------------------

    def _on(self, stream: Any) -> Stream:
        """Return the stream to work on. New work on it runs after the array's earlier work, and before the free."""
        if not self.allocation.open:
            raise Closed(f"{self.summary} was closed and its memory freed; use it before close()")
        if stream is None:
            return self.allocation.uses.at_home()
        chosen = Stream.of(self.context, stream)
        self.allocation.uses.add(chosen)
        return chosen

    def expect_writable(self) -> None:
        """Raise ValueError if the array is read-only, or its elements overlap."""
        if self.readonly:
            raise ValueError(f"{self.summary} is read-only, as its owner exported it; copy() it to write")
        if layout.overlaps_itself(self.shape, self.strides, self.dtype.itemsize):
            raise ValueError(
                f"an array of shape {self.shape} and strides {self.strides} cannot be written to, because its elements "
                "overlap; copy() it first"
            )

    def _same(self, shape: Shape, dtype: np.dtype[Any], what: str) -> None:
        if tuple(shape) != self.shape:
            raise ValueError(
                f"{what} has shape {tuple(shape)}, but the device array has {self.shape}; the shapes must be equal"
            )
        if dtype != self.dtype:
            raise TypeError(f"{what} is {dtype}, but the device array is {self.dtype}; convert it with astype() first")

    def copy_from(self, source: Any, stream: Any = None) -> DeviceArray:
        """Queue a copy of a numpy or device array into this one.

        A pageable numpy array has been read when this returns. A pinned one (`Device.pinned`) is read later, in stream
        order: do not change it until the stream has been synchronised.

        Arrays of one device that overlap are copied as if through a temporary. For a source on another device,
        make this stream wait for the source's work first. Between the GPU and the simulated device the copy is
        synchronous.

        Args:
            source: An array of the same shape and dtype; both sides may have any strides.
            stream: The stream the copy is queued on; the home stream if None.

        Returns:
            This array.

        Raises:
            ValueError: If the shapes differ, or this array is read-only or has overlapping elements.
            TypeError: If the dtypes differ.
            Closed: If one of the arrays was closed.
            GraphError: If the stream is being captured and the copy would need the host.
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
        """Queue a copy of this array into a numpy or device array.

        A pageable destination is complete when this returns; a pinned one is filled later, in stream order.

        Args:
            destination: An array of the same shape and dtype; both sides may have any strides.
            stream: The stream the copy is queued on; the home stream if None.

        Raises:
            ValueError: If the shapes differ, or the destination is read-only or has overlapping elements.
            TypeError: If the dtypes differ, or the destination is not an array.
            Closed: If one of the arrays was closed.
            GraphError: If the stream is being captured and the copy would need the host.
        """
        if isinstance(destination, DeviceArray):
            destination.copy_from(self, stream)
            return
        if not isinstance(destination, np.ndarray):
            raise TypeError(
                f"copy_to() needs a numpy or device array as its destination, got {type(destination).__name__}"
            )
        self._same(destination.shape, destination.dtype, "the destination")
        if not destination.flags.writeable:
            raise ValueError("the destination is read-only; pass a writable array")
        if layout.overlaps_itself(destination.shape, destination.strides, destination.itemsize):
            raise ValueError(
                f"the destination's elements overlap (strides {destination.strides}); pass an array without overlap"
            )
        on = self._on(stream)
        copies.device_to_host(self.context, on.expect_open(), destination, self.pointer, self.strides, on.synchronize)

    def numpy(self, stream: Any = None) -> npt.NDArray[Any]:
        """Return a new numpy array with the contents, in C order, after waiting for the stream.

        Args:
            stream: The stream the copy is queued on; the home stream if None.

        Raises:
            Closed: If the array was closed.
            CudaError: If earlier work on the stream failed.
        """
        host = np.empty(self.shape, self.dtype)
        on = self._on(stream)
        copies.device_to_host(self.context, on.expect_open(), host, self.pointer, self.strides, on.synchronize)
        on.synchronize()
        return host

    def copy(self, stream: Any = None) -> DeviceArray:
        """Return a new contiguous array with the same contents.

        Args:
            stream: The new array's home stream, and that of the copy; this array's home stream if None.

        Raises:
            Closed: If the array was closed.
            OutOfMemory: If the device has too little free memory.
        """
        on = self._on(stream)
        made = empty(self.context, on, self.shape, self.dtype)
        try:
            return made.copy_from(self, on)
        except BaseException:
            made.close()
            raise

    def fill(self, value: Any, stream: Any = None) -> DeviceArray:
        """Queue writing one value to every element.

        Args:
            value: A number that the dtype can hold; an integer dtype rejects fractions.
            stream: The stream the fill is queued on; the home stream if None.

        Returns:
            This array.

        Raises:
            ValueError: If the dtype cannot hold the value, `value` is an array, or this array cannot be written to.
            Closed: If the array was closed.
        """
        self.expect_writable()
        element = np.array(value, self.dtype)
        if element.shape:
            raise ValueError(f"fill() takes one value, got an array of shape {element.shape}; use copy_from()")
        if self.dtype.kind in "iu" and element != value:
            raise ValueError(f"{value!r} cannot be stored as {self.dtype} exactly; round it first")
        on = self._on(stream)
        copies.fill(self.context, on.expect_open(), self.pointer, self.shape, self.strides, element.tobytes())
        return self

    def _copy_from_device(self, source: DeviceArray, on: Stream) -> None:
        if source.context.driver is not self.context.driver:
            # The GPU and the simulated device share no memory and no events: copy through the host and wait for both.
            copies.host_to_device(self.context, on.expect_open(), self.pointer, self.strides, source.numpy())
            on.synchronize()
            return
        if not source.allocation.open:
            raise Closed(f"{source.summary} was closed and its memory freed; use it before close()")
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
        """Copy between two GPUs: directly if both arrays are contiguous, or this one has access to the other and few
        pieces are strided; else through contiguous copies."""
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
        if self.context.can_access(source.context):
            to, from_ = (self.pointer, self.strides), (source.pointer, source.strides)
            if copies.device_to_device(self.context, on.expect_open(), self.shape, self.itemsize, to, from_):
                return
        if not source.is_contiguous:
            # The source is packed on its own stream; `on` waits for it.
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
        """Order the later free of the memory after the work queued on another stream so far.

        Call it if the array is used on a stream other than its home stream, unless an array method queued that work.

        Args:
            stream: A stream of the same device.

        Returns:
            This array.

        Raises:
            DeviceMismatch: If the stream is of another device.
        """
        if not isinstance(stream, Stream):
            stream = Stream.of(self.context, stream)
        elif stream.context.driver is not self.context.driver:
            mine, theirs = self.context, stream.context
            raise DeviceMismatch(
                f"an array of {mine.spec} cannot be used on a stream of {theirs.spec}{mine.told_apart(theirs)}"
            )
        self.allocation.uses.add(stream)
        return self

    def close(self) -> None:
        """Free the memory now, in stream order, for all views of it. A second call does nothing."""
        self.allocation.close()

    # Other libraries --------------------------------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, number) as DLPack defines them: CUDA and the GPU's number, or the CPU for the simulated device."""
        return (dlpack.CUDA, self.context.ordinal) if self.context.kind == "gpu" else (dlpack.CPU, 0)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule over this memory, which work on the consumer's stream may use at once.

        An array of the simulated device is exported as host memory, after waiting for work on it.

        Args:
            stream: The consumer's stream, as DLPack counts (None and 1: legacy default, 2: per-thread default, -1: no
                ordering).
            max_version: The newest DLPack version that the consumer accepts; 1.0 is used if it is at least that.
            dl_device: (1, 0) for a copy in host memory.
            copy: True to always copy; False to raise if a copy is needed.

        Raises:
            BufferError: If the array cannot be exported as requested.
        """
        versioned = max_version is not None and max_version[0] >= 1
        here = self.__dlpack_device__()
        wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if wanted != here and wanted[0] != dlpack.CPU:
            raise BufferError(f"an array of {self.context.spec} can be exported to {here} or the CPU, got {wanted}")
        if self.readonly and not versioned and copy is not True:
            raise BufferError("a read-only array can only be exported by DLPack 1.0 or later, or as a copy")
        flags = dlpack.READ_ONLY if self.readonly else 0
        if wanted != here or (copy is True and here[0] == dlpack.CPU):
            if copy is False:
                raise BufferError("copy=False was requested, but device memory is exported to the host by a copy only")
            host = self.numpy()
            return dlpack.export(
                host.ctypes.data, host.shape, host.strides, host.dtype,
                device=(dlpack.CPU, 0), owner=host, versioned=versioned, flags=dlpack.COPIED,
            )  # fmt: skip
        if here[0] == dlpack.CPU:
            if stream is not None:
                raise BufferError(
                    f"stream={stream} was requested, but an array of the simulated device is exported as host memory, "
                    "which has no stream"
                )
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
                "stream=0 is ambiguous in DLPack; pass 1 for the legacy default stream or 2 for the per-thread one"
            )
        if stream != -1:
            exported._hand_to(Stream(self.context, handle=LEGACY_DEFAULT if stream is None else int(stream)))
        return dlpack.export(
            exported.pointer, exported.shape, exported.strides, exported.dtype,
            device=here, owner=exported, versioned=versioned, flags=flags,
        )  # fmt: skip

    def _hand_to(self, consumer: Stream) -> None:
        """Make the consumer's stream wait for all known work on this array, and the free wait for the consumer."""
        self._on(None)  # replaces a closed home stream
        uses = self.allocation.uses
        for used in uses.waits():
            if isinstance(used, Event) or int(used) != int(consumer):
                consumer.wait(used)
        uses.add(consumer)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface's version 3, with the stream to wait for.

        Raises AttributeError for arrays of the simulated device, and for dtypes that the interface does not have.
        """
        if self.context.kind != "gpu":
            raise AttributeError(
                "an array of the simulated device has no __cuda_array_interface__, as it is host memory; use __dlpack__"
            )
        strides = None if self.is_contiguous else self.strides
        pointer, stream = self.pointer if self.size else 0, int(self._on(None)) or LEGACY_DEFAULT
        return dlpack.interface(pointer, self.shape, strides, self.dtype, self.readonly, stream)


def touch(one: DeviceArray, other: DeviceArray) -> bool:
    """Return whether the address ranges of two arrays overlap."""
    low, high = layout.span(one.shape, one.strides, one.itemsize)
    other_low, other_high = layout.span(other.shape, other.strides, other.itemsize)
    return one.pointer + low < other.pointer + other_high and other.pointer + other_low < one.pointer + high


def empty(context: Context, stream: Any, shape: Any, dtype: Any = np.float32) -> DeviceArray:
    """Return a new array, with undefined contents, usable on `stream` at once.

    Args:
        context: The device's context.
        stream: The home stream.
        shape: Extents, in elements.
        dtype: A numpy dtype, or a name of ml_dtypes.

    Raises:
        OutOfMemory: If the device has too little free memory.
        GraphError: If the stream is being captured.
    """
    extents = layout.as_shape(shape)
    kind = as_dtype(dtype)
    on = Stream.of(context, stream)
    allocation = Allocation.make(context, on, math.prod(extents) * kind.itemsize)
    strides = layout.contiguous(extents, kind.itemsize)
    return DeviceArray(allocation, allocation.pointer, extents, strides, kind, contiguous=True)
