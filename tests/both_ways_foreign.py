"""`both_ways` with arrays of torch or CuPy in memory that the simulated device reads: see `foreign`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import foreign
import numpy as np
import pytest
from both_ways import ARENA, Call, Choices, History, Outcome, Spec, World

import cudakit
from cudakit.family import readers
from cudakit.memory import array as memory
from cudakit.memory import layout, libraries, makers
from cudakit.memory.array import DeviceArray

#: How an array is passed: as one object per place; as one object whose memory is replaced before each call ("roaming");
#: for torch also as a Parameter, as a subclass, and as a negated view, which is rejected.
FORMS = {"torch": ["", "roaming", "parameter", "subclass", "negated"], "cupy": ["", "roaming"]}


class ForeignHistory(History):
    """A history with arrays of a library that has a current stream and an allocator."""

    def __init__(self, world: World, choices: Choices, library: str, seed: int = 0) -> None:
        super().__init__(world, choices, seed)
        self.library = library
        self.current = self._streams[0][0]
        self._stack = contextlib.ExitStack()
        self._hosts: dict[Any, np.ndarray[Any, Any]] = {}
        self._roaming: dict[Any, Any] = {}
        self._recorded: list[Any] = []
        self._stack.enter_context(self._installed())

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        device = self.world.devices[0]
        with foreign.stand_ins(), pytest.MonkeyPatch.context() as patch:
            known = next(known for known in libraries.more if known.name == self.library)
            known = replace(
                known,
                current_stream=lambda number: int(self.current),
                stream_owner=None,
                maker=self._maker,
                record_use=lambda array, stream, number: self._recorded.append((tuple(array.shape), stream)),
            )
            patch.setattr(libraries, "more", [known])
            patch.setattr(readers, "device_of", {**readers.device_of, "sim": lambda number: device})
            patch.setattr(readers, "_readers", {})  # restores the library's own functions at the end
            yield

    # Arrays

    def _memory(self, size: int) -> np.ndarray[Any, Any]:
        """Return memory aligned to 256 bytes, as GPU allocators do, that kernels may use."""
        host = np.zeros(size + 256, np.uint8)
        host = host[-host.ctypes.data % 256 :][:size]
        self._stack.callback(id, host)  # keeps `host` alive while it is registered
        self._stack.enter_context(foreign.registered(self.world.devices[0], host.ctypes.data, size))
        return host

    def _over(self, host: np.ndarray[Any, Any], spec: Spec) -> Any:
        """Return the library's array at an offset in `host`."""
        if self.library == "torch":
            import torch

            flat = torch.from_numpy(host).view(getattr(torch, spec.dtype))
            return flat.as_strided(spec.shape, spec.steps, spec.start)
        flat_host = host.view(memory.as_dtype(spec.dtype))
        return foreign.ndarray(np.lib.stride_tricks.as_strided(flat_host[spec.start :], spec.shape, spec.strides))

    def _maker(self, shape: tuple[int, ...], dtype: str, number: int) -> Callable[[], Any]:
        steps = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        spec = Spec(dtype, shape, tuple(steps))
        size = max(int(np.prod(shape)) * spec.itemsize, 16)
        return lambda: self._over(self._memory(-(-size // 16) * 16), spec)

    def _arena(self, way: str, key: tuple[int, int, str]) -> DeviceArray:
        made = self._arenas.get((way, key))
        if made is None:
            host = self._hosts[way, key] = self._memory(ARENA)
            host[:] = self._contents(key)
            context = self.world.devices[0].context
            stream = self.world.devices[0].default_stream
            made = self._arenas[way, key] = makers.over(context, stream, host.ctypes.data, (ARENA,), np.uint8)
        return made

    def array(self, way: str, spec: Spec) -> Any:
        arena = self._arena(way, spec.arena)
        if way == "plain":
            strides = spec.strides
            if layout.is_contiguous(spec.shape, strides, spec.itemsize):  # strides of axes of length 1 are ignored
                strides = layout.contiguous(spec.shape, spec.itemsize)
            steps = tuple(stride // spec.itemsize for stride in strides)
            return super().array(way, replace(spec, form="", steps=steps))
        made: Any = self._arrays.get((way, spec))
        if made is not None:
            return made
        made = self._over(self._hosts[way, spec.arena], spec)
        assert arena.allocation.open
        if spec.form == "roaming":
            return self._replaced(way, spec, made)
        if spec.form:
            made = self._as(made, spec.form)
        self._arrays[way, spec] = made
        return made

    def _replaced(self, way: str, spec: Spec, now: Any) -> Any:
        """Return the one object per dtype and way, with the memory, shape and strides of `now`."""
        known = self._roaming.setdefault((way, spec.dtype, spec.copy), now)
        if known is now:
            return known
        if self.library == "torch":
            if spec.start % 2:
                known.data = now
            else:
                known.set_(now)
        else:
            known.data, known.shape, known.strides = now.data, now.shape, now.strides
        return known

    @staticmethod
    def _as(tensor: Any, form: str) -> Any:
        import torch

        if form == "negated":
            return torch._neg_view(tensor)
        if form == "parameter":
            return torch.nn.Parameter(tensor, requires_grad=False)
        return tensor.as_subclass(_subclass(torch))

    # Calls

    def ready(self, call: Call) -> bool:
        # tensors have no negative strides
        return self.library != "torch" or all(step >= 0 for spec in call.arrays for step in spec.steps)

    def next_stream(self) -> None:
        """Make another stream the library's current one."""
        streams = self._streams[0]
        self.current = streams[1 - streams.index(self.current)]

    def _usual(self, device: cudakit.Device) -> Any:
        return self.current

    def _front(self, way: str, call: Call, stream: Any) -> Outcome:
        self._recorded.clear()
        outcome = super()._front(way, call, stream)
        outcome.recorded = list(self._recorded)
        return outcome

    def _plain(self, call: Call, stream: Any) -> Outcome:
        if any(spec.form == "negated" for spec in call.arrays):
            return Outcome(error=("ValueError", "as the front door has it"))
        return super()._plain(call, stream)

    def _look(self, array: Any) -> Any:
        if self.library == "torch" and not isinstance(array, DeviceArray):
            strides = tuple(step * array.itemsize for step in array.stride()) if array.numel() else ()
            host = array.contiguous().view(-1).view(_torch_bytes()) if array.numel() else None
            return (
                tuple(array.shape),
                strides,
                np.dtype(_dtype_of(array)),
                b"" if host is None else host.numpy().tobytes(),
            )
        if not isinstance(array, DeviceArray):
            return array.shape, array.strides if array.host.size else (), array.dtype, array.host.tobytes()
        return array.shape, array.strides if array.size else (), array.dtype, array.numpy().tobytes()

    def close(self) -> None:
        super().close()
        self._stack.close()


def _torch_bytes() -> Any:
    import torch

    return torch.uint8


def _dtype_of(tensor: Any) -> np.dtype[Any]:
    return memory.as_dtype(str(tensor.dtype).removeprefix("torch."))


_subclasses: dict[Any, Any] = {}


def _subclass(torch: Any) -> Any:
    if torch not in _subclasses:
        _subclasses[torch] = type("Subclass", (torch.Tensor,), {})
    return _subclasses[torch]
