"""TensorMap: a tensor in device memory and the box of it that a tensor copy moves, as a kernel argument."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from cudakit.driver import tensor_maps as rules
from cudakit.driver.context import Context
from cudakit.errors import Closed, CudakitError
from cudakit.memory import layout
from cudakit.memory.array import DeviceArray
from cudakit.memory.layout import Shape

SIZE = 128  # bytes
# arrays of these dtypes are copied as the unsigned integers of their size
_AS_INTEGERS = {"int8": "uint8", "bool": "uint8", "int16": "uint16"}
_SLICES = {"16B": 16, "32B": 32}  # bytes
_FIRST_CAPABILITY = (9, 0)


class TensorMap:
    """A tensor in device memory, and the box of it that one tensor copy (TMA, `cp.async.bulk.tensor`) moves.

    It is the argument for a parameter `const __grid_constant__ CUtensorMap`. All tuples are in the order of the array's
    axes, the last of which is contiguous. The driver and PTX count from the other end: coordinate 0 of a copy is along
    the last axis. The map keeps its array alive, and a launch passes the map's bytes by value.

    Copies have rules of their own, which the map cannot check. Along the last axis, a box begins at a multiple of 16
    bytes. Loads may have negative coordinates, stores and reductions may not. A store writes whole chunks of 16 bytes,
    also past the end of a row.

    Args:
        array: The array. Its last axis must be contiguous, and all other strides multiples of 16 bytes.
        box: Elements per axis that a copy moves, each 1 to 256; an int for one axis. Parts outside the tensor are
            filled when loaded, and dropped when stored.
        swizzle: The order of 16-byte chunks in shared memory: "none", "32B", "64B" or "128B". A row of the box must not
            be longer.
        interleave: The layout of channels in memory: "none", "16B" or "32B", for an array of axes N, C, H, W and one
            slice of 16 or 32 bytes of channels (also without H, or with D before it). The box has no axis for the
            slice: an element along W is a whole slice. C counts slices, of which a copy takes one.
        l2_promotion: The size of requests to L2: "none", "64B", "128B" or "256B".
        fill: The value of elements outside the tensor: "zeros", or "nan" for floats.
        element_strides: Distance per axis between elements that a copy takes, 1 to 8; by default 1. The box is then
            measured before elements are left out. Copies ignore it along the last axis, except with an interleave.
        data_type: The type as which elements are copied, if not the array's: "tf32", "tf32_ftz" or "float32_ftz" for
            float32 arrays, or any type of the same size. 8-bit floats are copied as "uint8".
        dims: The extents of the tensor, if not the array's shape: another view of the same memory.
        strides: Bytes between elements along each axis of `dims`; by default without gaps.

    Attributes:
        array: The array.
        box: The box, in the order of the axes.
        box_bytes: Bytes that one copy moves, and counts on its barrier (`mbarrier.expect_tx`).

    Raises:
        ValueError: If the tensor or the box breaks a rule; the text names the rule and the axis.
        TypeError: If the array is not a DeviceArray, or its dtype has no tensor type.
        CudakitError: If the device has no tensor maps.

    Example:

        map = cudakit.TensorMap(a, box=(64, 64), swizzle="128B")
        kernel.launch(stream, grid=tiles, block=128, args=(map, c))
    """

    __slots__ = ("array", "box", "box_bytes", "data", "encoding", "tag", "text")

    def __init__(
        self,
        array: DeviceArray,
        box: int | Sequence[int],
        *,
        swizzle: str = "none",
        interleave: str = "none",
        l2_promotion: str = "none",
        fill: str = "zeros",
        element_strides: int | Sequence[int] | None = None,
        data_type: str | None = None,
        dims: int | Sequence[int] | None = None,
        strides: int | Sequence[int] | None = None,
    ) -> None:
        if not isinstance(array, DeviceArray):
            what = type(array).__name__
            raise TypeError(f"a TensorMap is made over a DeviceArray, got {what}; use device.array or device.wrap")
        if array.closed:
            raise Closed(f"{array!r} was closed; make the map before close()")
        if array.context.compute_capability < _FIRST_CAPABILITY:
            raise CudakitError(f"{array.context.spec} has no tensor maps (sm_90 and later have); use plain loads")
        interleaved = _SLICES.get(interleave, 0)
        shape, steps = _tensor(array, dims, strides, interleaved)
        self.array = array
        self.box = _numbers("box", box, len(shape))
        skipped = (
            (1,) * len(shape) if element_strides is None else _numbers("element_strides", element_strides, len(shape))
        )
        kind = _data_type(array, data_type)
        modes = (
            _member("interleave", interleave, rules.INTERLEAVES),
            _member("swizzle", swizzle, rules.SWIZZLES),
            _member("l2_promotion", l2_promotion, rules.PROMOTIONS),
            _member("fill", fill, rules.FILLS),
        )
        self.encoding = Encoding(array.context, rules.DATA_TYPES[kind], shape, steps, self.box, skipped, modes)
        self.data = self.encoding.at(array.pointer)
        self.box_bytes = self.encoding.described(array.pointer).box_bytes
        words = [f"box={self.box}", *([] if kind == array.dtype.name else [f"data_type={kind!r}"])]
        given = {"swizzle": swizzle, "interleave": interleave, "l2_promotion": l2_promotion, "fill": fill}
        words += [f"{name}={value!r}" for name, value in given.items() if value not in ("none", "zeros")]
        words += [f"element_strides={skipped}"] if set(skipped) != {1} else []
        self.text = f"{array.dtype.name} {shape}, {', '.join(words)}"
        # Identifies this map to a launch plan, which must not keep its array alive.
        self.tag = object()

    def __repr__(self) -> str:
        state = ", closed" if self.array.closed else ""
        return f"TensorMap({self.text}, device={self.array.context.spec!r}{state})"

    @property
    def opaque(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """The map's 128 bytes as 16 numbers, for kernels that read maps from memory: `device.array(map.opaque)`."""
        return np.frombuffer(self.data, np.uint64)


