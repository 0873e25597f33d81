"""The PTX that a GPU's counts belong to, kept so that the simulated device runs the very code that was measured:
another NVRTC may make other PTX of the same source."""

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

# Where code came from: of no use to a count, and full of one machine's paths.
_PLACES = re.compile(r"^\s*\.(?:loc|file)\b.*\n", re.MULTILINE)
_DEBUG = re.compile(r"^\s*\.section\s+\.debug_\w+\s*\{.*?\}\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Compiled:
    """A kernel of a rung: its name in PTX, the PTX, and what ptxas says that it takes."""

    mangled: str
    ptx: str
    resources: Resources

    def module(self, device: Device, name: str) -> Module:
        """It on the simulated device."""
        resources = {self.mangled: self.resources}
        found = compiler.Compiled(b"", self.ptx, {}, "", (), resources, device.arch, (0, 0), name, "")
        return Module(device.context, found)


Kernels = dict[tuple[str, str], Compiled]


def _kept(device: Device) -> list[tuple[Any, Kernel]]:
    """What a device keeps of launches' kernels: by source, entry and macros, next to the state of the source."""
    pairs = ((key, value[1]) for key, value in device.kept.items() if isinstance(value, tuple) and len(value) == 2)
    return [(key, kernel) for key, kernel in pairs if isinstance(kernel, Kernel)]


def kernels(device: Device) -> Kernels:
    """Every kernel of the ops that the device has compiled, by source and entry."""
    return {
        key[:2]: Compiled(kernel.mangled, _DEBUG.sub("", _PLACES.sub("", kernel.module.ptx)), kernel.resources)
        for key, kernel in _kept(device)
    }


class _Loading(dict[Any, Any]):
    """What a device keeps, with kernels that are loaded when they are first asked for."""

    def __init__(self, device: Device, found: Kernels) -> None:
        super().__init__(device.kept)
        self._device, self._found = device, found

    def get(self, key: Any, default: Any = None) -> Any:
        kernel = self._found.get(key[:2]) if isinstance(key, tuple) else None  # our ops define no macros
        if kernel is not None and key not in self:
            self[key] = None, kernel.module(self._device, key[0])[kernel.mangled]  # None: of a file that is not edited
        return super().get(key, default)


def use(device: Device, found: Kernels) -> None:
    """Has the ops on this device launch this code in place of what they would compile."""
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
