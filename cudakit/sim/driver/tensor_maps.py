"""Driver calls that encode tensor maps."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuda.bindings import driver as cu

from cudakit.sim.driver.arguments import Handle, as_handle, unsigned
from cudakit.sim.driver.faults import CallError, Result
from cudakit.sim.driver.state import DriverState, call
from cudakit.sim.lockstep.tensor_map_rules import mistakes
from cudakit.sim.lockstep.tensor_maps import SIZE, InvalidTensorMap, TensorMap

_FIRST_CAPABILITY = (9, 0)


class TensorMapCalls(DriverState):
    """cuTensorMap*. A map's bytes are the simulated device's own: those of a GPU mean nothing here, and vice versa."""

    @call(1)
    def cuTensorMapEncodeTiled(
        self,
        tensorDataType: Any,
        tensorRank: int,
        globalAddress: Handle,
        globalDim: Sequence[Any] | None,
        globalStrides: Sequence[Any] | None,
        boxDim: Sequence[Any] | None,
        elementStrides: Sequence[Any] | None,
        interleave: Any,
        swizzle: Any,
        l2Promotion: Any,
        oobFill: Any,
    ) -> Any:
        self._expect_tensor_maps()
        rank = unsigned(tensorRank)
        tensor = TensorMap(
            int(tensorDataType),
            as_handle(globalAddress),
            _numbers("globalDim", globalDim, rank, cu.cuuint64_t),
            # an array without entries is refused for rank 1 too, as by the driver
            _numbers("globalStrides", globalStrides, max(rank - 1, 1), cu.cuuint64_t)[: max(rank - 1, 0)],
            _numbers("boxDim", boxDim, rank, cu.cuuint32_t),
            _numbers("elementStrides", elementStrides, rank, cu.cuuint32_t),
            int(interleave),
            int(swizzle),
            int(l2Promotion),
            int(oobFill),
        )
        made = cu.CUtensorMap()
        _write(made, _checked(tensor))
        return made

    @call(1)
    def cuTensorMapEncodeIm2col(
        self,
        tensorDataType: Any,
        tensorRank: int,
        globalAddress: Handle,
        globalDim: Any,
        globalStrides: Any,
        pixelBoxLowerCorner: Any,
        pixelBoxUpperCorner: Any,
        channelsPerPixel: int,
        pixelsPerColumn: int,
        elementStrides: Any,
        interleave: Any,
        swizzle: Any,
        l2Promotion: Any,
        oobFill: Any,
    ) -> Any:
        self._expect_tensor_maps()
        raise _not_simulated("cuTensorMapEncodeIm2col")

    @call(1)
    def cuTensorMapEncodeIm2colWide(
        self,
        tensorDataType: Any,
        tensorRank: int,
        globalAddress: Handle,
        globalDim: Any,
        globalStrides: Any,
        pixelBoxLowerCornerWidth: int,
        pixelBoxUpperCornerWidth: int,
        channelsPerPixel: int,
        pixelsPerColumn: int,
        elementStrides: Any,
        interleave: Any,
        mode: Any,
        swizzle: Any,
        l2Promotion: Any,
        oobFill: Any,
    ) -> Any:
        self._expect_tensor_maps()
        raise _not_simulated("cuTensorMapEncodeIm2colWide")

    @call()
    def cuTensorMapReplaceAddress(self, tensorMap: Any, globalAddress: Handle) -> None:
        self._expect_tensor_maps()
        if tensorMap is None:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "tensorMap is None")
        if not isinstance(tensorMap, cu.CUtensorMap):
            raise TypeError(f"Argument 'tensorMap' must be a CUtensorMap, got {type(tensorMap).__name__}")
        try:
            tensor = TensorMap.decode(ctypes.string_at(tensorMap.getPtr(), SIZE))
        except InvalidTensorMap as reason:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"tensorMap: {reason}") from None
        address = as_handle(globalAddress)
        if not address:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "globalAddress must not be 0")
        _write(tensorMap, _checked(replace(tensor, address=address)))

    def _expect_tensor_maps(self) -> None:
        chip = self._context().device.chip
        if chip.capability < _FIRST_CAPABILITY:
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, f"{chip.arch} has no tensor maps: sm_90 and later have")


def _numbers(name: str, values: Sequence[Any] | None, count: int, kind: type) -> tuple[int, ...]:
    """The first ``count`` numbers of an array argument, whose entries have the type that the bindings require."""
    for value in values or ():
        if not isinstance(value, kind):
            raise TypeError(f"{name}: cannot convert {type(value).__name__} to {kind.__name__}")
    if len(values or ()) < count:
        given = "None" if values is None else len(values)
        raise CallError(
            Result.CUDA_ERROR_INVALID_VALUE, f"{name} must have at least {count} for this rank, got {given}"
        )
    return tuple(int(value) for value in (values or ())[:count])


def _checked(tensor: TensorMap) -> bytes:
    """The bytes of a map. Raises CallError with the first rule that it breaks."""
    wrong = next(mistakes(tensor), None)
    if wrong is not None:
        raise CallError(Result.CUDA_ERROR_INVALID_VALUE, str(wrong))
    return tensor.encode()


def _write(made: Any, data: bytes) -> None:
    ctypes.memmove(made.getPtr(), data, SIZE)


def _not_simulated(name: str) -> CallError:
    return CallError(
        Result.CUDA_ERROR_NOT_SUPPORTED,
        f"the simulated device has no im2col tensor maps ({name}): use cuTensorMapEncodeTiled",
        "Run it on a GPU, or load one box per filter position.",
    )
