"""A bare simulated device for the tests of `cudakit.sim`: NVRTC, a module and an address space, without a driver."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cuda import pathfinder
from cuda.bindings import nvrtc

from cudakit.sim.chips.properties import chip
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.machine.launch import launch
from cudakit.sim.machine.loading import LoadedModule

CHECKS = frozenset({"barrier", "syncthreads", "warp"})
ALL_CHECKS = CHECKS | {"race", "init"}


def _check(result):
    code, *values = result
    if int(code):
        raise RuntimeError(f"NVRTC: {code}")
    return values[0] if values else None


def _text(program, what):
    # NVRTC writes into the buffer, and Python may share a bytes object
    buffer = bytearray(_check(getattr(nvrtc, f"nvrtcGet{what}Size")(program)))
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.rstrip(b"\0").decode()


@lru_cache
def compile_ptx(source, name="test.cu", arch="sm_90a", options=()):
    folders = {pathfinder.find_nvidia_header_directory(library) for library in ("cudart", "cccl")}
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "-lineinfo", *options, *(f"-I{f}" for f in folders if f)]
    program = _check(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    (code,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
    if int(code):
        raise RuntimeError(_text(program, "ProgramLog"))
    return _text(program, "PTX")


class SimDevice:
    """Compiles a source (or loads PTX) and launches its kernels by name on numpy arrays, in place."""

    def __init__(self, source, *, name="test.cu", ptx=False, options=()):
        self.space = AddressSpace()
        text = source if ptx else compile_ptx(source, name, options=options)
        # NVRTC makes the program's name an absolute path
        self.module = LoadedModule(text, self.space, lambda file: source if file.endswith(f"/{name}") else None)
        self.printed = []

    def kernel(self, name):
        found = [f for n, f in self.module.functions.items() if n == name or f"{len(name)}{name}" in n]
        assert len(found) == 1, f"{name}: {list(self.module.functions)}"
        return found[0]

    def upload(self, array):
        allocation = self.space.allocate(max(array.nbytes, 1), "device", "by the test")
        allocation.data[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
        allocation.define()
        return allocation

    def launch(self, name, grid, block, *args, shared=0, checks=CHECKS, **more):
        """Launch a kernel. Arrays are copied to the device and back; ints and floats take the parameter's width."""
        function = self.kernel(name)
        params, arrays = [], []
        assert len(args) == len(function.params)
        for value, (_, size) in zip(args, function.params, strict=True):
            if isinstance(value, np.ndarray):
                allocation = self.upload(value)
                arrays.append((value, allocation))
                value = allocation.address
            if isinstance(value, int):
                value = (value % (1 << 8 * size)).to_bytes(size, "little")
            elif isinstance(value, float):
                value = np.array(value, f"f{size}").tobytes()
            params.append(value)
        try:
            return launch(
                function,
                _three(grid),
                _three(block),
                shared,
                params,
                chip=chip("sm_90a"),
                checks=checks,
                printf=self.printed.append,
                **more,
            )
        finally:
            for array, allocation in arrays:
                array[...] = allocation.data[: array.nbytes].view(array.dtype).reshape(array.shape)
                self.space.free(allocation.address, "by the test")


class CheckedDevice(SimDevice):
    """A device with every check enabled."""

    def launch(self, *args, **more):
        return super().launch(*args, **{"checks": ALL_CHECKS, **more})


def _three(value):
    value = value if isinstance(value, tuple) else (value,)
    return value + (1,) * (3 - len(value))
