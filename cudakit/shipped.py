"""Kernels that `cudakit export` wrote, loaded without a compiler.

    kernels = cudakit.load("out", device)
    kernels["tiled<16, 8>"].launch(stream, grid=8, block=256, args=(x, y, n))

The folder's manifest, `NAME.json`, lists the images and the kernels; `Manifest` is its form in Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cudakit.compile.compiler import Resources
from cudakit.device import Device
from cudakit.errors import CudakitError, Refused
from cudakit.launch.kernel import Kernel
from cudakit.launch.module import Module, ObjectCode, UnknownName

FORMAT = "cudakit export 1"

# Architectures --------------------------------------------------------------------------------------------------------

_ARCHITECTURE = re.compile(r"sm_(\d{2,3})([af]?)")


def expect_architecture(arch: str) -> str:
    """`arch`, such as "sm_80" or "sm_90a". Raises Refused if it is not the name of an architecture."""
    if not _ARCHITECTURE.fullmatch(arch):
        raise Refused(f"{arch!r} is not an architecture: write sm_80, sm_90a, ...")
    return arch


def order(arch: str) -> tuple[int, str]:
    """The sort key of architectures: "sm_90a" is (90, "a")."""
    match = _ARCHITECTURE.fullmatch(arch)
    return (int(match[1]), match[2]) if match else (0, "")


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether machine code for `arch` runs on a device of that compute capability: the major number must be the same
    and the minor number not later; with "a", both must be the same."""
    number, kind = order(arch)
    major, minor = divmod(number, 10)
    return major == capability[0] and (minor == capability[1] if kind == "a" else minor <= capability[1])


def forward_compatible(architectures: Iterable[str]) -> str | None:
    """The latest architecture whose PTX every later device can compile: one without a letter. None if there is none."""
    return max((arch for arch in architectures if not order(arch)[1]), key=order, default=None)


def compiles_for(arch: str, capability: tuple[int, int]) -> bool:
    """Whether the PTX of `arch` can be compiled for that device."""
    return runs_on(arch, capability) if order(arch)[1] else divmod(order(arch)[0], 10) <= capability


# The manifest ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShippedImage:
    """One source's files. ptx: file names by architecture. jit: the architecture whose PTX is in the fat binary, or
    None. declarations: the kernels' parameter lists, which the names of parameters are read from."""

    source: str
    fatbin: str
    architectures: tuple[str, ...]
    jit: str | None
    ptx: Mapping[str, str]
    declarations: str
    provenance: tuple[str, ...]


