"""A recorded launch on a device: its module, its memory with the recorded contents, and its arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from cudakit.compile.compiler import Compiled
from cudakit.device import Device
from cudakit.driver import tensor_maps
from cudakit.launch.function import LaunchOptions
from cudakit.launch.kernel import Kernel
from cudakit.launch.module import Module, ObjectCode
from cudakit.memory import tensor_map
from cudakit.memory.allocation import Allocation
from cudakit.recording import memory, rebuilding
from cudakit.recording.file import RecordingError
from cudakit.recording.launches import Link, RecordedLaunch, SavedLaunches, State
from cudakit.recording.memory import Bytes, Contents

_ALIGNMENT = 256  # bytes: addresses keep their remainder, so that misaligned accesses are repeated
_MOST_PIECES = 4096  # copies of the initialised parts of a region; with more parts it is copied whole
_CARVEOUT = "CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT"


@dataclass
class Loaded:
    """A launch whose memory is on a device. addresses: of the regions."""

    device: Device
    recording: SavedLaunches
    launch: RecordedLaunch
    kernel: Kernel
    addresses: list[int]

    def linked(self, data: Bytes, links: tuple[Link, ...]) -> Bytes:
        """Return bytes with their pointers changed to this device's memory."""
        if not links:
            return data
        data = data.copy()
        for at, region, offset in links:
            word = (self.addresses[region] + offset).to_bytes(memory.WORD, "little")
            data[at : at + memory.WORD] = np.frombuffer(word, np.uint8)
        return data

    def recorded(self, number: int, state: State) -> Contents:
        """Return the recorded contents of a region, with its pointers changed to this device's memory."""
        region = self.launch.regions[number]
        data = self.linked(self.recording.memory(region, state), state.links)
        return Contents(data, self.recording.undefined(region, state))

    def contents(self, number: int) -> Contents:
        """Return the contents of a region on the device now."""
        return memory.reading(self.device.context)(self.addresses[number], self.launch.regions[number].size)

    def run(self) -> None:
        """Launch the kernel and wait for it. Raises the launch's error, or RecordingError if the file is damaged."""
        launch, kernel, context = self.launch, self.kernel, self.device.context
        sizes = [one.size for one in kernel.parameters]
        # the driver reads the arguments from these places, whatever is there; a GPU's may begin after 0
        fits = len(launch.offsets) == len(sizes) and all(
            offset + size <= len(launch.packed) for offset, size in zip(launch.offsets, sizes, strict=True)
        )
        if not fits:
            raise RecordingError(
                f"its arguments do not fit the {len(sizes)} parameters of its kernel: the file is damaged, record again"
            )
        packed = bytearray(self.linked(np.frombuffer(launch.packed, np.uint8), launch.links).tobytes())
        for one in launch.maps:
            shape = (one.dims, one.strides, one.box, one.element_strides)
            fields = tensor_maps.described(one.data_type, self.addresses[one.region] + one.offset, *shape, *one.modes)
            try:
                data = tensor_map.encoded(context, fields)
            except (ValueError, OverflowError) as error:  # of a number without meaning
                raise RecordingError(f"its tensor map is damaged ({error}); record again") from error
            packed[one.at : one.at + tensor_map.SIZE] = data
        # CUtensorMap parameters are read at multiples of 64 bytes
        buffer = (ctypes.c_uint8 * (len(packed) + 64))()
        base = -(-ctypes.addressof(buffer) // 64) * 64
        ctypes.memmove(base, bytes(packed), len(packed))
        pointers = (ctypes.c_void_p * max(len(launch.offsets), 1))(*(base + offset for offset in launch.offsets))
        config = kernel.config(launch.grid, launch.block, launch.shared)
        options = LaunchOptions(launch.cluster, launch.cooperative)
        stream = self.device.default_stream
        if options.plain:
            result = kernel.sender(config)(stream.handle, ctypes.addressof(pointers), 0)
            context.check("cuLaunchKernel", result)
        else:
            kernel.send_extended(kernel.extended_config(config, options), stream, ctypes.addressof(pointers), ())
        context.synchronize()


class Loader:
    """Loads launches of a recording on a device; modules are kept from launch to launch.

    say: if not None, modules are compiled again with their variables, for a debugger; it is called with the reason if
    that is not possible.
    """

    def __init__(self, recording: SavedLaunches, device: Device, say: Callable[[str], object] | None = None) -> None:
        self.recording, self.device, self._say = recording, device, say
        self._modules: dict[str, Module] = {}

    def close(self) -> None:
        """Unload the modules. The device is usable afterwards."""
        for module in self._modules.values():
            module.close()
        self._modules.clear()

    @contextmanager
    def loaded(self, launch: RecordedLaunch) -> Iterator[Loaded]:
        """Put the memory of a launch, as it was before the launch, on the device for the block.

        Raises RecordingError if the launch cannot be replayed, or not on this device.
        """
        if launch.refusals:
            raise RecordingError(f"it cannot be replayed: {launch.refusals[0]}")
        context = self.device.context
        module = self._module(launch)
        kernel = module[launch.mangled]
        for name, value in (("STACK_SIZE", launch.stack), ("MALLOC_HEAP_SIZE", launch.heap)):
            if context.limit(name) != value:
                context.set_limit(name, value)
        if launch.carveout >= 0:
            attribute = getattr(context.driver.CUfunction_attribute, _CARVEOUT)
            context.call("cuFuncSetAttribute", kernel.handle, attribute, launch.carveout)
        allocations: list[Allocation] = []
        try:
            addresses = []
            for region in launch.regions:
                if region.variable:
                    pointer, size = context.call("cuModuleGetGlobal", module.handle, region.variable.encode())
                    if int(size) != region.size:
                        raise RecordingError(
                            f"{region.variable} has {int(size)} bytes on {context.spec}, and {region.size} were "
                            "recorded; replay on the recorded architecture"
                        )
                    addresses.append(int(pointer))
                    continue
                before = region.address % _ALIGNMENT
                made = Allocation.unordered(context, self.device.default_stream, region.size + before)
                allocations.append(made)
                addresses.append(made.pointer + before)
            loaded = Loaded(self.device, self.recording, launch, kernel, addresses)
            for number, state in enumerate(launch.before):
                self._fill(addresses[number], loaded.recorded(number, state))
            yield loaded
        finally:
            for allocation in allocations:
                allocation.close()

    def _module(self, launch: RecordedLaunch) -> Module:
        module = self._modules.get(launch.module)
        if module is None:
            code, context = self.recording.module(launch), self.device.context
            arch = self.recording.device.get("arch", "")
            cubin = code.cubin if self.device.kind == "gpu" and self.device.arch == (code.arch or arch) else b""
            if not (cubin or code.ptx):
                raise RecordingError(f"its module has machine code for {arch} and no PTX; replay it on such a GPU")
            made: Compiled | ObjectCode = ObjectCode(
                code.name, code.ptx, cubin, source=code.source, resources=code.resources
            )
            files = code.files
            if self._say is not None:
                try:
                    made = rebuilding.with_variables(code, self.device.arch, launch.mangled)
                except RecordingError as error:
                    self._say(f"no variables in {launch.kernel}, only lines and registers: {error}")
                else:
                    files = {**files, **(code.build.headers if code.build else {})}
            if self.device.kind == "sim":
                for name, text in files.items():
                    context.driver.simSource(name, text)
            module = self._modules[launch.module] = Module(context, made)
            context.own.add(module)
        return module

    def _fill(self, address: int, contents: Contents) -> None:
        """Copy bytes to the device, without those that were never written."""
        context, data = self.device.context, np.ascontiguousarray(contents.data)
        pieces = [(0, len(data))]
        if contents.undefined is not None and context.kind == "sim":
            edges = np.flatnonzero(np.diff(np.concatenate([[True], contents.undefined, [True]]).astype(np.int8)))
            parts = [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
            pieces = parts if len(parts) <= _MOST_PIECES else pieces
        for begin, end in pieces:
            context.call("cuMemcpyHtoD", address + begin, data[begin:end].ctypes.data, end - begin)