class Encoding:
    """The fields of a tensor map except the address, which is a parameter of `at`. It does not keep an array alive.

    span: the first byte of the tensor and the one after its last, relative to the address.
    """

    __slots__ = ("_arguments", "_context", "_fields", "_kind", "_modes", "_steps", "span")

    def __init__(
        self,
        context: Context,
        kind: int,
        shape: Shape,
        steps: Shape,
        box: Shape,
        skipped: Shape,
        modes: tuple[int, int, int, int],
    ) -> None:
        """All tuples are in the order of axes. steps: the strides in bytes. modes: interleave, swizzle, promotion and
        fill."""
        self._context, self._kind, self._modes, self._steps = context, kind, modes, steps
        self._fields = (shape[::-1], steps[-2::-1], box[::-1], skipped[::-1])
        self._arguments: Any = None
        self.span = layout.span(shape, steps, steps[-1])

    def described(self, address: int) -> Any:
        """Return the fields of the map for a tensor at `address`."""
        return rules.described(self._kind, address, *self._fields, *self._modes)

    def at(self, address: int) -> bytes:
        """Return the 128 bytes of the map for a tensor at `address`. Raises ValueError if it breaks a rule."""
        described = self.described(address)
        wrong = rules.mistake(described)
        if wrong is not None:
            raise ValueError(_explained(*wrong, self._steps))
        if self._arguments is None:
            self._arguments = _arguments(*self._fields, *self._modes)
        data = _encoded(self._context, described, self._arguments)
        if len(_fields) >= _KNOWN:
            _fields.clear()
        _fields[data] = described
        return data


#: The fields of the maps encoded last, by their bytes, whose layout is not published on GPUs.
_fields: dict[bytes, Any] = {}
_KNOWN = 4096


def fields_of(data: bytes) -> Any | None:
    """Return the fields of a map that was encoded before, from its 128 bytes; None if they are not known."""
    return _fields.get(data)


def encoded(context: Context, described: Any) -> bytes:
    """Return the 128 bytes of a map with the given fields (`fields_of`, `driver.tensor_maps.described`)."""
    modes = (described.interleave, described.swizzle, described.promotion, described.fill)
    sizes = (described.dims, described.strides, described.box, described.element_strides)
    return _encoded(context, described, _arguments(*sizes, *modes))


def _encoded(context: Context, described: Any, arguments: tuple[Any, ...]) -> bytes:
    kind, rank = cu.CUtensorMapDataType(described.data_type), len(described.dims)
    made = context.call("cuTensorMapEncodeTiled", kind, rank, described.address, *arguments)
    return ctypes.string_at(made.getPtr(), SIZE)


def _arguments(dims: Shape, strides: Shape, box: Shape, skipped: Shape, *modes: int) -> tuple[Any, ...]:
    """Return the arguments of cuTensorMapEncodeTiled after the address."""
    interleave, swizzle, promotion, fill = modes
    return (
        [cu.cuuint64_t(size) for size in dims],
        # the driver rejects an empty array, though it reads no stride for one dimension
        [cu.cuuint64_t(stride) for stride in strides or (16,)],
        [cu.cuuint32_t(size) for size in box],
        [cu.cuuint32_t(step) for step in skipped],
        cu.CUtensorMapInterleave(interleave),
        cu.CUtensorMapSwizzle(swizzle),
        cu.CUtensorMapL2promotion(promotion),
        cu.CUtensorMapFloatOOBfill(fill),
    )


