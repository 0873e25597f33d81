"""Tensor maps of the cases: their parameters, and their encoding with a device's driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver as cu

if TYPE_CHECKING:
    import cudakit

# type in the driver's enum, bytes per element
TYPES = {
    "u8": ("UINT8", 1),
    "u16": ("UINT16", 2),
    "u32": ("UINT32", 4),
    "s32": ("INT32", 4),
    "u64": ("UINT64", 8),
    "s64": ("INT64", 8),
    "f16": ("FLOAT16", 2),
    "f32": ("FLOAT32", 4),
    "f64": ("FLOAT64", 8),
    "bf16": ("BFLOAT16", 2),
    "f32ftz": ("FLOAT32_FTZ", 4),
    "tf32": ("TFLOAT32", 4),
    "tf32ftz": ("TFLOAT32_FTZ", 4),
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_INTERLEAVES = {0: "NONE", 16: "16B", 32: "32B"}
_PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}


@dataclass(frozen=True)
class TensorMap:
    """A tensor in the input or the output of a case, and the box of its copies; dimension 0 is the contiguous one.

    strides: bytes, of dimensions 1 and up. steps: element strides. offset: of the tensor in its buffer, in bytes.
    """

    kind: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    interleave: int = 0
    promotion: int = 0
    nan: bool = False
    offset: int = 0
    of_output: bool = False

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def element(self) -> int:
        """Bytes per element."""
        return TYPES[self.kind][1]

    def place(self, chunks: tuple[int, ...]) -> tuple[int, ...]:
        """Return coordinates from ones of which that of dimension 0 counts 16 bytes: an H200 takes only multiples.
        In an interleaved layout it counts slices, as the coordinate itself does."""
        return chunks if self.interleave else (chunks[0] * 16 // self.element, *chunks[1:])

    @property
    def taken(self) -> tuple[int, ...]:
        """Elements that a copy takes per dimension. An interleaved box has one slice: its size along the last
        dimension but one is not used. Without interleave, the step of dimension 0 is not used."""
        steps = self.steps or (1,) * self.rank
        taken = [-(-size // step) for size, step in zip(self.box, steps, strict=True)]
        if self.interleave:
            taken[-2] = 1
        else:
            taken[0] = self.box[0]
        return tuple(taken)

    @property
    def inner(self) -> int:
        """Bytes per element of dimension 0: those of a whole slice in an interleaved layout."""
        return self.interleave or self.element

    @property
    def bytes(self) -> int:
        """Bytes of shared memory that a copy counts."""
        return int(np.prod(self.taken)) * self.inner

    @property
    def footprint(self) -> int:
        """Bytes of shared memory that hold a box, whichever of its sizes counts, and if rows have a swizzle's span."""
        rows = int(np.prod(self.box[1:]))
        return rows * max(self.box[0] * self.inner, self.swizzle)

    @property
    def room(self) -> int:
        """Bytes of the buffer that holds the tensor."""
        return -(-(self.offset + self.extent) // 128) * 128

    @property
    def extent(self) -> int:
        """Bytes of the tensor in memory."""
        last = sum((size - 1) * stride for size, stride in zip(self.dims[1:], self.strides, strict=True))
        return last + self.dims[0] * self.inner

    def __str__(self) -> str:
        def by(numbers: tuple[int, ...]) -> str:
            return "x".join(map(str, numbers))

        words = [f"{self.kind} {by(self.dims)}", *([f"strides {by(self.strides)}"] if self.strides else [])]
        words.append(f"box {by(self.box)}")
        words += [f"steps {by(self.steps)}"] if self.steps else []
        for name, value in (("swizzle", self.swizzle), ("interleave", self.interleave), ("L2", self.promotion)):
            words += [f"{name} {value}"] if value else []
        words += ["NaN"] * self.nan
        words += [f"offset {self.offset}"] if self.offset else []
        return " ".join(words)

    def encoded(self, device: cudakit.Device, address: int) -> bytes:
        """Return the map's 128 bytes for a tensor at `address` + `offset`, made by the device's driver.

        Raises:
            CudakitError: If the driver rejects the parameters.
        """
        found: Any = device.context.call(
            "cuTensorMapEncodeTiled",
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{TYPES[self.kind][0]}"),
            self.rank,
            address + self.offset,
            [cu.cuuint64_t(size) for size in self.dims],
            # the driver needs a stride also for rank 1
            [cu.cuuint64_t(size) for size in self.strides or (-(-self.extent // 16) * 16,)],
            [cu.cuuint32_t(size) for size in self.box],
            [cu.cuuint32_t(size) for size in self.steps or (1,) * self.rank],
            getattr(cu.CUtensorMapInterleave, f"CU_TENSOR_MAP_INTERLEAVE_{_INTERLEAVES[self.interleave]}"),
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[self.swizzle]}"),
            getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[self.promotion]}"),
            getattr(
                cu.CUtensorMapFloatOOBfill,
                "CU_TENSOR_MAP_FLOAT_OOB_FILL_" + ("NAN_REQUEST_ZERO_FMA" if self.nan else "NONE"),
            ),
        )
        return np.array([int(word) for word in found.opaque], np.uint64).tobytes()
