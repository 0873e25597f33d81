"""The folder of an export: its files, and the existing files that may be replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudakit.errors import Refused
from cudakit.export import example, header, identifiers
from cudakit.export.samples import Sample
from cudakit.export.sources import Bundle, Image
from cudakit.launch.mangling import demangle
from cudakit.shipped import Manifest, ShippedImage, ShippedKernel, manifests, read_manifest
from cudakit.show import outputs


def contents(
    bundle: Bundle,
    version: str,
    samples: Sequence[Sample] = (),
    reasons: Mapping[int, str] | None = None,
    *,
    ptx: bool = True,
) -> dict[str, bytes]:
    """Return the contents of all files of an export, by name. Equal bundles produce identical bytes.

    version: cudakit's version. samples: the launches of the example. reasons: why the example does not launch an entry,
    by the entry's number. ptx: whether to include PTX, for the simulated device.
    """
    prefix = identifiers.identifier(bundle.name)
    banner = [f"{prefix}.h: launchers of kernels, written by cudakit {version}.", "", *_provenance(bundle)]
    files = {f"{prefix}.h": header.text(bundle, banner).encode()}
    banner = [f"example.cpp: launches the kernels of {prefix}.h. Written by cudakit {version}.", ""]
    program, data = example.text(bundle, [*banner, *_provenance(bundle)], samples, reasons or {})
    files |= {"example.cpp": program.encode(), "example.data": data}
    images = []
    for number, image in enumerate(bundle.images):
        files[header.fatbin_name(image)] = image.fatbin
        texts = {arch: f"{image.stem}.{arch}.ptx" for arch in image.compiled} if ptx else {}
        files |= {name: image.compiled[arch].ptx.encode() for arch, name in texts.items()}
        images.append(_shipped(bundle, number, image, texts))
    manifest = Manifest(
        prefix,
        version,
        bundle.architectures,
        tuple(images),
        tuple(
            ShippedKernel(
                one.name, one.mangled, one.text, one.image, {arch: vars(needs) for arch, needs in one.resources.items()}
            )
            for one in bundle.entries
        ),
        {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    )
    return files | {f"{prefix}.json": manifest.text().encode()}


def _provenance(bundle: Bundle) -> list[str]:
    """Return lines that list the compiled sources and state the licence of the generated files."""
    lines = [
        "This file is cudakit's under the Apache License 2.0; the kernels are under the licence of their sources:",
        "",
    ]
    return lines + [line for image in bundle.images for line in image.facts]


def _shipped(bundle: Bundle, number: int, image: Image, texts: Mapping[str, str]) -> ShippedImage:
    declarations = []
    for one in bundle.entries:
        if one.image == number:
            known = demangle(one.mangled)
            base = (one.mangled if known is None else known.base).rpartition("::")[2]
            parameters = ", ".join(f"int {parameter.name}".strip() for parameter in one.parameters)
            declarations.append(f"__global__ void {base}({parameters});")
    return ShippedImage(
        image.source.label,
        header.fatbin_name(image),
        tuple(image.compiled),
        image.jit,
        texts,
        "\n".join(dict.fromkeys(declarations)),
        image.facts,
    )


def write(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> list[Path]:
    """Write the files of an export to `folder`, which is made if needed. Unmodified files of an earlier export of the
    same name are replaced, or removed if this export has no such file. Returns the paths written.

    Raises Refused, before anything is written, for other existing files, unless `force` is set.
    """
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file: name a folder")
    manifest = next(name for name in files if name.endswith(".json"))
    old = _earlier(folder, manifest)
    foreign = [name for name in files if (folder / name).exists() and name not in old]
    if foreign and not force:
        raise Refused(
            f"{folder} has {', '.join(foreign)}, which export did not write or which have changed since: name another "
            "folder, or replace them with --force"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be created: {outputs.reason(error)}") from error
    for name in old - set(files):
        (folder / name).unlink()
    for name, content in files.items():
        outputs.write_file(folder / name, content)
    return [folder / name for name in files]


def _earlier(folder: Path, name: str) -> set[str]:
    """The unchanged files of the earlier export with the manifest `name`, and `name` itself."""
    found = [path for path in manifests(folder) if path.name == name]
    if not found:
        return set()
    unchanged = {name}
    for file, digest in read_manifest(found[0]).files.items():
        path = folder / file
        # export writes no file in a subfolder
        if Path(file).name == file and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            unchanged.add(file)
    return unchanged