def _tensor(array: DeviceArray, dims: Any, strides: Any, interleaved: int) -> tuple[Shape, Shape]:
    """Return the tensor's extents and strides in bytes, in the order of axes. interleaved: the bytes of a slice, which
    is one element along the last axis; 0 without an interleave. Raises ValueError if its elements are not in the
    array's memory, or the last axis is not contiguous."""
    size, shape, steps = interleaved or array.dtype.itemsize, array.shape, array.strides
    if dims is None and strides is not None:
        raise ValueError("strides were passed without dims; pass dims too, or a view of the array")
    if dims is not None:
        shape = _numbers("dims", dims)
        steps = layout.contiguous(shape, size)
    elif interleaved:
        if not shape or shape[-1] * array.dtype.itemsize != size or steps[-1] != array.dtype.itemsize:
            raise ValueError(
                f"with an interleave of {size}B, the array's last axis must be one slice of {size} adjacent bytes, got "
                f"shape {shape} of {array.dtype.name}; pass such a view, or dims"
            )
        shape, steps = shape[:-1], steps[:-1]
    if not shape:
        raise ValueError("a TensorMap needs 1 to 5 axes, got an array without axes; reshape it to (1,)")
    if strides is not None:
        steps = _numbers("strides", strides, len(shape))
    if steps[-1] != size and shape[-1] != 1:
        raise ValueError(
            f"axis {len(shape) - 1}: its elements must be adjacent, {size} bytes apart, but its stride is {steps[-1]} "
            "bytes; pass a view whose last axis is contiguous, or a copy"
        )
    # The driver checks the stride of an axis with one element too, although no copy uses it.
    unused = -(-shape[-1] * size // 32) * 32
    steps = (*(unused if extent == 1 else step for extent, step in zip(shape[:-1], steps[:-1], strict=True)), size)
    if dims is not None and 0 not in shape:
        low, high = layout.span(shape, steps, size)
        begin, end = array.allocation.span
        if array.pointer + low < begin or array.pointer + high > end:
            raise ValueError(
                f"dims {shape} with strides {steps} are bytes {low} to {high} of the array, which has memory from byte "
                f"{begin - array.pointer} to {end - array.pointer}; pass smaller dims or strides"
            )
    return shape, steps


def _numbers(name: str, value: Any, count: int | None = None) -> Shape:
    """Return an int or a sequence of ints as a tuple of `count`. Raises ValueError or TypeError."""
    try:
        numbers: Shape = (operator.index(value),)
    except TypeError:
        try:
            numbers = tuple(operator.index(number) for number in value)
        except TypeError:
            raise TypeError(f"{name} must be an int or a tuple of ints, got {value!r}") from None
    if count is not None and len(numbers) != count:
        raise ValueError(f"{name} must have one number per axis of the tensor, {count}, got {value!r}")
    return numbers


def _member(name: str, value: Any, known: Mapping[str, int]) -> int:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be {', '.join(map(repr, known))}, got {value!r}")
    return known[value]


def _data_type(array: DeviceArray, wanted: str | None) -> str:
    """Return the name of the tensor's type. Raises TypeError if there is none for the array, or of another size."""
    name, size = array.dtype.name, array.dtype.itemsize
    kind = _AS_INTEGERS.get(name, name)
    if kind not in rules.DATA_TYPES and name.startswith("float8_"):
        kind = "uint8"
    if wanted is not None:
        _member("data_type", wanted, rules.DATA_TYPES)
        kind = wanted
    if kind not in rules.DATA_TYPES and size in (1, 2, 4, 8):
        raise TypeError(f"tensor maps have no type for {name}; pass data_type='uint{8 * size}' to copy its bits")
    if kind not in rules.DATA_TYPES:
        raise TypeError(f"tensor maps have no type for {name}, of {size} bytes; pass an array of another dtype")
    width = {"uint8": 1, "uint16": 2, "float16": 2, "bfloat16": 2, "uint64": 8, "int64": 8, "float64": 8}.get(kind, 4)
    if width != size:
        raise TypeError(f"data_type {kind!r} has {width} bytes, and elements of {name} have {size}")
    return kind


_SUBJECTS = {
    "globalDim": "the extent", "globalStrides": "the stride in bytes", "boxDim": "the box", "elementStrides": "the "
    "element stride",
}  # fmt: skip
_NAMES = {
    "globalAddress": "the address of the array", "tensorRank": "the number of axes", "oobFill": "fill",
    "tensorDataType": "data_type", "l2Promotion": "l2_promotion", "boxDim": "the box",
}  # fmt: skip


def _explained(argument: str, index: int | None, rule: str, steps: Shape) -> str:
    """Return a broken rule of the driver's arguments in the words of TensorMap's. steps: the strides per axis."""
    if index is None:
        return f"{_NAMES.get(argument, argument)} {rule}"
    axis = len(steps) - 1 - index - (argument == "globalStrides")
    advice = ""
    if argument == "globalStrides":
        short = "; pad the rows, and pass a view without the padding"
        advice = short if steps[axis] > 0 else "; pass a view with positive strides, or a copy"
    return f"axis {axis}: {_SUBJECTS[argument]} {rule}{advice}"
