"""The PTX of a GPU's run, stored so that the simulated device runs the code that was measured: another NVRTC may
compile the same source to different PTX."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cudakit.compile import compiler
from cudakit.compile.compiler import Resources
from cudakit.device import Device
from cudakit.launch.kernel import Kernel
from cudakit.launch.module import Module

# Source locations: not needed for counts, and they contain paths of one machine.
_PLACES = re.compile(r"^\s*\.(?:loc|file)\b.*\n", re.MULTILINE)
_DEBUG = re.compile(r"^\s*\.section\s+\.debug_\w+\s*\{.*?\}\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Compiled:
    """A kernel of a variant: its name in PTX, the PTX, and its resources by ptxas."""

    mangled: str
    ptx: str
    resources: Resources

    def module(self, device: Device, name: str) -> Module:
        """Return the module with the kernel, on the simulated device."""
        resources = {self.mangled: self.resources}
        found = compiler.Compiled(b"", self.ptx, {}, "", (), resources, device.arch, (0, 0), name, "")
        return Module(device.context, found)


Kernels = dict[tuple[str, str], Compiled]


def _kept(device: Device) -> list[tuple[Any, Kernel]]:
    """Return the kernels that a device has cached for launches, with their keys: (source, entry, macros)."""
    pairs = ((key, value[1]) for key, value in device.kept.items() if isinstance(value, tuple) and len(value) == 2)
    return [(key, kernel) for key, kernel in pairs if isinstance(kernel, Kernel)]


def kernels(device: Device) -> Kernels:
    """Return every kernel of the ops that the device has compiled, by source and entry."""
    return {
        key[:2]: Compiled(kernel.mangled, _DEBUG.sub("", _PLACES.sub("", kernel.module.ptx)), kernel.resources)
        for key, kernel in _kept(device)
    }


class _Loading(dict[Any, Any]):
    """A device's cache in which stored kernels are loaded at the first request."""

    def __init__(self, device: Device, found: Kernels) -> None:
        super().__init__(device.kept)
        self._device, self._found = device, found

    def get(self, key: Any, default: Any = None) -> Any:
        kernel = self._found.get(key[:2]) if isinstance(key, tuple) else None  # our ops define no macros
        if kernel is not None and key not in self:
            self[key] = None, kernel.module(self._device, key[0])[kernel.mangled]  # None: the file does not change
        return super().get(key, default)


def use(device: Device, found: Kernels) -> None:
    """Make the ops on this device launch this code instead of compiling their own."""
    device.kept = _Loading(device, found)


def write(found: Kernels, path: Path) -> None:
    rows = [[*key, kernel.mangled, asdict(kernel.resources), kernel.ptx] for key, kernel in sorted(found.items())]
    path.write_bytes(lzma.compress(json.dumps(rows).encode()))


def read(path: Path) -> Kernels:
    rows = json.loads(lzma.decompress(path.read_bytes()))
    return {
        (source, entry): Compiled(mangled, ptx, Resources(**resources))
        for source, entry, mangled, resources, ptx in rows
    }
