"""What the front functions share: the arrays' library, their device, the stream, the output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.driver.stream import Stream
from cudakit.families.variant import Family
from cudakit.memory.array import DeviceArray

_NONE: Mapping[str, Any] = {}


def apply(
    family: Family[Any], inputs: Sequence[Any], out: Any, variant: str, stream: Any, options: Mapping[str, Any] = _NONE
) -> Any:
    """Runs `family` on `inputs` into `out`, or into a new array of the inputs' library, and returns that."""
    library = _library(inputs, out)
    device = _device(inputs[0], library)
    on = library.current_stream(inputs[0]) if stream is None and library else stream
    chosen = device.default_stream if on is None else Stream.of(device.context, on)
    sources = [device.wrap(library.plain(x) if library else x, stream=chosen) for x in inputs]
    if out is None:
        shape, dtype = family.output_like(sources, **options)
        out = library.empty(inputs[0], shape, dtype) if library else device.empty(shape, dtype, stream=chosen)
    target = device.wrap(library.plain(out) if library else out, stream=chosen)
    problem = family.problem(sources, target, **options)
    picked = family.pick(variant, problem, device.arch)
    family.launch(device, picked, sources, target, chosen, problem)
    return out


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, in any library; "" if it has none."""
    return str(getattr(array, "dtype", "")).rpartition(".")[2]


@dataclass(frozen=True)
class _Library:
    """Another library, whose arrays are inputs and outputs."""

    name: str
    module: Any

    def ordinal(self, array: Any) -> int:
        """The number of the GPU that an array is on."""
        return int(array.device.index if self.name == "torch" else array.device.id)

    def current_stream(self, array: Any) -> Any:
        """The stream that the library's own operators would use now."""
        if self.name == "torch":
            return _Handle(self.module.cuda.current_stream(array.device).cuda_stream)
        with array.device:
            return _Handle(self.module.cuda.get_current_stream().ptr)

    def plain(self, array: Any) -> Any:
        """The array without its library's extras: a torch tensor that records gradients cannot be exported."""
        return array.detach() if self.name == "torch" else array

    def empty(self, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array on the GPU of `array`."""
        if self.name == "torch":
            return self.module.empty(shape, dtype=getattr(self.module, dtype.name), device=array.device)
        with array.device:
            return self.module.empty(shape, dtype)


@dataclass(frozen=True)
class _Handle:
    """A stream's address under the protocol that Stream.of takes; older torch and CuPy do not offer it themselves."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _library(inputs: Sequence[Any], out: Any) -> _Library | None:
    """The library of all arrays; None if they are cudakit's."""
    names = {_library_name(array) for array in (*inputs, *(() if out is None else (out,)))}
    if len(names) > 1:
        raise ValueError(f"the arrays are of different libraries ({', '.join(sorted(names))}): give all of one")
    name = names.pop()
    return None if name == "cudakit" else _Library(name, sys.modules[name])


def _library_name(array: Any) -> str:
    if isinstance(array, DeviceArray):
        return "cudakit"
    name = type(array).__module__.partition(".")[0]
    if name not in ("torch", "cupy"):
        raise TypeError(
            f"{type(array).__module__}.{type(array).__name__} is no array on a device: "
            "put it there with device.array(x), or give a torch or CuPy array"
        )
    return name


def _device(array: Any, library: _Library | None) -> Device:
    """The device that `array` is on."""
    if library is None:
        return Device.of(array.context)
    if library.name == "torch" and not array.is_cuda:
        raise ValueError(f"the torch tensor is on {array.device}: move it to a GPU with .cuda()")
    return Device.of_gpu(library.ordinal(array))