@dataclass(frozen=True)
class ShippedKernel:
    """One kernel. image: the number of its image. resources: what ptxas reported, by architecture."""

    name: str
    mangled: str
    signature: str
    image: int
    resources: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Manifest:
    """The contents of an export. files: the sha256 of every file that it wrote, by name, except its own."""

    name: str
    cudakit: str
    architectures: tuple[str, ...]
    images: tuple[ShippedImage, ...]
    kernels: tuple[ShippedKernel, ...]
    files: Mapping[str, str]

    def text(self) -> str:
        """The manifest as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest at `path`. Raises Refused if it is not one."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        images = tuple(
            ShippedImage(
                **{**one, "architectures": tuple(one["architectures"]), "provenance": tuple(one["provenance"])}
            )
            for one in said.pop("images")
        )
        kernels = tuple(ShippedKernel(**one) for one in said.pop("kernels"))
        return Manifest(**{**said, "architectures": tuple(said["architectures"]), "images": images, "kernels": kernels})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(
            f"{path} is not the manifest of an export ({type(error).__name__}: {error}): export again"
        ) from error


def find_manifest(folder: str | os.PathLike[str]) -> Path:
    """The manifest in `folder`, or `folder` itself if it is one. Raises Refused if there is none, or several."""
    path = Path(folder)
    if path.is_file():
        return path
    found = manifests(path)
    if len(found) != 1:
        there = ", ".join(str(one) for one in found)
        raise Refused(
            f"{path} has several exports: pass the path of one of {there}"
            if found
            else f"{path} has no export: write one with cudakit export FILE.cu -o {path}"
        )
    return found[0]


def manifests(folder: Path) -> list[Path]:
    """The manifests in a folder, by name."""
    return sorted(one for one in folder.glob("*.json") if _is_manifest(one)) if folder.is_dir() else []


def _is_manifest(path: Path) -> bool:
    try:
        return f'"format": "{FORMAT}"' in path.read_text(encoding="utf-8")[:200]
    except (OSError, UnicodeDecodeError):
        return False


# Loading --------------------------------------------------------------------------------------------------------------


class ShippedKernels(Mapping[str, Kernel]):
    """The kernels of an export on one device: a mapping by name expression or C++ name, returned by `load`.

    Attributes:
        manifest: The contents of the export.
        device: The device.
    """

    def __init__(self, manifest: Manifest, folder: Path, device: Device) -> None:
        self.manifest = manifest
        self.device = device
        self._folder = folder
        self._modules: dict[int, Module] = {}
        usable = [self._usable(image) for image in manifest.images]
        if not any(usable):
            raise CudakitError(self._none_fits())
        self._images = {number for number, fits in enumerate(usable) if fits}
        self._kernels = {one.name: one for one in manifest.kernels if one.image in self._images}

    def __repr__(self) -> str:
        return f"ShippedKernels({self.manifest.name!r}, {self.device.context.spec!r}: {', '.join(self)})"

    def __len__(self) -> int:
        return len(self._kernels)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __getitem__(self, name: str) -> Kernel:
        known = self._kernels.get(name) or self._respelled(name)
        if known is None:
            raise UnknownName(f"{self.manifest.name} has no kernel {name!r}; it has: {', '.join(self._kernels)}")
        return self._module(known.image)[known.mangled]

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules of the images with code for the device."""
        return tuple(self._module(number) for number in sorted(self._images))

    def close(self) -> None:
        """Unload the modules. Idempotent."""
        for module in self._modules.values():
            module.close()

    def __enter__(self) -> ShippedKernels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _respelled(self, name: str) -> ShippedKernel | None:
        """The kernel whose name differs only in spaces."""
        compact = {re.sub(r"\s", "", known): one for known, one in self._kernels.items()}
        return compact.get(re.sub(r"\s", "", name))

    def _usable(self, image: ShippedImage) -> bool:
        capability = self.device.context.compute_capability
        if self.device.kind == "sim":
            return self._ptx(image) is not None
        fits = any(runs_on(arch, capability) for arch in image.architectures)
        return fits or (image.jit is not None and compiles_for(image.jit, capability))

    def _ptx(self, image: ShippedImage) -> str | None:
        """The architecture of an image's PTX for this device, the latest that it can run; None if there is none."""
        plain = not order(self.device.arch)[1]  # a simulated device may lack the instructions of sm_90a
        fitting = [
            arch
            for arch in image.ptx
            if compiles_for(arch, self.device.context.compute_capability) and not (plain and order(arch)[1])
        ]
        return max(fitting, key=order, default=None)

    def _none_fits(self) -> str:
        name, context = self.manifest.name, self.device.context
        built = ", ".join(self.manifest.architectures)
        if self.device.kind == "sim" and not any(image.ptx for image in self.manifest.images):
            return (
                f"{name} was exported without PTX, and {context.spec} runs only PTX: export it again without --no-ptx"
            )
        major, minor = self.device.context.compute_capability
        return (
            f"{name} was exported for {built}, and {context.spec} is sm_{major}{minor}: "
            f"export it again with --arch {built.replace(' ', '')},{self.device.arch}"
        )

    def _read(self, name: str) -> bytes:
        """Return the content of a file of the export. Raises Refused if the file was changed or cannot be read."""
        path = self._folder / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Refused(f"{path} cannot be read ({error.strerror}): export again") from error
        if hashlib.sha256(content).hexdigest() != self.manifest.files[name]:
            raise Refused(f"{path} is not the file that was exported with {self.manifest.name}.json: export again")
        return content

    def _module(self, number: int) -> Module:
        module = self._modules.get(number)
        if module is None:
            image = self.manifest.images[number]
            ptx = self._ptx(image)
            fatbin = self._folder / image.fatbin
            arch = ptx or next(
                (one for one in image.architectures if runs_on(one, self.device.context.compute_capability)), ""
            )
            mine = [one for one in self.manifest.kernels if one.image == number]
            code = ObjectCode(
                str(fatbin),
                ptx=self._read(image.ptx[ptx]).decode() if ptx else "",
                cubin=b"" if self.device.kind == "sim" else self._read(image.fatbin),
                source=image.declarations,
                lowered={one.name: one.mangled for one in mine},
                resources={one.mangled: Resources(**one.resources[arch]) for one in mine if arch in one.resources},
            )
            module = self._modules[number] = Module(self.device.context, code)
            self.device.context.own.add(module)
        return module


def load(folder: str | os.PathLike[str], device: Device | None = None) -> ShippedKernels:
    """Load the kernels of a folder that `cudakit export` wrote, without a compiler.

    Launches are checked against the signatures of the original kernels. A GPU loads the machine code for its
    architecture, or the PTX if the GPU is newer; the simulated device loads the PTX.

    Args:
        folder: The folder, or the manifest in it.
        device: The device; `Device()` if None.

    Raises:
        Refused: If there is no export.
        CudakitError: If it has no code for the device.
    """
    path = find_manifest(folder)
    return ShippedKernels(read_manifest(path), path.parent, device if device is not None else Device())
